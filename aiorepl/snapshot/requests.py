"""The snapshots of a running pipeline: which tables are to be read, one after the other, and how far they are."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from aiorepl.cancellation import cancel_and_wait
from aiorepl.errors import AioreplError, ConfigurationError, TransientError
from aiorepl.lsn import LSN
from aiorepl.retry import RetryPolicy, may_pass
from aiorepl.snapshot.incremental import Change, TableReader
from aiorepl.snapshot.ledger import ChunkLedger, TableProgress
from aiorepl.snapshot.reading_transaction import translating
from aiorepl.snapshot.signals import Signal
from aiorepl.snapshot.statistics import TableCounters, TableStatistics
from aiorepl.snapshot.stream_source import SnapshotSource
from aiorepl.snapshot.tables import published_tables

_log = logging.getLogger("aiorepl.snapshot")

_POLL_SECONDS: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
_NAME: Final = re.compile(r'(?:(?P<schema>"(?:[^"]|"")+"|[^".]+)\.)?(?P<table>"(?:[^"]|"")+"|[^".]+)')

# The published parts of a table: itself, or the partitions that are published instead.
_PARTS: Final = """
WITH RECURSIVE tree(part) AS (
  SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
   WHERE n.nspname = $1 AND c.relname = $2
   UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.part
     JOIN pg_catalog.pg_class p ON p.oid = i.inhrelid AND p.relispartition)
