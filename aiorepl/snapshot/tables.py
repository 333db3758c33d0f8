"""Reads the published tables from the catalog, and describes them as pgoutput would."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.wire.commands import identifier

# One row per published table: its columns by the publications' column lists (since PostgreSQL 15), its row filters, and the
# fields of its Relation message.
_TABLES: Final = """
SELECT c.oid, n.nspname::text, c.relname::text, c.relreplident::text, c.relkind::text, p.filters,
       pg_catalog.row_security_active(c.oid) AS secured,
       array_remove(array_agg(a.attname::text ORDER BY a.attnum), NULL) AS names,
       array_agg(a.atttypid ORDER BY a.attnum) AS types,
       array_agg(a.atttypmod ORDER BY a.attnum) AS modifiers,
       array_agg(c.relreplident = 'f' OR coalesce(a.attnum = ANY ({keys}), false) ORDER BY a.attnum) AS keys
  FROM (SELECT schemaname, tablename, {columns} AS columns, {filters} AS filters
          FROM pg_catalog.pg_publication_tables WHERE pubname = ANY ($1) GROUP BY schemaname, tablename) p
  JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
   AND (p.columns IS NULL OR a.attname = ANY (p.columns)) AND {published}
  LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid
   AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
 GROUP BY c.oid, n.nspname, c.relname, c.relreplident, c.relkind, p.filters
 ORDER BY n.nspname, c.relname
"""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table, the query for its published rows, and the Relation message that describes them.

    :param query: a SELECT.
    :param relation: the payload of the Relation message.

    :param secured: whether row-level security applies to the connection's role.
    """

    oid: int
    schema: str
    name: str
    query: str
    relation: bytes
    secured: bool

    @property
    def identifier(self) -> str:
        """The table's qualified name in SQL."""
        return f"{identifier(self.schema)}.{identifier(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


async def published_tables(connection: Any, publications: tuple[str, ...]) -> list[PublishedTable]:
    """Read the tables of the publications, each once."""
    version = connection.get_server_version().major
    new = version >= 15
    # Since 18 generated columns can be published, and are then among the publication's columns. Earlier versions list them with all
    # columns, but never publish them.
    generated = "true" if version < 12 else "a.attgenerated = ''"
    if version >= 18:
        generated = f"(p.columns IS NOT NULL OR {generated})"
    query = _TABLES.format(
        columns="min(attnames::text[])" if new else "NULL::text[]",
        # A row of a table in several publications is published if any of their filters accepts it; no filter accepts all rows.
        filters="CASE WHEN bool_or(rowfilter IS NULL) THEN NULL ELSE array_agg(DISTINCT rowfilter) END"
        if new
        else "NULL::text[]",
        published=generated,
        # In indkey, which starts at 0, INCLUDE columns follow the key columns.
        keys="i.indkey" if version < 11 else "(i.indkey::int2[])[0:i.indnkeyatts - 1]",
    )
    return [_table(row) for row in await connection.fetch(query, list(publications))]


def _table(row: Any) -> PublishedTable:
    columns = ", ".join(identifier(name) for name in row["names"])
    # A partitioned table has the rows of its partitions; the children of an inheritance parent are published themselves.
    only = "" if row["relkind"] == "p" else "ONLY "
    query = f"SELECT {columns} FROM {only}{identifier(row['nspname'])}.{identifier(row['relname'])}"
    if row["filters"]:
        query += " WHERE " + " OR ".join(f"({condition})" for condition in row["filters"])
    return PublishedTable(row["oid"], row["nspname"], row["relname"], query, _relation(row), row["secured"])


def _relation(row: Any) -> bytes:
    namespace = "" if row["nspname"] == "pg_catalog" else row["nspname"]
    parts = [
        b"R" + struct.pack(">I", row["oid"]),
        namespace.encode() + b"\0" + row["relname"].encode() + b"\0",
        row["relreplident"].encode() + struct.pack(">H", len(row["names"])),
    ]
    # For a table without columns, names is empty and the other arrays have one NULL.
    for name, oid, modifier, key in zip(
        row["names"], row["types"], row["modifiers"], row["keys"], strict=False
    ):
        parts.append(bytes([key]) + name.encode() + b"\0" + struct.pack(">Ii", oid, modifier))
    return b"".join(parts)
