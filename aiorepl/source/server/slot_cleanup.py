"""Drops the slot that a failed start has created, because it would keep WAL without a consumer."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aiorepl.cancellation import uninterrupted
from aiorepl.errors import AioreplError
from aiorepl.lsn import LSN
from aiorepl.source.source import Source
from aiorepl.wire.commands import literal
from aiorepl.wire.interface import Connection, CreatedSlot

_log = logging.getLogger("aiorepl.source")

_PATIENCE: Final = 30.0


async def drop(source: Source, created: CreatedSlot) -> None:
    """Drop a slot that was just created, unless another one has its name by now. Errors are only logged."""
    await uninterrupted(_drop(source, created))


async def _drop(source: Source, created: CreatedSlot) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            connection = await source.open()
            try:
                if await _untouched(connection, created):
                    await connection.drop_slot(created.name, wait=True)
                    _log.info("dropped slot %s again, for the start has failed", created.name)
            finally:
                connection.abort()
    except (AioreplError, OSError) as error:  # a TimeoutError is an OSError
        _log.warning(
            "the start has failed, and slot %s, which it has created, cannot be dropped: %s; it keeps WAL until it is "
            "used or dropped (aiorepl slots drop %s)",
            created.name,
            str(error) or type(error).__name__,
            created.name,
        )


async def _untouched(connection: Connection, created: CreatedSlot) -> bool:
    """Whether the slot is still as it was created: not confirmed further, and not recreated under the same name."""
    rows = await connection.query(
        "SELECT confirmed_flush_lsn::text AS lsn FROM pg_catalog.pg_replication_slots "
        f"WHERE slot_name = {literal(created.name)}"
    )
    return any(LSN.parse(row["lsn"] or "0/0") == created.consistent_point for row in rows)
