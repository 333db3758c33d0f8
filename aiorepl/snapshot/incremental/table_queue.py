"""The tables to be read while the stream runs: the ledger's tables, with the state of each in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from aiorepl.errors import AioreplError, PermanentError, loggable
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.snapshot.incremental.completion import Completion
from aiorepl.snapshot.incremental.table_names import Name
from aiorepl.snapshot.ledger.ledger import ChunkLedger, TableChange, TableProgress
from aiorepl.snapshot.ledger.store import LedgerStore, persisted
from aiorepl.snapshot.statistics import TableCounters, TableState, TableStatistics
from aiorepl.snapshot.tables import PublishedTable

_log = logger("aiorepl.snapshot")


_LedgerChange = Callable[[ChunkLedger], ChunkLedger]
_Write = Callable[[_LedgerChange], Awaitable[ChunkLedger]]


class Forgotten(Exception):
    """The table is not in the ledger any more: it was cancelled."""


class TableQueue:
    """The tables of one pipeline, in the order in which they are read.

    :ivar counters: the tables that were requested, or left by an earlier run, by their ids in the ledger; ended tables stay
        until they are requested again.
    :ivar completion: the calls that wait for tables.
    :ivar settled: set while no table is left that has to be completed.
    :ivar delivered: called when all rows of a table were delivered.
    """

    def __init__(self, delivered: Callable[[], None]) -> None:
        self.counters: dict[int, TableCounters] = {}
        self.completion = Completion()
        self.settled = asyncio.Event()
        self._delivered = delivered
        self._store: LedgerStore
        # The last id of each table that is complete or has failed, by the table's name.
        self._ended: dict[str, int] = {}

    def begin(self, store: LedgerStore) -> None:
        """Take the tables that are in the ledger and not known."""
        self._store = store
        unfinished = {table.id for table in self.ledger.unfinished}
        for table in self.ledger.tables:
            if table.id in self.counters:
                continue
            counters = TableCounters(str(table), state="queued" if table.id in unfinished else table.status)
            counters.error = table.error
            self._count(table.id, counters)
            if counters.state == "failed":
                self._ended[counters.table] = table.id
            elif self.is_delivered(table.id):
                # The table is durable in part, and its other chunks are on their way to the sinks.
                counters.state = "delivered"
                self._delivered()
        self._settle()

    @property
    def ledger(self) -> ChunkLedger:
        """The chunk ledger."""
        assert self._store.ledger is not None
        return self._store.ledger

    async def write(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger:
        """Change the ledger, and try again while the disk is full or does not answer.

        :raises PermanentError: the ledger cannot be written.
        """
        return await self._write(self._store.update, change)

    async def _write(self, write: _Write, change: _LedgerChange) -> ChunkLedger:
        ledger = await persisted(partial(write, change))
        self._settle()
        return ledger

    def statistics(self) -> list[TableStatistics]:
        """Return the progress of the tables, and the last result of tables that are no longer read."""
        return [counters.statistics() for counters in self.counters.values()]

    @property
    def active(self) -> bool:
        """Whether a table is read or waits for its turn."""
        return any(counters.state in ("queued", "reading") for counters in self.counters.values())

    @property
    def left(self) -> list[TableProgress]:
        """The tables that have chunks to be read."""
        return list(self._each_left())

    def is_last(self, number: int) -> bool:
        """Whether all other tables are complete, so that this table ends the snapshot."""
        if any(table.id != number for table in self._each_left()):
            return False
        return all(table.status != "failed" for table in self.ledger.tables)

    def is_delivered(self, number: int) -> bool:
        """Whether every chunk of a table was delivered. The ledger drops a table once all of its chunks are durable."""
        known = self.ledger.table(number)
        return not self.is_cancelled(number) and (
            known is None or (known.plan is not None and not known.left)
        )

    def is_cancelled(self, number: int) -> bool:
        """Whether a table was cancelled meanwhile; it may even have been requested again."""
        counters = self.counters.get(number)
        return counters is None or counters.state == "cancelled"

    # Changes of the tables.

    async def add(
        self,
        names: Sequence[Name],
        where: str | None,
        signal_lsn: LSN | None = None,
        *,
        replaces: bool = False,
    ) -> set[int]:
        """Queue tables by their names. Return their ids in the ledger. A queued table whose reading has not begun keeps its id.

        :param signal_lsn: the LSN of the signal that requests the tables, so that a restart does not carry the signal out
            again.
        :param replaces: whether a truncate precedes the rows.
        """
        ids: set[int] = set()

        def added(ledger: ChunkLedger) -> ChunkLedger:
            waiting = {
                (table.schema, table.name): table.id
                for table in ledger.unfinished
                if (table.where, table.replaces) == (where, replaces)
                and table.plan is None
                and self._waits(table.id)
            }
            new = [(0, *name) for name in dict.fromkeys(names) if name not in waiting]
            changed = ledger.with_tables(new, where, replaces=replaces)
            ids.update(waiting[name] for name in names if name in waiting)
            ids.update(range(ledger.last_id + 1, changed.last_id + 1))
            return changed if signal_lsn is None else replace(changed, signal_lsn=signal_lsn)

        ledger = await self.write(added)
        self._count_new(ledger, ids)
        return ids

    async def replace(
        self, named: Collection[TableProgress], found: Mapping[Name, Sequence[PublishedTable]]
    ) -> None:
        """Replace requested names by the published tables that they stand for."""
        replaced: dict[int, set[int]] = {}

        def changed(ledger: ChunkLedger) -> ChunkLedger:
            for table in named:
                if ledger.table(table.id) is None or self.is_cancelled(table.id):
                    continue
                parts = [(part.oid, part.schema, part.name) for part in found[table.schema, table.name]]
                after = ledger.with_tables(parts, table.where, replaces=table.replaces).without(table)
                replaced[table.id] = set(range(ledger.last_id + 1, after.last_id + 1))
                ledger = after
            return ledger

        ledger = await self.write(changed)
        for number, ids in replaced.items():
            self.counters.pop(number, None)
            self._count_new(ledger, ids)
            self.completion.replace(number, ids)

    async def update(self, table: TableProgress, change: TableChange) -> TableProgress:
        """Change a table's entry in the ledger. If all rows of the table are delivered together, the file is written later.

        :raises Forgotten: the ledger has no such entry.
        """
        changed = await self._write(self._writer(table, change), partial(_changed, table.id, change))
        progress = changed.table(table.id)
        if progress is None:
            raise Forgotten
        self._note(progress)
        return progress

    async def record(self, table: TableProgress, change: TableChange, durable: LSN) -> bool:
        """Try to change the ledger's entry of a table, only once, because the stream waits.

        :param durable: the position up to which every consumer is durable.
        :returns: whether the ledger has the change, or has forgotten the table.
        :raises PermanentError: another process has written the ledger.
        """
        try:
            ledger = await self._writer(table, change)(
                lambda ledger: _changed(table.id, change, ledger.durable(durable))
            )
        except AioreplError as error:
            if isinstance(error, PermanentError) and error.fatal:
                raise
            _log.warning("a chunk of table %s is delivered before the ledger has it: %s", table, error)
            return False
        progress = ledger.table(table.id)
        if progress is not None:
            self._note(progress)
        return True

    async def cancel(self, table: TableProgress) -> None:
        """Forget a table."""
        await self.write(lambda ledger: ledger.without_cancelled(table))
        self._end(table.id, "cancelled", AioreplError(f"the snapshot of table {table} was cancelled"))

    async def fail(self, table: TableProgress, error: BaseException) -> None:
        """Record that a table cannot be read."""
        text = loggable(error)
        _log.error("table %s could not be read: %s", table, text)
        if not isinstance(error, AioreplError):
            _log.debug("table %s", table, exc_info=error)
        await self.write(partial(_changed, table.id, lambda known: known.failed(text)))
        if not self.is_cancelled(table.id):
            self.counters[table.id].error = text
            self._end(table.id, "failed", error)

    async def complete(self, durable: LSN) -> bool:
        """Complete the tables that are durable up to ``durable``. Return whether delivered tables are left."""
        await self.write(lambda ledger: ledger.durable(durable))
        kept = {table.id for table in self.ledger.tables}
        delivered = [number for number, each in self.counters.items() if each.state == "delivered"]
        for number in delivered:
            if number not in kept:
                self._end(number, "complete")
        return any(number in kept for number in delivered)

    async def rewind(self, lsn: LSN) -> None:
        """Read the chunks after ``lsn`` again."""
        await self.write(lambda ledger: ledger.rewound(lsn))
        for table in self.left:
            self.counters[table.id].state = "queued"

    def end(self, error: AioreplError) -> None:
        """End the waiting calls with this error, because no table is read any more."""
        self.completion.end(error)
        self.settled.set()

    def _writer(self, table: TableProgress, change: TableChange) -> _Write:
        """Return how a change of a table's entry is written: at once if a journal could not replace the entry after a crash.

        A journal knows the last complete reading of a table only.
        """
        known = self.ledger.table(table.id)
        if known is None:
            return self._store.defer
        again = any(each.oid == known.oid and each.id != known.id for each in self.ledger.tables)
        together = not again and known.together and change(known).together
        return self._store.defer if together else self._store.update

    def _waits(self, number: int) -> bool:
        counters = self.counters.get(number)
        return counters is not None and counters.state == "queued"

    def _settle(self) -> None:
        if next(self.ledger.each_unfinished(), None) is None:
            self.settled.set()
        else:
            self.settled.clear()

    def _each_left(self) -> Iterator[TableProgress]:
        for table in self.ledger.each_unfinished():
            if (table.plan is None or table.left) and not self.is_cancelled(table.id):
                yield table

    def _count_new(self, ledger: ChunkLedger, ids: set[int]) -> None:
        for table in ledger.tables:
            if table.id in ids and table.id not in self.counters:
                self._count(table.id, TableCounters(str(table)))

    def _count(self, number: int, counters: TableCounters) -> None:
        self.counters.pop(self._ended.pop(counters.table, 0), None)
        self.counters[number] = counters

    def _end(self, number: int, state: TableState, error: BaseException | None = None) -> None:
        self.completion.finish(number, error)
        if (counters := self.counters.get(number)) is None:
            return
        counters.state = state
        if (before := self._ended.get(counters.table, number)) != number:
            self.counters.pop(before, None)
        self._ended[counters.table] = number

    def _note(self, progress: TableProgress) -> None:
        counters, plan = self.counters.get(progress.id), progress.plan
        if counters is None:
            return
        counters.chunks = None if plan is None else len(plan.ranges)
        counters.chunks_done = 0 if plan is None else len(plan.ranges) - progress.left
        counters.estimated_rows = None if plan is None or progress.where is not None else plan.rows


def _changed(number: int, change: TableChange, ledger: ChunkLedger) -> ChunkLedger:
    known = ledger.table(number)
    return ledger if known is None else ledger.with_progress(change(known))
