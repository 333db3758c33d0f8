"""Reads the published tables from the catalog, and describes them as pgoutput would."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Final

import asyncpg

from aiorepl.wire.commands import identifier

# How often a query is run again if tables are dropped meanwhile.
_ATTEMPTS: Final = 20

# One row per published table: its columns by the publications' column lists (since PostgreSQL 15), its row filters, and the
# fields of its Relation message. A partition is left out if an ancestor is published as well, by another publication: the stream
# has its rows as rows of the topmost published ancestor. A partitioned table is listed only by publish_via_partition_root.
_TABLES: Final = """
WITH published AS (
  SELECT c.oid, {columns} AS columns, {filters} AS filters
    FROM pg_catalog.pg_publication_tables t
    JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
   WHERE t.pubname = ANY ($1) AND {looked_at} GROUP BY c.oid)
SELECT c.oid, n.nspname::text, c.relname::text, c.relreplident::text, c.relkind::text, p.filters,
       pg_catalog.row_security_active(c.oid) AS secured,
       array_remove(array_agg(a.attname::text ORDER BY a.attnum), NULL) AS names,
       array_agg(a.attnum ORDER BY a.attnum) AS numbers,
       array_agg(a.atttypid ORDER BY a.attnum) AS types,
       array_agg(a.atttypmod ORDER BY a.attnum) AS modifiers,
       array_agg(c.relreplident = 'f' OR coalesce(a.attnum = ANY ({keys}), false) ORDER BY a.attnum) AS keys,
       coalesce(max(array_length({keys}, 1)), 0) AS key_columns,
       coalesce(bool_and(NOT EXISTS (
         SELECT FROM ROWS FROM (pg_catalog.unnest(i.indclass::oid[]), pg_catalog.unnest(i.indkey::int2[])) AS k(class, number)
           JOIN pg_catalog.pg_opclass o ON o.oid = k.class JOIN pg_catalog.pg_type t ON t.oid = o.opcintype
           JOIN pg_catalog.pg_attribute ka ON ka.attrelid = c.oid AND ka.attnum = k.number
          WHERE o.opcnamespace <> 'pg_catalog'::pg_catalog.regnamespace OR t.typtype = 'p'
             OR (t.oid = 'pg_catalog.oid'::pg_catalog.regtype AND ka.atttypid <> t.oid))), true) AS comparable
  FROM published p
  JOIN pg_catalog.pg_class c ON c.oid = p.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
   AND (p.columns IS NULL OR a.attname = ANY (p.columns)) AND {published}
  LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid
   AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
 WHERE {topmost} AND {wanted}
 GROUP BY c.oid, n.nspname, c.relname, c.relreplident, c.relkind, p.filters
 ORDER BY n.nspname, c.relname
"""
_TOPMOST: Final = """
NOT (c.relispartition AND EXISTS (
  SELECT FROM pg_catalog.pg_partition_ancestors(c.oid) a JOIN published root ON root.oid = a.relid WHERE a.relid <> c.oid))
"""
# The view looks up the columns of each table that it returns, so some tables are selected by name before, with their ancestors.
_SOME: Final = """(t.schemaname, t.tablename) IN (
  SELECT sn.nspname, s.relname FROM pg_catalog.pg_class s JOIN pg_catalog.pg_namespace sn ON sn.oid = s.relnamespace
   WHERE s.oid = ANY ($2) OR s.oid IN (
     SELECT a.relid FROM pg_catalog.unnest($2::oid[]) AS wanted(oid), pg_catalog.pg_partition_ancestors(wanted.oid) a))"""


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """A published column.

    :param key: whether the column is part of the replica identity; under FULL every column is.
    :param number: ``attnum``, which a rename keeps.
    """

    name: str
    type_oid: int
    type_modifier: int
    key: bool
    number: int | None = None


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table: its published columns and rows.

    :param columns: the published columns, in the table's order.
    :param filters: conditions in SQL; a row is published if one of them holds. ``None``: all rows.
    :param identity: the replica identity, as in a Relation message.
    :param partitioned: whether the rows are in partitions.
    :param secured: whether row-level security applies to the connection's role.
    :param whole_key: whether all columns of the replica identity's index are published.
    :param comparable: whether conditions on the key may have constants of its types: all operators of that index are in
        ``pg_catalog`` and compare one built-in type. Operators of arrays, enums, ranges and composite types take any such type,
        and a constant of that type could call the CHECK of a domain within it, or a user's implicit cast. The reg* types have the
        operators of oid, and their text is no constant of oid.
    """

    oid: int
    schema: str
    name: str
    columns: tuple[PublishedColumn, ...]
    filters: tuple[str, ...] | None
    identity: str
    partitioned: bool
    secured: bool
    whole_key: bool = True
    comparable: bool = True

    @property
    def identifier(self) -> str:
        """The table's qualified name in SQL."""
        return f"{identifier(self.schema)}.{identifier(self.name)}"

    @property
    def key(self) -> tuple[PublishedColumn, ...]:
        """The columns of the replica identity's index; empty without one, or if not all of them are published."""
        if self.identity not in "di" or not self.whole_key:
            return ()
        return tuple(column for column in self.columns if column.key)

    @property
    def origin(self) -> str:
        """The FROM clause.

        A partitioned table has the rows of its partitions; the children of an inheritance parent are published themselves.
        """
        return f"{'' if self.partitioned else 'ONLY '}{self.identifier}"

    @property
    def query(self) -> str:
        """The SELECT of all published rows."""
        return self.select([identifier(column.name) for column in self.columns])

    def select(self, expressions: Iterable[str], *conditions: str) -> str:
        """Return a SELECT of published rows.

        :param expressions: the columns, in SQL.
        :param conditions: further conditions on the published rows, in SQL.
        """
        wanted = list(conditions)
        if self.filters is not None:
            wanted.append(" OR ".join(f"({condition})" for condition in self.filters))
        query = f"SELECT {', '.join(expressions)} FROM {self.origin}"
        return f"{query} WHERE {' AND '.join(f'({each})' for each in wanted)}" if wanted else query

    @property
    def relation(self) -> bytes:
        """The Relation message that pgoutput would send."""
        namespace = "" if self.schema == "pg_catalog" else self.schema
        parts = [
            b"R" + struct.pack(">I", self.oid),
            namespace.encode() + b"\0" + self.name.encode() + b"\0",
            self.identity.encode() + struct.pack(">H", len(self.columns)),
        ]
        for column in self.columns:
            parts.append(bytes([column.key]) + column.name.encode() + b"\0")
            parts.append(struct.pack(">Ii", column.type_oid, column.type_modifier))
        return b"".join(parts)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


