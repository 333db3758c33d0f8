"""Cuts tables into chunks, and identifies the state in which they were cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from aiorepl.snapshot.altered import TableAltered
from aiorepl.snapshot.chunk_query import bounds_query
from aiorepl.snapshot.chunks import KeyRange, Range, TablePlan, block_ranges, key_ranges
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.tables import PublishedTable

HidesKey = Callable[[PublishedTable], bool]
"""Whether the key of a table is hidden. Plans are written to files, so they must not have values of a hidden key."""


def hides_no_key(_: PublishedTable) -> bool:
    """Return False: plans may have the keys of all tables."""
    return False


# TID range scans exist since PostgreSQL 14; without them every range would read the whole table.
_RANGE_SCANS: Final = 14
# The maximum number of chunks of a table. A larger table gets larger chunks instead of more chunks.
_MOST_CHUNKS: Final = 16384

# For each table with its partitions: the size, the estimated number of rows (NULL if a part was never analyzed), and its state as
# text. The state has the xmin of the catalog's rows, which an ALTER of the table, its columns or its publications changes.
_FILES: Final = """
WITH RECURSIVE tree(root, part) AS (
  SELECT c.oid, c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY ($1)
   UNION
  SELECT tree.root, i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.part
    JOIN pg_catalog.pg_class p ON p.oid = i.inhrelid AND p.relispartition)
