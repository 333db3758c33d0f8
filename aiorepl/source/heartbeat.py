"""Heartbeats: empty logical messages that are written regularly, so that the stream of a quiet database moves.

Keepalives alone already confirm WAL that is not published. Heartbeats are for hosts and proxies that cut idle connections, for
monitoring that expects the stream to move, and for a journal that records commit times (``journal.times``). They are not
transactional, and are not delivered to sinks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import asyncpg

from aiorepl.epoch import EPOCH_MICROSECONDS
from aiorepl.errors import loggable
from aiorepl.journal.times import HeartbeatSnapshots, after_all
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.source.source import Source
from aiorepl.transactions.changes import Message
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import from_datetime
from aiorepl.wire.kept_connection import KeptConnection
from aiorepl.wire.opening import connect_error

_log = logger("aiorepl.heartbeat")

PREFIX: Final = "aiorepl"
_HEARTBEAT: Final = f"""
SELECT (CASE WHEN NOT pg_catalog.pg_is_in_recovery()
             THEN pg_catalog.pg_logical_emit_message(false, '{PREFIX}', '') END)::pg_catalog.text
"""
# A snapshot does not have the running transactions whose xids follow the last one that has ended. ``now`` is before the snapshot.
_RUNNING: Final = """
SELECT pg_catalog.now(), pg_catalog.txid_snapshot_xmin(snapshot), pg_catalog.txid_snapshot_xmax(snapshot),
       ARRAY(SELECT backend_xid FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL
             UNION ALL SELECT transaction FROM pg_catalog.pg_prepared_xacts),
       EXISTS (SELECT FROM pg_catalog.pg_replication_slots
                WHERE slot_name OPERATOR(pg_catalog.=) $1::pg_catalog.name AND active)
  FROM pg_catalog.txid_current_snapshot() snapshot
"""


def is_heartbeat(part: Slice) -> bool:
    """Whether the slice is a heartbeat and not a message of the user's."""
    if part.transaction is not None or not part.changes:
        return False
    (change,) = part.changes
    return isinstance(change, Message) and change.prefix == PREFIX and not change.content


@dataclass(slots=True)
class HeartbeatStatistics:
    """The heartbeats so far.

    :param sent: written to the server.
    :param skipped: not written, because the server is a standby.
    :param failed: not written, because of an error.
    :param error: the error of the last heartbeat; ``None`` if it was written.
    """

    sent: int = 0
    skipped: int = 0
    failed: int = 0
    error: str | None = None


class Heartbeat:
    """Writes a heartbeat every ``source.heartbeat_interval`` seconds on a connection of its own. Never fails.

    :param prove: called with a position, and a time such that every transaction with an earlier commit time ends by this position.
    """

    def __init__(self, source: Source, prove: Callable[[LSN, int], None] | None = None) -> None:
        self.statistics = HeartbeatStatistics()
        self._source = source
        self._prove = prove
        self._snapshots = HeartbeatSnapshots()
        self._connection = KeptConnection(source.connect_sql)

    async def run(self) -> None:
        """Write heartbeats until cancelled."""
        interval = self._source.heartbeat_interval
        assert interval is not None
        clock = asyncio.get_running_loop().time
        due = clock()
        try:
            while True:
                await self._write()
                due = max(due + interval, clock())
                await asyncio.sleep(due - clock())
        finally:
            self._connection.drop()

    async def _write(self) -> None:
        statistics = self.statistics
        try:
            until = None if self._prove is None else await self._ended()
            (written,) = await self._connection.fetchrow(_HEARTBEAT)
        except Exception as error:  # noqa: BLE001 - the stream does not depend on heartbeats
            statistics.failed += 1
            self._snapshots.forget()
            text = (
                str(connect_error(error, "the server"))
                if isinstance(error, asyncpg.PostgresError)
                else loggable(error)
            )
            # Logged once, and not for every heartbeat that fails.
            if statistics.error is None:
                _log.warning("heartbeats fail, the stream continues without them: %s", text)
            statistics.error = text
            return
        if written is None:
            # Connect again for the next heartbeat: the standby may be promoted, or the DSN may lead to another host.
            statistics.skipped += 1
            self._snapshots.forget()
            self._connection.drop()
            return
        statistics.sent += 1
        if statistics.error is not None:
            _log.info("heartbeats succeed again")
            statistics.error = None
        if self._prove is not None and until is not None:
            self._prove(LSN.parse(written), until)

    async def _ended(self) -> int | None:
        """Return the latest time before which every transaction has ended; ``None`` if there is no new one."""
        try:
            now, xmin, xmax, running, sends = await self._connection.fetchrow(_RUNNING, self._source.slot)
        except asyncpg.InsufficientPrivilegeError as error:
            _log.warning(
                "the time until which the journal is complete stays unknown: %s: GRANT SELECT ON pg_catalog.pg_stat_activity, "
                "pg_catalog.pg_prepared_xacts, pg_catalog.pg_replication_slots to the role, and start again",
                error.args[0],
            )
            self._prove = None
            return None
        if not sends and self._source.interface == "walsender":
            # The stream may come from another server, such as a promoted standby beside its old primary.
            self._snapshots.forget()
            return None
        own = time.time_ns() // 1000 - EPOCH_MICROSECONDS
        until = self._snapshots.proven(from_datetime(now), xmin, after_all(xmax, running))
        return None if until is None else min(until, own)
