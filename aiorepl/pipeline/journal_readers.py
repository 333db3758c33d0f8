"""Delivers a journal to sinks, each from its own cursor, which is stored with the journal.

A sink that fails keeps its cursor, and the others continue. Sinks can be stopped, replaced and added while the pipeline runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from aiorepl.cancellation import run_until_set
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.watchdog import attribute_to_sink
from aiorepl.errors import AioreplError
from aiorepl.journal.chain import Chain
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.sink import JournalSink
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pipeline.fan_out import FanOut, Inputs, first_of
from aiorepl.pipeline.journal_follower import JournalFollower
from aiorepl.pipeline.journal_start import SinkStart, plan_sink
from aiorepl.pipeline.journal_upkeep import JournalUpkeep
from aiorepl.pipeline.progress import CursorProgress, read_with_retries
from aiorepl.pipeline.start import Start
from aiorepl.position import Position
from aiorepl.source.continuity import Continuity
from aiorepl.storage.opening import open_store

_log = logger("aiorepl.sink")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Run:
    """The task that delivers to one sink.

    :param stopped: set to end the task.
    """

    task: asyncio.Task[None]
    stopped: asyncio.Event


class JournalReaders(FanOut):
    """Delivers the journal to each sink, through a buffer for each sink.

    :ivar store: the journal's store.
    """

    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs)
        options, sinks, snapshot = inputs.options, inputs.sinks, inputs.snapshot
        assert options.journal is not None
        self.store = open_store(options.journal)
        self._sink = JournalSink(self.store)
        self._upkeep = JournalUpkeep(options, self.store, self._sink, lambda: snapshot.pending)
        # By sink name, made when the cursor is registered. The object notices if another process takes the cursor over.
        self._cursors: dict[str, Cursors] = {}
        self._runs: dict[str, _Run] = {}
        self._followers: dict[str, JournalFollower] = {}
        self._failed: dict[str, Exception] = {}
        # Sinks that end because they are replaced or removed.
        self._leaving: set[str] = set()
        # Sinks whose cursor may still move back, because they have not returned their position yet.
        self._unopened = set(sinks)
        if not sinks:
            self._upkeep.all_opened.set()
        self._start: Start | None = None
        # Sinks whose positions were compared with the initial snapshot. Later, their positions may be past the snapshot.
        self._begun: set[str] = set()
        # The tasks of the sinks; set while the stream runs.
        self._group: asyncio.TaskGroup | None = None
        # The end of the journal at this start.
        self._journal_end = LSN(0)
        # The journal's end, set once nothing more is appended.
        self._end: LSN | None = None

    def stop_reading(self) -> None:
        super().stop_reading()
        for run in self._runs.values():
            run.stopped.set()

    @property
    def _share(self) -> int:
        """The limit of each buffer, in bytes."""
        return self._options.buffer_bytes // (1 + len(self._sinks))

    def _resize_buffers(self) -> None:
        for buffer in self.buffers.values():
            buffer.resize(self._share)

    @property
    def running(self) -> bool:
        """Whether sinks can be started: the stream has started, and the pipeline does not end."""
        return self._group is not None and not (self._stopped.is_set() or self.ending.is_set())

    def failed(self, name: str) -> bool:
        """Whether a sink has failed."""
        return name in self._failed

    async def stop_sink(self, name: str, timeout: float) -> None:
        """Stop a sink between two transactions, after it has made durable what it has accepted, and close it.

        :param timeout: seconds until the sink is cancelled. Its next start delivers again the changes that were not durable.
        """
        if (run := self._runs.get(name)) is None:
            return
        run.stopped.set()
        if (feeder := self._feeders.get(name)) is not None:
            feeder.stop()
        await asyncio.wait({run.task}, timeout=timeout)
        if not run.task.done():
            _log.warning("sink %s has not ended within %s s, and is cancelled", name, timeout)
            run.task.cancel()
            await asyncio.wait({run.task})
        held: tuple[dict[str, Any], ...] = self._runs, self._feeders, self._followers, self.buffers
        for each in held:
            each.pop(name, None)

    async def discharge_sink(self, name: str, timeout: float) -> None:
        """Stop a sink that is replaced or removed next. A failure meanwhile is only logged."""
        self._leaving.add(name)
        await self.stop_sink(name, timeout)

    async def start_sink(self, name: str) -> None:
        """Start a sink. It continues at its cursor; a new sink begins at the beginning of the journal."""
        if not self.running:
            return
        self.statistics[name].paused = False
        async with self._upkeep.pruning:
            at = await self._register(name)
        if at is not None:
            self._run_sink(name, at)

    def put_sink(self, name: str, delivery: ResolvedDelivery) -> None:
        """Add a sink, or replace a stopped one."""
        self._sinks[name] = delivery
        self._resize_buffers()
        self._leaving.discard(name)
        self._failed.pop(name, None)
        statistics = self.statistics.setdefault(name, SinkStatistics(name))
        statistics.failed = statistics.retrying = statistics.next_attempt = None

    def remove_sink(self, name: str) -> None:
        """Forget a stopped sink. Its cursor stays in the journal."""
        self._opened(name)
        self._leaving.discard(name)
        held: tuple[dict[str, Any], ...] = self._sinks, self.statistics, self._contexts, self._stored
        for each in (*held, self._cursors, self._failed):
            each.pop(name, None)
        self._resize_buffers()

    def _run_sink(self, name: str, at: Position) -> None:
        if self._group is None:
            return
        stopped = asyncio.Event()
        work = self._read_journal(name, at, stopped)
        try:
            task = self._group.create_task(work, name=f"aiorepl reader {name}")
        except RuntimeError:
            # The stream and all other sinks have ended.
            work.close()
            return
        self._runs[name] = _Run(task, stopped)
        if self._stopped.is_set():
            stopped.set()

    async def _read_journal(self, name: str, at: Position, stopped: asyncio.Event) -> None:
        """Run one sink, and close it. If it fails, its cursor stays, and the journal and the other sinks continue.

        :param at: the position of the sink's cursor.
        :param stopped: set to end the sink.
        """
        try:
            async with contextlib.AsyncExitStack() as cleanup:
                await self._deliver_journal(name, at, stopped, cleanup)
        except Exception as error:  # noqa: BLE001 - raised once everything has ended
            self.fail_sink(name, first_of(error) if isinstance(error, ExceptionGroup) else error)

    def _opened(self, name: str) -> None:
        self._unopened.discard(name)
        if not self._unopened:
            self._upkeep.all_opened.set()

    def fail_sink(self, name: str, error: Exception) -> None:
        """Record that a sink has stopped because of an error. Its cursor stays."""
        if name in self._leaving:
            _log.error("sink %s has failed while it was stopped, and is replaced or removed: %s", name, error)
            return
        self._opened(name)
        self._failed[name] = error
        self.statistics[name].failed = str(error)
        _log.error("sink %s stops, the other sinks continue: %s", name, error)
        if len(self._failed.keys() - self._leaving) == len(self._sinks):
            self.ending.set()

    async def _read_with_retries(self, name: str, delivery: ResolvedDelivery, read: Callable[[], _T]) -> _T:
        return await read_with_retries(delivery.retry, f"sink {name}: reading the journal", read)

    async def _register(self, name: str) -> Position | None:
        """Create or refresh the sink's cursor, which protects all later segments; return its position, or ``None`` on failure."""
        assert self._start is not None
        begin, memory = self._start.beginning.position, self._memories.get(name)
        cursors = self._cursors[name] = Cursors(
            self.store, count_writes=None if memory is None else memory.count_writes
        )
        # A new sink begins at the beginning of the journal. With an initial snapshot, that is before the slot.
        try:
            kept = await self._read_with_retries(name, self._sinks[name], partial(cursors.get, name))
            at = begin.at(LSN(0) if kept is None else kept.lsn)
            await CursorProgress(cursors, name, begin, self._sinks[name].retry).durable(at.lsn)
        except AioreplError as error:
            self.fail_sink(name, error)
            return None
        statistics = self.statistics[name]
        statistics.accepted = statistics.durable = at.lsn
        return at

    async def _deliver_journal(
        self, name: str, at: Position, stopped: asyncio.Event, cleanup: contextlib.AsyncExitStack
    ) -> None:
        delivery = self._sinks[name]
        opened = await run_until_set(stopped, self._open_sink_at(name, delivery, at, cleanup))
        if opened is None:
            return
        (own,) = opened
        planned = await self._plan_sink(name, own, at)
        self._begun.add(name)
        start = planned.position
        claims = [self._claim(name, self._holder(name), start)] if planned.compared else []
        continuity = Continuity(claims, planned.begins)
        reads_from = min(start.lsn, self._journal_limit)
        progress = CursorProgress(self._cursors[name], name, at, delivery.retry)
        if start.lsn < at.lsn:
            await progress.rewound(start.lsn)
        elif not continuity.open:
            await progress.durable(reads_from)
        self._opened(name)
        buffer = self._new_buffer(name, self._share)
        stored = None if own is None else start
        worker = self._worker(name, delivery, buffer, progress, after=start.lsn, stored=stored)
        follower = self._followers[name] = JournalFollower(
            name,
            JournalReader(self.store),
            buffer,
            # A sink may be ahead of its cursor or of the journal: its last transaction is read again, compared and skipped.
            max(continuity.begins, continuity.since(reads_from)) if continuity.open else reads_from,
            delivery.retry,
            self._capture.tables if delivery.needs_catalog else None,
            continuity,
            partial(self.gaps.check_refuted, source="journal"),
        )
        if self._end is not None:
            follower.end_at(self._end)
        failed = partial(self.fail_sink, name)
        await self._run_workers(
            buffer,
            follower.run,
            [worker],
            name=name,
            stopped=stopped,
            rewind=follower.rewind,
            failed=failed,
        )

    @property
    def _journal_limit(self) -> LSN:
        """The end of the journal, now or at this start."""
        return max(self._journal_end, self._sink.end)

    async def _plan_sink(self, name: str, own: Position | None, at: Position) -> SinkStart:
        """Decide where a sink continues in the journal; parameters and errors as for ``plan_sink``."""
        reader, holder = JournalReader(self.store), self._holder(name)
        chain = await self._read_with_retries(name, self._sinks[name], partial(_whole_chain, reader))
        assert self._start is not None
        planned = plan_sink(
            holder,
            own,
            at,
            chain,
            self._start.beginning,
            self.gaps,
            limit=self._journal_limit,
            first=name not in self._begun,
        )
        if planned.skips and (text := await asyncio.to_thread(reader.incomplete, chain, planned.begins)):
            _log.warning("%s: %s", holder, text)
        return planned

    async def _open_sink_at(
        self, name: str, delivery: ResolvedDelivery, at: Position, cleanup: contextlib.AsyncExitStack
    ) -> tuple[Position | None]:
        task = asyncio.current_task()
        assert task is not None
        attribute_to_sink(task, self.statistics[name])
        return (await self._open(name, delivery, at, cleanup),)


def _whole_chain(reader: JournalReader) -> Chain:
    """Return the chain after loading the parts that it otherwise loads on demand."""
    chain = reader.chain()
    assert chain.start_lsn >= 0
    assert chain.completeness is not None
    return chain
