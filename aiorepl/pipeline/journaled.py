"""Delivery through a journal: from the source to the journal, and from the journal to each sink.

The slot waits only for the journal. A sink reads the journal from its cursor, which is stored with the journal, so a slow,
stopped or broken sink does not make the server keep WAL. The journal can begin with an initial load of the tables. If that
load was interrupted, the slot exists while the journal is empty; the next start refuses this state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from aiorepl.cancellation import cancel_and_wait, run_until_set
from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.buffer import SliceBuffer
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.watchdog import attribute_to_sink
from aiorepl.delivery.worker import SinkWorker
from aiorepl.errors import AioreplError, ConfigurationError, SlotError
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.retention import Retention, keep_pruned
from aiorepl.journal.sink import JournalSink
from aiorepl.lsn import LSN
from aiorepl.pipeline.fan_out import JOURNAL, SOURCE, FanOut, first_of, lag
from aiorepl.pipeline.journal_follower import JournalFollower
from aiorepl.pipeline.progress import CursorProgress, LedgerProgress
from aiorepl.pipeline.statistics import Lag
from aiorepl.position import Position
from aiorepl.retry import RetryPolicy
from aiorepl.snapshot.chunks import SnapshotPlan
from aiorepl.snapshot.initial import InitialSnapshot
from aiorepl.source.capture import Capture
from aiorepl.source.continuity import Claim, Continuity, GapPolicy
from aiorepl.source.preflight import PreflightResult
from aiorepl.transactions.slices import Slice

_log = logging.getLogger("aiorepl.sink")


class JournaledFanOut(FanOut):
    """Connects the source to the journal, and the journal to each sink, through one buffer each."""

    def __init__(
        self,
        capture: Capture,
        sinks: Mapping[str, ResolvedDelivery],
        buffer_bytes: int,
        gaps: GapPolicy,
        *,
        journal: str,
        batches: BatchPolicy,
        retry: RetryPolicy,
        snapshot: bool,
        resnapshot: bool,
        retention: Retention | str | None,
    ) -> None:
        if JOURNAL in sinks:
            raise ConfigurationError(f"a sink must not be named {JOURNAL!r}: that is the journal's name")
        super().__init__(capture, sinks, buffer_bytes // (1 + len(sinks)), gaps)
        self._url = journal
        self._sink = JournalSink(journal)
        # Limits of rows and lingering are meant for sinks, not for the journal.
        self._journal = ResolvedDelivery(self._sink, replace(batches, max_rows=None, linger=0.0), retry)
        self._snapshot = snapshot or resnapshot
        self._resnapshot = resnapshot
        # Whether this start begins with an initial load; a partly loaded journal counts as empty.
        self._loads = False
        self._plan = SnapshotPlan(())
        self._retention = Retention.parse(retention) if isinstance(retention, str) else retention
        self.statistics = {JOURNAL: SinkStatistics(JOURNAL), **self.statistics}
        self._followers: list[JournalFollower] = []
        self._failed: dict[str, Exception] = {}
        # Sinks whose cursor may still move back, because they have not returned their position yet.
        self._unopened = set(sinks)
        self._all_opened = asyncio.Event()
        self._preflight: PreflightResult | None = None
        # Where the journal begins, and its end at this start.
        self._journal_start = LSN(0)
        self._journal_end = LSN(0)
        # Set once nothing more will be appended to the journal.
        self._end: LSN | None = None

    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Connect, open the journal and the sinks, load the tables, and deliver until the end.

        :raises AioreplError: the source or the journal failed, or a sink; the other sinks continued to the end.
        """
        self._capture.deliver_prepared()
        preflight_result = await self._connect(
            cleanup,
            snapshot="export" if self._snapshot else "nothing",
            replace=self._resnapshot,
            journal=await asyncio.to_thread(JournalReader(self._url).recorded_position),
        )
        self._preflight, begin = preflight_result, preflight_result.position
        stored = await self._open(JOURNAL, self._journal, begin, cleanup)
        if preflight_result.created is not None:
            await self._sink.void_prepared()
        load = await self._initial_load(preflight_result, stored, cleanup)
        self._loads = load is not None
        claims: list[Claim] = []
        if load is None:
            stored, claims = await self._continue_journal(stored, preflight_result)
        after = begin.lsn if stored is None or load is not None else stored.lsn
        self._journal_end = after
        # The load ends where the slot begins, and is durable only once the journal has it.
        start = after if load is None else LSN(self._plan.base(after) - 1)
        ledger = await self._capture.begin(
            after, (JOURNAL,), start=start, claims=claims, refuted=partial(self._refuted, begin)
        )
        buffer = self._new_buffer(SOURCE, self._buffer_bytes)
        worker = self._worker(
            JOURNAL,
            self._journal,
            buffer,
            LedgerProgress(ledger, JOURNAL),
            after=start,
            stored=begin if stored is None or load is not None else stored,
        )
        chain = await asyncio.to_thread(JournalReader(self._url).chain)
        self._journal_start = max(chain.start_lsn, chain.manifest.start_lsn)
        cursors = {name: await self._register(name, begin) for name in self._sinks}
        if self._retention is not None:
            pruning = asyncio.create_task(self._keep_pruned(self._retention), name="aiorepl retention")
            cleanup.push_async_callback(cancel_and_wait, pruning)
        self.started.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fill_journal(buffer, worker, load))
            for name, at in cursors.items():
                if at is not None:
                    group.create_task(self._read_journal(name, at, cleanup))
        for error in self._failed.values():
            raise error

    @property
    def _complete(self) -> bool:
        return super()._complete and not self._loads

    async def _dependent(self, lsn: LSN) -> str | None:
        try:
            stored = await asyncio.to_thread(JournalReader(self._url).position)
        except (AioreplError, OSError):
            # An unreadable journal may hold data.
            return f"journal {self._url}"
        return None if stored is None or stored.lsn < lsn else f"journal {self._url}"

    def lags(self) -> dict[str, Lag]:
        """Return how far the journal is behind the server, and every sink behind the journal."""
        lags = {}
        for name, statistics in self.statistics.items():
            end = self.received if name == JOURNAL else self._sink.end
            lags[name] = lag(end, statistics, self._journal_start)
        return lags

    async def _continue_journal(
        self, stored: Position | None, preflight_result: PreflightResult
    ) -> tuple[Position | None, list[Claim]]:
        """Return the position where the journal continues, and its claim on the stream."""
        holder = f"journal {self._url}"
        resumed = self.gaps.check(holder, stored, preflight_result.position, preflight_result.wal_end)
        if stored is None or resumed is None:
            return None, []
        if resumed == stored:
            return stored, [self._claim(JOURNAL, holder, stored)]
        await self._sink.skip(self.gaps.accepted[-1].after, resumed)
        return resumed, []

    async def _refuted(self, begin: Position, claim: Claim, begins: LSN) -> None:
        await self.gaps.check_refuted(claim, begins)
        # The first conflicting slice refutes a claim, before anything is written.
        await self._sink.skip(begins, begin.at(claim.position.lsn))

    async def _read_journal(self, name: str, at: Position, cleanup: contextlib.AsyncExitStack) -> None:
        """Run one sink. If it fails, its cursor stays, and the journal and the other sinks continue.

        :param at: the position of the sink's cursor.
        """
        try:
            await self._deliver_journal(name, at, cleanup)
        except Exception as error:  # noqa: BLE001 - raised once everything has ended
            self._sink_failed(name, first_of(error) if isinstance(error, ExceptionGroup) else error)

    async def _keep_pruned(self, retention: Retention) -> None:
        # A sink that was restored from a backup needs segments from before its cursor.
        if self._unopened:
            await self._all_opened.wait()
        await keep_pruned(self._url, retention)

    def _opened(self, name: str) -> None:
        self._unopened.discard(name)
        if not self._unopened:
            self._all_opened.set()

    def _sink_failed(self, name: str, error: Exception) -> None:
        self._opened(name)
        self._failed[name] = error
        self.statistics[name].failed = str(error)
        _log.error("sink %s stops, the other sinks continue: %s", name, error)
        if len(self._failed) == len(self._sinks):
            self.ending.set()

    async def _fill_journal(
        self, buffer: SliceBuffer, worker: SinkWorker, load: InitialSnapshot | None
    ) -> None:
        # No rewind: the journal never loses accepted data, and an initial load can be read only once.
        await self._run_workers(buffer, partial(self._load_and_read, buffer, load), [worker])
        self._end = (await asyncio.to_thread(JournalReader(self._url).end)).lsn
        for follower in self._followers:
            follower.end_at(self._end)

    async def _register(self, name: str, begin: Position) -> Position | None:
        """Create or refresh the sink's cursor, which protects all later segments; return its position, or ``None`` on failure."""
        cursors = Cursors(self._url)
        # A new sink begins where the journal does. With an initial load, that is before the slot.
        try:
            kept = await asyncio.to_thread(cursors.get, name)
            at = begin.at(LSN(0) if kept is None else kept.lsn)
            await CursorProgress(cursors, name, begin, self._sinks[name].retry).durable(at.lsn)
        except AioreplError as error:
            self._sink_failed(name, error)
            return None
        statistics = self.statistics[name]
        statistics.accepted = statistics.durable = at.lsn
        return at

    async def _deliver_journal(self, name: str, at: Position, cleanup: contextlib.AsyncExitStack) -> None:
        delivery = self._sinks[name]
        opened = await run_until_set(self._stopped, self._open_sink_at(name, delivery, at, cleanup))
        if opened is None:
            return
        (own,) = opened
        start, continuity = await self._start_position(name, own, at)
        reads_from = min(start.lsn, self._journal_end)
        progress = CursorProgress(Cursors(self._url), name, at, delivery.retry)
        if start.lsn < at.lsn:
            await progress.rewound(start.lsn)
        elif not continuity.open:
            await progress.durable(reads_from)
        self._opened(name)
        buffer = self._new_buffer(name, self._buffer_bytes)
        stored = None if own is None else start
        worker = self._worker(name, delivery, buffer, progress, after=start.lsn, stored=stored)
        follower = JournalFollower(
            name,
            JournalReader(self._url),
            buffer,
            # A sink may be ahead of its cursor or of the journal: its last transaction is read again, compared and skipped.
            max(continuity.begins, continuity.since(reads_from)) if continuity.open else reads_from,
            delivery.retry,
            self._capture.tables,
            continuity,
            partial(self.gaps.check_refuted, source="journal"),
        )
        self._followers.append(follower)
        if self._end is not None:
            follower.end_at(self._end)
        failed = partial(self._sink_failed, name)
        await self._run_workers(buffer, follower.run, [worker], rewind=follower.rewind, failed=failed)

    async def _start_position(
        self, name: str, own: Position | None, at: Position
    ) -> tuple[Position, Continuity]:
        """Return where a sink continues in the journal, and its claim on the journal's stream.

        :param own: the position that the sink keeps, LSN 0 while it is empty; ``None`` if it keeps none.
        :param at: the position of its cursor; the sink has read everything before it from this journal.
        :raises SlotError: the sink is behind the beginning of the journal or ahead of the server, and no gap is accepted.
        """
        reader = JournalReader(self._url)
        chain = await asyncio.to_thread(reader.chain)
        first = await asyncio.to_thread(reader.first_readable, chain)
        start = own or at
        # A load that begins with a TRUNCATE replaces everything before it.
        truncates = self._loads and self._resnapshot
        begins = max(first, chain.manifest.start_lsn) if start.lsn and not truncates else chain.start_lsn
        if start.lsn < begins:
            if not truncates:
                self.gaps.check_pruned(f"sink {name}", start.lsn, begins)
            return start.at(begins), Continuity((), begins)
        if own is None or not own.lsn:
            return start, Continuity((), begins)
        resumed = self._check_ahead(f"sink {name}", own)
        compared = resumed == own and not truncates
        claims = [self._claim(name, f"sink {name}", own)] if compared else []
        return resumed, Continuity(claims, max(begins, at.lsn))

    def _check_ahead(self, holder: str, own: Position) -> Position:
        """Return where a sink continues that may be ahead of the journal.

        :raises SlotError: the sink is ahead of the initial load, or of the server.
        """
        assert self._preflight is not None
        slot = self._preflight.position
        if self._loads and own.lsn >= slot.lsn:
            raise SlotError(
                f"{holder} has a position at {own.lsn}, ahead of the initial load at {slot.lsn}, and would skip the load: start "
                "again with an empty one"
            )
        if own.lsn <= self._journal_end:
            return own
        return self.gaps.check(holder, own, slot, self._preflight.wal_end) or own

    async def _open_sink_at(
        self, name: str, delivery: ResolvedDelivery, at: Position, cleanup: contextlib.AsyncExitStack
    ) -> tuple[Position | None]:
        task = asyncio.current_task()
        assert task is not None
        attribute_to_sink(task, self.statistics[name])
        return (await self._open(name, delivery, at, cleanup),)

    async def _initial_load(
        self, preflight_result: PreflightResult, stored: Position | None, cleanup: contextlib.AsyncExitStack
    ) -> InitialSnapshot | None:
        if not self._snapshot or (stored is not None and not self._resnapshot):
            return None
        if preflight_result.created is None or preflight_result.created.snapshot_name is None:
            slot = preflight_result.position.slot
            raise SlotError(
                f"slot {slot!r} exists but the journal is empty: the initial load was interrupted, or never started; "
                f"start with resnapshot=True (--resnapshot), or drop the slot (SELECT pg_drop_replication_slot('{slot}')) "
                "and start again"
            )
        source = self._capture.source
        load = InitialSnapshot(
            source.connect_sql,
            self._capture.types,
            source.options().publications,
            preflight_result.position.lsn,
        )
        cleanup.push_async_callback(load.close)
        await load.begin(preflight_result.created.snapshot_name, self._capture)
        self._plan = await load.plan()
        return load

    async def _load_and_read(self, buffer: SliceBuffer, load: InitialSnapshot | None) -> None:
        if load is not None:

            async def emit(slices: list[Slice]) -> None:
                buffer.extend(slices)
                if buffer.backpressured:
                    await self._wait_for_room(buffer)

            # With the TRUNCATE, rows that were deleted in the meantime disappear from mirrors too.
            await load.run(emit, self._plan, truncate=self._resnapshot)
            await load.close()
        await self._read(buffer)
