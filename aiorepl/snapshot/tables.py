"""The published tables as pgoutput would describe them, asked from the catalog."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.wire.commands import identifier

# One row a published table: its columns by the publications' column lists (15 and later), the filters that decide
# which rows are published, and what its Relation message would say.
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
    """A table, what to read of it, and the Relation message that describes the rows read.

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
        """Its name in SQL."""
        return f"{identifier(self.schema)}.{identifier(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


async def published_tables(connection: Any, publications: tuple[str, ...]) -> list[PublishedTable]:
    """Every table of the publications, each once."""
    version = connection.get_server_version().major
    new = version >= 15
    # Since 18 generated columns may be published, and are among the publication's columns then. Before, they are
    # listed where all columns are, and never published.
    generated = "true" if version < 12 else "a.attgenerated = ''"
    if version >= 18:
        generated = f"(p.columns IS NOT NULL OR {generated})"
    query = _TABLES.format(
        columns="min(attnames::text[])" if new else "NULL::text[]",
        # A table in several publications is published where any of their filters holds, and always without one.
        filters="CASE WHEN bool_or(rowfilter IS NULL) THEN NULL ELSE array_agg(DISTINCT rowfilter) END"
        if new
        else "NULL::text[]",
        published=generated,
        # INCLUDE columns stand behind the key's in indkey, which counts from 0.
        keys="i.indkey" if version < 11 else "(i.indkey::int2[])[0:i.indnkeyatts - 1]",
    )
    return [_table(row) for row in await connection.fetch(query, list(publications))]


def _table(row: Any) -> PublishedTable:
    columns = ", ".join(identifier(name) for name in row["names"])
    # The rows of a partitioned table are its partitions'; a plain parent's children are published as themselves.
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
    # A table without columns has no names, and of the rest one NULL.
    for name, oid, modifier, key in zip(
        row["names"], row["types"], row["modifiers"], row["keys"], strict=False
    ):
        parts.append(bytes([key]) + name.encode() + b"\0" + struct.pack(">Ii", oid, modifier))
    return b"".join(parts)
