"""Reads one table while the stream runs, without losing or inventing a row (see ``window``).

The window begins at a low watermark. Each chunk is read under a snapshot of its own, and its high watermark is written while the
reading transaction still holds its lock, so that the table cannot be altered between the two. The chunk is delivered where
the stream has the watermark.

If the table was truncated, rewritten or altered meanwhile, blocks no longer hold the rows that they held when the table was cut
into chunks, so it is read again from the beginning. Whole chunks arrive twice then; they are idempotent, like all rows with a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import asyncpg

from aiorepl.errors import ConfigurationError, ConnectionLost, ServerError, SlotError
from aiorepl.lsn import LSN
from aiorepl.snapshot.chunk_query import keys_condition, written_since
from aiorepl.snapshot.chunk_reader import TIMED_OUT, RateLimit, copied_rows
from aiorepl.snapshot.chunk_rows import ChunkRows
from aiorepl.snapshot.chunks import Range
from aiorepl.snapshot.described import DescribedTable, describe, require_same_types
from aiorepl.snapshot.exported import READ_SETTINGS, translating
from aiorepl.snapshot.ledger import TableProgress
from aiorepl.snapshot.merge import Arrival, ChunkMerge
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.planning import TableFiles, plan_tables, table_files
from aiorepl.snapshot.privileges import require_readable
from aiorepl.snapshot.statistics import TableCounters
from aiorepl.snapshot.tables import PublishedTable, published_tables
from aiorepl.snapshot.truncates import truncate
from aiorepl.snapshot.watermarks import Watermark, emit_watermark, require_messages
from aiorepl.snapshot.window import Key, Visibility, Window
from aiorepl.snapshot.writers import wait_for_writers
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.transaction import SnapshotChunk, Transaction, from_datetime
from aiorepl.values.registry import Types
from aiorepl.wire.opening import NO_CONVERSION, is_sql_ascii

_log = logging.getLogger("aiorepl.snapshot")

# How often a chunk is read again before its table is given up: its rows are truncated or altered all the time.
_ATTEMPTS: Final = 20
# How many owed keys are read by one query.
_KEYS: Final = 1000

_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_SNAPSHOT: Final = "SELECT pg_catalog.pg_current_snapshot()::text AS visible, now() AS time"

# A table's publications; each may publish other rows.
_ALL_PUBLISHED: Final = """
SELECT bool_and(p.pubinsert AND p.pubupdate) FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
 WHERE t.pubname = ANY ($1) AND t.schemaname = $2 AND t.tablename = $3
