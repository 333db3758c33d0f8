"""Changes to the slot: create it, make it a failover slot, replace it, drop it after a failed start."""

from __future__ import annotations

import asyncio
from typing import Final

from aiorepl.cancellation import uninterrupted
from aiorepl.errors import AioreplError, ConfigurationError
from aiorepl.loggers import logger
from aiorepl.source.server.queries import Slot, read_slot
from aiorepl.source.server.slot_wait import Waits, telling
from aiorepl.source.source import Source
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.interface import Connection, CreatedSlot

_log = logger("aiorepl.source")

_DROP_TIMEOUT: Final = 30.0
_RESERVED_BYTES: Final = 1024 * 1024


async def create_slot(
    connection: Connection, source: Source, *, snapshot: str, waits: Waits | None = None
) -> CreatedSlot:
    """Create the source's slot.

    With a replication connection this is the last command before the stream, because any other command ends an
    exported snapshot.

    :param snapshot: ``"nothing"``, or ``"export"``.
    :param waits: called with a description of the transaction that the server waits for meanwhile.
    :raises ConfigurationError: the server cannot create such a slot.
    :raises SlotError: the slot exists already, or none is free.
    """
    # PostgreSQL 17 refuses a slot that is created with both options, but can alter it afterwards.
    alter = (
        source.failover and source.two_phase and connection.server_version == 17 and source.interface != "sql"
    )
    with telling(source.connect_sql, source.slot, waits):
        created = await connection.create_slot(
            source.slot,
            temporary=source.temporary,
            two_phase=source.two_phase,
            failover=source.failover and not alter,
            snapshot=snapshot,
        )
    if alter:
        try:
            await _alter_on_another_connection(source)
        except BaseException:
            await drop_created(source, created)
            raise
    _log.info("created slot %s at %s", source.slot, created.consistent_point)
    return created


async def make_failover(connection: Connection, slot: str) -> None:
    """Make the slot a failover slot, which standbys synchronize. It must not be in use.

    :raises ConfigurationError: the interface or the server cannot do that.
    """
    if not isinstance(connection, ReplicationConnection):
        raise ConfigurationError(
            f"slot {slot!r} is not a failover slot, and no SQL function can make it one: start once with "
            'interface="walsender"'
        )
    await connection.alter_slot(slot, failover=True)
    _log.info("slot %s is a failover slot now", slot)


async def drop_replaced(connection: Connection, slot: Slot) -> None:
    """Drop a slot that an initial snapshot replaces.

    :raises ConfigurationError: the interface has no initial snapshot.
    """
    if not isinstance(connection, ReplicationConnection):
        raise ConfigurationError(
            'an initial snapshot needs a replication connection: set interface="walsender"'
        )
    _log.warning("dropping slot %s, which stood at %s", slot.name, slot.confirmed_flush_lsn)
    await connection.drop_slot(slot.name)


async def reserve_wal(connection: Connection) -> None:
    """Write a megabyte of WAL, so that the positions of a snapshot come after the positions that consumers have.

    The snapshot's chunks have positions just below the consistent point of the slot, which is created next.
    """
    await connection.query(
        f"SELECT pg_catalog.pg_logical_emit_message(false, 'aiorepl', pg_catalog.repeat('-', {_RESERVED_BYTES}))"
    )


async def drop_created(source: Source, created: CreatedSlot) -> None:
    """Drop the slot that a failed start has created, because it would keep WAL without a consumer.

    A slot that was recreated under the same name since is left alone. Errors are only logged.
    """
    await uninterrupted(_drop_created(source, created))


async def _alter_on_another_connection(source: Source) -> None:
    other = await source.open()
    try:
        await make_failover(other, source.slot)
    finally:
        await other.close()


async def _drop_created(source: Source, created: CreatedSlot) -> None:
    try:
        async with asyncio.timeout(_DROP_TIMEOUT):
            connection = await source.open()
            try:
                slot = await read_slot(connection, created.name)
                # If the slot was confirmed since, or recreated under its name, it is another consumer's.
                if slot is not None and slot.confirmed_flush_lsn == created.consistent_point:
                    await connection.drop_slot(created.name, wait=True)
                    _log.info("dropped slot %s, because the start has failed", created.name)
            finally:
                connection.abort()
    except (AioreplError, OSError) as error:  # also catches TimeoutError
        _log.warning(
            "the start has failed, and slot %s, which it has created, cannot be dropped: %s; it keeps WAL until it is "
            "used or dropped (aiorepl slots drop %s)",
            created.name,
            str(error) or type(error).__name__,
            created.name,
        )
