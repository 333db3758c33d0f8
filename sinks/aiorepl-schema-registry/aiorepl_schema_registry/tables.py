"""The columns of one version of a table as the values of fields. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiorepl.pgoutput.tuples import TEXT, UNCHANGED
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.rows import Layout, Raw
from aiorepl_schema_registry.shapes import Choices
from aiorepl_schema_registry.values import reader

Writer = Callable[[Mapping[str, Any]], bytes]
"""Returns an event or a key in the wire format, from its fields."""


class Table:
    """A table as it was for some rows: their ``layout``."""

    def __init__(self, layout: Layout, choices: Choices) -> None:
        self.layout = layout
        self.row = choices.row(layout.relation, layout.types)
        self.identity = choices.key(layout.relation, layout.types)
        self._names = [field.name for field in self.row.fields]
        self.write_row: Writer | None = None
        """Writes an event; ``None`` until the schema is known."""
        self.write_key: Writer | None = None
        """Writes a key; ``None`` until the schema is known, and without a key."""
        self._readers: dict[tuple[int, int], Callable[[bytes], Any]] = {}

    def rows(self, change: RowChange) -> dict[str, Any]:
        """Return ``before``, ``after`` and ``unchanged``.

        :raises DataError: a value has no form in the schema; the message names the column.
        """
        new, old = change.raw_new, change.raw_old
        after = None if new is None else self._values(new, change.new_kinds, self.layout.all)
        before = None if old is None else self._values(old, change.old_kinds, change.old_indexes)
        names = self.layout.relation.names
        missing = (
            [] if new is None else [name for name, raw in zip(names, new, strict=True) if raw is UNCHANGED]
        )
        return {"before": before, "after": after, "unchanged": missing}

    def key(self, change: RowChange) -> dict[str, Any]:
        """Return the columns of the replica identity before the change, or of the new row if no old row was sent."""
        indexes = self.layout.relation.key
        if change.raw_old is not None:
            return self._values(change.raw_old, change.old_kinds, indexes)
        return self._values(change.raw_new or [], change.new_kinds, indexes)

    def _values(self, columns: list[Raw], kinds: bytes | None, indexes: Iterable[int]) -> dict[str, Any]:
        return {
            self._names[index]: self._value(index, TEXT if kinds is None else kinds[index], raw)
            for index in indexes
            if isinstance(raw := columns[index], bytes)
        }

    def _value(self, index: int, kind: int, raw: bytes) -> Any:
        read = self._readers.get((index, kind))
        relation = self.layout.relation
        if read is None:
            oid = relation.columns[index].type_oid
            read = self._readers[index, kind] = reader(
                self.layout.types, oid, kind, self.row.fields[index].type
            )
        try:
            return read(raw)
        except ValueError as error:
            raise relation.column_error(index, error) from None
