"""Schema changes: columns added, dropped, retyped and renamed between two descriptions of a table. Pure.

PostgreSQL does not send DDL. It describes a table before its first row, and again after it was altered; this module compares
the two descriptions. So a change is known when the next row arrives, and several changes are found as one. A column that was
dropped and created again with the same definition is no change. A rename is a guess: one column is missing, and a new one of
the same type is at its index.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from aiorepl.pgoutput.relations import Column, Relation
from aiorepl.transactions.changes import Change, RowChange
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction

Pair = tuple[Column, Column]
Names = tuple[str, ...]
T = TypeVar("T")


class SchemaChange(Change):
    """The new description of a table, and how it differs from the previous one.

    It precedes the first row with the new description, and has that row's transaction and ordinal. It has no ordinal of its
    own, so that rows have the same ordinals for consumers with and without schema changes. The first row of a table after
    each start is preceded by one as well, with ``first`` set: the consumer finds changes made in the meantime by comparing
    ``relation`` with the table that it knows. Pairs are old and new.

    :param layout: the layout of the table now; ``relation`` is its description.
    :param before: the previous description; ``None`` for the first row since the start.
    """

    __slots__ = ("before", "layout")
    kind = "schema"

    def __init__(
        self, transaction: Transaction | None, ordinal: int, layout: Layout, before: Relation | None
    ) -> None:
        super().__init__(transaction, ordinal)
        self.layout = layout
        self.before = before

    @property
    def relation(self) -> Relation:
        """The table as it is now."""
        return self.layout.relation

    @property
    def schema(self) -> str:
        """The table's schema now."""
        return self.relation.schema

    @property
    def table(self) -> str:
        """The table's name now."""
        return self.relation.name

    @property
    def first(self) -> bool:
        """Whether there is no previous description."""
        return self.before is None

    @property
    def renamed(self) -> tuple[Pair, ...]:
        """Columns that were probably renamed."""
        missing, new = self._missing(), self._new()
        # With several candidates, a wrong guess would mix the values of two columns.
        if self.before is None or len(missing) != 1 or len(new) != 1 or _type(missing[0]) != _type(new[0]):
            return ()
        same_index = self.before.names.index(missing[0].name) == self.relation.names.index(new[0].name)
        return ((missing[0], new[0]),) if same_index else ()

    @property
    def added(self) -> tuple[Column, ...]:
        """Columns that are new, or newly published."""
        return () if self.renamed else self._new()

    @property
    def dropped(self) -> tuple[Column, ...]:
        """Columns that were dropped, or are no longer published."""
        return () if self.renamed else self._missing()

    @property
    def retyped(self) -> tuple[Pair, ...]:
        """Columns with another type, length or precision under the same name."""
        if self.before is None:
            return ()
        known = {column.name: column for column in self.before.columns}
        both = ((known[column.name], column) for column in self.relation.columns if column.name in known)
        return tuple(pair for pair in both if _type(pair[0]) != _type(pair[1]))

    @property
    def replica_identity(self) -> tuple[str, str] | None:
        """``d`` (primary key), ``n`` (nothing), ``f`` (full) or ``i`` (an index), if it changed."""
        return (
            None
            if self.before is None
            else _pair(self.before.replica_identity, self.relation.replica_identity)
        )

    @property
    def key(self) -> tuple[Names, Names] | None:
        """The names of the columns that identify a row, if other columns do now; a rename alone is no change."""
        if self.before is None:
            return None
        was = tuple(self.before.names[index] for index in self.before.key)
        now = tuple(self.relation.names[index] for index in self.relation.key)
        renamed = {old.name: new.name for old, new in self.renamed}
        # The server sends key columns in the table's order, whatever their order in the index.
        same = {renamed.get(name, name) for name in was} == set(now)
        return None if same else (was, now)

    @property
    def table_renamed(self) -> tuple[tuple[str, str], tuple[str, str]] | None:
        """The schema and name, old and new, if either changed."""
        if self.before is None:
            return None
        return _pair((self.before.schema, self.before.name), (self.schema, self.table))

    @property
    def says_something(self) -> bool:
        """Whether anything changed; the order of the columns does not count."""
        differences = (self.added, self.dropped, self.retyped, self.renamed)
        return self.first or any(differences) or any((self.replica_identity, self.key, self.table_renamed))

    def _missing(self) -> tuple[Column, ...]:
        columns = () if self.before is None else self.before.columns
        return tuple(column for column in columns if column.name not in self.relation.names)

    def _new(self) -> tuple[Column, ...]:
        if self.before is None:
            return ()
        return tuple(column for column in self.relation.columns if column.name not in self.before.names)

    def __repr__(self) -> str:
        return f"<SchemaChange of {self.relation}{', first' if self.first else ''}>"


class SchemaTracker:
    """Remembers the last description of each table, since the start.

    It must see every row in order. It ignores Relation messages, because they arrive out of order, and are void if the
    transaction that altered the table rolls back.
    """

    def __init__(self) -> None:
        self._known: dict[int, Relation] = {}

    def observe(self, change: RowChange) -> SchemaChange | None:
        """Return what changed since the table's previous row; ``None`` if nothing did."""
        relation = change.layout.relation
        known = self._known.get(relation.oid)
        if known is relation:
            return None
        self._known[relation.oid] = relation
        found = SchemaChange(change.transaction, change.ordinal, change.layout, known)
        return found if found.says_something else None

    def announced(self, part: Slice) -> Slice:
        """Return the slice with schema changes before the rows that have them."""
        changes: list[Change] = []
        for change in part.changes:
            if isinstance(change, RowChange) and (found := self.observe(change)) is not None:
                changes.append(found)
            changes.append(change)
        return part if len(changes) == len(part.changes) else replace(part, changes=changes)


def _type(column: Column) -> tuple[int, int]:
    return column.type_oid, column.type_modifier


def _pair(old: T, new: T) -> tuple[T, T] | None:
    return None if old == new else (old, new)
