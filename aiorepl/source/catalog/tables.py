"""The catalog's information about tables: columns, and the tables that they are partitions of. Pure.

Unless a publication has ``publish_via_partition_root``, PostgreSQL describes a partition by its own name and does not name
the partitioned table. So the catalog is queried: for published tables at the start, for others when they are described.

Tables are added and never removed. A detached partition counts as one until the next start, since rows from before may
still arrive, and a renamed ancestor keeps its former names. A table that was dropped before the catalog was queried stays
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from aiorepl.wire.commands import literals

Name = tuple[str, str]
"""Schema and table."""

# pg_publication_tables does not name a partitioned table that has no partitions yet. Those of all publications are added:
# patterns may name one, and pg_publication_namespace, which would tell, exists since PostgreSQL 15 only.
_SELECT_PUBLISHED: Final = """
  SELECT c.oid FROM pg_catalog.pg_publication_tables t
    JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
   WHERE t.pubname IN ({names})
   UNION
  SELECT c.oid FROM pg_catalog.pg_class c
   WHERE c.relkind = 'p' AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid)"""
_SELECT_OIDS: Final = """
  SELECT pg_catalog.unnest('{{{oids}}}'::pg_catalog.oid[]) AS oid"""
# The result is JSON, because the replication protocol returns text only. attgenerated exists since PostgreSQL 12, so it is
# read through to_jsonb.
_FAMILIES: Final = """
WITH RECURSIVE family AS ({tables}
   UNION
  SELECT i.inhparent FROM family f JOIN pg_catalog.pg_inherits i ON i.inhrelid = f.oid)
SELECT pg_catalog.json_build_object(
         'oid', c.oid::pg_catalog.int8, 'schema', n.nspname, 'name', c.relname, 'partitioned', c.relkind = 'p',
         'parents', ARRAY(SELECT i.inhparent::pg_catalog.int8 FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid
                           ORDER BY i.inhseqno),
         'columns', ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a
                           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
         'generated', CASE WHEN c.relkind = 'p' THEN
                        ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a
                               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                                 AND pg_catalog.to_jsonb(a) ->> 'attgenerated' <> '') END)::pg_catalog.text AS description
  FROM family f JOIN pg_catalog.pg_class c ON c.oid = f.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table in the catalog.

    :param columns: the column names, in the table's order.
    :param parents: the oids of the tables that it is a partition of, or inherits from.
    :param partitioned: whether it is a partitioned table.
    :param generated: a partitioned table's generated columns, which may not be published.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[str, ...] = ()
    parents: tuple[int, ...] = ()
    partitioned: bool = False
    generated: frozenset[str] = frozenset()

    @property
    def names(self) -> Name:
        """Schema and table."""
        return self.schema, self.name


def published(publications: Sequence[str]) -> str:
    """The query for all tables of these publications, with their ancestors; ``parse`` reads its rows."""
    return _FAMILIES.format(tables=_SELECT_PUBLISHED.format(names=literals(publications)))


def of_oids(oids: Iterable[int]) -> str:
    """The query for these tables, with their ancestors; ``parse`` reads its rows."""
    return _FAMILIES.format(tables=_SELECT_OIDS.format(oids=",".join(map(str, oids))))


def parse(rows: Iterable[Mapping[str, str | None]]) -> list[CatalogTable]:
    """Read the rows of either query."""
    return [_table(orjson.loads(row["description"] or "")) for row in rows]


def _table(fields: Mapping[str, Any]) -> CatalogTable:
    return CatalogTable(
        fields["oid"],
        fields["schema"],
        fields["name"],
        tuple(fields["columns"]),
        tuple(fields["parents"]),
        fields["partitioned"],
        frozenset(fields["generated"] or ()),
    )


class TableCatalog:
    """The tables that were looked up in the catalog, and their ancestors.

    :ivar version: changes whenever a look-up finds something new; whatever is derived from the catalog holds for one version.
    """

    def __init__(self, tables: Iterable[CatalogTable] = ()) -> None:
        # As found first: the stream's own descriptions have later names and columns.
        self._tables: dict[int, CatalogTable] = {}
        self._names: dict[Name, CatalogTable] = {}
        self._partitioned: list[CatalogTable] = []
        self._parents: dict[int, dict[int, None]] = {}
        self._all_names: dict[int, dict[Name, None]] = {}
        self._unknown: set[int] = set()
        self.version = 0
        self.add(tables, ())

    def __iter__(self) -> Iterator[CatalogTable]:
        return iter(self._tables.values())

    def add(self, tables: Iterable[CatalogTable], requested: Iterable[int]) -> None:
        """Add the result of a look-up.

        :param requested: the oids that were looked up; those without a table are unknown from now on.
        """
        changed = False
        for table in tables:
            self._unknown.discard(table.oid)
            if table.partitioned and table.oid not in self._tables:
                self._partitioned.append(table)
            self._tables.setdefault(table.oid, table)
            self._names.setdefault(table.names, table)
            names = self._all_names.setdefault(table.oid, {})
            parents = self._parents.setdefault(table.oid, {})
            found = len(names) + len(parents)
            names[table.names] = None
            parents.update(dict.fromkeys(table.parents))
            changed |= len(names) + len(parents) > found
        unknown = {oid for oid in requested if oid not in self._tables} - self._unknown
        self._unknown |= unknown
        if changed or unknown:
            self.version += 1

    def find(self, oid: int) -> CatalogTable | None:
        """The table with this oid, as it was found first."""
        return self._tables.get(oid)

    def named(self, names: Name) -> CatalogTable | None:
        """The first table that was found under this name."""
        return self._names.get(names)

    def looked_up(self, oid: int) -> bool:
        """Whether the table was looked up in the catalog."""
        return oid in self._tables or oid in self._unknown

    def unknown(self, oid: int) -> bool:
        """Whether the table was looked up and no longer existed."""
        return oid in self._unknown

    def ancestors(self, oid: int) -> tuple[Name, ...]:
        """All names that were found of the tables that it descends from, the nearest first."""
        return tuple(name for ancestor in self._ancestors(oid) for name in self._all_names.get(ancestor, ()))

    def roots(self, oid: int) -> tuple[int, ...]:
        """The oids of its topmost ancestors; its own oid if it has none."""
        ancestors = self._ancestors(oid)
        return tuple(ancestor for ancestor in ancestors if not self._parents.get(ancestor)) or (oid,)

    def descendants(self, oid: int) -> Iterator[CatalogTable]:
        """The known tables that descend from this one."""
        table = self._tables.get(oid)
        if table is not None and table.partitioned:
            yield from (each for each in self._tables.values() if oid in self._ancestors(each.oid))

    def possible_parents(self, columns: Iterable[str]) -> Iterator[CatalogTable]:
        """The partitioned tables that a table with these columns may have been a partition of."""
        names = frozenset(columns)
        for table in self._partitioned:
            if names - table.generated == frozenset(table.columns) - table.generated:
                yield table

    def _ancestors(self, oid: int) -> list[int]:
        """The oids of all ancestors, the nearest first."""
        found: dict[int, None] = dict.fromkeys(self._parents.get(oid, ()))
        level = list(found)
        while level:
            level = [
                parent for child in level for parent in self._parents.get(child, ()) if parent not in found
            ]
            found.update(dict.fromkeys(level))
        return list(found)
