"""Rows as users see them: the bytes of a row's columns, read by the types that its layout brings.

Values are read when a column is asked for, so that a row which is only counted, forwarded or filtered costs next to
nothing.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Final

from aiorepl import byteops
from aiorepl.errors import DataError
from aiorepl.pgoutput.relations import Column, Relation
from aiorepl.pgoutput.rows import RowMessage
from aiorepl.pgoutput.tuples import BINARY, TEXT, UNCHANGED, Unchanged
from aiorepl.values.forms import Binary, Form
from aiorepl.values.registry import Types

_TEXT, _BINARY = TEXT, BINARY  # C's own numbers in the compiled form
Raw = bytes | Unchanged | None


class Layout:
    """A relation together with the types of its columns: what it takes to read its tuples."""

    __slots__ = (
        "_binaries",
        "_swelling",
        "_swelling_version",
        "_texts",
        "_version",
        "all",
        "binary",
        "derived",
        "places",
        "relation",
        "types",
    )

    def __init__(self, relation: Relation, types: Types, *, binary: bool = False) -> None:
        self.relation = relation
        self.types = types
        self.binary = binary
        self.places: dict[str, int] = {name: place for place, name in enumerate(relation.names)}
        self.all: Final = tuple(range(len(relation.columns)))
        self.derived: dict[tuple[tuple[str, int], ...], Layout] = {}
        """What it becomes with columns added, by their names and types (``rewriting``)."""
        self._texts: list[Form] = []
        self._binaries: list[Form] = []
        self._version = -1
        self._swelling: list[Binary | None] = []
        self._swelling_version = -1

    def read(self, place: int, raw: bytes, kind: int) -> Any:
        """The Python value of the column at ``place``.

        :raises DataError: naming relation, column and type, when the bytes are not what the type says.
        """
        column = self.relation.columns[place]
        try:
            return self.types.decoder(column.type_oid, kind)(raw)
        except ValueError as error:
            raise DataError(f"{self.relation}.{column.name}: {error}") from None

    def read_all(self, columns: list[Raw], kinds: bytes | None, places: tuple[int, ...]) -> list[Any]:
        """The Python values of the columns at ``places``, in half the time that each by itself takes.

        :raises DataError: as ``read``.
        """
        if self._version != self.types.version:
            self._version = self.types.version
            oids = [column.type_oid for column in self.relation.columns]
            self._texts = [self.types.form(oid, TEXT) for oid in oids]
            self._binaries = [self.types.form(oid, BINARY) for oid in oids]
        values = []
        for place in places:
            raw = columns[place]
            if raw is None or raw is UNCHANGED:
                values.append(raw)
                continue
            kind = _TEXT if kinds is None else kinds[place]
            form = self._texts[place] if kind == _TEXT else self._binaries[place]
            try:
                values.append(form.read(raw))
            except Exception:  # noqa: BLE001 - ``read`` raises it again, and says what it is
                values.append(self.read(place, raw, kind))
        return values

    def expands(self) -> bool:
        """Whether text can be very much longer than what was sent, as far as the types are known."""
        if self.binary and self._swelling_version != self.types.version:
            self._swelling_version = self.types.version
            self._swelling = [self._swelling_form(column) for column in self.relation.columns]
            while self._swelling and self._swelling[-1] is None:
                self._swelling.pop()
        return len(self._swelling) > 0

    def expansion(self, message: RowMessage) -> int:
        """By how much the text of a row, or of both rows, is longer than the message, by what ``expands`` found last."""
        total = self._swelling_of(message.payload, message.new_at) if message.new_at else 0
        if message.old_kind:
            total += self._swelling_of(message.payload, message.old_at)
        return total

    def _swelling_of(self, payload: bytes, position: int) -> int:
        data: Any = payload  # a pointer in the compiled form
        size = len(payload)
        position += 2
        total = 0
        for place in range(len(self._swelling)):
            if position >= size:
                break
            kind = data[position]
            if kind != _TEXT and kind != _BINARY:
                position += 1
                continue
            start = position + 5
            if start > size:
                break
            position = start + byteops.uint32(data, position + 1)
            if position > size:
                break
            if kind == _BINARY and self._swelling[place] is not None:
                form: Any = self._swelling[place]
                total += form.expansion(payload, start, position)
        return total

    def _swelling_form(self, column: Column) -> Binary | None:
        # A numeric that is declared with a precision has no more digits than that.
        form = self.types.form(column.type_oid, BINARY) if column.type_modifier < 0 else None
        return form if isinstance(form, Binary) and form.expands() else None


class Layouts:
    """The layout of each relation as it was described last, by the same types. A function of the relation."""

    __slots__ = ("_known", "_version", "binary", "types")

    def __init__(self, types: Types, *, binary: bool = False) -> None:
        self.types = types
        self.binary = binary
        self._known: dict[int, Layout] = {}
        self._version = -1

    def of(self, relation: Relation) -> Layout:
        """The relation's."""
        layout = self._known.get(relation.oid)
        if layout is None or layout.relation is not relation:
            layout = self._known[relation.oid] = Layout(relation, self.types, binary=self.binary)
            layout.expands()
        return layout

    def __call__(self, relation: Relation) -> Layout:
        return self.of(relation)

    def refresh(self) -> None:
        """Types may have become known since."""
        if self.binary and self._version != self.types.version:
            self._version = self.types.version
            for layout in self._known.values():
                layout.expands()


class _Columns:
    """Of a row what is C's in the compiled form, so that one is made in 0.15 µs, not in 0.26."""

    __slots__ = ("_columns", "_kinds", "_layout", "_places")

    def __init__(
        self, layout: Layout, columns: list[Raw], kinds: bytes | None, places: tuple[int, ...] | None = None
    ) -> None:
        self._layout = layout
        self._columns = columns
        self._kinds = kinds
        self._places = layout.all if places is None else places

    def read_all(self) -> list[Any]:
        """The values, in the order of the columns."""
        return self._layout.read_all(self._columns, self._kinds, self._places)

    def __getitem__(self, name: str) -> Any:
        place = self._layout.places[name]
        if place not in self._places:
            raise KeyError(name)
        raw = self._columns[place]
        if raw is None or raw is UNCHANGED:
            return raw
        return self._layout.read(place, raw, TEXT if self._kinds is None else self._kinds[place])

    def __contains__(self, name: object) -> bool:
        # Mapping's own would read the value to find out.
        return self._layout.places.get(name, -1) in self._places  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[str]:
        names = self._layout.relation.names
        return (names[place] for place in self._places)

    def __len__(self) -> int:
        return len(self._places)

    def values(self) -> ValuesView[Any]:
        return _Values(self)

    def items(self) -> ItemsView[str, Any]:
        return _Items(self)

    def __repr__(self) -> str:
        return f"<Row of {self._layout.relation}, {len(self)} columns>"


class Row(_Columns, Mapping[str, Any]):
    """Column names to values, read when asked for. NULL is ``None``; what was not sent is ``UNCHANGED``.

    :raises KeyError: for a column that the row does not have (an old key has only the key's columns).
    """

    __slots__ = ()


class _Values(ValuesView[Any]):
    """A row's values; walked, they are read together."""

    _mapping: _Columns

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping.read_all())


class _Items(ItemsView[str, Any]):
    """A row's names and values; walked, the values are read together."""

    _mapping: _Columns

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return zip(self._mapping, self._mapping.read_all(), strict=True)
