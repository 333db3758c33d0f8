"""The snapshots of a running pipeline: methods for users, and methods for the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from aiorepl.errors import AioreplError, ConfigurationError, loggable
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.retry import RetryPolicy
from aiorepl.snapshot.incremental.stream_source import SnapshotSource
from aiorepl.snapshot.incremental.table_names import Name, is_text, parse_name
from aiorepl.snapshot.incremental.table_queue import TableQueue
from aiorepl.snapshot.incremental.table_turns import TableTurns
from aiorepl.snapshot.ledger.store import LedgerStore
from aiorepl.snapshot.merging.signals import Signal
from aiorepl.snapshot.statistics import TableCounters, TableStatistics

_log = logger("aiorepl.snapshot")


class Snapshots:
    """Reads tables while the stream runs, one after the other.

    :param retry: how to retry after a lost connection; ``None``: a table fails.
    """

    def __init__(self, retry: RetryPolicy | None) -> None:
        self._retry = retry
        self._queue = TableQueue(self.look)
        # Set by ``begin``.
        self._source: SnapshotSource
        self._durable: Callable[[], LSN]
        self._turns: TableTurns | None = None
        self._begun = asyncio.Event()
        self._looking = asyncio.Event()
        self._released = asyncio.Event()
        self._paused = self._held = self._rewinding = False
        # The error because of which no tables are read any more.
        self._end: str | None = None

    # Methods for users.

    @property
    def tables(self) -> dict[int, TableCounters]:
        """The requested tables, and the unfinished tables of earlier runs, by their ids in the ledger.

        An ended table stays until it is requested again.
        """
        return self._queue.counters

    @property
    def paused(self) -> bool:
        """Whether no rows are read, because of ``pause`` or of the WAL that the slot keeps."""
        return self._paused or self._held or self._rewinding

    def statistics(self) -> list[TableStatistics]:
        """Return the progress of the tables, and the last result of tables that are no longer read."""
        return self._queue.statistics()

    @property
    def active(self) -> bool:
        """Whether a table is read or waits for its turn."""
        return self._queue.active

    async def pause(self) -> None:
        """Read no rows until ``resume``, also after a restart. The current chunk is dropped, and read again later.

        :raises PermanentError: the ledger cannot be written; the pause ends with the process.
        """
        self._set_paused(paused=True)
        await self._begun.wait()
        if self._end is None:
            await self._queue.write(lambda ledger: replace(ledger, paused=True))

    async def resume(self) -> None:
        """Resume reading after ``pause``.

        :raises PermanentError: the ledger cannot be written; a restart pauses again.
        """
        await self._begun.wait()
        self._set_paused(paused=False)
        if self._end is None:
            await self._queue.write(lambda ledger: replace(ledger, paused=False))

    async def cancel(self, table: str) -> bool:
        """Stop reading a table. Rows that were delivered stay in the sinks.

        :param table: ``schema.table``.
        :returns: whether the table was queued or being read.
        :raises AioreplError: the ledger cannot be written, or the pipeline ended before its stream began.
        """
        name = parse_name(table)
        await self._begun.wait()
        if self._turns is None:
            raise AioreplError(self._end)
        found = [
            each
            for each in self._queue.ledger.unfinished
            if (each.schema, each.name) == name and each.id in self.tables
        ]
        for each in found:
            # Remove the table from the ledger first, so that no task begins to read it again.
            self.tables[each.id].state = "cancelled"
            await self._turns.interrupt(each.id)
            await self._queue.cancel(each)
        return bool(found)

    async def request(self, table: str, where: str | None = None) -> None:
        """Read a table, and return once its rows are durable in all sinks, or in the journal.

        :param table: ``schema.table``; a partitioned table stands for its published partitions.
        :param where: a condition of the rows, in SQL; names of functions, types and operators must be qualified.
        :raises ConfigurationError: the table cannot be read; says what to do.
        :raises AioreplError: reading failed, was cancelled, or the pipeline ended.
        """
        await self._queue.completion.wait_for(await self._add([_request(table, where)], where))

    async def add(self, table: str, where: str | None = None, *, replaces: bool = False) -> None:
        """Queue a table; see ``request``. On return the ledger has the table.

        :param replaces: whether a truncate precedes the rows, because the sinks have rows that the table no longer has. Then the
            table is read at one point, with the stream held back.
        """
        await self._add([_request(table, where)], where, replaces=replaces)

    async def completed(self) -> None:
        """Wait until every table is complete that was requested, or left by an earlier process, except for failed ones.

        :raises AioreplError: the pipeline ended before.
        """
        await self._begun.wait()
        await self._queue.settled.wait()
        if self._end is not None and (self._turns is None or self._queue.ledger.unfinished):
            raise AioreplError(self._end)

    # Methods for the pipeline.

    def begin(self, store: LedgerStore, source: SnapshotSource, durable: Callable[[], LSN]) -> None:
        """Begin with the tables that are in the ledger, now that the stream starts, or starts again.

        A sink may have lost chunks of the initial snapshot after the stream had begun, so that there are new tables.

        :param durable: returns the position up to which the stream is durable, and will not be sent again.
        """
        self._queue.begin(store)
        if self._turns is None:
            self._source, self._durable = source, durable
            source.merge.on_release(self._released.set)
            self._turns = TableTurns(self._queue, self._retry, source, durable, self.look)
            if self._queue.ledger.paused:
                _log.warning("no tables are read beside the stream: this was paused, and not resumed")
            self._set_paused(paused=self._paused or self._queue.ledger.paused)
        self._begun.set()
        self._turns.wake()

    @property
    def unfinished(self) -> list[str]:
        """The tables that are not complete, and have not failed."""
        return [str(table) for table in self._queue.ledger.unfinished] if self._begun.is_set() else []

    @property
    def settled(self) -> asyncio.Event:
        """Set while no table is unfinished, and once the pipeline has ended."""
        return self._queue.settled

    def hold(self, held: bool) -> None:
        """Read no rows while the slot keeps more WAL than ``max_wal_bytes``; independent of ``pause``."""
        self._held = held
        self._pause_or_go_on()

    def look(self) -> None:
        """Look for complete tables, because rows were delivered or have become durable."""
        self._looking.set()

    async def run(self) -> None:
        """Read the requested tables until cancelled."""
        try:
            await self._begun.wait()
            assert self._turns is not None
            async with asyncio.TaskGroup() as group:
                group.create_task(self._turns.run(), name="aiorepl snapshots")
                group.create_task(self._complete_tables(), name="aiorepl snapshots durable")
        except* Exception as errors:  # noqa: BLE001 - the stream does not depend on snapshots
            error = errors.exceptions[0]
            text = loggable(error)
            self._end = f"no tables are read until the next start: {text}"
            _log.error("%s", self._end, exc_info=error)
        finally:
            self._end = self._end or "the pipeline ended before the snapshot was complete"
            self._begun.set()
            self._queue.end(AioreplError(self._end))

    async def accept_signals(self) -> None:
        """Carry out the signals that have arrived. Their requests are in the ledger on return.

        :raises AioreplError: the ledger cannot be written; the signals are sent again.
        """
        signals = self._source.merge.signals
        while signals:
            if signals[0].lsn > self._queue.ledger.signal_lsn:
                try:
                    await self._carry_out(signals[0])
                except AioreplError:
                    raise
                except Exception:  # noqa: BLE001 - see below
                    # An error would stop the pipeline at this signal after every start, and any role can write signals.
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
            case "pause" | "resume":
                paused = signal.action == "pause"
                await self._queue.write(lambda ledger: replace(ledger, paused=paused, signal_lsn=signal.lsn))
                self._set_paused(paused=paused)
            case "cancel":
                for table in signal.tables:
                    await self.cancel(table)
                await self._queue.write(lambda ledger: replace(ledger, signal_lsn=signal.lsn))
            case _:
                # The requests and the signal's LSN are written in one step, so that a restart does not repeat the signal.
                await self._add(names, signal.where, signal.lsn)

    async def released(self) -> None:
        """Wait until slices that were held back may have been released."""
        await self._released.wait()
        self._released.clear()

    async def rewound(self, lsn: LSN) -> None:
        """Read the chunks after ``lsn`` again, because a sink has lost them. Call this before the stream is read again."""
        if self._turns is None:
            return
        self._rewinding = True
        self._pause_or_go_on()
        try:
            await self._turns.interrupt()
            self._source.merge.rewound()
            await self._queue.rewind(lsn)
        finally:
            self._rewinding = False
            self._pause_or_go_on()
        self._turns.wake()

    async def _add(
        self,
        names: list[Name],
        where: str | None,
        signal_lsn: LSN | None = None,
        *,
        replaces: bool = False,
    ) -> set[int]:
        await self._begun.wait()
        if self._end is not None:
            raise AioreplError(self._end)
        added = await self._queue.add(names, where, signal_lsn, replaces=replaces)
        assert self._turns is not None
        self._turns.wake()
        return added

    def _set_paused(self, *, paused: bool) -> None:
        self._paused = paused
        self._pause_or_go_on()

    def _pause_or_go_on(self) -> None:
        if self._turns is not None:
            self._turns.pause(self.paused)

    async def _complete_tables(self) -> None:
        """Complete the tables whose chunks are all durable."""
        while True:
            await self._looking.wait()
            self._looking.clear()
            if any(counters.state == "delivered" for counters in self.tables.values()):
                await self._queue.complete(self._durable())


def _request(table: str, where: str | None) -> Name:
    if where is not None and not is_text(where):
        raise ConfigurationError("where contains NUL, or an unpaired surrogate")
    return parse_name(table)
