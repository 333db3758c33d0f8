"""What is looked at before the first byte is asked for: the server, the publications and the slot, which is created if need be."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from aiorepl.errors import ConfigurationError, SlotError
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.source.catalog.lookups import TableLookups
from aiorepl.source.continuity import parse_history
from aiorepl.source.server.slot_cleanup import drop
from aiorepl.source.source import Source
from aiorepl.wire.commands import literal, literals
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.interface import Connection, CreatedSlot
from aiorepl.wire.standing import poller

_log = logging.getLogger("aiorepl.source")

_RUNNING: Final = (
    "SELECT pg_catalog.pg_postmaster_start_time()::text AS started, "
    "CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_backend_pid() END::text AS standby"
)


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """A slot that passed the checks.

    :param position: where its stream begins if nothing later is asked for.
    :param created: what CREATE_REPLICATION_SLOT said, if this is when it was created.
    :param wal_sender_timeout: the server's, in seconds; 0 when off.
    :param wal_end: how far the server's WAL goes.
    :param started: when the server was started; ``None`` when it does not tell.
    :param standby: the process that serves this connection, if the server is a standby; else ``None``.
    :param becomes_failover: whether the slot is to be made a failover slot, once it is known to be ours.
    :param holds_prepared: whether prepared transactions come, and nobody downstream takes them before they are decided.
    """

    position: Position
    created: CreatedSlot | None
    wal_sender_timeout: float
    plugin_options: dict[str, str]
    wal_end: LSN
    started: str | None = None
    standby: int | None = None
    becomes_failover: bool = False
    holds_prepared: bool = False


async def preflight(
    connection: Connection,
    source: Source,
    *,
    create: bool,
    snapshot: str = "nothing",
    replace: bool = False,
    kept: Position | None = None,
    followed: Position | None = None,
    tables: TableLookups | None = None,
) -> PreflightResult:
    """Check server, publications and slot, and create the slot if that was asked.

    :param create: whether a missing slot may be created now; never so after a reconnect.
    :param replace: whether one that is there is to be dropped first, also when it is lost.
    :param kept: what the journal holds, at LSN 0 while that is nothing: of this source, or no slot is made or dropped; and
        one that replaces another comes after it.
    :param followed: after a reconnect, how far the slot was followed before.
    :param tables: what is to be loaded from the catalog, and checked, before a slot is made.
    :raises ConfigurationError: the server or a publication is not as it must be.
    :raises SlotError: the slot is missing, lost or not ours.
    """
    plugin_options = source.options().negotiate(connection.server_version)
    (wal_level,) = (row["wal_level"] for row in await connection.query("SHOW wal_level"))
    if wal_level != "logical":
        raise ConfigurationError(
            f"the server's wal_level is {wal_level}: set wal_level = logical and restart it"
        )
    await require_publications(connection, source.options().publications)
    if tables is not None:
        await tables.load()
    # Before the timeline is asked for: a server that is no standby now keeps its timeline.
    running = await connection.query(_RUNNING)
    system = await connection.identify_system()
    history = await connection.timeline_history(system.timeline) if system.timeline > 1 else None
    (timeout,) = (
        row["setting"]
        for row in await connection.query("SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'")
    )
    found = await find_slot(connection, source.slot)
    if kept is not None:
        # Before anything is changed on a server that may be another's.
        here = Position(system.system_identifier, system.timeline, source.slot, system.xlogpos)
        kept.require_same_source(here, "the journal")
        if replace:
            _require_later(kept, here)
    if found is not None and replace:
        if not isinstance(connection, ReplicationConnection):
            raise ConfigurationError(
                "an initial load needs a replication connection: use the walsender source"
            )
        _require_ours(found, source, system.database)
        _log.warning("dropping slot %s, which stood at %s", source.slot, found["confirmed_flush_lsn"])
        await connection.drop_slot(source.slot)
        found = None
    created: CreatedSlot | None = None
    if found is None:
        if not create:
            raise _missing(source, system.timeline, followed)
        # PostgreSQL 17 makes no slot with both, but lets one become so.
        later = (
            source.failover
            and source.two_phase
            and connection.server_version == 17
            and source.interface != "sql"
        )
        # The last command before the stream: any other would end an exported snapshot.
        created = await connection.create_slot(
            source.slot,
            temporary=source.temporary,
            two_phase=source.two_phase,
            failover=source.failover and not later,
            snapshot=snapshot,
        )
        if later:
            try:
                await _make_failover_beside(source)
            except BaseException:
                await drop(source, created)
                raise
        begin = created.consistent_point
        _log.info("created slot %s at %s", source.slot, begin)
    else:
        begin = require_usable(found, source, system.database)
        if create and source.create_slot:
            _log.warning("slot %s exists: using it from %s", source.slot, begin)
    timelines = parse_history(history, system.timeline)
    position = Position(
        system.system_identifier, system.timeline, source.slot, begin, timelines, system.database
    )
    started, standby = (running[0]["started"], running[0]["standby"]) if running else (None, None)
    return PreflightResult(
        position,
        created,
        int(timeout or 0) / 1000,
        plugin_options,
        max(system.xlogpos, begin),
        started=started,
        standby=None if standby is None else int(standby),
        becomes_failover=source.failover and found is not None and found["failover"] != "true",
        # Once a slot has two_phase, it sends them to all who read it.
        holds_prepared=not source.deliver_prepared
        and (source.two_phase or (found is not None and found["two_phase"] == "true")),
    )


def _missing(source: Source, timeline: int, followed: Position | None) -> SlotError:
    if followed is None or followed.timeline >= timeline:
        return SlotError(
            f"replication slot {source.slot!r} does not exist: create it, on the command line --create-slot"
        )
    return SlotError(
        f"the promoted server, on timeline {timeline} after {followed.timeline}, has no slot {source.slot!r}: it was no "
        f"failover slot, or not synchronized yet, and what was written behind {followed.lsn} cannot be had from there; "
        "start again with resnapshot=True (--resnapshot, with a journal), or without it: create_slot (--create-slot) and "
        "accept_gap=True (--accept-gap). From PostgreSQL 17 on failover=True (--failover), and sync_replication_slots on "
        "the standby, have the slot survive"
    )


def _require_later(kept: Position, found: Position) -> None:
    if kept.lsn > found.lsn:
        raise SlotError(
            f"the journal stands at {kept.lsn}, but the server's WAL ends at {found.lsn}: nothing that is loaded now can "
            "come after it; let the server come past it first (SELECT pg_switch_wal()), or begin anew with an empty journal"
        )


async def _make_failover_beside(source: Source) -> None:
    # On another connection: a command on this one would end an exported snapshot.
    other = await source.open()
    try:
        await make_failover(other, source.slot)
    finally:
        await other.close()


async def make_failover(connection: Connection, slot: str) -> None:
    """Have standbys synchronize the slot, which nobody reads now.

    :raises ConfigurationError: not by this source, or not on this server.
    """
    if not isinstance(connection, ReplicationConnection):
        raise ConfigurationError(
            f"slot {slot!r} is no failover slot, and no SQL function makes it one: use the walsender source once"
        )
    await connection.alter_slot(slot, failover=True)
    _log.info("slot %s is a failover slot now", slot)


async def require_publications(connection: Connection, names: tuple[str, ...]) -> None:
    # Asked for here, because pgoutput looks publications up only when the first change is decoded.
    rows = await connection.query(
        f"SELECT pubname::text FROM pg_catalog.pg_publication WHERE pubname IN ({literals(names)})"
    )
    missing = sorted(set(names) - {row["pubname"] for row in rows})
    if missing:
        raise ConfigurationError(
            f"no publication {', '.join(map(repr, missing))} in this database: "
            f"CREATE PUBLICATION {missing[0]} FOR TABLE … on the source first"
        )


async def find_slot(connection: Connection, slot: str) -> dict[str, str | None] | None:
    rows = await connection.query(
        "SELECT slot_type::text, plugin::text, database::text, temporary::text, confirmed_flush_lsn::text, "
        # A poller has it, too, between two polls, when it is not active.
        f"(active OR {poller(slot)} IS NOT NULL)::text AS active, "
        f"coalesce(active_pid, {poller(slot)})::text AS active_pid, "
        # Columns that not every version has: out of JSON they are just missing.
        "to_jsonb(s) ->> 'wal_status' AS wal_status, to_jsonb(s) ->> 'invalidation_reason' AS invalidation_reason, "
        "to_jsonb(s) ->> 'failover' AS failover, to_jsonb(s) ->> 'two_phase' AS two_phase, "
        "(pg_catalog.pg_is_in_recovery() AND (to_jsonb(s) ->> 'synced')::bool)::text AS synchronizing "
        f"FROM pg_catalog.pg_replication_slots s WHERE slot_name = {literal(slot)}"
    )
    return rows[0] if rows else None


def require_usable(found: dict[str, str | None], source: Source, database: str) -> LSN:
    name = source.slot
    _require_ours(found, source, database)
    if found["synchronizing"] == "true":
        # Passes when the standby is promoted.
        raise SlotError(
            f"slot {name!r} is being synchronized from the primary on this standby: connect to the primary, of several "
            "hosts by target_session_attrs=read-write",
            busy=True,
        )
    if found["wal_status"] == "lost" or found["invalidation_reason"]:
        reason = found["invalidation_reason"] or "the WAL it needed was removed"
        raise SlotError(
            f"slot {name!r} is lost ({reason}): changes are missing for good; with a journal, start again with "
            "resnapshot=True (--resnapshot); or drop the slot, and start again with create_slot (--create-slot) and "
            "accept_gap=True (--accept-gap)"
        )
    return LSN.parse(found["confirmed_flush_lsn"] or "0/0")


def _require_ours(found: dict[str, str | None], source: Source, database: str) -> None:
    name = source.slot
    if found["slot_type"] != "logical":
        raise SlotError(f"slot {name!r} is a physical one: use another name")
    if found["plugin"] != "pgoutput":
        raise SlotError(f"slot {name!r} decodes with {found['plugin']}, not pgoutput: use another name")
    if found["database"] != database:
        raise SlotError(
            f"slot {name!r} belongs to database {found['database']!r}, the DSN names {database!r}"
        )
    if found["active"] == "true":
        raise SlotError(
            f"slot {name!r} is in use by process {found['active_pid']} on the server: stop that consumer, or use "
            "a slot of your own",
            busy=True,
        )
    if found["temporary"] == "true" and not source.temporary:
        raise SlotError(f"slot {name!r} is temporary and of another session: use another name")
