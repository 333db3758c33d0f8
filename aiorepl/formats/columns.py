"""Columns as fragments of an event; the fragments of a relation are prepared once, not for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from aiorepl.errors import DataError
from aiorepl.pgoutput.relations import Column
from aiorepl.pgoutput.tuples import TEXT, UNCHANGED
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.rows import Layout, Raw
from aiorepl.values.codec import Encoder


class Frame(NamedTuple):
    """The bytes around the value of a column.

    :param unchanged: the bytes for a value that was not sent; ``None`` to omit the column.
    """

    before: bytes
    behind: bytes = b""
    unchanged: bytes | None = None


class Columns:
    """The columns of one relation.

    :param frame: what stands around a column.
    :param encoder: from a column and the kind of its bytes, ``t`` or ``b``, what makes the fragment.
    """

    def __init__(
        self, layout: Layout, frame: Callable[[Column], Frame], encoder: Callable[[Column, int], Encoder]
    ) -> None:
        self.layout = layout
        self._frames = [frame(column) for column in layout.relation.columns]
        self._nulls = [each.before + b"null" + each.behind for each in self._frames]
        self._encoder = encoder
        self._encoders: dict[tuple[int, int], Encoder] = {}

    def new(self, change: RowChange) -> list[bytes]:
        """The new row."""
        return self._written(change.raw_new or [], change.new_kinds, self.layout.all)

    def old(self, change: RowChange) -> list[bytes] | None:
        """What was sent of the old row, if anything was."""
        if change.raw_old is None:
            return None
        return self._written(change.raw_old, change.old_kinds, change.old_indexes)

    def key(self, change: RowChange) -> list[bytes]:
        """The replica identity's columns before the change, of an insert of the new row."""
        places = self.layout.relation.key
        if change.raw_old is not None:
            return self._written(change.raw_old, change.old_kinds, places)
        return self._written(change.raw_new or [], change.new_kinds, places)

    def _written(self, columns: list[Raw], kinds: bytes | None, places: Iterable[int]) -> list[bytes]:
        fragments: list[bytes] = []
        for place in places:
            raw = columns[place]
            if raw is None:
                fragments.append(self._nulls[place])
                continue
            before, behind, unchanged = self._frames[place]
            if raw is not UNCHANGED:
                fragments.append(
                    before + self._encode(place, TEXT if kinds is None else kinds[place], raw) + behind
                )
            elif unchanged is not None:
                fragments.append(before + unchanged + behind)
        return fragments

    def _encode(self, place: int, kind: int, raw: bytes) -> bytes:
        encoder = self._encoders.get((place, kind))
        if encoder is None:
            encoder = self._encoders[place, kind] = self._encoder(self.layout.relation.columns[place], kind)
        try:
            return encoder(raw)
        except ValueError as error:
            column = self.layout.relation.columns[place]
            raise DataError(f"{self.layout.relation}.{column.name}: {error}") from None


class Tables:
    """The ``Columns`` of each relation that was seen, as it is described now."""

    def __init__(self, make: Callable[[Layout], Columns]) -> None:
        self._make = make
        self._known: dict[int, Columns] = {}

    def __call__(self, layout: Layout) -> Columns:
        found = self._known.get(layout.relation.oid)
        if found is None or found.layout is not layout:
            found = self._known[layout.relation.oid] = self._make(layout)
        return found
