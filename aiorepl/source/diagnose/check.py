"""What would go wrong with a source, found out before it does: looks at the server and changes nothing there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

from aiorepl.errors import AioreplError, ConfigurationError, SlotError
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.source.continuity import GapPolicy, parse_history
from aiorepl.source.diagnose import access
from aiorepl.source.diagnose.finding import Finding, error_found
from aiorepl.source.preflight import find_slot, require_publications, require_usable
from aiorepl.source.source import Source
from aiorepl.wire.commands import literal, literals
from aiorepl.wire.interface import Connection, System

Look = Callable[[Connection, Source], Awaitable[list[Finding]]]

_NAMED: Final = 5
_NONE: Final[Mapping[str, Look]] = MappingProxyType({})
_SETTINGS: Final = ("wal_level", "max_replication_slots", "max_slot_wal_keep_size", "wal_sender_timeout")


async def check(
    source: Source,
    held: Position | None = None,
    *,
    snapshot: bool = False,
    further: Mapping[str, Look] = _NONE,
) -> AsyncIterator[Finding]:
    """Look at everything that a start would look at, and at what it would trip over later.

    :param held: how far the journal goes, if there is one.
    :param snapshot: whether the journal begins with an initial load.
    :param further: checks of the caller's own, by what they are about.
    """
    try:
        connection = await source.open()
    except AioreplError as error:
        yield error_found("connection", error)
        return
    try:
        for about, look in (
            ("TLS", access.tls),
            ("server", _server),
            ("encoding", _encoding),
            ("privileges", access.privileges),
            ("publication", _publications),
            ("replica identity", _identities),
            ("slot", _slot),
            ("WAL", _wal),
        ):
            async for finding in _guarded(about, look, connection, source):
                yield finding
        if snapshot and held is None:
            async for finding in _guarded("initial load", access.initial_load, connection, source):
                yield finding
        for about, check_further in further.items():
            async for finding in _guarded(about, check_further, connection, source):
                yield finding
        if held is not None:
            yield await _journal(connection, source, held)
    finally:
        await connection.close()


async def _guarded(about: str, look: Look, connection: Connection, source: Source) -> AsyncIterator[Finding]:
    """What is found, or the error that it was to find: the other looks are taken all the same."""
    try:
        for finding in await look(connection, source):
            yield finding
    except AioreplError as error:
        yield error_found(about, error)


async def _server(connection: Connection, source: Source) -> list[Finding]:
    settings = await _settings(connection)
    source.options().negotiate(connection.server_version)
    level = settings["wal_level"]
    if level != "logical":
        raise ConfigurationError(f"wal_level is {level}: set wal_level = logical and restart the server")
    (recovery,) = await connection.query("SELECT pg_catalog.pg_is_in_recovery()::text AS standby")
    standby = recovery["standby"] == "true"
    if standby and connection.server_version < 16:
        raise ConfigurationError(
            f"this is a standby, which PostgreSQL {connection.server_version} cannot decode on: connect to the primary"
        )
    found = f"PostgreSQL {connection.server_version}, wal_level logical{', a standby' if standby else ''}"
    return [Finding("ok", "server", found)]


async def _encoding(connection: Connection, source: Source) -> list[Finding]:
    (row,) = await connection.query("SHOW server_encoding")
    if row["server_encoding"] != "SQL_ASCII":
        return []
    return [
        Finding(
            "warning",
            "encoding",
            "the database's encoding is SQL_ASCII, in which text may be any bytes: a value that is not UTF-8 stops a sink that "
            "reads it, unless its on_error is dead_letter or skip",
        )
    ]


async def _publications(connection: Connection, source: Source) -> list[Finding]:
    names = source.options().publications
    await require_publications(connection, names)
    (row,) = await connection.query(
        "SELECT count(DISTINCT (schemaname, tablename))::text AS tables FROM pg_catalog.pg_publication_tables "
        f"WHERE pubname IN ({literals(names)})"
    )
    named = ", ".join(names)
    if row["tables"] == "0":
        return [Finding("warning", "publication", f"{named}: has no tables, so nothing would come")]
    return [Finding("ok", "publication", f"{named}: {row['tables']} tables")]


async def _identities(connection: Connection, source: Source) -> list[Finding]:
    # Leaves of a partitioned table have identities of their own; the root has none that counts.
    rows = await connection.query(
        f"""
        SELECT DISTINCT n.nspname || '.' || c.relname AS name
          FROM pg_catalog.pg_publication_tables t
          JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname AND (p.pubupdate OR p.pubdelete)
          JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
          JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename AND c.relkind = 'r'
         WHERE t.pubname IN ({literals(source.options().publications)})
           AND CASE c.relreplident
                 WHEN 'n' THEN true
                 WHEN 'd' THEN NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
                 WHEN 'i' THEN NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
                 ELSE false END
         ORDER BY 1
        """
    )
    if not rows:
        return [Finding("ok", "replica identity", "every table that publishes updates or deletes has one")]
    shown = ", ".join(str(row["name"]) for row in rows[:_NAMED])
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    text = (
        f"{shown}{more}: no replica identity, so that the server refuses their updates and deletes: add a primary key, or "
        "ALTER TABLE … REPLICA IDENTITY FULL, or publish inserts alone"
    )
    return [Finding("warning", "replica identity", text)]


async def _slot(connection: Connection, source: Source) -> list[Finding]:
    found = await find_slot(connection, source.slot)
    if found is None:
        return [await _missing(connection, source)]
    system = await connection.identify_system()
    try:
        begin = require_usable(found, source, system.database)
    except SlotError as error:
        if not error.busy:
            raise
        return [Finding("warning", "slot", str(error))]
    return [Finding("ok", "slot", f"{source.slot} is there and goes on behind {begin}")]


async def _missing(connection: Connection, source: Source) -> Finding:
    (row,) = await connection.query("SELECT count(*)::text AS used FROM pg_catalog.pg_replication_slots")
    most = (await _settings(connection))["max_replication_slots"]
    if int(row["used"] or 0) >= int(most):
        raise SlotError(
            f"{source.slot} does not exist, and all {most} slots are taken: drop one that nobody needs (aiorepl slots), or "
            "raise max_replication_slots and restart the server"
        )
    if not source.create_slot:
        raise SlotError(
            f"{source.slot} does not exist: create_slot (--create-slot) has the first start make it"
        )
    return Finding("ok", "slot", f"{source.slot} does not exist yet: the first start makes it")


async def _wal(connection: Connection, source: Source) -> list[Finding]:
    settings = await _settings(connection)
    findings = []
    rows = await connection.query(
        "SELECT pg_catalog.pg_size_pretty(pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() "
        "THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, restart_lsn)) AS kept, "
        "to_jsonb(s) ->> 'wal_status' AS status "
        f"FROM pg_catalog.pg_replication_slots s WHERE slot_name = {literal(source.slot)}"
    )
    for row in rows:
        text = f"the slot keeps {row['kept'] or 'no WAL'}"
        if row["status"] == "unreserved":
            text += (
                ", more than max_slot_wal_keep_size allows, and is about to be lost: start its consumer now"
            )
        findings.append(Finding("warning" if row["status"] == "unreserved" else "ok", "WAL", text))
    if settings.get("max_slot_wal_keep_size") == "-1":
        text = "max_slot_wal_keep_size is -1: a slot that nobody reads keeps WAL until the disk is full; set a limit"
        findings.append(Finding("warning", "WAL", text))
    if settings["wal_sender_timeout"] == "0":
        text = "wal_sender_timeout is 0: after a cut the server takes the slot for used until TCP gives up; set 60s"
        findings.append(Finding("warning", "WAL", text))
    return findings


async def _journal(connection: Connection, source: Source, held: Position) -> Finding:
    try:
        system = await connection.identify_system()
        found = await find_slot(connection, source.slot)
        begin = await _begin(connection, system, source, found)
        held.require_same_source(begin, "the journal")
        if found is not None and held.lsn:
            GapPolicy(accept=False).check("the journal", held, begin, max(system.xlogpos, begin.lsn))
    except AioreplError as error:
        return error_found("journal", error)
    return Finding("ok", "journal", f"is of this slot and stands at {held.lsn}")


async def _begin(
    connection: Connection, system: System, source: Source, found: dict[str, str | None] | None
) -> Position:
    history = await connection.timeline_history(system.timeline) if system.timeline > 1 else None
    lsn = LSN.parse((found or {}).get("confirmed_flush_lsn") or "0/0")
    timelines = parse_history(history, system.timeline)
    return Position(system.system_identifier, system.timeline, source.slot, lsn, timelines)


async def _settings(connection: Connection) -> dict[str, str]:
    rows = await connection.query(
        f"SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ({literals(_SETTINGS)})"
    )
    return {str(row["name"]): row["setting"] or "" for row in rows}
