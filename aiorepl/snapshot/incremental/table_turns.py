"""Reads the tables of a queue, one after the other. After several failures of a table, other tables go first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from aiorepl.cancellation import cancel_and_wait
from aiorepl.errors import AioreplError, PermanentError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.retry import Backoff, RetryPolicy, may_pass
from aiorepl.snapshot.incremental.connections import ReadingConnections
from aiorepl.snapshot.incremental.stream_source import SnapshotSource
from aiorepl.snapshot.incremental.table import read_table
from aiorepl.snapshot.incremental.table_names import look_up, unpublished
from aiorepl.snapshot.incremental.table_queue import Forgotten, TableQueue
from aiorepl.snapshot.ledger.ledger import TableChange, TableProgress
from aiorepl.snapshot.reading_transaction import translating

_log = logger("aiorepl.snapshot")

# The number of names that are looked up together.
_NAMES: Final = 200
# How often a failed table is read again at once, before other tables get their turn.
_ATTEMPTS: Final = 3


class _Attempts:
    """Counts the failures of a table since its last progress."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.failures = 0
        self.not_before = 0.0
        self._backoff = Backoff(policy)
        self._left = -1

    def fail(self, left: int) -> float | None:
        """Count a failure. Return the pause in seconds; ``None`` once there are no more attempts.

        :param left: the number of chunks that are left.
        """
        self.failures = self.failures + 1 if left == self._left else 1
        self._left = left
        return self._backoff.pause(LSN(left))


class TableTurns:
    """Reads tables until it is cancelled.

    :param retry: how to retry after a lost connection; ``None``: a table fails.
    :param durable: returns the position up to which the stream is durable, and will not be sent again.
    :param delivered: called when all rows of a table were delivered.
    """

    def __init__(
        self,
        queue: TableQueue,
        retry: RetryPolicy | None,
        source: SnapshotSource,
        durable: Callable[[], LSN],
        delivered: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._retry = retry
        self._source = source
        self._durable = durable
        self._delivered = delivered
        # Closed while no table can be read.
        self._connections = ReadingConnections(source)
        self._attempts: dict[int, _Attempts] = {}
        self._running: tuple[int, asyncio.Task[None]] | None = None
        self._wake = asyncio.Event()
        self._resumed = asyncio.Event()

    def wake(self) -> None:
        """Look at the queue again."""
        self._wake.set()

    def pause(self, paused: bool) -> None:
        """Pause reading, or continue.

        :param paused: if true, the chunk that is being read is dropped; it is read again later.
        """
        if not paused:
            self._resumed.set()
            return
        self._resumed.clear()
        if self._running is not None:
            self._running[1].cancel()

    async def interrupt(self, number: int | None = None) -> None:
        """Stop the reading of a table, and wait until it has stopped.

        :param number: the table's id in the ledger; ``None``: the table that is being read.
        """
        if self._running is not None and number in (None, self._running[0]):
            await cancel_and_wait(self._running[1])

    async def run(self) -> None:
        """Read the tables of the queue, including tables that are added later, until cancelled."""
        try:
            await self._run()
        finally:
            self._connections.close()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            if not self._resumed.is_set():
                self._connections.close()
                await self._resumed.wait()
            self._wake.clear()
            left, now = self._queue.left, clock()
            begins = {table.id: self._begins(table) for table in left}
            ready = [table for table in left if begins[table.id] <= now]
            if not ready:
                self._connections.close()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(begins.values()) - now if begins else None):
                        await self._wake.wait()
            elif ready[0].oid:
                await self._read(ready[0], alone=len(left) == 1)
            else:
                await self._look_up([table for table in ready if not table.oid][:_NAMES])

    def _begins(self, table: TableProgress) -> float:
        attempts = self._attempts.get(table.id)
        return 0.0 if attempts is None else attempts.not_before

    async def _look_up(self, named: list[TableProgress]) -> None:
        """Replace requested names by the published tables that they stand for."""
        publications = self._source.publications
        try:
            with translating():
                connection = await self._source.connect()
                try:
                    names = [(table.schema, table.name) for table in named]
                    found = await look_up(connection, publications, names)
                    missing = [name for name, tables in found.items() if not tables]
                    errors = await unpublished(connection, publications, missing)
                finally:
                    connection.terminate()
        except AioreplError as error:
            for table in named:
                await self._failed(table, error, alone=True)
            return
        for table in named:
            wrong = errors.get((table.schema, table.name))
            if wrong is not None and not self._queue.is_cancelled(table.id):
                await self._queue.fail(table, wrong)
        await self._queue.replace([table for table in named if found[table.schema, table.name]], found)

    async def _read(self, table: TableProgress, *, alone: bool) -> None:
        counters = self._queue.counters[table.id]
        counters.begin(asyncio.get_running_loop().time())
        task = asyncio.create_task(self._read_once(table), name=f"aiorepl snapshot of {table}")
        self._running = table.id, task
        try:
            await asyncio.wait({task})
        finally:
            self._running = None
            await cancel_and_wait(task)
        if self._queue.is_delivered(table.id):
            # The table is complete even if its task failed or was cancelled: a connection was lost, or reading was paused, after
            # its last chunk.
            self._attempts.pop(table.id, None)
            counters.error, counters.state = None, "delivered"
            self._delivered()
        elif task.cancelled():
            if counters.state == "reading":
                counters.state = "queued"
        elif (error := task.exception()) is not None and not isinstance(error, Forgotten):
            await self._failed(table, error, alone=alone)

    async def _read_once(self, table: TableProgress) -> None:
        queue = self._queue
        progress = queue.ledger.table(table.id)
        if progress is None:
            raise Forgotten

        async def record(change: TableChange) -> bool:
            return await queue.record(table, change, self._durable())

        ends = partial(queue.is_last, table.id)
        counters = queue.counters[table.id]
        update = partial(queue.update, table)
        identity = queue.ledger.reading(table)
        await read_table(self._source, self._connections, progress, update, record, ends, counters, identity)

    async def _failed(self, table: TableProgress, error: BaseException, *, alone: bool) -> None:
        """Try a table again later, unless its error will not pass.

        :param alone: whether no other table can be read meanwhile.
        :raises PermanentError: the ledger cannot be written. The table has not failed: the next start reads it.
        """
        if isinstance(error, PermanentError) and error.fatal:
            raise error
        if self._queue.is_cancelled(table.id):
            return
        counters = self._queue.counters[table.id]
        pause = None
        if self._retry is not None and isinstance(error, Exception) and may_pass(error):
            attempts = self._attempts.setdefault(table.id, _Attempts(self._retry))
            known = self._queue.ledger.table(table.id)
            pause = attempts.fail(0 if known is None else known.left)
        if pause is None:
            self._attempts.pop(table.id, None)
            await self._queue.fail(table, error)
            return
        counters.error, counters.state = str(error), "queued"
        _log.warning("reading table %s failed and is retried: %s", table, error)
        attempts.not_before = asyncio.get_running_loop().time() + pause
        if not alone and attempts.failures <= _ATTEMPTS:
            # A connection was lost for a moment: do not begin with another table.
            await asyncio.sleep(pause)
