"""Reads the source of a pipeline into a buffer: the initial snapshot, and then the stream with the tables that are read beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from aiorepl.cancellation import run_until_set
from aiorepl.delivery.buffer import SliceBuffer
from aiorepl.loggers import logger
from aiorepl.pipeline.initial_snapshot import InitialPhase
from aiorepl.snapshot.incremental.requests import Snapshots
from aiorepl.snapshot.incremental.stream_source import SnapshotSource
from aiorepl.source.capture import Capture
from aiorepl.transactions.slices import Slice

_log = logger("aiorepl.pipeline")

JOURNAL = "journal"
BACKPRESSURE_WARNING_SECONDS = 10.0


class SourceReader:
    """Reads the source into a buffer.

    :param snapshot: the initial snapshot before the stream.
    :param snapshots: the tables that are read while the stream runs.
    :param source: the access to the source for reading these tables.
    :param settle: looks up the tables of slices for the consumers of the source, before the slices are buffered.
    """

    def __init__(
        self,
        capture: Capture,
        snapshot: InitialPhase,
        snapshots: Snapshots,
        source: SnapshotSource,
        settle: Callable[[list[Slice]], Awaitable[None]],
    ) -> None:
        self._capture = capture
        self._snapshot = snapshot
        self._snapshots = snapshots
        self._source = source
        self._settle = settle
        # Whether the stream is read beyond the end of the run, because tables are still to be read.
        self._reads_on = False

    async def read(self, buffer: SliceBuffer) -> None:
        """Read until the end of the run. A call that is cancelled can be repeated, after a rewind.

        :raises AioreplError: the source failed.
        """
        await self._snapshot.read(partial(self._emit, buffer))
        ledger = self._capture.ledger
        assert ledger is not None
        self._snapshots.begin(self._snapshot.store, self._source, lambda: ledger.confirmed)
        ledger.on_confirmed = self._snapshots.look
        merge = self._source.merge
        while (slices := await self._receive()) is not None:
            # Do not keep the slices, and their spool file, alive until the next ones arrive.
            slices = merge.take(slices)
            await self._buffer_slices(buffer, slices)
            del slices
            while merge.blocked:
                await self._snapshots.released()
                await self._buffer_slices(buffer, merge.take_released())

    async def _receive(self) -> list[Slice] | None:
        """Return the next slices of the stream; ``None`` at the end."""
        if not self._reads_on:
            slices = await self._capture.receive()
            tables = self._snapshots.unfinished if slices is None else []
            if not tables:
                return slices
            left = f"{len(tables)} tables are not read completely ({', '.join(tables[:3])}{' …' if tables[3:] else ''})"
            if not self._capture.ends_now or self._snapshots.paused:
                _log.warning("the stream ends, and %s: the next run continues with them", left)
                return None
            # The watermarks of the remaining chunks come after the end.
            _log.info("the end of WAL is reached, and %s: the run ends once they are complete", left)
            await self._capture.read_on()
            self._reads_on = True
        return await run_until_set(self._snapshots.settled, self._capture.receive())

    async def _buffer_slices(self, buffer: SliceBuffer, slices: list[Slice]) -> None:
        merge = self._source.merge
        while merge.before_delivery:
            await merge.before_delivery.pop(0)()
        if merge.signals and self._capture.resyncs:
            _log.warning(
                "a signal is ignored: slot %s is temporary, so tables cannot be read again",
                self._capture.source.slot,
            )
            merge.signals.clear()
        if merge.signals:
            # Record the tables before the slot can be confirmed past their descriptions.
            await self._snapshots.accept_signals()
        await self._settle(slices)
        if slices:
            buffer.extend(slices)
        if buffer.backpressured:
            await self._wait_for_room(buffer)

    async def _emit(self, buffer: SliceBuffer, slices: list[Slice]) -> None:
        """Put slices of the initial snapshot into the buffer, and wait until it has room."""
        ledger = self._capture.ledger
        assert ledger is not None
        await self._settle(slices)
        for part in slices:
            if part.end_lsn is not None:
                ledger.complete(part.end_lsn)
        buffer.extend(slices)
        if buffer.backpressured:
            await self._wait_for_room(buffer)

    async def _wait_for_room(self, buffer: SliceBuffer) -> None:
        """Wait until the buffer has room. After a while, log which sink is slow."""
        clock = asyncio.get_running_loop().time
        start, timeout = clock(), BACKPRESSURE_WARNING_SECONDS
        while buffer.backpressured:
            try:
                async with asyncio.timeout(timeout):
                    await buffer.wait_for_room()
            except TimeoutError:
                others = (
                    ""
                    if buffer.slowest == JOURNAL
                    else ", and all other sinks wait (a journal decouples them)"
                )
                _log.warning(
                    "sink %s has blocked the source for %.0f s, with %d bytes in the buffer: the server keeps WAL%s",
                    buffer.slowest,
                    clock() - start,
                    buffer.statistics().bytes,
                    others,
                )
                timeout *= 2
