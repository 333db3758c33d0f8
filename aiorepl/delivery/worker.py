"""One sink at work: its cursor, its batches and its flushes; ``writing`` makes the calls. Nobody else calls the sink."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Protocol

from aiorepl.delivery.batching import Batcher
from aiorepl.delivery.buffer import Cursor
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.data_errors import locate_error
from aiorepl.delivery.feeder import Feeder, unless
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.writer import SinkWriter, transactions
from aiorepl.errors import AioreplError, DataError, PermanentError, TransientError
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.retry import Rewinds
from aiorepl.sink import Batch, SinkContext
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.source.continuity import commits
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.schema_changes import SchemaTracker
from aiorepl.transactions.transaction import Slice
from aiorepl.transforms.filter import StreamFilter

_log = logging.getLogger("aiorepl.sink")


class Progress(Protocol):
    """Who is told how far a sink is."""

    async def accepted(self, end_lsn: LSN) -> None:
        """Everything up to ``end_lsn`` is in the sink's hands."""

    async def durable(self, end_lsn: LSN) -> None:
        """Everything up to ``end_lsn`` would survive the loss of this process."""

    async def rewound(self, lsn: LSN) -> None:
        """The sink was opened again and holds everything up to ``lsn``; whatever else was said of it is void.

        :raises SlotError: nobody has what comes behind that any more.
        """


