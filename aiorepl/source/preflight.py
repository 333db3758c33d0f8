"""Checks before the first byte is requested: the server, the publications and the slot, which is created if it is missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiorepl.errors import SlotError, SlotLost
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.source.catalog.table_lookups import TableLookups
from aiorepl.source.lineage import Identity, Upgrade
from aiorepl.source.server.binary import require_cents
from aiorepl.source.server.queries import (
    Settings,
    Slot,
    existing_publications,
    read_process,
    read_settings,
    read_slot,
    was_read,
)
from aiorepl.source.server.requirements import (
    require_logical,
    require_own,
    require_publications,
    require_usable,
)
from aiorepl.source.server.slot_wait import Waits
from aiorepl.source.server.slots import create_slot, drop_replaced, reserve_wal
from aiorepl.source.server.upgrade import identify
from aiorepl.source.source import Source
from aiorepl.wire.interface import Connection, CreatedSlot, System
from aiorepl.wire.server_errors import missing_slot

_log = logger("aiorepl.source")


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """A slot that passed the checks.

    :param position: where the slot's stream begins, unless a later start is requested.
    :param created: the slot, if it was created now.
    :param wal_sender_timeout: the server's setting in seconds; 0 when it is off.
    :param plugin_options: the options of START_REPLICATION, negotiated with the server's version.
    :param wal_end: the end of the server's WAL.
    :param started: when the server was started; it changes with every restart.
    :param standby_pid: the process that serves this connection if the server is a standby; else ``None``.
    :param make_failover: whether the slot has to be made a failover slot, once it is known to belong to this pipeline.
    :param catalog_xmin: the first transaction that may have altered a table after the slot's confirmed position; ``None`` if
        unknown.
    :param xid: the xid, with its epoch, of the oldest transaction that was in progress.
    :param deliver_prepared: whether prepared transactions are delivered when they are prepared.
    :param holds_prepared: whether the slot sends prepared transactions and they wait here until they commit.
    :param cents: whether the binary form of money, if the stream is binary, has two decimals.
    :param server_timeline: the server's own timeline. Timelines of positions count on over upgrades.
    :param upgrade: the upgrade that made the server's cluster; ``None``: none.
    """

    position: Position
    created: CreatedSlot | None
    wal_sender_timeout: float
    plugin_options: dict[str, str]
    wal_end: LSN
    started: str | None = None
    standby_pid: int | None = None
    make_failover: bool = False
    deliver_prepared: bool = False
    holds_prepared: bool = False
    catalog_xmin: int | None = None
    xid: int = 0
    cents: bool = True
    server_timeline: int = 1
    upgrade: Upgrade | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """The slot that a start or a reconnect needs.

    :param snapshot: ``"nothing"``, or ``"export"`` for the snapshot of an initial snapshot.
    :param replace: drop an existing slot first, even a lost one, and create it again.
    :param known: whether the slot existed before. If so, a missing slot counts as lost, and is not created.
    :param journal: the position of the journal, LSN 0 while it is empty. No slot is created or dropped if the journal belongs
        to another source, and a slot that replaces another must begin after it.
    :param creating: called before a slot is dropped or created.
    :param previous: after a reconnect, the position up to which the slot was read before; a missing slot is then not created.
    """

    snapshot: str = "nothing"
    replace: bool = False
    known: bool = False
    journal: Position | None = None
    creating: Callable[[], Awaitable[None]] | None = None
    previous: Position | None = None


async def preflight(
    connection: Connection,
    source: Source,
    request: SlotRequest,
    *,
    tables: TableLookups | None = None,
    waits: Waits | None = None,
    deliver_prepared: bool = False,
    control_messages: bool = False,
) -> PreflightResult:
    """Check the server, the publications and the slot. Create a slot if it is missing and ``source.create_slot`` is set, or if it is replaced.

    :param tables: load and verify the published tables before a slot is created.
    :param waits: called with a description of the transaction that the creation of a slot waits for.
    :param deliver_prepared: deliver prepared transactions when they are prepared.
    :param control_messages: request watermarks and signals of snapshots, if the server supports messages.
    :raises ConfigurationError: the server or a publication does not fit the source.
    :raises SlotLost: the slot does not exist any more, or is invalidated.
    :raises SlotError: the slot is missing, in use or not this source's.
    :raises ServerError, ConnectionLost: a query failed.
    :raises ConnectionFailed: a pooler is in front of the server, and no ordinary connection keeps its settings.
    """
    if connection.pooled and source.interface == "walsender":
        # Refuse a pool that does not keep sessions now, and not at the first look-up.
        (await source.connect_sql()).terminate()
    plugin_options = source.options(control_messages=control_messages).negotiate(connection.server_version)
    settings = await _check_server(connection, source.options().publications)
    cents = not source.binary or await require_cents(connection, source)
    # Ask for the standby's process before the timeline is read: a server that is no longer a standby keeps its timeline.
    process = await read_process(connection)
    system = await connection.identify_system()
    identity = await identify(connection, source, system)
    slot = await _check_slot(connection, source, request, identity, system, tables)
    created: CreatedSlot | None = None
    if slot is None:
        created = await _create(connection, source, request, waits, in_recovery=process.in_recovery)
        begin = created.consistent_point
    else:
        begin = require_usable(slot, source, system.database)
        if source.create_slot and request.previous is None:
            _log.info("slot %s exists: using it from %s", source.slot, begin)
    lines = identity.timelines
    return PreflightResult(
        Position(identity.system_identifier, lines.current, source.slot, begin, lines, system.database),
        created,
        settings.wal_sender_timeout,
        plugin_options,
        wal_end=max(system.xlogpos, begin),
        started=process.started,
        standby_pid=process.pid if process.in_recovery else None,
        make_failover=source.failover and slot is not None and not slot.failover,
        # A slot with two_phase sends prepared transactions to every consumer, whatever its options are.
        holds_prepared=not deliver_prepared and (source.two_phase or (slot is not None and slot.two_phase)),
        deliver_prepared=deliver_prepared,
        catalog_xmin=process.xmin & 0xFFFF_FFFF if slot is None else slot.catalog_xmin,
        xid=process.xmin,
        cents=cents,
        server_timeline=system.timeline,
        upgrade=identity.upgrade,
    )


async def _check_server(connection: Connection, names: tuple[str, ...]) -> Settings:
    """Check the settings of the server, and its publications; return the settings."""
    settings = await read_settings(connection)
    require_logical(settings, connection.server_version)
    existing = await existing_publications(connection, names)
    if not existing.issuperset(names):
        # The error lists all existing publications.
        existing = await existing_publications(connection)
    require_publications(existing, names)
    return settings


async def _create(
    connection: Connection, source: Source, request: SlotRequest, waits: Waits | None, *, in_recovery: bool
) -> CreatedSlot:
    if request.replace and not in_recovery:
        await reserve_wal(connection)
    return await create_slot(connection, source, snapshot=request.snapshot, waits=waits)


async def _check_slot(
    connection: Connection,
    source: Source,
    request: SlotRequest,
    identity: Identity,
    system: System,
    tables: TableLookups | None,
) -> Slot | None:
    """Check the slot, and drop it if it is replaced. Return the slot; ``None`` if it has to be created."""
    timelines, replace = identity.timelines, request.replace
    slot = await read_slot(connection, source.slot)
    if slot is not None and not replace:
        # Check the slot before the tables: their verification writes files, and another pipeline may have the slot.
        require_usable(slot, source, system.database)
    if slot is None and request.known and not replace:
        raise SlotLost(
            f"replication slot {source.slot!r} was read before, and does not exist any more: changes are missing for good; start again with "
            "resnapshot=True (--resnapshot)"
        )
    if tables is not None:
        read = slot is not None and await was_read(connection, slot, system)
        await tables.load(f"{identity.system_identifier}/{system.database}", read=read)
    if request.journal is not None:
        server = Position(identity.system_identifier, timelines.current, source.slot, system.xlogpos)
        _require_journal(request.journal, server, replace=replace)
    if slot is not None and not replace:
        return slot
    if slot is not None:
        require_own(slot, source, system.database)
    creates = replace or (source.create_slot and request.previous is None)
    if creates and request.creating is not None:
        await request.creating()
    if slot is not None:
        await drop_replaced(connection, slot)
    if not creates:
        raise _missing_slot(source, timelines.current, request.previous)
    return None


def _require_journal(journal: Position, server: Position, *, replace: bool) -> None:
    """Check the journal before the server is changed, because the DSN may name another source.

    :raises SlotError: the journal belongs to another source, or is ahead of the server's WAL.
    """
    journal.require_same_source(server, "the journal")
    if replace and journal.lsn > server.lsn:
        raise SlotError(
            f"the journal is at {journal.lsn}, but the server's WAL ends at {server.lsn}: an initial snapshot would not come "
            "after the journal's end; first move the server's WAL past it (SELECT pg_switch_wal()), or start with an empty "
            "journal"
        )


def _missing_slot(source: Source, timeline: int, previous: Position | None) -> SlotError:
    if previous is None:
        return missing_slot(source.slot)
    if previous.timeline >= timeline:
        return SlotLost(str(missing_slot(source.slot)))
    return SlotLost(
        f"the promoted server, on timeline {timeline} after {previous.timeline}, has no slot {source.slot!r}: the slot was not "
        f"a failover slot, or was not synchronized yet, and changes after {previous.lsn} cannot be read from this server; "
        "start again with resnapshot=True (--resnapshot, with a journal or state_dir), or without it: create_slot (--create-slot) "
        "and accept_gap=True (--accept-gap). On PostgreSQL 17 and later failover=True (--failover), and sync_replication_slots "
        "on the standby, prevent this"
    )
