"""Delivery without a journal: one buffer for all sinks, and the slot waits for each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial

from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pipeline.fan_out import SOURCE, FanOut
from aiorepl.pipeline.initial_snapshot import InitialPhase
from aiorepl.pipeline.snapshot_progress import SnapshotProgress
from aiorepl.position import Position
from aiorepl.snapshot.incremental.requests import Snapshots
from aiorepl.source.capture import Capture
from aiorepl.source.continuity import GapPolicy
from aiorepl.source.preflight import PreflightResult
from aiorepl.transactions.slices import Slice
from aiorepl.transforms.memory import SelectionMemory

_log = logger("aiorepl.pipeline")


class DirectFanOut(FanOut):
    """Connects the source to all sinks through one buffer. The slot waits for every sink."""

    def __init__(
        self,
        capture: Capture,
        sinks: Mapping[str, ResolvedDelivery],
        buffer_bytes: int,
        gaps: GapPolicy,
        snapshot: InitialPhase,
        snapshots: Snapshots,
        memories: Mapping[str, SelectionMemory],
    ) -> None:
        super().__init__(capture, sinks, buffer_bytes, gaps, snapshot, snapshots, memories)
        # The stored position of each sink that returned one from ``open``.
        self._stored: dict[str, Position | None] = {}

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
        snapshot = self._snapshot
        result = await self._connect(cleanup, **await snapshot.prepare())
        slot, begin = result.position, await snapshot.begin(result, cleanup)
        # A sink may store the beginning of the snapshot when it opens, and the next start must recognize that.
        await snapshot.write_plan()
        for name, delivery in self._sinks.items():
            self._stored[name] = await self._open(name, delivery, begin, cleanup)
        snapshot.require_before_gap(self._stored.values())
        resumed = {
            name: self._resumed(f"sink {name}", position, begin, result)
            for name, position in self._stored.items()
        }
        unknown = snapshot.durable_position(slot.lsn)
        await snapshot.opened(
            min(unknown if position is None else position.lsn for position in resumed.values())
        )
        after = min(
            slot.lsn if position is None else snapshot.in_stream(position).lsn
            for position in resumed.values()
        )
        claims = [
            self._claim(name, f"sink {name}", position)
            for name, position in resumed.items()
            if position is not None and position == self._stored[name]
        ]
        start = begin.lsn if snapshot.loads else after
        ledger = await self._capture.begin(
            after, self._sinks, start=start, claims=claims, refuted=self.gaps.check_refuted
        )
        buffer = self._new_buffer(SOURCE, self._buffer_bytes)
        workers = [
            self._worker(
                name,
                delivery,
                buffer,
                SnapshotProgress(ledger, name, snapshot, record=None in resumed.values()),
                # The truncates of an unfinished snapshot have an LSN before the stream. A sink without a position must get them.
                after=unknown if (position := resumed[name]) is None else position.lsn,
                stored=position,
            )
            for name, delivery in self._sinks.items()
        ]
        self.started.set()
        await self._run_workers(buffer, partial(self._read, buffer), workers, rewind=self._rewind)

    def _resumed(
        self, holder: str, stored: Position | None, begin: Position, result: PreflightResult
    ) -> Position | None:
        """Return the position from which a sink with a position of its own continues.

        :raises SlotError: the slot does not continue from there, or the sink would skip the initial snapshot.
        """
        if stored is None:
            return None
        self._snapshot.require_behind(holder, stored)
        in_stream = self._snapshot.in_stream(stored)
        checked = self.gaps.check(holder, in_stream, result.position, result.wal_end, result.upgrade)
        if checked != in_stream:
            return checked
        # A snapshot that truncates replaces everything before it.
        return begin if stored.lsn < begin.lsn and self._snapshot.loads else stored

    async def _settle(self, slices: list[Slice]) -> None:
        if self._capture.tables is not None:
            await self._capture.tables.settle(slices)

    async def _rewind(self, lsn: LSN) -> None:
        await self.snapshots.rewound(lsn)
        await self._capture.rewind(await self._snapshot.rewind(lsn))