class SinkWorker:
    """Runs one opened sink until its cursor ends.

    :param statistics: of the sink; kept up to date here.
    :param context: what the sink was opened with.
    :param after: what the sink holds already: transactions that ended at or before it are not given to it again.
    :param keeps_position: whether the sink keeps its position itself, and so is told of WAL without changes too.
    :param catalog: what the catalog says of the tables, where the sink's choices depend on it.
    """

    def __init__(
        self,
        statistics: SinkStatistics,
        delivery: ResolvedDelivery,
        cursor: Cursor,
        progress: Progress,
        context: SinkContext,
        *,
        after: LSN,
        keeps_position: bool,
        catalog: TableCatalog | None = None,
    ) -> None:
        self.statistics = statistics
        statistics.accepted = statistics.durable = after
        self._writer = SinkWriter(
            statistics.name, delivery, statistics, keeps_position=keeps_position, catalog=catalog
        )
        self._selection = delivery.selection
        self._catalog = TableCatalog() if catalog is None else catalog
        self._announces = delivery.schema_changes
        self._cursor = cursor
        self._progress = progress
        self._context = context
        self._keeps_position = keeps_position
        self._trail = context.position.trail if keeps_position else None
        self._policy = delivery.batches
        self._rewinds = Rewinds(delivery.retry)
        # Who overrides write alone is durable when it returns: nothing to wait for.
        self._durable_on_write = delivery.sink.durable_on_write
        self._begin(after)

    def _begin(self, after: LSN) -> None:
        """Know of nothing but that the sink has everything up to ``after``."""
        self._filter = None
        if self._selection is not None:
            self._filter = StreamFilter(self._selection, self.statistics.name, self._catalog)
        self._tracker = SchemaTracker() if self._announces else None
        self._received = ReplayFilter(after)
        self._batcher = Batcher(self._policy.max_bytes, self._policy.max_rows)
        self._gather_until: float | None = None
        self._skipped = 0
        self._unflushed = 0
        self._flush_at: float | None = None
        self._accepted: LSN | None = None
        self._committed: datetime | None = None
        # Why the stream cannot be given to the sink from here on.
        self._barred: AioreplError | None = None

    async def run(self, feeder: Feeder | None = None) -> None:
        """Write and flush until the buffer is closed and empty; the last flush included.

        :param feeder: what fills the buffer, and is asked to do so again where the sink has lost what it had accepted.
        :raises SinkError: the sink failed for good.
        """
        while True:
            try:
                await self._deliver()
                break
            except TransientError as error:
                if not error.rewind or feeder is None or not feeder.repeats:
                    raise
                if not await self._go_back(feeder, error):
                    break
        # The buffer may be filled on, for others.
        self._cursor.leave()

    async def _deliver(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            batch = self._next_batch()
            if batch is not None:
                await self._write(batch)
                if self._flush_at is None:
                    self._flush_at = clock() + self._policy.flush_seconds
            elif self._barred is not None:
                await self._flush()
                raise self._barred
            elif self._cursor.ended:
                # A transaction that has no end yet will come again whole: what there is of it may be forgotten.
                await self._flush()
                return
            due = self._flush_at is not None and clock() >= self._flush_at
            if self._durable_on_write or due or self._unflushed >= self._policy.flush_bytes:
                await self._flush()
            if batch is None:
                await self._wait()
            elif self._cursor.waiting:
                # A sink that never waits would keep statuses from the server until a huge transaction is written.
                await asyncio.sleep(0)

    def _next_batch(self) -> Batch | None:
        while not self._batcher.full and self._barred is None:
            part = self._cursor.take()
            if part is None:
                break
            new = self._received.new(part)
            if new is None:
                self._skipped += 1
                continue
            self._received.add(new)
            header, end_lsn = new.transaction, new.end_lsn
            if (
                self._trail is not None
                and header is not None
                and end_lsn is not None
                and commits(new, header)
            ):
                self._trail.add(end_lsn, header)
            try:
                self._batcher.add(self._chosen(new))
            except DataError as error:
                self._barred = locate_error(error, (new,))
            except PermanentError as error:
                self._barred = error
        batch = None if self._gathers() else self._batcher.take()
        if batch is None and self._barred is None and self._cursor.holds_back and self._batcher.under_way:
            # The rest of the transaction waits for room, which this part has to make.
            batch = self._batcher.take_part()
        if batch is None and self._skipped:
            self._cursor.release(self._skipped)
            self._skipped = 0
        return batch

    def _gathers(self) -> bool:
        """Whether what is there to be written waits for more."""
        batcher, cursor = self._batcher, self._cursor
        if self._barred is not None:
            return False
        if self._policy.linger and batcher.ready and not (batcher.full or cursor.ended or cursor.holds_back):
            now = asyncio.get_running_loop().time()
            if self._gather_until is None:
                self._gather_until = now + self._policy.linger
            if now < self._gather_until:
                return True
        self._gather_until = None
        return False

    def _chosen(self, part: Slice) -> Slice:
        """What of the slice the sink gets, in its form."""
        if self._filter is not None:
            part = self._filter.apply(part)
        return part if self._tracker is None else self._tracker.announced(part)

    async def _wait(self) -> None:
        times = [at for at in (self._flush_at, self._gather_until) if at is not None]
        if not times:
            await self._cursor.news()
            return
        try:
            async with asyncio.timeout_at(min(times)):
                await self._cursor.news()
        except TimeoutError:
            pass

    async def _write(self, batch: Batch) -> None:
        if self._keeps_position or any(map(_must_be_written, batch.slices)):
            try:
                await self._writer.write(batch)
            except DataError:
                await self._write_apart(batch)
        self._cursor.release(self._batcher.spent(batch) + self._skipped)
        self._skipped = 0
        statistics = self.statistics
        statistics.batches += 1
        statistics.changes += len(batch)
        self._unflushed += batch.size
        await self._accept(batch)

    async def _write_apart(self, batch: Batch) -> None:
        """Write each transaction by itself, so that one with a value that cannot be read does not withhold those before it.

        :raises DataError: the first such value; what comes before it is durable.
        """
        for unit in transactions(batch):
            part = Batch(unit)
            try:
                await self._writer.write(part)
            except DataError as error:
                if self._flush_at is None and self._accepted is not None:
                    self._flush_at = asyncio.get_running_loop().time()
                await self._flush()
                raise locate_error(error, unit) from None
            await self._accept(part)

    async def _accept(self, batch: Batch) -> None:
        end_lsn = batch.end_lsn
        if end_lsn is not None:
            self._committed = _last_commit(batch) or self._committed
            self._accepted = self.statistics.accepted = end_lsn
            if self._trail is not None:
                self._trail.forget(end_lsn)
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

    async def _go_back(self, feeder: Feeder, error: TransientError) -> bool:
        """Open the sink again and have everything sent that it has not; whether that will be."""
        statistics = self.statistics
        pause = self._rewinds.pause(statistics.durable, error.retry_after)
        if pause is None:
            raise error
        _log.warning("sink %s is opened and sent again what it lost: %s", statistics.name, error)
        statistics.rewinds += 1
        opened = await unless(feeder.stopped, self._reopened(pause))
        if opened is None:
            return False
        (held,) = opened
        lsn = statistics.durable if held is None else held.lsn
        if self._trail is not None and held is not None:
            self._trail.begin(held)
        await self._progress.rewound(lsn)
        statistics.accepted = statistics.durable = lsn
        self._begin(lsn)
        return await feeder.again(self._cursor, lsn)

    async def _reopened(self, pause: float) -> tuple[Position | None]:
        await asyncio.sleep(pause)
        return (await self._writer.reopen(self._context),)


def _must_be_written(part: Slice) -> bool:
    # The end of a transaction whose changes came in earlier batches, and how a prepared one ended, come without
    # changes, and may come alone.
    ends = part.last and not part.first and part.transaction is not None
    return (
        bool(part.changes)
        or ends
        or (part.two_phase is not None and part.transaction is not None and part.transaction.prepared)
    )


def _last_commit(batch: Batch) -> datetime | None:
    for part in reversed(batch.slices):
        if part.transaction is not None and part.last:
            return part.transaction.commit_time
    return None