SELECT tree.root AS oid, sum(coalesce(pg_catalog.pg_relation_size(c.oid), 0))::bigint AS size,
       CASE WHEN bool_and(c.relkind <> 'r' OR c.reltuples > 0 OR pg_catalog.pg_relation_size(c.oid) = 0)
            THEN sum(greatest(c.reltuples, 0) * (c.relkind = 'r')::int)::bigint END AS rows,
       bool_or(c.relkind = 'f') AS has_foreign,
       string_agg(c.oid || ':' || c.relfilenode, ',' ORDER BY c.oid) || ';' ||
         (SELECT string_agg(a.attnum || ':' || a.attname, ',' ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = tree.root AND a.attnum > 0 AND NOT a.attisdropped) || ';' ||
         (SELECT string_agg(p.oid || ':' || p.xmin, ',' ORDER BY p.oid) FROM pg_catalog.pg_publication p
           WHERE p.pubname = ANY ($2)) AS state,
       coalesce(bool_or(c.reltoastrelid <> 0 AND pg_catalog.pg_relation_size(c.reltoastrelid) > 0), false) AS has_toast
  FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.part GROUP BY tree.root
"""
# For each table, the versions of the catalog's rows that decide which rows of the table the stream has, and under which names. These are
# the rows of the table, of its columns and schema, of the partitioned tables above it, and of the publications' entries for all of them.
# A row of pg_type changes with the name and schema of its table. The rows of its columns change when the table is attached or detached.
# GRANT changes pg_class, which is left out.
_HISTORY: Final = """
WITH RECURSIVE tree(root, part) AS (
  SELECT c.oid, c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY ($1)
   UNION
  SELECT tree.root, i.inhparent FROM tree JOIN pg_catalog.pg_inherits i ON i.inhrelid = tree.part),
found(root, version) AS (
  SELECT tree.root, 'c' || c.oid || ':' || t.xmin || ':' || n.oid || ':' || n.xmin
    FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.part JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_type t ON t.oid = c.reltype
   UNION ALL
  SELECT tree.root, 'a' || a.attrelid || ':' || a.attnum || ':' || a.xmin
    FROM tree JOIN pg_catalog.pg_attribute a ON a.attrelid = tree.part WHERE a.attnum > 0
   UNION ALL
  SELECT tree.root, 'r' || r.oid || ':' || r.xmin
    FROM tree JOIN pg_catalog.pg_publication_rel r ON r.prrelid = tree.part
    JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid WHERE p.pubname = ANY ($2){schemas})
SELECT root AS oid, string_agg(version, ',' ORDER BY version) AS history FROM found GROUP BY root
"""
# PostgreSQL publishes schemas since version 15.
_SCHEMAS: Final = """
   UNION ALL
  SELECT tree.root, 's' || s.oid || ':' || s.xmin
    FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.part
    JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = c.relnamespace
    JOIN pg_catalog.pg_publication p ON p.oid = s.pnpubid WHERE p.pubname = ANY ($2)"""
# All versions have functions of these names; those that begin with pg_ exist since PostgreSQL 13.
OLDEST_XID: Final = "SELECT pg_catalog.txid_snapshot_xmin(pg_catalog.txid_current_snapshot())"

# relam 2 is heap: rows of other access methods may have no xmin. A condition on xmin needs SELECT on the whole table.
_APPEND_ONLY: Final = """
SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY ($1) AND c.relkind = 'r' AND c.relam = 2 AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
   AND (n.nspname, c.relname) NOT IN (
     SELECT t.schemaname, t.tablename FROM pg_catalog.pg_publication_tables t
       JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
      WHERE t.pubname = ANY ($2) AND (p.pubupdate OR p.pubdelete))
"""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table.

    :param state: identifies the files, the columns by their numbers, and what of the table is published: its columns, rows and
        kinds of changes.
    :param has_toast: whether any values are stored out of line, so that updates may lack them.
    """

    state: str
    has_toast: bool


async def plan_tables(
    connection: Any,
    tables: Sequence[PublishedTable],
    publications: Sequence[str],
    options: SnapshotOptions,
    hides_key: HidesKey = hides_no_key,
) -> tuple[TablePlan, ...]:
    """Cut tables into chunks. The plans have no ``history``.

    :param connection: an asyncpg connection.
    :param hides_key: whether the key of a table is hidden. A partitioned table with a hidden key is one chunk, because ranges would be
        bounded by keys.
    :raises TableAltered: a table was dropped.
    :raises asyncpg.PostgresError: the server failed.
    """
    xmin = await connection.fetchval(OLDEST_XID)
    by_oid = {
        row["oid"]: row
        for row in await connection.fetch(_FILES, [table.oid for table in tables], list(publications))
    }
    block = int(await connection.fetchval("SELECT current_setting('block_size')"))
    plans = []
    for table in tables:
        row = by_oid.get(table.oid)
        if row is None:
            raise TableAltered(f"table {table} was altered")
        blocks = -(-row["size"] // block)
        step = max(options.chunk_bytes // block, -(-blocks // _MOST_CHUNKS), 1)
        keyless = row["has_foreign"] or hides_key(table)
        ranges = await _ranges(connection, table, blocks, step, keyless=keyless)
        key = tuple(column.name for column in table.key) if isinstance(ranges[0], KeyRange) else ()
        state = _state(table, row["state"])
        plans.append(
            TablePlan(table.oid, table.schema, table.name, row["rows"], row["size"], ranges, key, state, xmin)
        )
    return tuple(plans)


async def with_histories(
    connection: Any, plans: Sequence[TablePlan], publications: Sequence[str]
) -> tuple[TablePlan, ...]:
    """Add the ``history`` of each table to its plan.

    :param connection: an asyncpg connection that holds locks on the tables.
    :raises asyncpg.PostgresError: the server failed.
    """
    schemas = _SCHEMAS if connection.get_server_version() >= (15,) else ""
    oids = [plan.oid for plan in plans]
    rows = await connection.fetch(_HISTORY.format(schemas=schemas), oids, list(publications))
    histories = {row["oid"]: row["history"] for row in rows}
    return tuple(replace(plan, history=_digest(f"{plan.state} {histories[plan.oid]}")) for plan in plans)


async def table_files(
    connection: Any, table: PublishedTable, publications: Sequence[str]
) -> TableFiles | None:
    """Read the state of a table's files; ``None`` if it was dropped.

    :param connection: an asyncpg connection without a snapshot.
    :raises asyncpg.PostgresError: the server failed.
    """
    row = await connection.fetchrow(_FILES, [table.oid], list(publications))
    return None if row is None else TableFiles(_state(table, row["state"]), row["has_toast"])


async def append_only(
    connection: Any, tables: Sequence[PublishedTable], publications: Sequence[str]
) -> set[int]:
    """Return the oids of the tables whose updates and deletes are not published, and whose ``xmin`` can be read.

    Tables with a row filter are left out: an update that is not published may bring a row into the filter.

    :param tables: the published tables. Partitioned tables are left out of the result.
    :param connection: an asyncpg connection.
    :param publications: the names of the pipeline's publications.
    :raises asyncpg.PostgresError: the server failed.
    """
    oids = [table.oid for table in tables if table.filters is None]
    return {row["oid"] for row in await connection.fetch(_APPEND_ONLY, oids, list(publications))}


def _state(table: PublishedTable, found: str) -> str:
    return _digest(f"{table!r} {found}")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]


async def _ranges(
    connection: Any, table: PublishedTable, blocks: int, step: int, *, keyless: bool
) -> tuple[Range, ...]:
    if blocks <= step or connection.get_server_version() < (_RANGE_SCANS,):
        return (None,)
    if not table.partitioned:
        return block_ranges(blocks, step)
    # A sample cannot be taken of foreign tables.
    if not table.key or not table.comparable or keyless:
        return (None,)
    query = bounds_query(table, table.key, -(-blocks // step), step)
    rows = await connection.fetch(query)
    bounds = dict.fromkeys(tuple(row[0]) for row in rows)
    return key_ranges(list(bounds)) if bounds else (None,)