async def fetch_published(connection: Any, query: str, *arguments: object) -> list[Any]:
    """Run a query of pg_publication_tables.

    Since PostgreSQL 16 the view opens all tables of the publications, and fails if one of them, wanted or not, is dropped
    meanwhile. The query is run again then, unless the connection is in a transaction.

    :raises asyncpg.PostgresError: the server failed.
    """
    for _ in range(_ATTEMPTS):
        try:
            return list(await connection.fetch(query, *arguments))
        except asyncpg.InternalServerError as error:
            if connection.is_in_transaction() or not is_dropped(error):
                raise
    return list(await connection.fetch(query, *arguments))


def is_dropped(error: asyncpg.InternalServerError) -> bool:
    """Whether a table was dropped while the server opened it: could not open relation with OID …"""
    return getattr(error, "server_source_function", None) == "relation_open"


async def published_tables(
    connection: Any, publications: tuple[str, ...], oids: Collection[int] | None = None
) -> list[PublishedTable]:
    """Read the tables of the publications, each once.

    :param oids: only the tables with these oids; ``None``: all tables.
    """
    version = connection.get_server_version().major
    new = version >= 15
    # Since 18 generated columns can be published, and are then among the publication's columns. Earlier versions list them with all
    # columns, but never publish them.
    generated = "true" if version < 12 else "a.attgenerated = ''"
    if version >= 18:
        generated = f"(p.columns IS NOT NULL OR {generated})"
    query = _TABLES.format(
        looked_at="true" if oids is None else _SOME,
        wanted="true" if oids is None else "c.oid = ANY ($2)",
        columns="min(attnames::text[])" if new else "NULL::text[]",
        # A table in several publications publishes a row if one of their filters accepts it. A publication without a filter
        # accepts all rows.
        filters="CASE WHEN bool_or(rowfilter IS NULL) THEN NULL ELSE array_agg(DISTINCT rowfilter) END"
        if new
        else "NULL::text[]",
        published=generated,
        # publish_via_partition_root exists since PostgreSQL 13.
        topmost=_TOPMOST if version >= 13 else "true",
        # In indkey, which starts at 0, INCLUDE columns follow the key columns.
        keys="i.indkey::int2[]" if version < 11 else "(i.indkey::int2[])[0:i.indnkeyatts - 1]",
    )
    given = [list(publications)] if oids is None else [list(publications), list(oids)]
    return [_table(row) for row in await fetch_published(connection, query, *given)]


def _table(row: Any) -> PublishedTable:
    # For a table without columns, names is empty and the other arrays have one NULL.
    columns = zip(row["names"], row["types"], row["modifiers"], row["keys"], row["numbers"], strict=False)
    return PublishedTable(
        row["oid"],
        row["nspname"],
        row["relname"],
        tuple(starmap(PublishedColumn, columns)),
        None if row["filters"] is None else tuple(row["filters"]),
        row["relreplident"],
        row["relkind"] == "p",
        row["secured"],
        row["relreplident"] not in "di" or sum(row["keys"]) == row["key_columns"],
        row["comparable"],
    )
