"""One sink at work: its cursor, its batches and its flushes; ``writing`` makes the calls. Nobody else calls the sink."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Protocol

from aiorepl.delivery.batching import Batcher
from aiorepl.delivery.delivery import Served
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.window import Cursor
from aiorepl.delivery.writing import SinkWriter
from aiorepl.lsn import LSN
from aiorepl.sink import Batch
from aiorepl.transactions.schema_changes import SchemaTracker
from aiorepl.transactions.transaction import Slice


class Progress(Protocol):
    """Who is told how far a sink is."""

    async def accepted(self, end_lsn: LSN) -> None:
        """Everything up to ``end_lsn`` is in the sink's hands."""

    async def durable(self, end_lsn: LSN) -> None:
        """Everything up to ``end_lsn`` would survive the loss of this process."""


class SinkRunner:
    """Runs one opened sink until its cursor ends.

    :param after: what the sink holds already: transactions that ended at or before it are not given to it again.
    :param keeps_position: whether the sink keeps its position itself, and so is told of WAL without changes too.
    """

    def __init__(
        self,
        name: str,
        serve: Served,
        cursor: Cursor,
        progress: Progress,
        *,
        after: LSN,
        keeps_position: bool,
    ) -> None:
        self.statistics = SinkStatistics(name, accepted=after, durable=after)
        self._writer = SinkWriter(name, serve, self.statistics, keeps_position=keeps_position)
        self._selection = serve.selection
        self._tracker = SchemaTracker() if serve.schema_changes else None
        self._cursor = cursor
        self._progress = progress
        self._after = after
        self._keeps_position = keeps_position
        self._policy = serve.batches
        self._batcher = Batcher(serve.batches.bytes)
        self._skipped = 0
        self._unflushed = 0
        self._flush_at: float | None = None
        self._accepted: LSN | None = None
        self._committed: datetime | None = None
        # Who overrides write alone is durable when it returns: nothing to wait for.
        self._durable_on_write = serve.sink.durable_on_write

    async def run(self) -> None:
        """Write and flush until the window is closed and empty; the last flush included.

        :raises SinkError: the sink failed for good.
        """
        clock = asyncio.get_running_loop().time
        while True:
            batch = self._next_batch()
            if batch is not None:
                await self._write(batch)
                if self._flush_at is None:
                    self._flush_at = clock() + self._policy.flush_seconds
            elif self._cursor.ended:
                # A transaction that has no end yet will come again whole: what there is of it may be forgotten.
                await self._flush()
                return
            due = self._flush_at is not None and clock() >= self._flush_at
            if self._durable_on_write or due or self._unflushed >= self._policy.flush_bytes:
                await self._flush()
            if batch is None:
                await self._wait()

    def _next_batch(self) -> Batch | None:
        while not self._batcher.full:
            part = self._cursor.take()
            if part is None:
                break
            if self._has(part):
                self._skipped += 1
            else:
                self._batcher.add(self._chosen(part))
        batch = self._batcher.take()
        if batch is None and self._cursor.holds_back and self._batcher.under_way:
            # The rest of the transaction waits for room, which this part has to make.
            batch = self._batcher.take_part()
        if batch is None and self._skipped:
            self._cursor.release(self._skipped)
            self._skipped = 0
        return batch

    def _has(self, part: Slice) -> bool:
        if part.transaction is None:
            return part.end_lsn is not None and part.end_lsn <= self._after
        return part.transaction.commit_lsn < self._after

    def _chosen(self, part: Slice) -> Slice:
        """What of the slice the sink gets, in its form."""
        if self._selection is not None:
            part = self._selection.apply(part)
        return part if self._tracker is None else self._tracker.announced(part)

    async def _wait(self) -> None:
        if self._flush_at is None:
            await self._cursor.news()
            return
        try:
            async with asyncio.timeout_at(self._flush_at):
                await self._cursor.news()
        except TimeoutError:
            pass

    async def _write(self, batch: Batch) -> None:
        if self._keeps_position or any(map(_says_something, batch.transactions)):
            await self._writer.write(batch)
        self._cursor.release(len(batch.transactions) + self._skipped)
        self._skipped = 0
        statistics = self.statistics
        statistics.batches += 1
        statistics.changes += len(batch)
        self._unflushed += batch.size
        end_lsn = batch.end_lsn
        if end_lsn is not None:
            self._committed = _last_commit(batch) or self._committed
            self._accepted = statistics.accepted = end_lsn
            await self._progress.accepted(end_lsn)

    async def _flush(self) -> None:
        if self._flush_at is None:
            return
        await self._writer.flush()
        self._unflushed, self._flush_at = 0, None
        self.statistics.flushes += 1
        if self._accepted is not None:
            end_lsn, self._accepted = self._accepted, None
            self.statistics.durable = end_lsn
            self.statistics.committed = self._committed
            await self._progress.durable(end_lsn)


def _says_something(part: Slice) -> bool:
    # The end of a transaction whose changes came in earlier batches, and how a prepared one ended, come without
    # changes, and may come alone.
    ends = part.last and not part.first and part.transaction is not None
    return (
        bool(part.changes)
        or ends
        or (part.two_phase is not None and part.transaction is not None and part.transaction.prepared)
    )


def _last_commit(batch: Batch) -> datetime | None:
    for part in reversed(batch.transactions):
        if part.transaction is not None and part.last:
            return part.transaction.commit_time
    return None
