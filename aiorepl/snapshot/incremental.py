"""Reads one table while the stream runs, without losing or inventing a row (see ``window``).

The window begins at a low watermark. Each chunk is read under a snapshot of its own, and its high watermark is written while the
reading transaction still holds its lock, so that the table cannot be altered between the two. The chunk is delivered where
the stream has the watermark, and the ledger has it before.

Rows may escape the ranges of a table, because an update moves them into blocks that were read before. Those whose updates the
stream has are known by their keys, and are read again by these at the end. If the process ends before that, or if some updates
are not in the stream, a *sweep* finds them by their age. It is one chunk, so a table is complete after one chunk more.

If the table was truncated, rewritten or altered meanwhile, blocks no longer hold the rows that they held when the table was cut
into chunks, so it is read again from the beginning. Whole chunks arrive twice then; they are idempotent, like all rows with a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import asyncpg

from aiorepl.errors import ConfigurationError, ConnectionLost, SlotError
from aiorepl.lsn import LSN
from aiorepl.snapshot.chunk_query import keys_condition
from aiorepl.snapshot.chunk_rows import ChunkRows
from aiorepl.snapshot.chunks import Range, Sweep, TablePlan
from aiorepl.snapshot.described import DescribedTable, describe
from aiorepl.snapshot.fresh_chunks import Altered, FreshChunks, FreshTransaction, ReadAgain
from aiorepl.snapshot.ledger import TableProgress
from aiorepl.snapshot.merge import Arrival
from aiorepl.snapshot.overtaken import Key
from aiorepl.snapshot.planning import plan_tables, table_files
from aiorepl.snapshot.reading_transaction import not_locked, translating
from aiorepl.snapshot.statistics import TableCounters
from aiorepl.snapshot.stream_source import SnapshotSource
from aiorepl.snapshot.tables import PublishedTable
from aiorepl.snapshot.truncates import truncate
from aiorepl.snapshot.watermarks import Watermark, emit_watermark, require_messages
from aiorepl.snapshot.window import Window
from aiorepl.snapshot.writers import wait_for_writers
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import SnapshotChunk, Transaction
from aiorepl.values.registry import Types

_log = logging.getLogger("aiorepl.snapshot")

# How often a chunk, a table or an owed row is read again before the table is given up: it is altered all the time.
_ATTEMPTS: Final = 20
# How many owed keys are read by one query.
_KEYS: Final = 1000

Change = Callable[[TableProgress], TableProgress]
"""A change of what the ledger has about the table."""

Record = Callable[[Change], Awaitable[bool]]
"""Makes a change, and returns whether that succeeded."""


class _Record:
    """What the ledger is to have before a chunk is delivered.

    :ivar written: whether it has.
    """

    def __init__(self, change: Change) -> None:
        self.change = change
        self.written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def write(self, record: Record) -> None:
        """Write it; called with the stream held back."""
        written = False
        try:
            written = await record(self.change)
        finally:
            if not self.written.done():
                self.written.set_result(written)


@dataclass(frozen=True, slots=True)
class _Work:
    """A chunk to be read.

    :param number: the chunk's number within the table.
    :param part: its number in the ledger; ``None``: the ledger does not have it.
    :param owed: the keys that it reads; empty: it reads a range.
    :param last: whether the table is complete with it, unless rows are owed.
    """

    number: int
    rows: Range
    part: int | None
    last: bool
    owed: frozenset[Key] = frozenset()


class TableReader:
    """Reads one table, and inserts its chunks into the stream. Used once.

    :param progress: what the ledger has about the table.
    :param update: changes that in the ledger, durably.
    :param record: tries that once, because the stream waits.
    :param ends_snapshot: whether no other table is left to be read; asked when this one is complete.
    :param counters: count the rows that are read.
    """

    def __init__(
        self,
        source: SnapshotSource,
        progress: TableProgress,
        update: Callable[[Change], Awaitable[TableProgress]],
        record: Record,
        ends_snapshot: Callable[[], bool],
        counters: TableCounters,
    ) -> None:
        self._counters = counters
        self._source = source
        self._progress = progress
        self._update = update
        self._record = record
        self._ends_snapshot = ends_snapshot
        self._control: Any = None
        self._chunks: FreshChunks

    async def run(self) -> None:
        """Read the table. The ledger has all of its chunks on return; they are delivered, and not yet durable.

        :raises ConfigurationError: the table is not published, cannot be read, or the server cannot write messages.
        :raises SlotError: a lock was not granted in time, or the table is altered all the time.
        :raises ConnectionLost, ConnectionFailed, ServerError: the server failed; another run goes on with the rest.
        """
        source, timeout = self._source, self._source.options.lock_timeout
        try:
            with translating(), _translating_locked(f"table {self._progress}", timeout):
                self._control = await source.connect()
                await self._control.execute(f"SET lock_timeout = {round((timeout or 0) * 1000)}")
                self._chunks = FreshChunks(source, self._control, self._counters)
                await require_messages(self._control)
                await self._run()
        finally:
            source.merge.abandon()
            if self._control is not None:
                self._control.terminate()
                self._chunks.close()

    async def _run(self) -> None:
        for _ in range(_ATTEMPTS):
            described = await self._describe()
            try:
                if described.table.key:
                    await self._read_in_windows(described)
                else:
                    await self._read_at_one_point(described)
            except (Altered, ReadAgain) as error:
                _log.warning("table %s is read again from the beginning: %s", self._progress, error)
                self._chunks.close()
                self._progress = await self._update(lambda table: replace(table, plan=None))
                self._source.merge.abandon()
            else:
                return
        raise SlotError(f"table {self._progress} was altered each of the {_ATTEMPTS} times that it was read")

    async def _describe(self) -> DescribedTable:
        table = await self._source.published(self._control, self._progress.oid)
        if table is None:
            raise ConfigurationError(
                f"table {self._progress} is not published by {', '.join(self._source.publications)}, or was dropped"
            )
        described = await describe(self._control, [table], Types(), binary=self._source.binary)
        return described[table.oid]

    # Tables with a key.

    async def _read_in_windows(self, described: DescribedTable) -> None:
        source, table = self._source, described.table
        key = tuple(column.name for column in table.key)
        window = Window(table.oid, key, source.options.in_flight_bytes)

        def begin(_: LSN) -> Sequence[Slice]:
            source.merge.window = window
            return ()

        low = await (await self._mark(begin))
        await wait_for_writers(self._control, table.oid, str(table), source.options.lock_timeout)
        plan = await self._plan(described)
        parts = self._progress.parts
        for part in parts:
            work = _Work(part, plan.ranges[part - 1], part, last=part == parts[-1])
            await self._deliver(work, described, window, low)
        number = len(plan.ranges)
        for _ in range(_ATTEMPTS):
            # The sweep is left, unless it is done in another way: by the keys that are owed.
            if not (left := self._progress.parts):
                return
            (sweep,) = left
            owed = window.take_owed()
            if owed:
                keys = sorted(owed)
                batches = [frozenset(keys[start : start + _KEYS]) for start in range(0, len(keys), _KEYS)]
                works = [_Work(0, None, None, last=False, owed=batch) for batch in batches]
                works[-1] = replace(works[-1], part=sweep, last=True)
            else:
                works = [_Work(0, self._planned.ranges[-1], sweep, last=True)]
            for work in works:
                number += 1
                await self._deliver(replace(work, number=number), described, window, low)
        raise SlotError(
            f"the keys of rows of table {table} are changed all the time, so that it is never complete"
        )

    @property
    def _planned(self) -> TablePlan:
        assert self._progress.plan is not None
        return self._progress.plan

    async def _plan(self, described: DescribedTable) -> TablePlan:
        """Cut the table into chunks, unless it was before."""
        table, known = described.table, self._progress.plan
        files = await table_files(self._control, table, self._source.publications)
        if files is None:
            raise Altered("it was dropped")
        if known is None or known.state != files.state or not self._progress.parts:
            (known,) = await plan_tables(
                self._control, [table], self._source.publications, self._source.options
            )
            plan = known
            self._progress = await self._update(lambda progress: progress.planned(plan))
            resumed = False
        else:
            resumed = len(self._progress.parts) < len(known.ranges)
        # Rows may have moved into blocks that were read before: in an earlier run, by updates that lack the columns which did
        # not change; or at any time, by updates that are not in the stream.
        escaped = resumed and files.has_toast
        if not known.whole and (escaped or not await self._source.streams_all_updates(self._control, table)):
            self._progress = await self._update(TableProgress.with_sweep)
        return self._planned

    async def _deliver(self, work: _Work, described: DescribedTable, window: Window, low: LSN) -> None:
        """Read a chunk until it can be delivered. It is in the ledger on return."""
        conditions = [] if self._progress.where is None else [self._progress.where]
        if work.owed:
            conditions.append(keys_condition(described.table, sorted(work.owed)))
        statement = described.copy_statement(work.rows, self._planned.key, conditions)
        for _ in range(_ATTEMPTS):
            records: list[_Record] = []
            try:
                async with self._chunks.begun() as transaction:
                    rows = await transaction.copy(described, statement, self._planned.state)

                    def arrive(
                        end: LSN,
                        rows: ChunkRows = rows,
                        transaction: FreshTransaction = transaction,
                        records: list[_Record] = records,
                    ) -> Sequence[Slice]:
                        return self._insert(end, work, described, window, low, rows, transaction, records)

                    arrived = await self._mark(arrive)
                await arrived
            except ReadAgain as error:
                _log.info("chunk %d of table %s is read again: %s", work.number, described.table, error)
            else:
                for record in records:
                    await self._recorded(record)
                return
        raise Altered("its rows were truncated or altered each time that a chunk was read")

    def _insert(
        self,
        end: LSN,
        work: _Work,
        described: DescribedTable,
        window: Window,
        low: LSN,
        rows: ChunkRows,
        transaction: FreshTransaction,
        records: list[_Record],
    ) -> Sequence[Slice]:
        """Make a chunk's transaction, at its high watermark."""
        verdict = window.judge(transaction.visible, described.layout.relation)
        if verdict.again is not None:
            window.prune(transaction.visible)
            raise ReadAgain(verdict.again)
        swept = isinstance(work.rows, Sweep)
        everything = swept or (self._planned.whole and not work.owed)
        window.delivered(verdict, last=work.last, everything=everything, owed=work.owed)
        complete = work.last and window.owed == set()
        if work.part is not None:
            record = _Record(_recorded(work.part, LSN(end - 1), complete=complete))
            records.append(record)
            self._source.merge.before_delivery.append(partial(record.write, self._record))
        header = self._header(described.table, low, work.number, last=complete)
        slices = rows.slices(
            Transaction(0, LSN(end - 1), transaction.time, snapshot=header), end, window, verdict
        )
        window.prune(transaction.visible)
        return slices

    async def _recorded(self, record: _Record) -> None:
        if await record.written:
            self._progress = record.change(self._progress)
        else:
            # The ledger was not writable before the chunk was delivered.
            self._progress = await self._update(record.change)

    def _header(self, table: PublishedTable, lsn: LSN, number: int, *, last: bool) -> SnapshotChunk:
        partial = self._progress.where is not None
        return SnapshotChunk(
            lsn, table.oid, table.schema, table.name, number, last, last and self._ends_snapshot(), partial
        )

    async def _mark(self, arrive: Arrival) -> asyncio.Future[LSN]:
        """Write a watermark. The future has the LSN where it ends once it came through the stream, or the error of ``arrive``."""
        arrived: asyncio.Future[LSN] = asyncio.get_running_loop().create_future()

        def take(end: LSN) -> Sequence[Slice]:
            if arrived.done():
                return ()
            try:
                slices = arrive(end)
            except Exception as error:  # noqa: BLE001 - raised by the reader, and not by the stream
                arrived.set_exception(error)
                return ()
            arrived.set_result(end)
            return slices

        def lost() -> None:
            if not arrived.done():
                arrived.set_exception(
                    ConnectionLost(
                        "the stream does not contain a watermark that was written: the DSN leads to another server"
                    )
                )

        watermark = Watermark(self._source.slot)
        written = self._source.merge.expect(watermark, take, lost)
        written(await emit_watermark(self._control, watermark))
        return arrived

    # Tables without a key.

    async def _read_at_one_point(self, described: DescribedTable) -> None:
        """Read a table as one transaction, with the stream held back at exactly the point where it is read.

        Without a key sinks cannot replace rows, so the transaction begins with a truncate of the table.
        """
        source, table = self._source, described.table
        if self._progress.where is not None:
            raise ConfigurationError(
                f"table {table} has no replica identity with a key, so it can only be read as a whole: leave out where"
            )
        options = replace(source.options, chunk_bytes=2**62)
        (plan,) = await plan_tables(self._control, [table], source.publications, options)
        self._progress = await self._update(lambda progress: progress.planned(plan))
        reached = asyncio.Event()
        source.merge.hold()
        async with contextlib.AsyncExitStack() as reading:
            try:
                async with asyncio.timeout(source.options.lock_timeout), source.export() as (point, snapshot):
                    transaction = await reading.enter_async_context(self._chunks.begun(snapshot))
            except TimeoutError:
                raise SlotError(
                    f"table {table} has no key, and the transactions in progress did not end within the lock_timeout of "
                    f"{source.options.lock_timeout:g} s: end them, or set a longer one"
                ) from None
            source.merge.hold(point, reached.set)
            rows = await transaction.copy(described, described.copy_statement(None), plan.state)
        # So that the stream reaches the point on an idle server, too.
        await self._mark(lambda _: ())
        await reached.wait()
        header = self._header(table, point, 1, last=True)
        content = Transaction(0, LSN(point - 1), transaction.time, snapshot=header)
        change = _recorded(1, content.commit_lsn, complete=True)
        recorded = await self._record(change)
        source.merge.release(
            rows.slices(content, point, first=(truncate(content, (described.layout.relation,)),))
        )
        if not recorded:
            await self._update(change)


@contextlib.contextmanager
def _translating_locked(what: str, lock_timeout: float | None) -> Iterator[None]:
    """Translate the error of a catalog function that could not lock a table in time."""
    try:
        yield
    except asyncpg.LockNotAvailableError:
        raise not_locked(what, lock_timeout) from None


def _recorded(part: int, commit_lsn: LSN, *, complete: bool) -> Change:
    """Return how the ledger changes when a chunk is delivered.

    :param complete: whether no row is owed after it, if it is the last one.
    """

    def change(table: TableProgress) -> TableProgress:
        assert table.plan is not None
        last = part == len(table.plan.ranges)
        if complete or not last:
            return table.with_chunk(part, commit_lsn)
        # A sweep is done once the owed rows are delivered.
        return table if table.plan.swept else table.with_chunk(part, commit_lsn).with_sweep()

    return change
