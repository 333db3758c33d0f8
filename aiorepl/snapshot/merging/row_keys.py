"""Reads the key of a row: PostgreSQL's text of its key columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.tuples import BINARY, TOAST, UNCHANGED, any_unchanged
from aiorepl.snapshot.merging.overtaken import Key
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.rows import Layout, Raw
from aiorepl.values.registry import Types

# The oids of name, text, bpchar and varchar, whose binary form is the text.
_TEXTS: Final = frozenset((19, 25, 1042, 1043))


class RowKeys:
    """Reads the keys of one table's rows.

    :param names: the names of the columns that identify a row.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        # The last relation, and the indexes of its key columns; None if the relation lacks a key column.
        self._relation: Relation | None = None
        self._positions: tuple[int, ...] | None = None

    def of(self, layout: Layout, columns: Sequence[Raw], kinds: bytes | None) -> Key | None:
        """Return the key of a row; ``None`` if the row lacks a column of the key.

        :param kinds: the kind of each column; ``None`` if all are text.
        :raises DataError: a binary value does not match its type.
        """
        relation = layout.relation
        if relation is not self._relation:
            self._relation, self._positions = relation, self._positions_of(relation)
        positions = self._positions
        if positions is None:
            return None
        key = []
        for index in positions:
            raw = columns[index]
            if not isinstance(raw, bytes):
                return None
            if kinds is not None and kinds[index] == BINARY:
                oid = relation.columns[index].type_oid
                try:
                    raw = _text_of(raw, layout.types, oid)
                except ValueError as error:
                    raise relation.column_error(index, error) from None
            key.append(raw)
        return tuple(key)

    def of_new(self, change: RowChange) -> Key | None:
        """Return the key of the row after a change; ``None`` if the row lacks a column of the key.

        A TOASTed column of the key that did not change is in the old row, if the server sent that.

        :raises DataError: a binary value does not match its type.
        """
        columns, kinds, old = change.raw_new or [], change.new_kinds, change.raw_old
        if old is None or not any_unchanged(columns):
            return self.of(change.layout, columns, kinds)
        if kinds is not None and change.old_kinds is not None:
            kinds = bytes(b if a == TOAST else a for a, b in zip(kinds, change.old_kinds, strict=True))
        columns = [before if raw is UNCHANGED else raw for raw, before in zip(columns, old, strict=True)]
        return self.of(change.layout, columns, kinds)

    def _positions_of(self, relation: Relation) -> tuple[int, ...] | None:
        indexes = {name: index for index, name in enumerate(relation.names)}
        if any(name not in indexes for name in self._names):
            return None
        return tuple(indexes[name] for name in self._names)


def _text_of(raw: bytes, types: Types, oid: int) -> bytes:
    """Return the text of a binary value.

    :raises ValueError: the bytes are no value of the type.
    """
    base = types.base(oid)
    if base is not None and base.oid in _TEXTS:
        # In an SQL_ASCII database, text may be any bytes.
        return raw
    return types.text(oid, BINARY)(raw).encode()
