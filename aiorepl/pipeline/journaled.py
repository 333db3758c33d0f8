"""Delivery through a journal: from the source to the journal, and from the journal to each sink.

The slot waits only for the journal. A sink reads the journal from its cursor, which is stored with the journal, so a slow,
stopped or broken sink does not make the server keep WAL. The journal can start with an initial snapshot of the tables.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from aiorepl.cancellation import cancel_and_wait, run_until_set
from aiorepl.delivery.buffer import SliceBuffer
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.watchdog import attribute_to_sink
from aiorepl.delivery.worker import SinkWorker
from aiorepl.errors import AioreplError, ConfigurationError
from aiorepl.journal.chain import Chain
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.retention import Retention, keep_pruned
from aiorepl.journal.sink import JournalSink
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pipeline.fan_out import JOURNAL, SOURCE, FanOut, first_of, lag
from aiorepl.pipeline.initial_snapshot import InitialPhase
from aiorepl.pipeline.journal_follower import JournalFollower
from aiorepl.pipeline.options import PipelineOptions
from aiorepl.pipeline.progress import CursorProgress, SnapshotProgress, read_with_retries
from aiorepl.pipeline.start import Start, plan_start
from aiorepl.pipeline.statistics import Lag
from aiorepl.position import Position
from aiorepl.sizes import format_size
from aiorepl.snapshot.incremental.requests import Snapshots
from aiorepl.source.capture import Capture
from aiorepl.source.continuity import Claim, Continuity
from aiorepl.storage.opening import open_store
from aiorepl.transactions.slices import Slice
from aiorepl.transforms.memory import SelectionMemory

_log = logger("aiorepl.sink")

HISTORY: Final = "history"
_WATCH_SECONDS: Final = 5.0
# How often the log says again that a sink has stopped, because its cursor keeps segments.
_REMINDER_SECONDS: Final = 300.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Run:
    """The task that delivers to one sink.

    :param stopped: set to end the task.
    """

    task: asyncio.Task[None]
    stopped: asyncio.Event


class JournaledFanOut(FanOut):
    """Connects the source to the journal, and the journal to each sink, through one buffer each.

    :ivar store: the journal's store.
    """

    def __init__(
        self,
        options: PipelineOptions,
        capture: Capture,
        sinks: Mapping[str, ResolvedDelivery],
        snapshot: InitialPhase,
        snapshots: Snapshots,
        memories: Mapping[str, SelectionMemory],
    ) -> None:
        super().__init__(options, capture, sinks, snapshot, snapshots, memories)
        self.require_names(sinks)
        assert options.journal is not None
        self.store = open_store(options.journal)
        self._sink = JournalSink(self.store)
        self.prove = self._sink.proofs.add
        # Limits of rows and lingering are meant for sinks, not for the journal.
        self._journal = ResolvedDelivery(
            self._sink,
            replace(options.batches, max_rows=None, linger=0.0),
            options.retry,
            selection=options.journal_selection,
        )
        kept = options.retention
        self._retention = Retention.parse(kept) if isinstance(kept, str) else kept
        self.statistics = {JOURNAL: SinkStatistics(JOURNAL), **self.statistics}
        # One object for each sink, made when its cursor is registered. The object notices if another process takes the cursor
        # over.
        self._cursors: dict[str, Cursors] = {}
        self._runs: dict[str, _Run] = {}
        self._followers: dict[str, JournalFollower] = {}
        self._failed: dict[str, Exception] = {}
        # Sinks that end because they are replaced or removed.
        self._leaving: set[str] = set()
        # Sinks whose cursor may still move back, because they have not returned their position yet.
        self._unopened = set(sinks)
        self._all_opened = asyncio.Event()
        if not sinks:
            self._all_opened.set()
        # Held while segments are deleted, and while a cursor is created.
        self._pruning = asyncio.Lock()
        self._start: Start | None = None
        # Sinks whose positions were compared with the initial snapshot. Later, their positions may be past the snapshot.
        self._begun: set[str] = set()
        # The tasks of the sinks; set while the stream runs.
        self._group: asyncio.TaskGroup | None = None
        # The first LSN of the journal, and its end at this start.
        self._journal_start = LSN(0)
        self._journal_end = LSN(0)
        # Set once nothing more will be appended to the journal.
        self._end: LSN | None = None

    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Connect, open the journal and the sinks, read the tables, and deliver until the end.

        :raises AioreplError: the source or the journal failed, or a sink; the other sinks continued to the end.
        """
        self._capture.deliver_prepared()
        reader = JournalReader(self.store)
        recorded = await self._read_with_retries(JOURNAL, self._journal, reader.recorded_position)
        beginning = await self._begin(cleanup, recorded, LSN(0) if recorded is None else recorded.lsn)
        begin = beginning.position
        stored = await self._open(JOURNAL, self._journal, begin, cleanup)
        start = self._start = plan_start(beginning, {JOURNAL: stored}, self.gaps, self._holder)
        # An empty journal has no position. It is at the beginning.
        held = start.positions[JOURNAL] or begin
        self._journal_end = held.lsn
        if beginning.found.created is not None:
            await self._sink.void_prepared()
        for gap in start.gaps:
            await self._sink.skip(gap.after, held)
        refuted = partial(self._refuted, beginning.found.position)
        ledger = await self._start_stream(start, refuted, self._sink.readings)
        buffer = self._new_buffer(SOURCE, self._share)
        progress = SnapshotProgress(ledger, JOURNAL, self._snapshot, record=False)
        worker = self._worker(JOURNAL, self._journal, buffer, progress, after=held.lsn, stored=held)
        self._journal_start = await self._read_with_retries(
            JOURNAL, self._journal, partial(_start_of, reader)
        )
        cursors = {name: await self._register(name) for name in self._sinks}
        if self._options.compact:
            await self._compact_beside(begin, cleanup)
        if self._retention is not None:
            pruning = asyncio.create_task(self._keep_pruned(self._retention), name="aiorepl retention")
            cleanup.push_async_callback(cancel_and_wait, pruning)
        watching = asyncio.create_task(self._watch_snapshots(), name="aiorepl abandoned snapshots")
        cleanup.push_async_callback(cancel_and_wait, watching)
        reminding = asyncio.create_task(self._remind(), name="aiorepl stopped sinks")
        cleanup.push_async_callback(cancel_and_wait, reminding)
        self.started.set()
        try:
            async with asyncio.TaskGroup() as self._group:
                self._group.create_task(self._fill_journal(buffer, worker))
                for name, at in cursors.items():
                    if at is not None:
                        self._run_sink(name, at)
        finally:
            self._group = None
        await self._abandon_snapshots()
        for error in self._failed.values():
            raise error

    async def _settle(self, slices: list[Slice]) -> None:
        """Look up tables for the journal's selection only: a reader of the journal looks up the tables for its sink's selection."""
        if self._capture.tables is not None and self._journal.needs_catalog:
            await self._capture.tables.settle(slices)

    async def _dependent(self, lsn: LSN) -> str | None:
        try:
            stored = await asyncio.to_thread(JournalReader(self.store).position)
        except (AioreplError, OSError):
            # An unreadable journal may hold data.
            return self._holder(JOURNAL)
        # An empty journal keeps no position. A journal at the beginning of the snapshot has no chunks yet.
        has_nothing = stored is None or stored.lsn < lsn or stored.lsn == self._snapshot.start
        return None if has_nothing else self._holder(JOURNAL)

    def lags(self) -> dict[str, Lag]:
        """Return how far the journal is behind the server, and every sink behind the journal."""
        lags = {}
        for name, statistics in self.statistics.items():
            end = self.received if name == JOURNAL else self._sink.end
            lags[name] = lag(end, statistics, self._journal_start)
        return lags

    def _holder(self, name: str) -> str:
        return f"journal {self.store.url}" if name == JOURNAL else super()._holder(name)

    async def _refuted(self, begin: Position, claim: Claim, begins: LSN) -> None:
        await self.gaps.check_refuted(claim, begins)
        # The first conflicting slice refutes a claim, before anything is written.
        await self._sink.skip(begins, begin.at(claim.position.lsn))

    def stop_reading(self) -> None:
        super().stop_reading()
        for run in self._runs.values():
            run.stopped.set()

    def require_names(self, sinks: Collection[str]) -> None:
        """Check that no sink has the name of the journal, or of compaction.

        :raises ConfigurationError: a sink has it.
        """
        if JOURNAL in sinks:
            raise ConfigurationError(f"a sink must not be named {JOURNAL!r}: that is the journal's name")
        if self._options.compact and HISTORY in sinks:
            raise ConfigurationError(
                f"a sink must not be named {HISTORY!r}: compaction has the cursor of that name"
            )

    @property
    def running(self) -> bool:
        """Whether sinks can be started: the stream has started, and the pipeline does not end."""
        return self._group is not None and not (self._stopped.is_set() or self.ending.is_set())

    def failed(self, name: str) -> bool:
        """Whether a sink has failed."""
        return name in self._failed

    async def stop_sink(self, name: str, timeout: float) -> None:
        """Stop a sink between two transactions, after it has made durable what it has accepted, and close it.

        :param timeout: seconds until the sink is cancelled. At its next start, it gets again what it has not made durable.
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
        """Stop a sink that is replaced or removed next. If it fails meanwhile, that is only logged."""
        self._leaving.add(name)
        await self.stop_sink(name, timeout)

    async def start_sink(self, name: str) -> None:
        """Start a sink. It continues at its cursor; a new one begins where the journal begins."""
        if not self.running:
            return
        self.statistics[name].paused = False
        async with self._pruning:
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

    @property
    def _share(self) -> int:
        """The limit of each buffer, in bytes."""
        return self._options.buffer_bytes // (1 + len(self._sinks))

    def _resize_buffers(self) -> None:
        for buffer in self.buffers.values():
            buffer.resize(self._share)

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

    async def _compact_beside(self, begin: Position, cleanup: contextlib.AsyncExitStack) -> None:
        # Imported here, because it imports pyarrow.
        from aiorepl.history.beside import compact_beside, keep_uncompacted

        await asyncio.to_thread(keep_uncompacted, self.store, begin)
        compaction = asyncio.create_task(compact_beside(self.store), name="aiorepl compaction")
        cleanup.push_async_callback(cancel_and_wait, compaction)

    async def _keep_pruned(self, retention: Retention) -> None:
        # A sink that was restored from a backup needs segments from before its cursor.
        await self._all_opened.wait()
        await keep_pruned(self.store, retention, self._pruning)

    async def _watch_snapshots(self) -> None:
        """Record in the journal which snapshots were cancelled or cannot continue: their chunks need not be kept."""
        while True:
            with contextlib.suppress(AioreplError):  # the next round tries again
                await self._abandon_snapshots()
            await asyncio.sleep(_WATCH_SECONDS)

    async def _abandon_snapshots(self) -> None:
        pending = self._snapshot.pending
        if self._sink.open_snapshots - pending:
            await self._sink.abandon_snapshots(besides=pending)

    def _opened(self, name: str) -> None:
        self._unopened.discard(name)
        if not self._unopened:
            self._all_opened.set()

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

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(_REMINDER_SECONDS)
            lags = self.lags()
            for name, error in self._failed.items():
                _log.error(
                    "sink %s has stopped and is %s behind; the journal keeps that for it. Mend the cause and start again: %s",
                    name,
                    format_size(lags[name].durable),
                    error,
                )

    async def _fill_journal(self, buffer: SliceBuffer, worker: SinkWorker) -> None:
        # The journal needs no rewind, because it never loses accepted data.
        await self._run_workers(buffer, partial(self._read, buffer), [worker])
        end = await self._read_with_retries(JOURNAL, self._journal, JournalReader(self.store).end)
        self._end = end.lsn
        for follower in self._followers.values():
            follower.end_at(self._end)

    async def _read_with_retries(self, name: str, delivery: ResolvedDelivery, read: Callable[[], _T]) -> _T:
        return await read_with_retries(delivery.retry, f"sink {name}: reading the journal", read)

    async def _register(self, name: str) -> Position | None:
        """Create or refresh the sink's cursor, which protects all later segments; return its position, or ``None`` on failure."""
        assert self._start is not None
        begin, memory = self._start.beginning.position, self._memories.get(name)
        cursors = self._cursors[name] = Cursors(
            self.store, count_writes=None if memory is None else memory.count_writes
        )
        # A new sink begins where the journal does. With an initial snapshot, that is before the slot.
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
        start, continuity = await self._start_position(name, own, at)
        self._begun.add(name)
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

    async def _start_position(
        self, name: str, own: Position | None, at: Position
    ) -> tuple[Position, Continuity]:
        """Return where a sink continues in the journal, and its claim on the journal's stream.

        :param own: the position that the sink keeps, LSN 0 while it is empty; ``None`` if it keeps none.
        :param at: the position of its cursor; the sink has read everything before it from this journal.
        :raises SlotError: the sink is behind the beginning of the journal, in a gap or ahead of the server, and no gap is accepted.
        """
        reader, start = JournalReader(self.store), own or at

        def read_chain() -> tuple[Chain, LSN, LSN | None]:
            chain = reader.chain()
            hole = chain.hole(start.lsn)
            return chain, chain.first_readable, None if hole is None else hole.until

        chain, first, until = await self._read_with_retries(name, self._sinks[name], read_chain)
        # A snapshot that begins with a TRUNCATE replaces everything before it, until retention has deleted it.
        assert self._start is not None
        beginning = self._start.beginning
        truncates = beginning.replaces and beginning.gap is None and chain.start_lsn <= beginning.position.lsn
        begins = max(first, chain.identity.start_lsn) if start.lsn and not truncates else chain.start_lsn
        if start.lsn < begins:
            if not truncates:
                self.gaps.check_pruned(f"sink {name}", start.lsn, begins)
                if text := await asyncio.to_thread(reader.incomplete, chain, begins):
                    _log.warning("sink %s: %s", name, text)
            return start.at(begins), Continuity((), begins)
        if until is not None:
            self.gaps.check_hole(f"sink {name}", start.lsn, until)
            return start.at(until), Continuity((), begins)
        if own is None or not own.lsn:
            return start, Continuity((), begins)
        resumed = self._check_ahead(name, own)
        last = None if own.last is None else own.last.commit_lsn
        # A transaction in an accepted gap is not in the journal, so the journal cannot prove it.
        missing = last is not None and any(gap.start_lsn <= last < gap.until for gap in chain.gaps)
        compared = resumed == own and not truncates and not missing
        claims = [self._claim(name, f"sink {name}", own)] if compared else []
        return resumed, Continuity(claims, max(begins, at.lsn))

    def _check_ahead(self, name: str, own: Position) -> Position:
        """Return the position from which a sink continues, if the sink may be ahead of the journal.

        :raises SlotError: the sink is ahead of the initial snapshot, or of the server.
        """
        assert self._start is not None
        holder = f"sink {name}"
        if name not in self._begun:
            self._start.beginning.require_behind(holder, own)
        if own.lsn <= self._journal_limit:
            return own
        found = self._start.beginning.found
        return self.gaps.check(holder, own, found.position, found.wal_end, found.upgrade) or own

    async def _open_sink_at(
        self, name: str, delivery: ResolvedDelivery, at: Position, cleanup: contextlib.AsyncExitStack
    ) -> tuple[Position | None]:
        task = asyncio.current_task()
        assert task is not None
        attribute_to_sink(task, self.statistics[name])
        return (await self._open(name, delivery, at, cleanup),)


def _start_of(reader: JournalReader) -> LSN:
    chain = reader.chain()
    return max(chain.start_lsn, chain.identity.start_lsn)
