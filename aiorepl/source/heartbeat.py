"""A beat in the WAL now and then, so that a quiet slot has something of its own to move past.

Keepalives confirm the WAL of others by themselves. A beat is for where they do not reach: hosts whose idle time is
filled with WAL of their own, proxies that cut idle connections, monitoring that wants to see the stream move. It is a
logical message, not transactional and empty; those are not given to sinks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from aiorepl.errors import AioreplError
from aiorepl.source.source import Source
from aiorepl.transactions.changes import Message
from aiorepl.transactions.transaction import Slice
from aiorepl.wire.opening import ANSWER_SECONDS, explained

_log = logging.getLogger("aiorepl.heartbeat")

PREFIX: Final = "aiorepl"
_BEAT: Final = f"""
SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.pg_logical_emit_message(false, '{PREFIX}', '') END IS NOT NULL
"""


def is_heartbeat(part: Slice) -> bool:
    """Whether this is one of ours, and nothing of the user's."""
    if part.transaction is not None or not part.changes:
        return False
    (change,) = part.changes
    return isinstance(change, Message) and change.prefix == PREFIX and not change.content


@dataclass(slots=True)
class HeartbeatStatistics:
    """What has become of the beats: ``skipped`` on a standby, which cannot write; ``error`` is the last one's, if it
    failed.
    """

    sent: int = 0
    skipped: int = 0
    failed: int = 0
    error: str | None = None


class Heartbeat:
    """Beats every ``source.heartbeat_interval`` seconds, on a connection of its own, until it is cancelled. Never fails."""

    def __init__(self, source: Source) -> None:
        self.statistics = HeartbeatStatistics()
        self._source = source
        self._connection: Any = None

    async def run(self) -> None:
        """Beat now, and again and again."""
        seconds = self._source.heartbeat_interval
        assert seconds is not None
        clock = asyncio.get_running_loop().time
        due = clock()
        try:
            while True:
                await self._beat()
                due = max(due + seconds, clock())
                await asyncio.sleep(due - clock())
        finally:
            self._drop()

    async def _beat(self) -> None:
        statistics = self.statistics
        try:
            if self._connection is None:
                self._connection = await self._source.connect_sql()
            wrote = await self._connection.fetchval(_BEAT, timeout=ANSWER_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever it is: the stream does not depend on it
            # Never an end of the pipeline, and told once, not with every beat.
            self._drop()
            statistics.failed += 1
            text = str(explained(error)) if isinstance(error, asyncpg.PostgresError) else _told(error)
            if statistics.error is None:
                _log.warning("the heartbeat does not reach the source, the stream goes on without: %s", text)
            statistics.error = text
            return
        if not wrote:
            # By the next beat it may be promoted, or the DSN lead to another host.
            statistics.skipped += 1
            self._drop()
            return
        statistics.sent += 1
        if statistics.error is not None:
            _log.info("the heartbeat reaches the source again")
            statistics.error = None

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.terminate()


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, AioreplError) else type(error).__name__
