"""Waits for a slot that another instance reads, and takes the slot over when that instance ends or dies."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from aiorepl.errors import AioreplError
from aiorepl.loggers import logger
from aiorepl.retry import may_pass
from aiorepl.source.server.queries import read_slot
from aiorepl.source.source import Source
from aiorepl.wire.interface import Connection

_log = logger("aiorepl.capture")

_SECONDS: Final = 1.0


async def wait_for_slot(source: Source, *, seconds: float = _SECONDS) -> None:
    """Return once no consumer reads the slot, or if it does not exist.

    Another instance may still take the slot first; then the following start fails. A connection that is lost during the wait is
    opened again.

    :param seconds: the pause between two looks at the slot.
    :raises ConnectionFailed, ConfigurationError: the server cannot be reached at the first look.
    """
    waits = False
    connection: Connection | None = None
    try:
        while True:
            try:
                if connection is None:
                    connection = await source.open()
                slot = await read_slot(connection, source.slot)
            except AioreplError as error:
                if not waits or not may_pass(error):
                    raise
                if connection is not None:
                    connection.abort()
                connection = None
            else:
                if slot is None or not slot.active:
                    break
                if not waits:
                    _log.warning(
                        "slot %s is in use by process %s on the server: waiting to take it over",
                        source.slot,
                        slot.active_pid,
                    )
                waits = True
            await asyncio.sleep(seconds)
    finally:
        if connection is not None:
            with contextlib.suppress(AioreplError):
                await connection.close()
    if waits:
        _log.warning("slot %s is free: taking it over", source.slot)
