"""Queries of the server's state, with typed results: for a start (``preflight``) and for ``aiorepl check``.

They work on PostgreSQL 13 to 19 and on both interfaces. A replication connection returns text only, so every column is cast
to text. Columns that some versions lack are read through ``to_jsonb``, where they are NULL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiorepl.lsn import LSN
from aiorepl.position import Timelines
from aiorepl.source.continuity import parse_history
from aiorepl.wire.commands import literal, literals
from aiorepl.wire.interface import Connection, System
from aiorepl.wire.query_results import parsing
from aiorepl.wire.slot_position import poller

_SETTINGS: Final = (
    "wal_level",
    "effective_wal_level",
    "wal_sender_timeout",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "server_encoding",
)
_PROCESS: Final = (
    "SELECT pg_catalog.pg_postmaster_start_time()::text AS started, "
    "pg_catalog.pg_is_in_recovery()::text AS in_recovery, pg_catalog.pg_backend_pid()::text AS pid, "
    "pg_catalog.txid_snapshot_xmin(pg_catalog.txid_current_snapshot())::text AS xmin"
)
_SLOT: Final = """
SELECT slot_type::text, plugin::text, database::text, temporary::text, confirmed_flush_lsn::text, catalog_xmin::text,
       (active OR {poller} IS NOT NULL)::text AS active, coalesce(active_pid, {poller})::text AS active_pid,
       to_jsonb(s) ->> 'wal_status' AS wal_status, to_jsonb(s) ->> 'invalidation_reason' AS invalidation_reason,
       to_jsonb(s) ->> 'failover' AS failover, to_jsonb(s) ->> 'two_phase' AS two_phase,
       (pg_catalog.pg_is_in_recovery() AND (to_jsonb(s) ->> 'synced')::bool)::text AS synchronized,
       pg_catalog.pg_size_pretty(pg_catalog.pg_wal_lsn_diff(
         CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
              ELSE pg_catalog.pg_current_wal_lsn() END, restart_lsn)) AS retained
  FROM pg_catalog.pg_replication_slots s WHERE slot_name = {name}
"""
# Leaf partitions have replica identities of their own; the partitioned table's is not used.
_WITHOUT_IDENTITY: Final = """
SELECT DISTINCT n.nspname || '.' || c.relname AS name
  FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname AND (p.pubupdate OR p.pubdelete)
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename AND c.relkind = 'r'
 WHERE t.pubname IN ({names})
   AND CASE c.relreplident
         WHEN 'n' THEN true
         WHEN 'd' THEN NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
         WHEN 'i' THEN NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
         ELSE false END
 ORDER BY 1
"""
INITDB_SECONDS: Final = 5
"""The statistics of a new server begin within this time after its creation."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that matter to a slot and its consumer, from ``pg_settings``.

    :param effective_wal_level: since PostgreSQL 19, where ``wal_level = replica`` becomes ``logical`` with the first logical slot.
    :param wal_sender_timeout: in seconds; 0 when it is off.
    :param max_slot_wal_keep_size: in megabytes; -1 without a limit, ``None`` before PostgreSQL 13.
    """

    wal_level: str
    effective_wal_level: str
    wal_sender_timeout: float
    max_replication_slots: int
    max_slot_wal_keep_size: int | None
    server_encoding: str


@dataclass(frozen=True, slots=True)
class Process:
    """The server process of a connection.

    :param pid: the process that serves this connection.
    :param started: when the server was started; it changes with every restart.
    :param in_recovery: whether the server is a standby.
    :param xmin: the xid, with its epoch, of the oldest transaction that was in progress.
    """

    pid: int
    started: str
    in_recovery: bool
    xmin: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot, from ``pg_replication_slots``.

    :param plugin: ``None`` for a physical slot.
    :param active_pid: the process that reads the slot, as a walsender or by polling.
    :param wal_status: ``reserved``, ``extended``, ``unreserved`` or ``lost``.
    :param invalidation_reason: why the slot is lost; ``None`` before PostgreSQL 16.
    :param synchronized: whether the server is a standby, and the slot is a copy of the primary's slot.
    :param retained: how much WAL the slot keeps, such as ``16 MB``; ``None`` if it keeps none.
    :param catalog_xmin: the oldest transaction whose effects on the catalog the slot keeps.
    """

    name: str
    slot_type: str | None
    plugin: str | None
    database: str | None
    temporary: bool
    active: bool
    active_pid: str | None
    confirmed_flush_lsn: LSN
    wal_status: str | None
    invalidation_reason: str | None
    failover: bool
    two_phase: bool
    synchronized: bool
    retained: str | None
    catalog_xmin: int | None


async def read_settings(connection: Connection) -> Settings:
    """Read the server's settings.

    :raises ServerError, ConnectionLost: the query failed.
    """
    rows = await connection.query(
        f"SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ({literals(_SETTINGS)})"
    )
    with parsing("pg_settings"):
        found = {row["name"]: row["setting"] for row in rows}
        keep_size = found.get("max_slot_wal_keep_size")
        return Settings(
            wal_level=found.get("wal_level") or "",
            effective_wal_level=found.get("effective_wal_level") or found.get("wal_level") or "",
            wal_sender_timeout=int(found.get("wal_sender_timeout") or 0) / 1000,
            max_replication_slots=int(found.get("max_replication_slots") or 0),
            max_slot_wal_keep_size=None if keep_size is None else int(keep_size),
            server_encoding=found.get("server_encoding") or "",
        )


