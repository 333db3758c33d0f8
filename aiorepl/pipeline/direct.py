"""Delivery without a journal: one buffer for all sinks, and the slot waits for each of them."""

from __future__ import annotations

import contextlib
from functools import partial

from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pipeline.fan_out import SOURCE, FanOut
from aiorepl.pipeline.progress import SnapshotProgress
from aiorepl.pipeline.start import plan_start
from aiorepl.transactions.slices import Slice

_log = logger("aiorepl.pipeline")


class DirectFanOut(FanOut):
    """Connects the source to all sinks through one buffer. The slot waits for every sink."""

    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Connect, open the sinks, and deliver until the end.

        :raises AioreplError: a sink or the source failed permanently.
        """
        try:
            await self._run(cleanup)
        except Exception:
            for statistics in self.statistics.values():
                # Log the sink that fails only if there are others: with one sink, the raised error says
                # enough.
                if len(self._sinks) > 1 and statistics.failed is not None:
                    _log.error(
                        "sink %s stops, and so do all other sinks: %s", statistics.name, statistics.failed
                    )
            raise

    async def _dependent(self, lsn: LSN) -> str | None:
        dependents = (
            name for name, stored in self._stored.items() if stored is not None and stored.lsn >= lsn
        )
        return next((f"sink {name}" for name in dependents), None)

    @property
    def _undelivered(self) -> bool:
        # A sink that keeps its position may have stored one that the ledger does not know yet.
        return super()._undelivered and not any(self._stored.values())

    async def _run(self, cleanup: contextlib.AsyncExitStack) -> None:
        if all(delivery.sink.supports_prepared for delivery in self._sinks.values()):
            self._capture.deliver_prepared()
        beginning = await self._begin(cleanup)
        for name, delivery in self._sinks.items():
            await self._open(name, delivery, beginning.position, cleanup)
        start = plan_start(beginning, self._stored, self.gaps)
        ledger = await self._start_stream(start, refuted=self.gaps.check_refuted)
        buffer = self._new_buffer(SOURCE, self._options.buffer_bytes)
        workers = [
            self._worker(
                name,
                delivery,
                buffer,
                SnapshotProgress(ledger, name, self._snapshot, record=None in start.positions.values()),
                # The truncates of an unfinished snapshot have an LSN before the stream. A sink without a position must get them.
                after=start.durable[name],
                stored=start.positions[name],
            )
            for name, delivery in self._sinks.items()
        ]
        self.started.set()
        await self._run_workers(buffer, partial(self._reader.read, buffer), workers, rewind=self._rewind)

    async def _settle(self, slices: list[Slice]) -> None:
        if self._capture.tables is not None:
            await self._capture.tables.settle(slices)

    async def _rewind(self, lsn: LSN) -> None:
        await self.snapshots.rewound(lsn)
        await self._capture.rewind(await self._snapshot.rewind(lsn))