SELECT part FROM tree
"""


class LedgerStore(Protocol):
    """Where the chunk ledger is: ``LedgerFile``, or ``MemoryLedger``."""

    ledger: ChunkLedger | None

    async def update(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger: ...


class MemoryLedger:
    """A chunk ledger that a restart forgets."""

    def __init__(self, ledger: ChunkLedger) -> None:
        self.ledger: ChunkLedger | None = ledger

    async def update(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger:
        """Change the ledger."""
        assert self.ledger is not None
        self.ledger = change(self.ledger)
        return self.ledger


@dataclass(slots=True, eq=False)
class _Request:
    """A call of ``resnapshot``: the ids of the tables that it waits for."""

    ids: set[int]
    done: asyncio.Future[None]


class _Forgotten(Exception):
    """The table is not in the ledger any more: it was cancelled."""


class Snapshots:
    """Reads tables while the stream runs, one after the other.

    :param retry: how to retry after a lost connection; ``None``: a table fails.
    :ivar tables: the tables that were requested, or left by an earlier run, by their ids in the ledger; those that ended stay
        until they are requested again.
    """

    def __init__(self, retry: RetryPolicy | None) -> None:
        self.tables: dict[int, TableCounters] = {}
        self._retry = retry
        self._requests: list[_Request] = []
        # Set by ``begin``.
        self._store: LedgerStore
        self._source: SnapshotSource
        self._durable: Callable[[], LSN]
        self._begun = asyncio.Event()
        self._running: tuple[int, asyncio.Task[None]] | None = None
        self._wake = asyncio.Event()
        self._delivered = asyncio.Event()
        self._released = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._paused = self._held = self._rewinding = False
        # Why no tables are read any more.
        self._end: str | None = None

    # For users.

    @property
    def paused(self) -> bool:
        """Whether no rows are read, because of ``pause`` or of the WAL that the slot keeps."""
        return not self._resumed.is_set()

    def statistics(self) -> list[TableStatistics]:
        """Return how far the tables are, and the last result of those that are no longer read."""
        return [counters.statistics() for counters in self.tables.values()]

    def _count(self, number: int, counters: TableCounters) -> None:
        for known, ended in list(self.tables.items()):
            if ended.table == counters.table and ended.state in ("complete", "cancelled", "failed"):
                del self.tables[known]
        self.tables[number] = counters

    @property
    def active(self) -> bool:
        """Whether a table is read or waits for its turn."""
        return any(counters.state in ("queued", "reading") for counters in self.tables.values())

    def pause(self) -> None:
        """Read no rows until ``resume``. The chunk that is being read is dropped, and read again later."""
        self._paused = True
        self._pause_or_resume()

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._paused = False
        self._pause_or_resume()

    def hold(self, held: bool) -> None:
        """Read no rows while the slot keeps more WAL than ``max_wal_bytes``; independent of ``pause``."""
        self._held = held
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        if not (self._paused or self._held or self._rewinding):
            self._resumed.set()
            return
        self._resumed.clear()
        if self._running is not None:
            self._running[1].cancel()

    async def cancel(self, table: str) -> bool:
        """Stop reading a table. Rows that were delivered stay in the sinks.

        :param table: ``schema.table``.
        :returns: whether the table was queued or being read.
        :raises TransientError, PermanentError: the ledger cannot be written.
        """
        await self._begun.wait()
        schema, name = parse_name(table)
        found = [
            each
            for each in self._ledger.unfinished
            if (each.schema, each.name) == (schema, name) and each.id in self.tables
        ]
        for each in found:
            # First, so that it is not begun again.
            self.tables[each.id].state = "cancelled"
            if self._running is not None and self._running[0] == each.id:
                await cancel_and_wait(self._running[1])
            await self._write(lambda ledger, each=each: ledger.without(each))  # type: ignore[misc]
            self._finish(each.id, AioreplError(f"the snapshot of table {each} was cancelled"))
        return bool(found)

    async def request(self, table: str, where: str | None = None) -> None:
        """Read a table, and return once its rows are durable in all sinks, or in the journal.

        :param table: ``schema.table``; a partitioned table stands for its published partitions.
        :param where: a condition of the rows, in SQL; names of functions, types and operators must be qualified.
        :raises ConfigurationError: the table cannot be read; says what to do.
        :raises AioreplError: reading failed, was cancelled, or the pipeline ended.
        """
        request = _Request(set(), asyncio.get_running_loop().create_future())
        await self.add(table, where, request)
        await request.done

    async def completed(self) -> None:
        """Wait until every table is complete that was requested, or left by an earlier process, except for failed ones.

        :raises AioreplError: the pipeline ended before.
        """
        await self._begun.wait()
        while self._end is None:
            if not self._ledger.unfinished:
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise AioreplError(self._end)

    async def add(self, table: str, where: str | None = None, request: _Request | None = None) -> None:
        """Queue a table. It is in the ledger on return. See ``request``."""
        names = [parse_name(table)]
        if where is not None and not _is_text(where):
            raise ConfigurationError("where contains NUL, or an unpaired surrogate")
        await self._begun.wait()
        added = await self._add(names, where)
        if request is not None:
            request.ids |= added
            self._requests.append(request)

    async def _add(
        self, names: Sequence[tuple[str, str]], where: str | None, signal_lsn: LSN | None = None
    ) -> set[int]:
        """Add tables by their names; return their ids in the ledger."""
        if self._end is not None:
            raise AioreplError(self._end)

        def add(ledger: ChunkLedger) -> ChunkLedger:
            for schema, name in names:
                ledger = ledger.with_table(0, schema, name, where)
            return ledger if signal_lsn is None else replace(ledger, signal_lsn=signal_lsn)

        ledger = await self._write(add)
        added = ledger.tables[-len(names) :]
        for table in added:
            self._count(table.id, TableCounters(str(table)))
        self._wake.set()
        return {table.id for table in added}

    # For the pipeline.

    def begin(self, store: LedgerStore, source: SnapshotSource, durable: Callable[[], LSN]) -> None:
        """Begin with the tables that are in the ledger, now that the stream starts, or starts again.

        A sink may have lost chunks of the initial snapshot after the stream had begun, so that there are new tables.

        :param durable: returns the position up to which the stream is durable, and will not be sent again.
        """
        if not self._begun.is_set():
            self._store, self._source, self._durable = store, source, durable
            source.merge.on_release(self._released.set)
        new = [table for table in self._ledger.tables if table.id not in self.tables]
        for table in new:
            counters = self.tables[table.id] = TableCounters(str(table), state=table.status)
            counters.error = table.error
        for table in new:
            if table not in self._ledger.unfinished:
                continue
            self.tables[table.id].state = "queued"
            if table.plan is not None and not table.parts:
                # Durable in part, and the rest is on its way.
                self.tables[table.id].state = "delivered"
                self._delivered.set()
        self._begun.set()
        self._wake.set()

    async def run(self) -> None:
        """Read what is requested, until this is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_tables(), name="aiorepl snapshots")
                group.create_task(self._complete_tables(), name="aiorepl snapshots durable")
        except* Exception as errors:  # noqa: BLE001 - the stream does not depend on snapshots
            error = errors.exceptions[0]
            text = str(error) if isinstance(error, AioreplError) else type(error).__name__
            self._end = f"no tables are read until the next start: {text}"
            _log.error("%s", self._end, exc_info=error)
        finally:
            self._end = self._end or "the pipeline ended before the snapshot was complete"
            self._begun.set()
            for request in list(self._requests):
                for number in list(request.ids):
                    self._finish(number, AioreplError(self._end))

    async def accept_signals(self) -> None:
        """Do what the signals request that have arrived. Tables to be read are in the ledger on return.

        :raises AioreplError: the ledger cannot be written; the signals are sent again.
        """
        signals = self._source.merge.signals
        while signals:
            # A pause lasts as long as the process, so it is carried out again after a restart.
            if signals[0].lsn > self._ledger.signal_lsn or signals[0].action in ("pause", "resume"):
                try:
                    await self._carry_out(signals[0])
                except AioreplError:
                    raise
                except Exception:  # noqa: BLE001 - see below
                    # The signal would come again with every start, and anyone may have written it.
                    _log.exception("the signal at %s is ignored", signals[0].lsn)
            del signals[0]

    async def _carry_out(self, signal: Signal) -> None:
        _log.info("signal at %s: %s %s", signal.lsn, signal.action, ", ".join(signal.tables))
        try:
            names = [parse_name(table) for table in signal.tables]
        except ConfigurationError as error:
            _log.error("the signal at %s is ignored: %s", signal.lsn, error)
            return
        match signal.action:
            case "pause":
                self.pause()
            case "resume":
                self.resume()
            case "cancel":
                for table in signal.tables:
                    await self.cancel(table)
                await self._write(lambda ledger: replace(ledger, signal_lsn=signal.lsn))
            case _:
                # In one step with the signal's LSN, so that a restart does not carry it out again.
                await self._add(names, signal.where, signal.lsn)

    async def released(self) -> None:
        """Wait until slices that were held back may have been released."""
        await self._released.wait()
        self._released.clear()

    async def rewound(self, lsn: LSN) -> None:
        """Read the chunks after ``lsn`` again, because a sink has lost them. Call this before the stream is read again."""
        if not self._begun.is_set():
            return
        self._rewinding = True
        self._pause_or_resume()
        try:
            if self._running is not None:
                await cancel_and_wait(self._running[1])
            self._source.merge.rewound()
            await self._write(lambda ledger: ledger.rewound(lsn))
        finally:
            self._rewinding = False
            self._pause_or_resume()
        for table in self._left():
            self.tables[table.id].state = "queued"
        self._wake.set()

    @property
    def _ledger(self) -> ChunkLedger:
        assert self._store.ledger is not None
        return self._store.ledger

    def _left(self, besides: int = 0) -> list[TableProgress]:
        """The tables that have chunks to be read."""
        return [
            table
            for table in self._ledger.unfinished
            if table.id != besides
            and (table.plan is None or table.parts)
            and table.id in self.tables
            and self.tables[table.id].state != "cancelled"
        ]

    def _is_last(self, number: int) -> bool:
        """Whether all tables are complete with this one."""
        failed = any(table.status == "failed" for table in self._ledger.tables)
        return not failed and not self._left(besides=number)

    async def _write(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger:
        """Change the ledger, and try again while the disk is full or does not answer."""
        pause = _POLL_SECONDS
        while True:
            try:
                return await self._store.update(change)
            except TransientError as error:
                _log.warning("the chunk ledger cannot be written, retrying: %s", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _read_tables(self) -> None:
        await self._begun.wait()
        while True:
            await self._resumed.wait()
            self._wake.clear()
            left = self._left()
            if not left:
                await self._wake.wait()
            elif left[0].oid:
                await self._read(left[0])
            else:
                await self._resolve(left[0])

    async def _resolve(self, named: TableProgress) -> None:
        """Replace a requested name by the published tables that it stands for."""
        try:
            found = await self._retried(named, lambda: self._published(named))
            if not found:
                raise ConfigurationError(
                    f"table {named} does not exist, or is not published by {', '.join(self._source.publications)}"
                )
        except AioreplError as error:
            if self.tables[named.id].state != "cancelled":
                await self._fail(named, error)
            return
        added: set[int] = set()

        def replaced(ledger: ChunkLedger) -> ChunkLedger:
            if ledger.table(named.id) is None:
                return ledger
            before = {table.id for table in ledger.tables}
            for oid, schema, name in found:
                ledger = ledger.with_table(oid, schema, name, named.where)
            ledger = ledger.without(named)
            added.update({table.id for table in ledger.tables} - before)
            return ledger

        ledger = await self._write(replaced)
        if not added:
            return
        for table in ledger.tables:
            if table.id in added:
                self._count(table.id, TableCounters(str(table)))
        del self.tables[named.id]
        for request in self._requests:
            if named.id in request.ids:
                request.ids = (request.ids - {named.id}) | added

    async def _published(self, named: TableProgress) -> list[tuple[int, str, str]]:
        with translating():
            connection = await self._source.connect()
            try:
                rows = await connection.fetch(_PARTS, named.schema, named.name)
                oids = {row["part"] for row in rows}
                tables = await published_tables(connection, self._source.publications, oids)
            finally:
                connection.terminate()
        return [(table.oid, table.schema, table.name) for table in tables]

    async def _read(self, table: TableProgress) -> None:
        status = self.tables[table.id]
        status.begin(asyncio.get_running_loop().time())

        def changed(change: Change, ledger: ChunkLedger) -> ChunkLedger:
            known = ledger.table(table.id)
            return ledger if known is None else ledger.with_progress(change(known))

        def note(progress: TableProgress) -> None:
            plan = progress.plan
            status.chunks = None if plan is None else len(plan.ranges)
            status.chunks_done = 0 if status.chunks is None else status.chunks - len(progress.parts)
            status.estimated_rows = None if plan is None or progress.where is not None else plan.rows

        async def update(change: Change) -> TableProgress:
            progress = (await self._write(partial(changed, change))).table(table.id)
            if progress is None:
                raise _Forgotten
            note(progress)
            return progress

        async def record(change: Change) -> bool:
            try:
                progress = (await self._store.update(partial(changed, change))).table(table.id)
            except AioreplError as error:
                _log.warning("a chunk of table %s is delivered before the ledger has it: %s", table, error)
                return False
            if progress is not None:
                note(progress)
            return True

        async def read() -> None:
            progress = self._ledger.table(table.id)
            if progress is None:
                raise _Forgotten
            ends = partial(self._is_last, table.id)
            await TableReader(self._source, progress, update, record, ends, status).run()

        task = asyncio.create_task(self._retried(table, read), name=f"aiorepl snapshot of {table}")
        self._running = table.id, task
        try:
            await asyncio.wait({task})
        finally:
            self._running = None
            await cancel_and_wait(task)
        if task.cancelled():
            if status.state == "reading":
                status.state = "queued"
        elif (error := task.exception()) is not None:
            if not isinstance(error, _Forgotten):
                await self._fail(table, error)
        else:
            status.state = "delivered"
            self._delivered.set()

    async def _retried(self, table: TableProgress, step: Callable[[], Any]) -> Any:
        """Run a step, again after errors that may pass."""
        if self._retry is None:
            return await step()
        async for attempt in self._retry.connection():
            with attempt:
                try:
                    return await step()
                except AioreplError as error:
                    self.tables[table.id].error = str(error)
                    if may_pass(error):
                        _log.warning("reading table %s failed and is retried: %s", table, error)
                    raise
        raise AssertionError("the retries end by returning or raising")

    async def _fail(self, table: TableProgress, error: BaseException) -> None:
        text = str(error) if isinstance(error, AioreplError) else type(error).__name__
        _log.error("table %s could not be read: %s", table, text)
        if not isinstance(error, AioreplError):
            _log.debug("table %s", table, exc_info=error)
        status = self.tables[table.id]
        status.fail(text)

        def failed(ledger: ChunkLedger) -> ChunkLedger:
            known = ledger.table(table.id)
            return ledger if known is None else ledger.with_progress(known.failed(text))

        await self._write(failed)
        self._finish(table.id, error)

    async def _complete_tables(self) -> None:
        """Complete the tables whose chunks are all durable."""
        while True:
            await self._delivered.wait()
            position = self._durable()
            await self._write(lambda ledger: ledger.durable(position))  # noqa: B023 - called at once
            kept = {table.id for table in self._ledger.tables}
            delivered = [number for number, status in self.tables.items() if status.state == "delivered"]
            for number in delivered:
                if number not in kept:
                    self.tables[number].state = "complete"
                    self._finish(number)
            if any(number in kept for number in delivered):
                await asyncio.sleep(_POLL_SECONDS)
            else:
                self._delivered.clear()

    def _finish(self, number: int, error: BaseException | None = None) -> None:
        for request in [request for request in self._requests if number in request.ids]:
            request.ids.discard(number)
            if error is not None and not request.done.done():
                request.done.set_exception(error)
            if not request.ids or error is not None:
                self._requests.remove(request)
                if not request.done.done():
                    request.done.set_result(None)


def parse_name(table: str) -> tuple[str, str]:
    """Split ``schema.table``; the schema is ``public`` by default, and names with dots are quoted as in SQL.

    :raises ConfigurationError: it is no name.
    """
    match = _NAME.fullmatch(table)
    if match is None or not _is_text(table):
        raise ConfigurationError(f"{table!r} is not the name of a table: write schema.table")
    schema, name = (_unquoted(match[part] or "public") for part in ("schema", "table"))
    return schema, name


def _is_text(text: str) -> bool:
    """Whether a server could take the text: without NUL and unpaired surrogates, which the ledger cannot store either."""
    return not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text)


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
