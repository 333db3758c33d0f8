"""Reads a table that has a key while the stream runs, without losing or inventing a row (see ``window``).

The window begins at a low watermark. Each chunk is read under a snapshot of its own, and its high watermark is written while the
reading transaction still holds its lock, so that the table cannot be altered between the two. The chunk is delivered where
the stream has the watermark, and the ledger has it before.

Rows may escape the ranges of a table, because an update moves them into blocks that were read before. If the stream has such an
update, the window knows the row's key, and the reader reads these *owed* rows again by their keys at the end. If the process
ends before that, or if the stream lacks some updates, a *sweep* reads every row that was written since the table was begun. A
sweep is one more chunk, at the end of the plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from aiorepl.errors import SlotError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.snapshot.chunks import Range, Sweep, TablePlan
from aiorepl.snapshot.described import DescribedTable
from aiorepl.snapshot.incremental.fresh_chunks import Altered, FreshTransaction, ReadAgain
from aiorepl.snapshot.incremental.table_reading import TableReading, delivered
from aiorepl.snapshot.incremental.writers import wait_for_writers
from aiorepl.snapshot.ledger.ledger import TableChange, TableProgress
from aiorepl.snapshot.merging.chunk_rows import ChunkRows
from aiorepl.snapshot.merging.overtaken import Key
from aiorepl.snapshot.merging.window import Window
from aiorepl.snapshot.planning import plan_tables, table_files
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction

_log = logger("aiorepl.snapshot")

# How often a chunk, or the owed rows, are read before the reader gives up on a table that keeps changing.
_ATTEMPTS: Final = 20
# The number of owed keys that one query reads.
_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Work:
    """A chunk to be read.

    :param number: the chunk's number in its transaction's header.
    :param rows: the range of the chunk, unless ``owed`` is given.
    :param part: the chunk's number in the plan; ``None``: the chunk is not in the plan, so the ledger does not record it.
    :param last: whether the chunk completes the table, unless rows are owed after it.
    :param owed: the keys of the rows to read; empty: the chunk is a range.
    """

    number: int
    rows: Range
    part: int | None
    last: bool
    owed: frozenset[Key] = frozenset()


class _Delivery:
    """Writes a chunk into the ledger before the stream delivers the chunk.

    :ivar change: the change of the ledger; ``None``: the chunk is not in the plan.
    :ivar recorded: whether the ledger has the change.
    """

    def __init__(self, reading: TableReading) -> None:
        self.change: TableChange | None = None
        self.recorded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._reading = reading

    def begin(self, change: TableChange) -> None:
        """Let the stream wait until the ledger has the change."""
        self.change = change
        self._reading.source.merge.before_delivery.append(self._record)

    async def _record(self) -> None:
        assert self.change is not None
        recorded = False
        try:
            recorded = await self._reading.record(self.change)
        finally:
            if not self.recorded.done():
                self.recorded.set_result(recorded)

    async def end(self) -> None:
        """Wait until the ledger has the change."""
        if self.change is not None and not await self.recorded:
            # The ledger could not be written before the chunk was delivered.
            await self._reading.update(self.change)


class WindowReader:
    """Reads a table that has a key. Used once."""

    def __init__(self, reading: TableReading, described: DescribedTable) -> None:
        self._reading = reading
        self._described = described
        key = tuple(column.name for column in described.table.key)
        self._window = Window(described.table.oid, key, reading.source.options.in_flight_bytes)
        # The low watermark.
        self._low = LSN(0)

    async def read(self) -> None:
        """Read the chunks that were not delivered yet.

        :raises Altered: the table has to be read from the beginning.
        :raises SlotError: the table's writers did not end in time, or some of its rows are still owed after many attempts.
        """
        reading, table, window = self._reading, self._described.table, self._window

        def begin(_: LSN) -> Sequence[Slice]:
            reading.source.merge.window = window
            return ()

        self._low = await (await reading.mark(begin))
        timeout = reading.source.options.lock_timeout
        await wait_for_writers(reading.control, table.oid, str(table), timeout)
        plan = await self._plan()
        parts = reading.progress.parts
        for part in parts:
            await self._deliver(_Work(part, plan.ranges[part - 1], part, last=part == parts[-1]))
        number = len(plan.ranges)
        for _ in range(_ATTEMPTS):
            # Only the sweep is left. If all owed keys are known, reading the owed rows replaces the sweep.
            if not (left := reading.progress.parts):
                return
            (sweep,) = left
            owed = window.take_owed()
            if owed:
                keys = sorted(owed)
                batches = [frozenset(keys[start : start + _KEYS]) for start in range(0, len(keys), _KEYS)]
                works = [_Work(0, None, None, last=False, owed=batch) for batch in batches]
                works[-1] = replace(works[-1], part=sweep, last=True)
            else:
                works = [_Work(0, reading.plan.ranges[-1], sweep, last=True)]
            for work in works:
                number += 1
                await self._deliver(replace(work, number=number))
        raise SlotError(
            f"table {table} is not complete after {_ATTEMPTS} attempts, because the keys of its rows keep changing: "
            "request it again when fewer of them change"
        )

    async def _plan(self) -> TablePlan:
        """Return the chunks of the table. Cut it into chunks, unless an earlier plan is still valid."""
        reading, source, table = self._reading, self._reading.source, self._described.table
        known = reading.progress.plan
        files = await table_files(reading.control, table, source.publications)
        if files is None:
            raise Altered("it was dropped")
        if known is None or known.state != files.state or not reading.progress.parts:
            (known,) = await plan_tables(
                reading.control, [table], source.publications, source.options, source.hides_key
            )
            plan = known
            await reading.update(lambda progress: progress.planned(plan))
            resumed = False
        else:
            resumed = len(reading.progress.parts) < len(known.ranges)
        # A sweep is needed if updates may have moved rows into blocks that were read before, and no window knows these rows. The
        # stream may lack some updates. The window of an earlier run is lost, with the updates that lacked unchanged TOASTed
        # columns.
        escaped = resumed and files.has_toast
        if not known.whole and (escaped or not await source.streams_all_updates(reading.control, table)):
            await reading.update(TableProgress.with_sweep)
        return reading.plan

    async def _deliver(self, work: _Work) -> None:
        """Read a chunk, again if need be, until it is delivered. A chunk of the plan is in the ledger on return."""
        reading, described = self._reading, self._described
        owed, where = sorted(work.owed), reading.progress.where
        for _ in range(_ATTEMPTS):
            delivery = _Delivery(reading)
            try:
                async with reading.chunks.begun() as transaction:
                    plan = reading.plan
                    rows = await transaction.copy(described, plan.state, work.rows, plan.key, owed, where)
                    arrive = partial(self._insert, work, rows, transaction, delivery)
                    arrived = await reading.mark(arrive)
                await arrived
            except ReadAgain as error:
                _log.info("chunk %d of table %s is read again: %s", work.number, described.table, error)
            else:
                await delivery.end()
                return
        raise Altered("it was truncated or altered each time that a chunk was read")

    def _insert(
        self, work: _Work, rows: ChunkRows, transaction: FreshTransaction, delivery: _Delivery, end: LSN
    ) -> Sequence[Slice]:
        """Return a chunk as a transaction, at its high watermark at ``end``.

        :raises ReadAgain: the table was truncated or altered, or a transaction changed too many of its rows.
        """
        reading, window = self._reading, self._window
        verdict = window.judge(transaction.visible, self._described.layout.relation)
        if verdict.again is not None:
            window.prune(transaction.visible)
            raise ReadAgain(verdict.again)
        everything = isinstance(work.rows, Sweep) or (reading.plan.whole and not work.owed)
        window.delivered(verdict, last=work.last, everything=everything, owed=work.owed)
        complete = work.last and window.owed == set()
        if work.part is not None:
            delivery.begin(delivered(work.part, LSN(end - 1), complete=complete))
        header = reading.header(self._described.table, self._low, work.number, last=complete)
        content = Transaction(0, LSN(end - 1), transaction.time, snapshot=header)
        slices = rows.slices(content, end, window, verdict)
        window.prune(transaction.visible)
        return slices
