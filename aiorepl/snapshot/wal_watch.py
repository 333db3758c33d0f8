"""Watches the WAL that a slot makes the server keep while tables are read.

A slot keeps all WAL from its ``restart_lsn`` on. During an initial snapshot the stream is paused, so WAL grows with every
write, until the disk is full or ``max_slot_wal_keep_size`` invalidates the slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiorepl.errors import loggable
from aiorepl.loggers import logger
from aiorepl.sizes import format_size
from aiorepl.snapshot.statistics import WalRetention
from aiorepl.wire.kept_connection import KeptConnection

_log = logger("aiorepl.snapshot")

SECONDS: Final = 5.0
# safe_wal_size exists since PostgreSQL 13. A standby has replayed WAL instead of written.
_RETAINED: Final = """
SELECT wal_status, safe_wal_size,
       pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
         ELSE pg_catalog.pg_current_wal_lsn() END, restart_lsn)::int8 AS retained
  FROM pg_catalog.pg_replication_slots WHERE slot_name = $1
"""
# The warning is repeated when the kept WAL has doubled.
_FIRST_WARNING: Final = 1 << 30


class WalWatch:
    """Reads every few seconds how much WAL a slot keeps, on a connection of its own. Never fails.

    :param connect: opens an asyncpg connection.
    :param limit: the number of kept bytes above which the limit is exceeded; ``None``: no limit.
    :param exceeded: called with true when the limit is exceeded, and with false when it is no longer exceeded.
    :ivar retention: the last result.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        slot: str,
        limit: int | None,
        exceeded: Callable[[bool], None],
        *,
        seconds: float = SECONDS,
    ) -> None:
        self.retention: WalRetention | None = None
        self._slot = slot
        self._limit = limit
        self._exceeded = exceeded
        self._seconds = seconds
        self._connection = KeptConnection(connect)
        self._is_exceeded = False
        self._warn_at = _FIRST_WARNING
        self._failing = False
        self._unsafe = False

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(self._seconds)
        finally:
            self._connection.drop()

    async def _look(self) -> None:
        try:
            row = await self._connection.fetchrow(_RETAINED, self._slot)
        except Exception as error:  # noqa: BLE001 - the snapshot does not depend on it
            if not self._failing:
                _log.warning("cannot read how much WAL slot %s keeps: %s", self._slot, loggable(error))
            self._failing = True
            return
        self._failing = False
        if row is not None and row["retained"] is not None:
            self.take(WalRetention(max(row["retained"], 0), row["wal_status"], row["safe_wal_size"]))

    def take(self, retention: WalRetention) -> None:
        """Warn if the slot keeps much WAL, and compare the amount with the limit."""
        self.retention = retention
        kept = format_size(retention.bytes)
        unsafe = retention.status in ("unreserved", "lost")
        if unsafe and not self._unsafe:
            _log.warning(
                "slot %s keeps %s of WAL, more than max_slot_wal_keep_size allows, and may be lost (wal_status = %s): raise it, "
                "or make the sinks faster",
                self._slot,
                kept,
                retention.status,
            )
        elif retention.bytes >= self._warn_at:
            left = (
                ""
                if retention.safe_bytes is None
                else f", {format_size(retention.safe_bytes)} before it is lost"
            )
            _log.warning("slot %s keeps %s of WAL while tables are read%s", self._slot, kept, left)
        while self._warn_at <= retention.bytes:
            self._warn_at *= 2
        self._unsafe = unsafe
        if self._limit is None:
            return
        # The limit has a margin below it. Otherwise an amount around the limit would pause and resume reading every few
        # seconds.
        limit = self._limit if not self._is_exceeded else self._limit * 3 // 4
        if (retention.bytes > limit) != self._is_exceeded:
            self._is_exceeded = not self._is_exceeded
            self._exceeded(self._is_exceeded)
