"""The catalog's information about tables: columns, and the tables that they are partitions of. Pure.

Unless a publication has ``publish_via_partition_root``, PostgreSQL describes a partition by its own name and does not name
the partitioned table. So the catalog is queried: for published tables at the start, for others when they are described.

Tables are added and never removed. A detached partition still counts as a partition, because its earlier rows may still arrive,
and selections remember that across restarts. A renamed ancestor keeps its former names. The catalog shows the present, and the
stream may be older: a table that was dropped before the look-up stays unknown. A table that may have been detached before the
look-up is remembered with its possible former parents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import orjson

from aiorepl.source.catalog.snapshots import END, FIRST_NORMAL_XID, SNAPSHOT, Snapshot, precedes
from aiorepl.wire.commands import literals

Name = tuple[str, str]
"""Schema and table."""

# pg_publication_tables does not name a partitioned table that has no partitions yet, but patterns may. So every such table of
# the database is added, published or not: only pg_publication_namespace tells that, and PostgreSQL has it from version 15 on. A
# descendant of a published partitioned table is not added: its rows come under the name of that table (publish_via_partition_root).
_SELECT_PUBLISHED: Final = """
  SELECT p.oid FROM published p
   UNION
  SELECT c.oid FROM pg_catalog.pg_class c
   WHERE c.relkind = 'p' AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid)
     AND NOT EXISTS (
           WITH RECURSIVE above AS (
             SELECT i.inhparent FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid
              UNION
             SELECT i.inhparent FROM above a JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.inhparent)
           SELECT FROM above a JOIN published p ON p.oid = a.inhparent)"""
_PUBLISHED: Final = """published AS (
  SELECT c.oid FROM pg_catalog.pg_publication_tables t
    JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
   WHERE t.pubname IN ({names})),
"""
_SELECT_OIDS: Final = """
  SELECT pg_catalog.unnest($1::pg_catalog.oid[]) AS oid
   UNION
  SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhrelid = ANY ($2::pg_catalog.oid[])"""
# The result is JSON, because the replication protocol returns text only. attgenerated exists since PostgreSQL 12, so it is
# read through to_jsonb.
_FAMILIES: Final = """
WITH RECURSIVE {published}family AS ({tables}
   UNION
  SELECT i.inhparent FROM family f JOIN pg_catalog.pg_inherits i ON i.inhrelid = f.oid)
