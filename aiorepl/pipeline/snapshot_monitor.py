"""Watches the snapshots of a pipeline: their progress, and the WAL that the slot keeps meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiorepl.cancellation import cancel_and_wait
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pipeline.initial_snapshot import InitialPhase
from aiorepl.sizes import format_size
from aiorepl.snapshot.incremental.requests import Snapshots
from aiorepl.snapshot.statistics import Repeated, SnapshotStatistics, describe
from aiorepl.snapshot.wal_watch import WalWatch
from aiorepl.source.source import Source

_log = logger("aiorepl.snapshot")

_LOOK_SECONDS: Final = 1.0
_LOG_SECONDS: Final = 30.0


class SnapshotMonitor:
    """Runs beside the pipeline, and never fails.

    :param initial: the tables that are read before the stream.
    :param snapshots: the tables that are read while it runs.
    :param limit: past this many bytes of WAL that the slot keeps, the initial snapshot ends early, and other tables wait;
        ``None``: no limit.
    :param durable: returns the position up to which every consumer is durable.
    """

    def __init__(
        self,
        source: Source,
        initial: InitialPhase,
        snapshots: Snapshots,
        limit: int | None,
        durable: Callable[[], LSN],
    ) -> None:
        self._source = source
        self._initial = initial
        self._snapshots = snapshots
        self._limit = limit
        self._durable = durable
        self._repeated = Repeated()
        self._watch: WalWatch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._log_at = 0.0
        self._logged = (0.0, 0)

    def statistics(self) -> SnapshotStatistics | None:
        """Return the progress of the snapshots; ``None`` if no table was read, or is going to be."""
        tables = self._initial.statistics(self._durable())
        tables += self._snapshots.statistics()
        if not tables:
            return None
        retention = None if self._watch is None else self._watch.retention
        return SnapshotStatistics(tuple(self._repeated.marked(tables)), self._snapshots.paused, retention)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await self._end()

    async def _look(self) -> None:
        if not (self._initial.reading or self._snapshots.active):
            await self._end()
            return
        now = asyncio.get_running_loop().time()
        if self._watch is None:
            slot = self._source.slot
            self._watch = WalWatch(self._source.connect_sql, slot, self._limit, self._exceeded)
            self._watching = asyncio.create_task(self._watch.run(), name=f"aiorepl WAL of slot {slot}")
            self._logged, self._log_at = (now, 0), now + _LOG_SECONDS
        if now >= self._log_at and (statistics := self.statistics()) is not None:
            before, rows = self._logged
            rate = max(statistics.rows - rows, 0) / (now - before)
            _log.info("snapshot: %s", describe(statistics, rate))
            self._logged, self._log_at = (now, statistics.rows), now + _LOG_SECONDS

    def _exceeded(self, exceeded: bool) -> None:
        assert self._limit is not None
        limit, slot = format_size(self._limit), self._source.slot
        if not exceeded:
            _log.info("slot %s keeps less WAL again: tables are read", slot)
        elif self._initial.reading:
            _log.warning(
                "slot %s keeps more WAL than max_wal_bytes (%s): the initial snapshot ends after this chunk, and the rest is read "
                "while the stream runs",
                slot,
                limit,
            )
            self._initial.end_early()
        else:
            _log.warning(
                "slot %s keeps more WAL than max_wal_bytes (%s): reading tables pauses until the sinks have caught up",
                slot,
                limit,
            )
        self._snapshots.hold(exceeded)

    async def _end(self) -> None:
        watching, self._watching, self._watch = self._watching, None, None
        if watching is not None:
            await cancel_and_wait(watching)
            # The watch has ended and no longer notices when the slot keeps less WAL, so the tables must not wait for that.
            self._snapshots.hold(False)
