"""Detects tables and publications that were altered after an exported snapshot was taken.

Under a snapshot from before a rewrite, a table looks empty, although its name resolves to the current table. So once the
tables are locked against alterations, the catalog under the snapshot is compared with the current catalog.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from aiorepl.errors import SlotError
from aiorepl.wire.commands import literals

# One row per object: its name, and its state as text. A table's state is its columns and the file numbers of it and its
# partitions, which a rewrite changes. The query uses no catalog functions: those ignore the snapshot and read the current
# catalog.
_TABLES: Final = """
WITH RECURSIVE tree(root, part) AS (
  SELECT c.oid, c.oid FROM pg_catalog.pg_class c WHERE c.oid IN ({oids})
   UNION
  SELECT tree.root, i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.part
    JOIN pg_catalog.pg_class p ON p.oid = i.inhrelid AND p.relispartition)
SELECT 'table ' || c.oid AS object,
       ROW(n.nspname, c.relname, c.relkind,
           ARRAY(SELECT ROW(f.oid, f.relfilenode)::text FROM tree JOIN pg_catalog.pg_class f ON f.oid = tree.part
                  WHERE tree.root = c.oid ORDER BY f.oid),
           ARRAY(SELECT ROW(a.attnum, a.attname, a.atttypid, a.atttypmod)::text FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum))::text AS state
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid IN ({oids})
"""
_PUBLICATIONS: Final = """
SELECT 'publication ' || p.pubname AS object,
       ROW(p.*, ARRAY(SELECT r::text FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid ORDER BY r.prrelid)
           {schemas})::text AS state
  FROM pg_catalog.pg_publication p WHERE p.pubname IN ({names})
"""
_SCHEMAS: Final = ", ARRAY(SELECT s::text FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid ORDER BY s.pnnspid)"


# The roots to which an existing table was attached after the connection's snapshot. pg_partition_tree reads the current catalog;
# the rest of the query reads the snapshot's catalog. A table that was created later has no rows under the snapshot.
_ATTACHED: Final = """
WITH RECURSIVE tree(part) AS (
  SELECT pg_catalog.unnest($1::pg_catalog.oid[])
   UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.part)
SELECT DISTINCT root FROM pg_catalog.unnest($1::pg_catalog.oid[]) root, pg_catalog.pg_partition_tree(root) now
  JOIN pg_catalog.pg_class c ON c.oid = now.relid
 WHERE NOT EXISTS (SELECT FROM tree WHERE part = now.relid)
"""


class AlteredWhileRead(SlotError):
    """A table was altered while it was read under a snapshot, so the rows that were read are not the snapshot's."""


class Queried(Protocol):
    """A connection that returns all columns as text."""

    async def query(self, sql: str) -> list[dict[str, str | None]]: ...


async def require_unaltered(
    connection: Any, now: Queried, publications: Iterable[str], tables: dict[int, str]
) -> None:
    """Compare the catalog under the snapshot with the current one.

    :param connection: an asyncpg connection under the snapshot, where the tables are locked.
    :param now: a connection to the same server without the snapshot.
    :param tables: the names of the tables by oid.
    :raises TableAltered: the message names the table or publication.
    """
    schemas = _SCHEMAS if connection.get_server_version().major >= 15 else ""
    parts = [_TABLES.format(oids=", ".join(map(str, tables)))] if tables else []
    parts.append(_PUBLICATIONS.format(names=literals(publications), schemas=schemas))
    sql = " UNION ALL ".join(f"({part})" for part in parts)
    before = {row["object"]: row["state"] for row in await connection.fetch(sql)}
    after = {row["object"]: row["state"] for row in await now.query(sql)}
    for described, state in before.items():
        if after.get(described) != state:
            kind, _, name = described.partition(" ")
            raise TableAltered(f"{kind} {tables[int(name)] if kind == 'table' else name} was altered")


class TableAltered(SlotError):
    """A table or publication is not as it was under the slot's snapshot.

    :param what: the beginning of the message, such as ``table public.orders was altered``.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}, truncated or dropped after the slot's snapshot was taken: start again, with resnapshot=True "
            "(--resnapshot) if the slot still exists"
        )


async def require_same_partitions(connection: Any, roots: dict[int, str]) -> None:
    """Check that no partition with rows was attached since the snapshot.

    Reading does not block ATTACH PARTITION. Chunks that are read later have the rows of the partition, and earlier chunks do not.

    :param connection: an asyncpg connection under the snapshot.
    :param roots: the names of partitioned tables by oid.
    :raises AlteredWhileRead: a partition was attached; the message names its root.
    :raises asyncpg.PostgresError: the server failed.
    """
    for row in await connection.fetch(_ATTACHED, list(roots)):
        raise AlteredWhileRead(
            f"a partition was attached to table {roots[row['root']]} while its rows were read"
        )
