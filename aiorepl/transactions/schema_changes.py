"""What became of a table between two of its descriptions: columns added, dropped, retyped, renamed. Pure.

PostgreSQL sends no DDL. It describes a table before its first row and again after it was altered, and this compares. So
a change is known when the next row comes, several of them as one, and of a column that was dropped and made again, the
same as before, nothing. A rename is a guess: one column is gone, and at its place there is a new one of its type.
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
    """How a table's rows look from here on, and how that differs from what was known.

    It stands before the first row that looks so and has that row's transaction and ordinal; it takes no ordinal itself,
    so that rows have the same ones for consumers with and without schema changes. The first row of a table after each
    start brings one too, with ``first`` set and nothing to compare with: what was altered while nobody listened is found
    by comparing ``relation`` with what the consumer knows. In pairs the old stands before the new.

    :param layout: the table as it is now; ``relation`` is its description.
    :param before: the table as it was described last, ``None`` for the first time since the start.
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
        """Whether there is nothing to compare with."""
        return self.before is None

    @property
    def renamed(self) -> tuple[Pair, ...]:
        """Columns that probably have another name."""
        gone, come = self._gone(), self._come()
        # With more columns gone or come, who became whom is anyone's guess, and a wrong one mixes two columns' values.
        if self.before is None or len(gone) != 1 or len(come) != 1 or _type(gone[0]) != _type(come[0]):
            return ()
        same_place = self.before.names.index(gone[0].name) == self.relation.names.index(come[0].name)
        return ((gone[0], come[0]),) if same_place else ()

    @property
    def added(self) -> tuple[Column, ...]:
        """Columns that are new, or newly published."""
        return () if self.renamed else self._come()

    @property
    def dropped(self) -> tuple[Column, ...]:
        """Columns that are gone, or published no more."""
        return () if self.renamed else self._gone()

    @property
    def retyped(self) -> tuple[Pair, ...]:
        """Columns of the same name with another type, or another length or precision."""
        if self.before is None:
            return ()
        known = {column.name: column for column in self.before.columns}
        both = ((known[column.name], column) for column in self.relation.columns if column.name in known)
        return tuple(pair for pair in both if _type(pair[0]) != _type(pair[1]))

    @property
    def replica_identity(self) -> tuple[str, str] | None:
        """``d`` (primary key), ``n`` (nothing), ``f`` (full) or ``i`` (an index), if that changed."""
        return (
            None
            if self.before is None
            else _pair(self.before.replica_identity, self.relation.replica_identity)
        )

    @property
    def key(self) -> tuple[Names, Names] | None:
        """The names of the columns that identify a row, if these are others; a new name alone is no other column."""
        if self.before is None:
            return None
        was = tuple(self.before.names[place] for place in self.before.key)
        now = tuple(self.relation.names[place] for place in self.relation.key)
        renamed = {old.name: new.name for old, new in self.renamed}
        # An index may have its columns in any order: as sent they are in the table's.
        same = {renamed.get(name, name) for name in was} == set(now)
        return None if same else (was, now)

    @property
    def table_renamed(self) -> tuple[tuple[str, str], tuple[str, str]] | None:
        """Schema and name, if either changed."""
        if self.before is None:
            return None
        return _pair((self.before.schema, self.before.name), (self.schema, self.table))

    @property
    def says_something(self) -> bool:
        """Whether there is anything to tell: the same description again, or its columns in another order, is nothing."""
        differences = (self.added, self.dropped, self.retyped, self.renamed)
        return self.first or any(differences) or any((self.replica_identity, self.key, self.table_renamed))

    def _gone(self) -> tuple[Column, ...]:
        columns = () if self.before is None else self.before.columns
        return tuple(column for column in columns if column.name not in self.relation.names)

    def _come(self) -> tuple[Column, ...]:
        if self.before is None:
            return ()
        return tuple(column for column in self.relation.columns if column.name not in self.before.names)

    def __repr__(self) -> str:
        return f"<SchemaChange of {self.relation}{', first' if self.first else ''}>"


class SchemaTracker:
    """Holds for each table how it was described last. Starts knowing nothing, also after a restart.

    Show it every row in order. Not the messages that describe: they come out of order, and are void when the transaction
    that altered the table is rolled back.
    """

    def __init__(self) -> None:
        self._known: dict[int, Relation] = {}

    def observe(self, change: RowChange) -> SchemaChange | None:
        """What changed since a row of the table was seen last; ``None`` for nothing."""
        relation = change.layout.relation
        known = self._known.get(relation.oid)
        if known is relation:
            return None
        self._known[relation.oid] = relation
        found = SchemaChange(change.transaction, change.ordinal, change.layout, known)
        return found if found.says_something else None

    def announced(self, part: Slice) -> Slice:
        """The slice with what changed in front of the rows that show it."""
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
