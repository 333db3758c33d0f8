"""``aiorepl check``: what would keep a pipeline from starting, or stop it later. Changes nothing on the server.

The checks use the same queries as a start (``server.queries``) and apply the same requirements (``server.requirements``). They
also warn of problems that a start does not notice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from aiorepl.errors import AioreplError, ConfigurationError, SlotError
from aiorepl.position import Position
from aiorepl.source.continuity import GapPolicy
from aiorepl.source.diagnose import access
from aiorepl.source.diagnose.capacity import limits, missing_slot, wal
from aiorepl.source.diagnose.event_trigger import event_trigger
from aiorepl.source.diagnose.finding import Finding, error_found
from aiorepl.source.diagnose.publications import identities, publications
from aiorepl.source.diagnose.unreplicated import unreplicated
from aiorepl.source.server.queries import (
    read_process,
    read_settings,
    read_slot,
)
from aiorepl.source.server.requirements import require_logical, require_usable
from aiorepl.source.server.upgrade import identify
from aiorepl.source.source import Source
from aiorepl.wire.interface import Connection

Check = Callable[[Connection, Source], Awaitable[list[Finding]]]

_NONE: Final[Mapping[str, Check]] = MappingProxyType({})


async def check(
    source: Source,
    journal: Position | None = None,
    *,
    snapshot: bool = False,
    additional: Mapping[str, Check] = _NONE,
) -> AsyncIterator[Finding]:
    """Check everything that a start checks, and what would stop the pipeline later.

    :param journal: the journal's position, if there is a journal.
    :param snapshot: whether the pipeline begins with a snapshot of the tables.
    :param additional: further checks, by the subject of their findings.
    """
    try:
        connection = await source.open()
    except AioreplError as error:
        yield error_found("connection", error)
        return
    checks: dict[str, Check] = {
        "TLS": access.tls,
        "pooler": access.pooler,
        "server": _server,
        "encoding": _encoding,
        "privileges": access.privileges,
        "publication": publications,
        "replica identity": identities,
        "not replicated": unreplicated,
        "event trigger": event_trigger,
        "slot": _slot,
        "WAL": wal,
        "limits": limits,
    }
    if snapshot and journal is None:
        checks["snapshot"] = access.readable
    try:
        for about, each in (checks | dict(additional)).items():
            try:
                findings = await each(connection, source)
            except AioreplError as error:
                findings = [error_found(about, error)]
            for finding in findings:
                yield finding
        if journal is not None:
            yield await _journal(connection, source, journal)
    finally:
        await connection.close()


async def _server(connection: Connection, source: Source) -> list[Finding]:
    source.options().negotiate(connection.server_version)
    settings = await read_settings(connection)
    try:
        require_logical(settings, connection.server_version)
    except ConfigurationError as error:
        sql = "ALTER SYSTEM SET wal_level = logical;"
        return [replace(error_found("server", error), sql=sql)]
    await connection.identify_system()
    standby = (await read_process(connection)).in_recovery
    if standby and connection.server_version < 16:
        raise ConfigurationError(
            f"this is a standby, which PostgreSQL {connection.server_version} cannot decode on: connect to the primary"
        )
    level = settings.wal_level
    if level != "logical":
        level += (
            " (logical now)"
            if settings.effective_wal_level == "logical"
            else " (logical with the first slot)"
        )
    text = f"PostgreSQL {connection.server_version}, wal_level {level}{', a standby' if standby else ''}"
    return [Finding("ok", "server", text)]


async def _encoding(connection: Connection, source: Source) -> list[Finding]:
    settings = await read_settings(connection)
    if settings.server_encoding != "SQL_ASCII":
        return []
    text = (
        "the database's encoding is SQL_ASCII, in which text may be any bytes: a value that is not UTF-8 stops a sink that "
        "reads it, unless its on_error is dead_letter or skip"
    )
    return [Finding("warning", "encoding", text)]


async def _slot(connection: Connection, source: Source) -> list[Finding]:
    slot = await read_slot(connection, source.slot)
    if slot is None:
        return [await missing_slot(connection, source)]
    system = await connection.identify_system()
    try:
        begin = require_usable(slot, source, system.database)
    except SlotError as error:
        if not error.busy:
            raise
        return [Finding("warning", "slot", str(error))]
    return [Finding("ok", "slot", f"{source.slot} exists and continues after {begin}")]


async def _journal(connection: Connection, source: Source, journal: Position) -> Finding:
    try:
        system = await connection.identify_system()
        identity = await identify(connection, source, system)
        slot = await read_slot(connection, source.slot)
        begin = Position(
            identity.system_identifier,
            identity.timelines.current,
            source.slot,
            system.xlogpos if slot is None else slot.confirmed_flush_lsn,
            identity.timelines,
        )
        journal.require_same_source(begin, "the journal")
        if slot is not None and journal.lsn:
            wal_end = max(system.xlogpos, begin.lsn)
            GapPolicy(accept=False).check("the journal", journal, begin, wal_end, identity.upgrade)
    except AioreplError as error:
        return error_found("journal", error)
    return Finding("ok", "journal", f"belongs to this slot and is at {journal.lsn}")