"""

Export = Callable[[], contextlib.AbstractAsyncContextManager[tuple[LSN, str]]]
"""Creates a temporary slot: its consistent point, and the name of the snapshot that it exports."""


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """The source, as the readers of tables use it.

    :param slot: the pipeline's slot.
    :param connect: opens an asyncpg connection with the settings for text values.
    :param export: exports the snapshot of a temporary slot.
    :param all_origins: whether the stream has changes of every replication origin.
    """

    slot: str
    publications: tuple[str, ...]
    connect: Callable[[], Awaitable[Any]]
    export: Export
    merge: ChunkMerge
    spool: Spool
    options: SnapshotOptions
    rate: RateLimit
    all_origins: bool = True


class _Altered(Exception):
    """The table has to be read from the beginning: it was altered, truncated or rewritten."""


class _Again(Exception):
    """The chunk has to be read again."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A chunk to be read.

    :param number: the chunk's number within the table.
    :param statement: the COPY command.
    :param last: whether the table is complete with it, unless rows are owed.
    :param owed: whether it reads owed rows.
    """

    number: int
    statement: str
    last: bool
    owed: bool = False


class TableReader:
    """Reads one table, and inserts its chunks into the stream. Used once.

    :param progress: what the ledger has about the table.
    :param update: changes that in the ledger, durably.
    :param ends_snapshot: whether no other table is left to be read; asked when this one is complete.
    :param counters: count the rows that are read.
    """

    def __init__(
        self,
        source: SnapshotSource,
        progress: TableProgress,
        update: Callable[[Callable[[TableProgress], TableProgress]], Awaitable[TableProgress]],
        ends_snapshot: Callable[[], bool],
        counters: TableCounters,
    ) -> None:
        self._counters = counters
        self._source = source
        self._progress = progress
        self._update = update
        self._ends_snapshot = ends_snapshot
        self._control: Any = None
        self._reader: Any = None

    async def run(self) -> None:
        """Read the table. The ledger has all of its chunks on return; they are delivered, and not yet durable.

        :raises ConfigurationError: the table is not published, cannot be read, or the server cannot write messages.
        :raises SlotError: a lock was not granted in time, or the table is altered all the time.
        :raises ConnectionLost, ConnectionFailed, ServerError: the server failed; another run goes on with the rest.
        """
        source = self._source
        try:
            with translating():
                self._control = await source.connect()
                await require_messages(self._control)
                await self._run()
        finally:
            source.merge.abandon()
            for connection in (self._control, self._reader):
                if connection is not None:
                    connection.terminate()

    async def _run(self) -> None:
        for _ in range(_ATTEMPTS):
            described = await self._describe()
            try:
                if described.table.key:
                    await self._read_in_windows(described)
                else:
                    await self._read_at_one_point(described)
            except _Altered as error:
                _log.warning("table %s is read again from the beginning: %s", self._progress, error)
                if self._reader is not None:
                    self._reader.terminate()
                self._progress = await self._update(lambda table: replace(table, plan=None))
                self._source.merge.abandon()
            else:
                return
        raise SlotError(f"table {self._progress} was altered each of the {_ATTEMPTS} times that it was read")

    async def _describe(self) -> DescribedTable:
        table = await self._published()
        if table is None:
            raise ConfigurationError(
                f"table {self._progress} is not published by {', '.join(self._source.publications)}, or was dropped"
            )
        return (await describe(self._control, [table], Types()))[table.oid]

    async def _published(self) -> PublishedTable | None:
        tables = await published_tables(self._control, self._source.publications)
        return next((table for table in tables if table.oid == self._progress.oid), None)

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
        resumed = await self._plan(described)
        plan = self._progress.plan
        assert plan is not None
        parts = self._progress.parts
        # Rows may have moved into blocks that were read before: in an earlier run, by updates that lack the columns which did
        # not change; or at any time, by updates that are not in the stream. The last range finds them by their age.
        unseen = len(plan.ranges) > 1 and not await self._streams_all_updates(table)
        sweep = unseen or (resumed and (await self._files(table)).has_toast)
        number = len(plan.ranges)
        for part in parts:
            last = part == parts[-1]
            statement = self._statement(described, plan.ranges[part - 1])
            work = _Work(part, statement, last and not sweep)
            end = await self._deliver(work, described, window, low)
            if not last:
                # The last one is recorded once nothing is owed any more.
                await self._record(part, end)
        if sweep:
            number += 1
            statement = self._statement(described, None, written_since(plan.xmin))
            end = await self._deliver(_Work(number, statement, last=True), described, window, low)
        while owed := self._take_owed(window):
            batches = [owed[start : start + _KEYS] for start in range(0, len(owed), _KEYS)]
            for batch in batches:
                number += 1
                statement = self._statement(described, None, keys_condition(key, batch))
                work = _Work(number, statement, last=batch is batches[-1], owed=True)
                end = await self._deliver(work, described, window, low)
        await self._record(parts[-1], end)

    async def _streams_all_updates(self, table: PublishedTable) -> bool:
        """Whether every insert and update of the table is in the stream."""
        source = self._source
        published = await self._control.fetchval(
            _ALL_PUBLISHED, list(source.publications), table.schema, table.name
        )
        return source.all_origins and bool(published)

    @staticmethod
    def _take_owed(window: Window) -> list[Key]:
        owed = window.take_owed()
        if owed is None:
            raise _Altered("too many of its rows were changed without their large columns")
        return sorted(owed)

    async def _record(self, part: int, end: LSN) -> None:
        self._progress = await self._update(lambda table: table.with_chunk(part, LSN(end - 1)))

    async def _plan(self, described: DescribedTable) -> bool:
        """Cut the table into chunks, unless it was before. Return whether some of them were delivered before."""
        known = self._progress.plan
        files = await self._files(described.table)
        if known is not None and known.state == files.state and self._progress.parts:
            return len(self._progress.parts) < len(known.ranges)
        (plan,) = await plan_tables(self._control, [described.table], self._source.options)
        self._progress = await self._update(lambda table: table.planned(plan))
        return False

    async def _files(self, table: PublishedTable) -> TableFiles:
        files = await table_files(self._control, table)
        if files is None:
            raise _Altered("it was dropped")
        return files

    def _statement(self, described: DescribedTable, rows: Range, *conditions: str) -> str:
        plan, where = self._progress.plan, self._progress.where
        key = () if plan is None else plan.key
        return described.copy_statement(rows, key, conditions if where is None else (*conditions, where))

    async def _deliver(self, work: _Work, described: DescribedTable, window: Window, low: LSN) -> LSN:
        """Read a chunk until it can be delivered. Return the LSN where it ends."""
        for _ in range(_ATTEMPTS):
            try:
                async with self._chunk(work, described) as (rows, visible, time):

                    def arrive(end: LSN) -> Sequence[Slice]:
                        return self._insert(end, work, described, window, low, rows, visible, time)

                    arrived = await self._mark(arrive)
                return await arrived
            except _Again as error:
                _log.info("chunk %d of table %s is read again: %s", work.number, described.table, error)
        raise _Altered("its rows were truncated or altered each time that a chunk was read")

    def _insert(
        self,
        end: LSN,
        work: _Work,
        described: DescribedTable,
        window: Window,
        low: LSN,
        rows: ChunkRows,
        visible: Visibility,
        time: int,
    ) -> Sequence[Slice]:
        """Make a chunk's transaction, at its high watermark."""
        verdict = window.judge(visible, described.layout.relation)
        if verdict.again is not None:
            window.prune(visible)
            raise _Again(verdict.again)
        if work.last:
            window.end_ranges()
        if work.owed and verdict.dropped:
            window.owe_dropped(visible)
        header = self._header(described.table, low, work.number, last=work.last and window.owed == set())
        transaction = Transaction(0, LSN(end - 1), time, snapshot=header)
        slices = rows.slices(transaction, end, window, verdict.dropped)
        window.prune(visible)
        return slices

    def _header(self, table: PublishedTable, lsn: LSN, number: int, *, last: bool) -> SnapshotChunk:
        partial = self._progress.where is not None
        return SnapshotChunk(
            lsn, table.oid, table.schema, table.name, number, last, last and self._ends_snapshot(), partial
        )

    @contextlib.asynccontextmanager
    async def _chunk(
        self, work: _Work, described: DescribedTable
    ) -> AsyncIterator[tuple[ChunkRows, Visibility, int]]:
        """Read a chunk; the table stays locked within the block."""
        reader, table = await self._idle_reader(), described.table
        try:
            await reader.execute(_BEGIN)
            await self._configure(reader)
            (row,) = await reader.fetch(_SNAPSHOT)
            await self._lock(reader, table)
            await self._require_unaltered(table)
            rows = await self._copy(reader, work.statement, described)
            await self._require_same_types(described)
            yield rows, Visibility.parse(row["visible"]), from_datetime(row["time"])
            await reader.execute("ROLLBACK")
        except BaseException:
            # A cancelled query may still run.
            reader.terminate()
            raise

    async def _idle_reader(self) -> Any:
        """Return a connection without a transaction."""
        if self._reader is None or self._reader.is_closed():
            self._reader = await self._source.connect()
            if is_sql_ascii(self._reader):
                await self._reader.execute(NO_CONVERSION)
        return self._reader

    async def _require_same_types(self, described: DescribedTable) -> None:
        try:
            await require_same_types(self._control, described)
        except SlotError:
            raise _Altered("a type of its columns was altered") from None

    async def _configure(self, reader: Any) -> None:
        await reader.execute(READ_SETTINGS)
        # A condition may name only what it qualifies, because anyone may create operators and functions.
        await reader.execute("SET LOCAL search_path = ''")
        if (timeout := self._source.options.lock_timeout) is not None:
            await reader.execute(f"SET LOCAL lock_timeout = {round(timeout * 1000)}")

    async def _lock(self, reader: Any, table: PublishedTable) -> None:
        role = await reader.fetchval("SELECT current_user::text")
        try:
            await require_readable(reader, table, role)
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.WrongObjectTypeError):
            raise _Altered("it was altered") from None
        except asyncpg.LockNotAvailableError:
            seconds = self._source.options.lock_timeout
            raise SlotError(
                f"table {table} could not be locked within {seconds:g} s, because another transaction alters it: end that "
                "transaction, or set a longer lock_timeout"
            ) from None

    async def _require_unaltered(self, table: PublishedTable) -> None:
        """Check that the table, which is locked, is as it was when it was cut into chunks."""
        plan = self._progress.plan
        assert plan is not None
        if await self._published() != table:
            raise _Altered("it was altered")
        if (await self._files(table)).state != plan.state:
            raise _Altered("it was truncated or rewritten")

    async def _copy(self, reader: Any, statement: str, described: DescribedTable) -> ChunkRows:
        source = self._source
        rows = ChunkRows(described, source.spool, source.options.in_flight_bytes)
        timeout, clock = source.options.statement_timeout, asyncio.get_running_loop().time
        async with contextlib.aclosing(
            copied_rows(reader, statement, len(described.kinds), timeout)
        ) as parts:
            try:
                async for data, count in parts:
                    await source.rate.wait(count)
                    rows.add(data, count)
                    self._counters.add(count, len(data), clock())
            except ServerError as error:
                if error.sqlstate != TIMED_OUT:
                    raise
                raise SlotError(
                    f"a chunk of table {described.table} could not be read: {error.message}: set a longer "
                    "statement_timeout, or a smaller chunk_bytes"
                ) from None
        return rows

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
        (plan,) = await plan_tables(self._control, [table], replace(source.options, chunk_bytes=2**62))
        self._progress = await self._update(lambda progress: progress.planned(plan))
        reached = asyncio.Event()
        reader = await self._idle_reader()
        source.merge.hold()
        try:
            async with asyncio.timeout(source.options.lock_timeout), contextlib.AsyncExitStack() as stack:
                point, snapshot = await stack.enter_async_context(source.export())
                await reader.execute(_BEGIN)
                await reader.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        except TimeoutError:
            raise SlotError(
                f"table {table} has no key, and the transactions in progress did not end within the lock_timeout of "
                f"{source.options.lock_timeout:g} s: end them, or set a longer one"
            ) from None
        source.merge.hold(point, reached.set)
        await self._configure(reader)
        await self._lock(reader, table)
        await self._require_unaltered(table)
        time = from_datetime(await reader.fetchval("SELECT now()"))
        rows = await self._copy(reader, self._statement(described, None), described)
        await reader.execute("ROLLBACK")
        # So that the stream reaches the point on an idle server, too.
        await self._mark(lambda _: ())
        await reached.wait()
        header = self._header(table, point, 1, last=True)
        transaction = Transaction(0, LSN(point - 1), time, snapshot=header)
        source.merge.release(
            rows.slices(transaction, point, first=(truncate(transaction, (described.layout.relation,)),))
        )
        await self._record(1, point)
