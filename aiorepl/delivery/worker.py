"""Runs one sink: reads its cursor, builds batches, and decides when to write and flush. ``writer`` makes the calls."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Protocol

from aiorepl.cancellation import cancel_and_wait, run_until_set
from aiorepl.delivery.batching import Batcher
from aiorepl.delivery.buffer import Cursor
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.data_errors import locate_error
from aiorepl.delivery.feeder import Feeder
from aiorepl.delivery.notices import Notices
from aiorepl.delivery.reselect import Reselect
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.writer import SinkWriter
from aiorepl.errors import AioreplError, DataError, PermanentError, TransientError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pgoutput.tuples import any_unchanged
from aiorepl.position import Position
from aiorepl.retry import Backoff
from aiorepl.sink import Batch, SinkContext
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.source.continuity import identifies
from aiorepl.source.present_rows import PresentRows
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.resync import is_resync
from aiorepl.transactions.schema_changes import SchemaTracker
from aiorepl.transactions.slices import Slice
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.memory import SelectionMemory

_log = logger("aiorepl.sink")


class Progress(Protocol):
    """Receives the progress of one sink."""

    async def accepted(self, end_lsn: LSN) -> None:
        """Record that the sink has accepted everything up to ``end_lsn``."""

    async def durable(self, end_lsn: LSN) -> None:
        """Record that everything up to ``end_lsn`` is durable in the sink."""

    async def rewound(self, lsn: LSN) -> None:
        """Record that the sink was reopened at ``lsn``. This replaces earlier reports.

        :raises SlotError: the changes after ``lsn`` are no longer available.
        """


class SinkWorker:
    """Runs one opened sink until its cursor ends.

    :param statistics: the sink's statistics, which the worker updates.
    :param context: the context with which the sink was opened.
    :param after: the sink has every transaction that ended at or before this LSN; they are not delivered again.
    :param keeps_position: whether the sink stores its position, and so gets batches without changes as well.
    :param catalog: the catalog's information about the tables; ``None`` if the sink's options do not need it.
    :param memory: the selection's memory of earlier descriptions of tables; empty by default.
    :param notices: changes from beside the stream; ``None`` if the sink gets none.
    :param rows: reads the rows of changes that lack values; ``None`` if the sink gets incomplete rows.
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
        memory: SelectionMemory | None = None,
        notices: Notices | None = None,
        rows: PresentRows | None = None,
    ) -> None:
        self.statistics = statistics
        statistics.accepted = statistics.durable = after
        self._writer = SinkWriter(
            statistics.name, delivery, statistics, keeps_position=keeps_position, catalog=catalog
        )
        self._selection = delivery.selection
        self._catalog = TableCatalog() if catalog is None else catalog
        self._memory = memory
        self._announces = delivery.schema_changes
        self._cursor = cursor
        self._progress = progress
        self._context = context
        self._keeps_position = keeps_position
        self._trail = context.position.trail if keeps_position else None
        self._policy = delivery.batches
        self._retry = delivery.retry
        self._rows = rows
        self._backoff = Backoff(delivery.retry)
        self._durable_on_write = delivery.sink.durable_on_write
        self._notices = notices
        if notices is not None:
            notices.arrived = cursor.wake
        self._reset(after)

    def _reset(self, after: LSN) -> None:
        """Discard all state. The sink has everything up to ``after``."""
        self._filter = None
        if self._selection is not None:
            self._filter = StreamFilter(self._selection, self.statistics.name, self._catalog, self._memory)
        self._tracker = SchemaTracker() if self._announces else None
        self._reselect: Reselect | None = None
        if self._rows is not None:
            self._reselect = Reselect(self._rows, self._lacks, self.statistics, self._policy.max_bytes)
        self._received = ReplayFilter(after)
        self._batcher = Batcher(self._policy.max_bytes, self._policy.max_rows)
        self._linger_until: float | None = None
        # The number of slices that were taken from the cursor and dropped, and that are not released yet.
        self._dropped = 0
        self._unflushed_bytes = 0
        self._flush_at: float | None = None
        # The end LSN of the last accepted transaction that is not flushed yet, and its commit time.
        self._accepted: LSN | None = None
        self._committed: datetime | None = None
        # The error that prevents delivery of the next slice; raised once everything before it is durable.
        self._pending_error: AioreplError | None = None
        # Whether the last batch ended with a transaction.
        self._between = True
        if self._notices is not None:
            self._notices.rewind()

    async def run(self, feeder: Feeder | None = None) -> None:
        """Write and flush until the buffer is closed and empty; the last flush is included.

        :param feeder: fills the buffer; it reads the stream again if the sink loses accepted data.
        :raises SinkError: the sink failed permanently.
        """
        await self._remember()
        try:
            while True:
                try:
                    await self._deliver()
                    break
                except TransientError as error:
                    if not error.rewind or feeder is None or not feeder.can_rewind:
                        raise
                    if not await self._rewind(feeder, error):
                        break
        finally:
            if self._rows is not None:
                self._rows.close()
        # The feeder may continue for other sinks.
        self._cursor.close()

    async def _deliver(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            if self._notices is not None and self._between:
                await self._write_notices(self._notices)
            batch = self._next_batch()
            if batch is not None:
                await self._write(batch)
                if self._flush_at is None:
                    self._flush_at = clock() + self._policy.flush_seconds
            elif self._pending_error is not None:
                await self._flush()
                raise self._pending_error
            elif self._cursor.ended and not self._incomplete:
                # The slices of an unfinished transaction are dropped: the next start receives it again as a whole.
                await self._flush()
                return
            idle = batch is None
            del batch  # a large row must not stay in memory during the flush
            due = self._flush_at is not None and clock() >= self._flush_at
            if self._durable_on_write or due or self._unflushed_bytes >= self._policy.flush_bytes:
                await self._flush()
            if idle and self._incomplete:
                await self._read_rows()
            elif idle:
                await self._wait()
            elif self._cursor.waiting:
                # If the sink never waits, no other task (such as status updates) would run during a huge transaction.
                await asyncio.sleep(0)

    def _next_batch(self) -> Batch | None:
        while not self._batcher.full and self._pending_error is None:
            taken = self._take()
            if taken is None:
                break
            part, ends = taken
            if is_resync(part):
                # An unfinished transaction never ends. The next LSNs may be lower.
                self._dropped += self._batcher.drop_partial()
                assert part.end_lsn is not None
                self._received = ReplayFilter(part.end_lsn)
                self._batcher.add(part)
                continue
            new = self._received.take(part)
            if new is None:
                self._dropped += ends
                continue
            header, end_lsn = new.transaction, new.end_lsn
            if (
                self._trail is not None
                and header is not None
                and end_lsn is not None
                and identifies(new, header)
            ):
                self._trail.add(end_lsn, header)
            try:
                self._batcher.add(self._transform(new), ends=ends)
            except DataError as error:
                self._pending_error = locate_error(error, (new,))
            except PermanentError as error:
                self._pending_error = error
        batch = None if self._lingers() else self._batcher.take()
        if (
            batch is None
            and self._pending_error is None
            and self._cursor.blocks_writer
            and self._batcher.has_partial
        ):
            # The rest of the transaction waits for room in the buffer, and only the delivery of this part makes room.
            batch = self._batcher.take_partial()
        if batch is None and self._dropped:
            self._cursor.release(self._dropped)
            self._dropped = 0
        return batch

    def _take(self) -> tuple[Slice, bool] | None:
        """Return the next slice or piece of a slice, and whether it ends its slice; ``None`` if there is none now."""
        if self._reselect is not None:
            return self._reselect.take(self._cursor)
        part = self._cursor.take()
        return None if part is None else (part, True)

    @property
    def _incomplete(self) -> bool:
        """Whether slices wait for values that their rows lack."""
        return self._reselect is not None and self._reselect.lacks

    def _lacks(self, change: RowChange) -> bool:
        """Whether the sink gets an incomplete row of the change."""
        try:
            selected = change if self._filter is None else self._filter.select(change)
        except AioreplError:
            # The error is raised again when the change is delivered.
            return False
        return isinstance(selected, RowChange) and any_unchanged(selected.raw_new or [])

    async def _read_rows(self) -> None:
        """Read the columns that rows lack. Changes before them are flushed when they are due, and before an error is raised."""
        assert self._reselect is not None
        clock = asyncio.get_running_loop().time
        reading = asyncio.ensure_future(self._retry_read(self._reselect))
        try:
            while not reading.done():
                left = None if self._flush_at is None else max(self._flush_at - clock(), 0)
                await asyncio.wait({reading}, timeout=left)
                if not reading.done() or reading.exception() is not None:
                    await self._flush()
        finally:
            await cancel_and_wait(reading)
        reading.result()

    async def _retry_read(self, reselect: Reselect) -> None:
        async for attempt in self._retry.connection():
            with attempt:
                await reselect.read()

    def _lingers(self) -> bool:
        """Whether to wait for more slices before the next batch."""
        batcher, cursor = self._batcher, self._cursor
        if self._pending_error is not None:
            return False
        if (
            self._policy.linger
            and batcher.ready
            and not (batcher.full or cursor.ended or cursor.blocks_writer)
        ):
            now = asyncio.get_running_loop().time()
            if self._linger_until is None:
                self._linger_until = now + self._policy.linger
            if now < self._linger_until:
                return True
        self._linger_until = None
        return False

    def _transform(self, part: Slice) -> Slice:
        """Apply the selection, and add schema changes."""
        if self._filter is not None:
            part = self._filter.apply(part)
        return part if self._tracker is None else self._tracker.announced(part)

    async def _wait(self) -> None:
        if self._notices is not None and self._between and self._notices.unwritten:
            # Notices that arrived during a flush or write woke the cursor before it waited, so the wake-up was lost.
            return
        times = [at for at in (self._flush_at, self._linger_until) if at is not None]
        if not times:
            await self._cursor.wait()
            return
        try:
            async with asyncio.timeout_at(min(times)):
                await self._cursor.wait()
        except TimeoutError:
            pass

    async def _write(self, batch: Batch) -> None:
        # Persist the memory before the write, because a sink may store its position together with the rows.
        await self._remember()
        if self._keeps_position or any(map(_must_be_written, batch.slices)):
            if self.statistics.began is None:
                self.statistics.began = _first_commit(batch)
            try:
                await self._writer.write(batch)
            except DataError:
                await self._write_separately(batch)
        self._cursor.release(self._batcher.added(batch) + self._dropped)
        self._dropped = 0
        statistics = self.statistics
        statistics.batches += 1
        statistics.changes += len(batch)
        self._unflushed_bytes += batch.size
        await self._accept(batch)
        self._between = batch.slices[-1].last

    async def _write_separately(self, batch: Batch) -> None:
        """Write each transaction as a batch, so that transactions before a value that cannot be decoded are delivered.

        :raises DataError: the first such value; everything before it is durable.
        """
        for slices in batch.transactions():
            part = Batch(slices)
            try:
                await self._writer.write(part)
            except DataError as error:
                if self._flush_at is None and self._accepted is not None:
                    self._flush_at = asyncio.get_running_loop().time()
                await self._flush()
                raise locate_error(error, slices) from None
            await self._accept(part)

    async def _write_notices(self, notices: Notices) -> None:
        """Write the changes from beside the stream, between two transactions. They do not move the position."""
        if not (changes := notices.unwritten):
            return
        await self._writer.write(Batch((Slice(None, tuple(changes), True, self.statistics.accepted, 0),)))
        notices.write(len(changes))
        self.statistics.batches += 1
        self.statistics.changes += len(changes)
        if self._flush_at is None:
            self._flush_at = asyncio.get_running_loop().time() + self._policy.flush_seconds

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
        self._unflushed_bytes, self._flush_at = 0, None
        self.statistics.flushes += 1
        if self._notices is not None:
            self._notices.flush()
        if self._accepted is not None:
            await self._remember()
            end_lsn, self._accepted = self._accepted, None
            self.statistics.durable = end_lsn
            self.statistics.committed = self._committed
            await self._progress.durable(end_lsn)

    async def _remember(self) -> None:
        """Store the selection's memory durably, before any position that depends on it."""
        if self._memory is not None:
            await self._memory.persist()

    async def _rewind(self, feeder: Feeder, error: TransientError) -> bool:
        """Open the sink again, and let the feeder read the lost changes again.

        :returns: whether delivery continues.
        """
        statistics = self.statistics
        pause = self._backoff.pause(statistics.durable, error.retry_after)
        if pause is None:
            raise error
        _log.warning(
            "sink %s has lost accepted changes; it is reopened, and they are delivered again: %s",
            statistics.name,
            error,
        )
        statistics.rewinds += 1
        opened = await run_until_set(feeder.stopped, self._reopen(pause))
        if opened is None:
            return False
        (stored,) = opened
        lsn = statistics.durable if stored is None else stored.lsn
        if self._trail is not None and stored is not None:
            self._trail.begin(stored)
        await self._progress.rewound(lsn)
        statistics.accepted = statistics.durable = lsn
        self._reset(lsn)
        return await feeder.rewind(self._cursor, lsn)

    async def _reopen(self, pause: float) -> tuple[Position | None]:
        await asyncio.sleep(pause)
        return (await self._writer.reopen(self._context),)


def _must_be_written(part: Slice) -> bool:
    """Whether a sink without a position needs this slice.

    Three kinds of slices matter even without changes: the end of a transaction whose earlier slices were in earlier batches,
    the outcome of a prepared transaction, and a chunk of a snapshot, which says whether its table is complete.
    """
    header = part.transaction
    if part.changes or header is None:
        return bool(part.changes)
    ends = part.last and not part.first
    return ends or header.snapshot is not None or (part.two_phase is not None and header.prepared)


def _first_commit(batch: Batch) -> datetime | None:
    headers = (part.transaction for part in batch.slices)
    return next((header.commit_time for header in headers if header is not None), None)


def _last_commit(batch: Batch) -> datetime | None:
    for part in reversed(batch.slices):
        if part.transaction is not None and part.last:
            return part.transaction.commit_time
    return None