async def read_process(connection: Connection) -> Process:
    """Read the state of the connection's server process.

    :raises ServerError, ConnectionLost: the query failed.
    """
    rows = await connection.query(_PROCESS)
    with parsing("pg_is_in_recovery"):
        (row,) = rows
        return Process(
            int(row["pid"] or 0),
            row["started"] or "",
            row["in_recovery"] == "true",
            int(row["xmin"] or 0),
        )


async def read_timelines(connection: Connection, system: System) -> Timelines:
    """Read the history of the server's timeline.

    :raises ServerError, ConnectionLost: the query failed.
    """
    history = await connection.timeline_history(system.timeline) if system.timeline > 1 else None
    with parsing("TIMELINE_HISTORY"):
        return parse_history(history, system.timeline)


async def read_slot(connection: Connection, name: str) -> Slot | None:
    """Read the state of a slot; ``None`` if it does not exist.

    :raises ServerError, ConnectionLost: the query failed.
    """
    # Between two polls a slot that is read through SQL functions is not active; its poller holds an advisory lock.
    rows = await connection.query(_SLOT.format(poller=poller(name), name=literal(name)))
    if not rows:
        return None
    row = rows[0]
    with parsing("pg_replication_slots"):
        return Slot(
            name,
            row["slot_type"],
            row["plugin"],
            row["database"],
            row["temporary"] == "true",
            row["active"] == "true",
            row["active_pid"],
            LSN.parse(row["confirmed_flush_lsn"] or "0/0"),
            row["wal_status"],
            row["invalidation_reason"],
            row["failover"] == "true",
            row["two_phase"] == "true",
            row["synchronized"] == "true",
            row["retained"],
            None if row["catalog_xmin"] is None else int(row["catalog_xmin"]),
        )


async def was_read(connection: Connection, slot: Slot, system: System) -> bool:
    """Whether the slot may have been read before, according to the server's statistics.

    A crash, a copy and an upgrade of the server lose the statistics. The archiver's statistics tell when the server began to
    collect them. If that was after the server's creation, a slot without statistics may have been read, and counts as read.

    Before PostgreSQL 14 the server has no statistics of slots, and a standby has none of synchronized slots. So these slots count
    as read: all slots before PostgreSQL 14, and slots with ``failover``.

    :raises ServerError, ConnectionLost: the query failed.
    """
    if slot.failover or connection.server_version < 14:
        return True
    # The first half of the identifier is the time of initdb.
    created = int(system.system_identifier) >> 32
    rows = await connection.query(
        "SELECT (s.total_txns > 0 OR s.stats_reset IS NOT NULL OR a.stats_reset IS NULL "
        f"OR a.stats_reset > pg_catalog.to_timestamp({created + INITDB_SECONDS}))::text AS read "
        "FROM pg_catalog.pg_stat_archiver a LEFT JOIN pg_catalog.pg_stat_replication_slots s "
        f"ON s.slot_name = {literal(slot.name)}"
    )
    return any(row["read"] != "false" for row in rows)


async def count_slots(connection: Connection) -> int:
    """Count the replication slots of the server.

    :raises ServerError, ConnectionLost: the query failed.
    """
    (row,) = await connection.query("SELECT count(*)::text AS slots FROM pg_catalog.pg_replication_slots")
    return int(row["slots"] or 0)


ALL_PUBLICATIONS: Final = "SELECT pubname::pg_catalog.text FROM pg_catalog.pg_publication"
"""The names of the publications of the database."""


async def existing_publications(connection: Connection, names: tuple[str, ...] = ()) -> set[str]:
    """Return the publications of the database: those among ``names``, or all if there are no names.

    :raises ServerError, ConnectionLost: the query failed.
    """
    named = f" WHERE pubname IN ({literals(names)})" if names else ""
    rows = await connection.query(f"{ALL_PUBLICATIONS}{named}")
    with parsing("pg_publication"):
        return {str(row["pubname"]) for row in rows}


async def count_published_tables(connection: Connection, publications: tuple[str, ...]) -> int:
    """Count the tables of the publications.

    :raises ServerError, ConnectionLost: the query failed.
    """
    (row,) = await connection.query(
        "SELECT count(DISTINCT (schemaname, tablename))::text AS tables FROM pg_catalog.pg_publication_tables "
        f"WHERE pubname IN ({literals(publications)})"
    )
    return int(row["tables"] or 0)


async def tables_without_identity(connection: Connection, publications: tuple[str, ...]) -> list[str]:
    """The tables that publish updates or deletes without a replica identity, as ``schema.table``, sorted.

    :raises ServerError, ConnectionLost: the query failed.
    """
    rows = await connection.query(_WITHOUT_IDENTITY.format(names=literals(publications)))
    return [str(row["name"]) for row in rows]
