"""Schema changes: columns added, dropped, retyped and renamed between two descriptions of a table. Pure.

PostgreSQL does not send DDL. It describes a table before its first row, and again after it was altered; this module compares
the two descriptions. So a change is known when the next row arrives, and several changes are found as one.

Two columns are the same if they have the same attribute number in the source's catalog; where a number is not known, if they
have the same name. So a rename without known numbers is a dropped and an added column.
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
        """Columns with another name under the same attribute number."""
        return tuple(pair for pair in self._same() if pair[0].name != pair[1].name)

    @property
    def added(self) -> tuple[Column, ...]:
        """Columns that are new, or newly published."""
        if self.before is None:
            return ()
        same = {now.name for _, now in self._same()}
        return tuple(column for column in self.relation.columns if column.name not in same)

    @property
    def dropped(self) -> tuple[Column, ...]:
        """Columns that were dropped, or are no longer published."""
        if self.before is None:
            return ()
        same = {was.name for was, _ in self._same()}
        return tuple(column for column in self.before.columns if column.name not in same)

    @property
    def missing_values(self) -> dict[str, str | None]:
        """The values of columns in the rows that existed when they were added, as PostgreSQL's text; ``None`` for NULL.

        ALTER TABLE … ADD COLUMN gives such rows the column's default without writing them, so the stream does not have them. A
        consumer that adds a column sets it to this value in all rows that it has, unless it left the column out until now.

        A column that is not in the mapping has an unknown value there: its default was volatile, the table was rewritten since,
        or the column was not published before. Then only a new snapshot has the value.
        """
        return {
            name: found.missing
            for name in self.relation.names
            if (found := self.relation.attributes.get(name)) is not None and found.missing_known
        }

    @property
    def retyped(self) -> tuple[Pair, ...]:
        """Columns with another type, length or precision."""
        return tuple(pair for pair in self._same() if _type(pair[0]) != _type(pair[1]))

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
        """The names of the columns that identify a row now, if other columns did before. A rename alone is no change."""
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

    def _same(self) -> list[Pair]:
        """The columns of both descriptions, old and new."""
        if self.before is None:
            return []
        was, now = self.before, self.relation
        named = {column.name: column for column in was.columns}
        numbered = {
            was.attributes[name].number: column for name, column in named.items() if name in was.attributes
        }
        found: dict[str, Column] = {}
        for name, attribute in now.attributes.items():
            if attribute.number in numbered:
                found[name] = numbered[attribute.number]
        taken = {column.name for column in found.values()}
        for name in now.names:
            # Two known numbers that differ are two columns, even under one name.
            known = name in now.attributes and name in was.attributes
            if name in named and not known and name not in taken and name not in found:
                found[name] = named[name]
        return [(found[column.name], column) for column in now.columns if column.name in found]

    def __repr__(self) -> str:
        return f"<SchemaChange of {self.relation}{', first' if self.first else ''}>"


class SchemaTracker:
    """Remembers the last description of each table, since the start.

    It must see every row in order. It ignores Relation messages, because they arrive out of order, and are void if the
    transaction that altered the table rolls back.
    """

    def __init__(self) -> None:
        self._last: dict[int, Relation] = {}
        self._unnumbered: dict[int, bool] = {}
        # By oid: the description with which the next description is compared. It is the last description, or an equal earlier
        # description whose attributes are known.
        self._known: dict[int, Relation] = {}

    def observe(self, change: RowChange) -> SchemaChange | None:
        """Return the schema change between the table's previous row and this one; ``None`` if there is none."""
        relation = change.layout.relation
        if self._last.get(relation.oid) is relation:
            return None
        self._last[relation.oid] = relation
        known = self._known.get(relation.oid)
        if known is not None and self._unnumbered.get(relation.oid):
            # Without numbers, a column may have been dropped and created again under its name. So names that still exist are
            # compared by name, and only the others by number.
            gone = {name: known.attributes[name] for name in known.attributes if name not in relation.names}
            known = replace(known, attributes=gone)
        found = SchemaChange(change.transaction, change.ordinal, change.layout, known)
        says_something = found.says_something
        if says_something or relation.attributes:
            self._known[relation.oid] = relation
        self._unnumbered[relation.oid] = not relation.attributes
        return found if says_something else None

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