SELECT pg_catalog.json_build_object(
         'oid', c.oid::pg_catalog.int8, 'schema', n.nspname, 'name', c.relname, 'partitioned', c.relkind = 'p',
         'parents', ARRAY(SELECT i.inhparent::pg_catalog.int8 FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid
                           ORDER BY i.inhseqno),
         'subclassed', c.relhassubclass,
         'columns', ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a
                           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
         'numbers', ARRAY(SELECT a.attnum FROM pg_catalog.pg_attribute a
                           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
         'altered', ARRAY(SELECT a.xmin::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_attribute a
                           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
         'created', (SELECT a.xmin::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_attribute a
                      WHERE a.attrelid = c.oid AND a.attname = 'ctid'),
         'generated', CASE WHEN c.relkind = 'p' THEN
                        ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a
                               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                                 AND pg_catalog.to_jsonb(a) ->> 'attgenerated' <> '') END)::pg_catalog.text AS description
  FROM family f JOIN pg_catalog.pg_class c ON c.oid = f.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""


LOOK_UP: Final = f"""
SELECT {SNAPSHOT} AS snapshot, {END} AS ending,
       ARRAY(SELECT f.description FROM ({_FAMILIES.format(published="", tables=_SELECT_OIDS)}) f) AS tables
"""
"""The query for the tables with the first oids, for those with the second oids that have parents, and for the ancestors of both; and for
the snapshot that the query sees; one row."""
# The query that selects, from the given transactions, those that hold a lock as ALTER TABLE takes it. A prepared transaction
# keeps its locks, and so does one whose commit waits for a synchronous standby. The locks are listed once, so that all locks of a
# transaction are of the same moment.
ALTERING: Final = """
WITH locks AS (SELECT * FROM pg_catalog.pg_locks)
SELECT DISTINCT x.transactionid::pg_catalog.text::pg_catalog.int8 AS xid FROM locks x
  JOIN locks l ON l.virtualtransaction = x.virtualtransaction
 WHERE x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
   AND x.transactionid::pg_catalog.text::pg_catalog.int8 = ANY ($1::pg_catalog.int8[])
   AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.granted
"""


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table in the catalog.

    :param columns: the column names, in the table's order.
    :param parents: the oids of the tables that it is a partition of, or inherits from.
    :param partitioned: whether the table is partitioned.
    :param generated: a partitioned table's generated columns, which may not be published.
    :param subclassed: ``relhassubclass``: whether the table has children, or had children.
    :param altered: the transaction that wrote each column's row in ``pg_attribute``, in the order of ``columns``.
    :param created: the transaction that created the table: it wrote the rows of the system columns, which do not change.
    :param numbers: ``attnum`` of each column, in the order of ``columns``.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[str, ...] = ()
    parents: tuple[int, ...] = ()
    partitioned: bool = False
    generated: frozenset[str] = frozenset()
    subclassed: bool = False
    altered: tuple[int, ...] = ()
    created: int | None = None
    numbers: tuple[int, ...] = ()

    @property
    def names(self) -> Name:
        """Schema and table."""
        return self.schema, self.name

    @property
    def numbered(self) -> dict[str, int | None]:
        """The columns in their order, each with its number, if that is known."""
        return dict(zip_longest(self.columns, self.numbers))


def published(publications: Sequence[str]) -> str:
    """The query for all tables of these publications, with their ancestors: one description a row, for ``parse``."""
    listed = _PUBLISHED.format(names=literals(publications))
    return _FAMILIES.format(published=listed, tables=_SELECT_PUBLISHED)


def parse(descriptions: Iterable[str]) -> list[CatalogTable]:
    """Read the descriptions that either query returns."""
    return [_table(orjson.loads(description)) for description in descriptions]


def _table(fields: Mapping[str, Any]) -> CatalogTable:
    return CatalogTable(
        fields["oid"],
        fields["schema"],
        fields["name"],
        tuple(fields["columns"]),
        tuple(fields["parents"]),
        fields["partitioned"],
        frozenset(fields["generated"] or ()),
        fields["subclassed"],
        tuple(fields["altered"]),
        fields["created"],
        tuple(fields["numbers"]),
    )


class TableCatalog:
    """The tables that were looked up in the catalog, and their ancestors.

    :ivar version: changes whenever a look-up finds something new; whatever is derived from the catalog holds for one version.
    """

    def __init__(self, tables: Iterable[CatalogTable] = ()) -> None:
        # Each table as it was at its first look-up. For later names and columns there are the stream's own descriptions.
        self._tables: dict[int, CatalogTable] = {}
        self._names: dict[Name, CatalogTable] = {}
        # Tables that have, or had, partitions or children.
        self._subclassed: dict[int, CatalogTable] = {}
        # The names of the tables that a table may have been a partition or child of.
        self._former: dict[int, dict[Name, None]] = {}
        self._parents: dict[int, dict[int, None]] = {}
        self._all_names: dict[int, dict[Name, None]] = {}
        self._unknown: set[int] = set()
        self.version = 0
        self.add(tables, ())

    def __iter__(self) -> Iterator[CatalogTable]:
        return iter(self._tables.values())

    def add(self, tables: Iterable[CatalogTable], requested: Iterable[int]) -> None:
        """Add the result of a look-up.

        :param requested: the oids that were looked up. Oids without a table are unknown from now on, even if they were found
            before, because such a table may have been attached before it was dropped.
        """
        changed, found_oids = False, set[int]()
        for table in tables:
            found_oids.add(table.oid)
            self._unknown.discard(table.oid)
            if table.partitioned or table.subclassed:
                self._subclassed.setdefault(table.oid, table)
            self._tables.setdefault(table.oid, table)
            self._names.setdefault(table.names, table)
            names = self._all_names.setdefault(table.oid, {})
            parents = self._parents.setdefault(table.oid, {})
            found = len(names) + len(parents)
            names[table.names] = None
            parents.update(dict.fromkeys(table.parents))
            changed |= len(names) + len(parents) > found
        unknown = set(requested) - found_oids - self._unknown
        self._unknown |= unknown
        if changed or unknown:
            self.version += 1

    def find(self, oid: int) -> CatalogTable | None:
        """The table with this oid, as it was at its first look-up."""
        return self._tables.get(oid)

    def named(self, names: Name) -> CatalogTable | None:
        """The table that was the first to be looked up under this name."""
        return self._names.get(names)

    def unknown(self, oid: int) -> bool:
        """Whether the table was looked up and no longer existed."""
        return oid in self._unknown

    def ancestors(self, oid: int) -> tuple[Name, ...]:
        """All known names of the table's ancestors, the nearest first."""
        return tuple(name for ancestor in self._ancestors(oid) for name in self._all_names.get(ancestor, ()))

    def roots(self, oid: int) -> tuple[int, ...]:
        """The oids of the table's topmost ancestors; the table's own oid if it has none."""
        ancestors = self._ancestors(oid)
        return tuple(ancestor for ancestor in ancestors if not self._parents.get(ancestor)) or (oid,)

    def descendants(self, oid: int) -> Iterator[CatalogTable]:
        """The known tables that descend from this table."""
        table = self._tables.get(oid)
        if table is not None and table.partitioned:
            yield from (each for each in self._tables.values() if oid in self._ancestors(each.oid))

    def remember(self, oid: int, ancestors: Mapping[int, Iterable[Name]]) -> None:
        """Add former ancestors of a table, each with its former names. From now on the table matches by these names as well."""
        parents = self._parents.setdefault(oid, {})
        present = set(self._ancestors(oid))
        parents.update(dict.fromkeys(ancestor for ancestor in ancestors if ancestor not in present))
        for ancestor, names in ancestors.items():
            self._all_names.setdefault(ancestor, {}).update(dict.fromkeys(names))
        self.version += 1

    def ancestor_names(self, oid: int) -> dict[int, tuple[Name, ...]]:
        """All known names of each ancestor of the table, by oid."""
        return {ancestor: tuple(self._all_names.get(ancestor, ())) for ancestor in self._ancestors(oid)}

    def has_parents(self, oid: int) -> bool:
        """Whether the table is, or was, a partition or child of another table."""
        return bool(self._parents.get(oid))

    def parents(self) -> set[int]:
        """The oids of all known parents."""
        return {parent for parents in self._parents.values() for parent in parents}

    def doubt(self, table: CatalogTable, xid: int, now: Snapshot) -> None:
        """Remember which parents a table may have had at the time of a transaction, which may be older than the look-up.

        DETACH PARTITION and NO INHERIT write the rows of all inherited columns in ``pg_attribute``, as ATTACH PARTITION and
        INHERIT do. So without a column that was written earlier than the transaction, an earlier parent cannot be excluded.

        :param table: the table, or one of its ancestors, as it was looked up.
        :param xid: the transaction.
        :param now: the transactions that the look-up saw.
        """
        later = {
            column
            for column, altered in zip(table.columns, table.altered, strict=False)
            # A frozen row keeps its xid. After four billion more transactions, that xid looks like a future one.
            if precedes(altered, now.xmax) and _is_after(altered, xid, table)
        }
        if not later:
            return
        possible = [
            parent.names
            for parent in self.possible_parents(table.columns)
            if parent.oid != table.oid and later.issuperset(frozenset(parent.columns) - parent.generated)
        ]
        known = self._former.setdefault(table.oid, {})
        if not known.keys() >= set(possible):
            known.update(dict.fromkeys(possible))
            self.version += 1

    def uncertain(self, oid: int) -> bool:
        """Whether the table may have had parents that are not known."""
        return self.unknown(oid) or any(self._former.get(each) for each in (oid, *self._ancestors(oid)))

    def former_parents(self, oid: int, columns: Iterable[str]) -> tuple[Name, ...]:
        """The names of tables that a table may have been a partition or child of, which the catalog no longer shows.

        :param columns: the columns of the table, as they were described.
        """
        if self.unknown(oid):
            return tuple(table.names for table in self.possible_parents(columns))
        found: dict[Name, None] = {}
        for each in (oid, *self._ancestors(oid)):
            found.update(self._former.get(each, {}))
        return tuple(found)

    def possible_parents(self, columns: Iterable[str]) -> Iterator[CatalogTable]:
        """The tables that a table with these columns may have been a partition or child of."""
        names = frozenset(columns)
        for table in self._subclassed.values():
            inherited = frozenset(table.columns) - table.generated
            # A partition has the same columns; a child may have more.
            if inherited == names - table.generated if table.partitioned else inherited <= names:
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


def _is_after(altered: int, xid: int, table: CatalogTable) -> bool:
    """Whether a row of ``pg_attribute`` was altered after its creation, perhaps after a transaction had written to the table."""
    if altered == table.created or altered < FIRST_NORMAL_XID:
        return False
    # If the transaction altered the table itself, and attached it, the parent is in the catalog.
    return not table.parents if altered == xid else not precedes(altered, xid)
