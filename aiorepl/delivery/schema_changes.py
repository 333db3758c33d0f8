"""What became of a table between two of its descriptions: columns added, dropped, retyped, renamed. Pure.

PostgreSQL sends no DDL. It describes a table before its first row and again after it was altered, and this compares. So
a change is known when the next row comes, several of them as one, and of a column that was dropped and made again, the
same as before, nothing. A rename is a guess: one column is gone, and at its place there is a new one of its type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from aiorepl.pgoutput.relations import Column, Relation

Pair = tuple[Column, Column]
Names = tuple[str, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """How a table differs from what it was. In pairs the old stands before the new.

    :param schema: its schema now.
    :param table: its name now.
    :param added: columns that are new, or newly published.
    :param dropped: columns that are gone, or published no more.
    :param retyped: columns of the same name with another type, or another length or precision.
    :param renamed: columns that probably have another name.
    :param replica_identity: ``d`` (primary key), ``n`` (nothing), ``f`` (full) or ``i`` (an index), if that changed.
    :param key: the names of the columns that identify a row, if these are others; a new name alone is no other column.
    :param table_renamed: schema and name, if either changed.
    """

    schema: str
    table: str
    added: tuple[Column, ...] = ()
    dropped: tuple[Column, ...] = ()
    retyped: tuple[Pair, ...] = ()
    renamed: tuple[Pair, ...] = ()
    replica_identity: tuple[str, str] | None = None
    key: tuple[Names, Names] | None = None
    table_renamed: tuple[tuple[str, str], tuple[str, str]] | None = None


class SchemaTracker:
    """Holds for each table how it was described last. Starts knowing nothing, also after a restart.

    Show it the relation of every change, in the order of the changes. Not those of the messages that describe: they come
    out of order, and are void when the transaction that altered the table is rolled back.
    """

    def __init__(self) -> None:
        self._known: dict[int, Relation] = {}

    def observe(self, relation: Relation) -> SchemaChange | None:
        """What changed since the table was seen last; ``None`` for nothing, and for a table that is seen first."""
        known = self._known.get(relation.oid)
        if known is relation:
            return None
        self._known[relation.oid] = relation
        return None if known is None else compare(known, relation)


def compare(old: Relation, new: Relation) -> SchemaChange | None:
    """How ``new`` differs from ``old``, two descriptions of one table; ``None`` if it does not."""
    before = {column.name: column for column in old.columns}
    after = {column.name: column for column in new.columns}
    dropped = tuple(column for column in old.columns if column.name not in after)
    added = tuple(column for column in new.columns if column.name not in before)
    renamed: tuple[Pair, ...] = ()
    if _is_rename(old, new, dropped, added):
        renamed, dropped, added = ((dropped[0], added[0]),), (), ()
    both = ((before[column.name], column) for column in new.columns if column.name in before)
    change = SchemaChange(
        new.schema,
        new.name,
        added=added,
        dropped=dropped,
        retyped=tuple(pair for pair in both if _type(pair[0]) != _type(pair[1])),
        renamed=renamed,
        replica_identity=_pair(old.replica_identity, new.replica_identity),
        key=_key(old, new, {was.name: now.name for was, now in renamed}),
        table_renamed=_pair((old.schema, old.name), (new.schema, new.name)),
    )
    return None if change == SchemaChange(new.schema, new.name) else change


def _is_rename(old: Relation, new: Relation, dropped: tuple[Column, ...], added: tuple[Column, ...]) -> bool:
    # With more columns gone or come, who became whom is anyone's guess, and a wrong one mixes two columns' values.
    if len(dropped) != 1 or len(added) != 1 or _type(dropped[0]) != _type(added[0]):
        return False
    return old.names.index(dropped[0].name) == new.names.index(added[0].name)


def _type(column: Column) -> tuple[int, int]:
    return column.type_oid, column.type_modifier


def _key(old: Relation, new: Relation, renamed: dict[str, str]) -> tuple[Names, Names] | None:
    before = tuple(old.names[place] for place in old.key)
    after = tuple(new.names[place] for place in new.key)
    # Without their order: a column that was dropped and made again stands elsewhere.
    same = {renamed.get(name, name) for name in before} == set(after)
    return None if same else (before, after)


def _pair(old: T, new: T) -> tuple[T, T] | None:
    return None if old == new else (old, new)
