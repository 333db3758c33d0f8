"""Columns as fragments of an event; the fragments of a relation are prepared once, not for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

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
    after: bytes = b""
    unchanged: bytes | None = None


class Columns:
    """The columns of one relation.

    :param frame: returns the bytes around a column's values.
    :param encoder: returns the encoder for a column and the kind of its bytes, ``t`` or ``b``.
    """

    def __init__(
        self, layout: Layout, frame: Callable[[Column], Frame], encoder: Callable[[Column, int], Encoder]
    ) -> None:
        self.layout = layout
        self._frames = [frame(column) for column in layout.relation.columns]
        self._nulls = [each.before + b"null" + each.after for each in self._frames]
        self._encoder = encoder
        self._encoders: dict[tuple[int, int], Encoder] = {}

    def new(self, change: RowChange) -> list[bytes]:
        """Return the fragments of the new row."""
        return self._fragments(change.raw_new or [], change.new_kinds, self.layout.all)

    def old(self, change: RowChange) -> list[bytes] | None:
        """Return the fragments of the old row's sent columns; ``None`` if no old row was sent."""
        if change.raw_old is None:
            return None
        return self._fragments(change.raw_old, change.old_kinds, change.old_indexes)

    def key(self, change: RowChange) -> list[bytes]:
        """Return the replica identity's columns before the change, or of the new row if no old row was sent."""
        indexes = self.layout.relation.key
        if change.raw_old is not None:
            return self._fragments(change.raw_old, change.old_kinds, indexes)
        return self._fragments(change.raw_new or [], change.new_kinds, indexes)

    def _fragments(self, columns: list[Raw], kinds: bytes | None, indexes: Iterable[int]) -> list[bytes]:
        fragments: list[bytes] = []
        for index in indexes:
            raw = columns[index]
            if raw is None:
                fragments.append(self._nulls[index])
                continue
            before, after, unchanged = self._frames[index]
            if raw is not UNCHANGED:
                fragments.append(
                    before + self._encode(index, TEXT if kinds is None else kinds[index], raw) + after
                )
            elif unchanged is not None:
                fragments.append(before + unchanged + after)
        return fragments

    def _encode(self, index: int, kind: int, raw: bytes) -> bytes:
        encoder = self._encoders.get((index, kind))
        if encoder is None:
            encoder = self._encoders[index, kind] = self._encoder(self.layout.relation.columns[index], kind)
        try:
            return encoder(raw)
        except ValueError as error:
            raise self.layout.relation.column_error(index, error) from None


class TableColumns:
    """Caches the ``Columns`` of each relation, for its latest description."""

    def __init__(self, make: Callable[[Layout], Columns]) -> None:
        self._make = make
        self._known: dict[int, Columns] = {}

    def __call__(self, layout: Layout) -> Columns:
        found = self._known.get(layout.relation.oid)
        if found is None or found.layout is not layout:
            found = self._known[layout.relation.oid] = self._make(layout)
        return found
