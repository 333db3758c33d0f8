"""The lanes of a pipeline with a journal: source to journal, and journal to each sink.

The slot waits for the journal alone. A sink reads the journal from a cursor that is kept beside it, so it may be slow,
stopped or broken without holding WAL on the database. The journal can begin with the rows that were in the tables
before the slot; if that load was cut short, the journal is empty while the slot is there, and that is refused rather
than taken for a beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.capture import Capture
from aiorepl.delivery.continuity import Claim
from aiorepl.delivery.delivery import Served
from aiorepl.delivery.filling import unless
from aiorepl.delivery.gaps import Gaps
from aiorepl.delivery.lanes import JOURNAL, SOURCE, InLedger, Lanes, first_of, lag
from aiorepl.delivery.overview import Lag
from aiorepl.delivery.pruning import keep_pruned
from aiorepl.delivery.readying import Readied
from aiorepl.delivery.retry import Resends, RetryPolicy
from aiorepl.delivery.runner import SinkRunner
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.tables import Tables
from aiorepl.delivery.watchdog import held_responsible
from aiorepl.delivery.window import Window
from aiorepl.durable import storage_error, transient
from aiorepl.errors import AioreplError, ConfigurationError, JournalError, SlotError
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.retention import Retention
from aiorepl.journal.sink import JournalSink
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.snapshot.initial import InitialLoad
from aiorepl.transactions.transaction import Slice

_log = logging.getLogger("aiorepl.sink")

# The writer of this process rings when the journal has grown, and no other process can write it.
_LOOK_AGAIN_SECONDS = 30.0


class JournaledLanes(Lanes):
    """One lane into the journal and one for each sink out of it."""

    def __init__(
        self,
        capture: Capture,
        sinks: Mapping[str, Served],
        memory: int,
        gaps: Gaps,
        *,
        journal: str,
        batches: BatchPolicy,
        retry: RetryPolicy,
        snapshot: bool,
        resnapshot: bool,
        retain: Retention | str | None,
    ) -> None:
        if JOURNAL in sinks:
            raise ConfigurationError(f"no sink can be called {JOURNAL!r}: that is the journal's own name")
        super().__init__(capture, sinks, memory // (1 + len(sinks)), gaps)
        self._url = journal
        self._sink = JournalSink(journal)
        # What it gets at once is nobody's choice: it is sinks that may want few rows, or wait for more.
        self._journal = Served(self._sink, replace(batches, rows=None, seconds=0.0), retry)
        self._snapshot = snapshot or resnapshot
        self._resnapshot = resnapshot
        # Whether this start begins with an initial load; a partly loaded journal counts as empty.
        self._loads = False
        self._retain = Retention.parse(retain) if isinstance(retain, str) else retain
        self.statistics = {JOURNAL: SinkStatistics(JOURNAL), **self.statistics}
        self._followers: list[_Follower] = []
        self._failed: dict[str, Exception] = {}
        self._begin = LSN(0)
        # The journal's end at this start.
        self._reaches = LSN(0)
        # Set once nothing more will be appended to the journal.
        self._end: LSN | None = None

    async def run(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Connect, open the journal and the sinks, load what was there before, deliver.

        :raises SinkError: a sink failed for good; the others went on to the end.
        """
        self._capture.take_prepared()
        readied = await self._connect(
            cleanup,
            snapshot="export" if self._snapshot else "nothing",
            replace=self._resnapshot,
            kept=await asyncio.to_thread(JournalReader(self._url).position),
        )
        begin = readied.position
        held = await self._open(JOURNAL, self._journal, begin, cleanup)
        if readied.created is not None:
            await self._sink.void_prepared()
        load = await self._initial_load(readied, held, cleanup)
        self._loads = load is not None
        claims: list[Claim] = []
        if load is None:
            held, claims = await self._without_gap(held, readied)
        after = begin.lsn if held is None or load is not None else held.lsn
        self._reaches = after
        # What the load brings ends where the slot begins: not durable before the journal has it.
        start = after if load is None else LSN(after - 1)
        self.ledger = await self._capture.begin(
            after, (JOURNAL,), start=start, claims=claims, refuted=partial(self._refuted, begin)
        )
        window = self._window(SOURCE, self._memory)
        runner = self._runner(
            JOURNAL,
            self._journal,
            window,
            InLedger(self.ledger, JOURNAL),
            after=start,
            held=begin if held is None or load is not None else held,
        )
        chain = await asyncio.to_thread(JournalReader(self._url).chain)
        self._begin = max(chain.begins, chain.manifest.begins)
        places = {name: await self._registered(name, begin) for name in self._sinks}
        if self._retain is not None:
            # Only now: every sink of ours has its cursor, and keeps what it needs.
            pruning = asyncio.create_task(keep_pruned(self._url, self._retain), name="aiorepl retention")
            cleanup.push_async_callback(_ended, pruning)
        self.started.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._inward(window, runner, load))
            for name, at in places.items():
                if at is not None:
                    group.create_task(self._apart(name, at, cleanup))
        for error in self._failed.values():
            raise error

    @property
    def _complete(self) -> bool:
        return super()._complete and not self._loads

    async def _holder(self, lsn: LSN) -> str | None:
        try:
            held = await asyncio.to_thread(JournalReader(self._url).position)
        except (AioreplError, OSError):
            # An unreadable journal may hold data.
            return f"journal {self._url}"
        return None if held is None or held.lsn < lsn else f"journal {self._url}"

    def lags(self) -> dict[str, Lag]:
        """How far the journal is behind the server, and every sink behind the journal."""
        lags = {}
        for name, statistics in self.statistics.items():
            end = self.ledger.received if name == JOURNAL else self._sink.end
            lags[name] = lag(end, statistics, self._begin)
        return lags

    async def _without_gap(
        self, held: Position | None, readied: Readied
    ) -> tuple[Position | None, list[Claim]]:
        """The position where the journal continues, and its claim on the stream."""
        holder = f"journal {self._url}"
        goes_on = self.gaps.check(holder, held, readied.position, readied.wal_end)
        if held is None or goes_on is None:
            return None, []
        if goes_on == held:
            return held, [self._claim(JOURNAL, holder, held)]
        await self._sink.skip(self.gaps.accepted[-1].after, goes_on)
        return goes_on, []

    async def _refuted(self, begin: Position, claim: Claim, begins: LSN) -> None:
        await self.gaps.refuted(claim, begins)
        # A claim is refuted before anything is written: by the first slice that conflicts with it.
        await self._sink.skip(begins, begin.at(claim.position.lsn))

    async def _apart(self, name: str, at: Position, cleanup: contextlib.AsyncExitStack) -> None:
        """Open a sink and serve it. If it fails, its cursor stays, and the journal and the other sinks continue.

        :param at: its cursor's position.
        """
        try:
            await self._outward(name, at, cleanup)
        except Exception as error:  # noqa: BLE001 - raised once everything has ended
            self._failed_alone(name, first_of(error) if isinstance(error, ExceptionGroup) else error)

    def _failed_alone(self, name: str, error: Exception) -> None:
        self._failed[name] = error
        self.statistics[name].failed = str(error)
        _log.error("sink %s stops, the others go on: %s", name, error)
        if len(self._failed) == len(self._sinks):
            self.ending.set()

    async def _inward(self, window: Window, runner: SinkRunner, load: InitialLoad | None) -> None:
        # Nothing comes again: the source is confirmed by what the journal has, and of a load there is one reading.
        await self._lane(window, partial(self._load_and_read, window, load), [runner])
        self._end = (await asyncio.to_thread(JournalReader(self._url).end)).lsn
        for follower in self._followers:
            follower.end_at(self._end)

    async def _registered(self, name: str, begin: Position) -> Position | None:
        """Register the sink's cursor, which keeps the segments behind it, and return its position; ``None`` on failure."""
        cursors = Cursors(self._url)
        # A sink without a cursor begins where the journal does, which may be before the slot: with its initial load.
        try:
            kept = await asyncio.to_thread(cursors.get, name)
            at = begin.at(LSN(0) if kept is None else kept.lsn)
            await _AtCursor(cursors, name, begin, self._sinks[name].retry).durable(at.lsn)
        except AioreplError as error:
            self._failed_alone(name, error)
            return None
        statistics = self.statistics[name]
        statistics.accepted = statistics.durable = at.lsn
        return at

    async def _outward(self, name: str, at: Position, cleanup: contextlib.AsyncExitStack) -> None:
        serve = self._sinks[name]
        opened = await unless(self._stopped, self._opened_at(name, serve, at, cleanup))
        if opened is None:
            return
        (own,) = opened
        start = await self._kept_from(name, own or at)
        progress = _AtCursor(Cursors(self._url), name, at, serve.retry)
        # A sink that ran without a journal before may be ahead of it; it skips the transactions that it already has.
        reads_from = min(start.lsn, self._reaches)
        await progress.durable(reads_from)
        window = self._window(name, self._memory)
        runner = self._runner(name, serve, window, progress, after=start.lsn, held=own)
        reader, tables = JournalReader(self._url), self._capture.tables
        follower = _Follower(name, reader, window, reads_from, serve.retry, tables)
        self._followers.append(follower)
        if self._end is not None:
            follower.end_at(self._end)
        await self._lane(window, follower.run, [runner], go_back=follower.go_back)

    async def _kept_from(self, name: str, start: Position) -> Position:
        """Where a sink at ``start`` continues in the journal.

        :raises SlotError: the journal begins later, and no gap is accepted.
        """

        def missing() -> LSN:
            reader = JournalReader(self._url)
            chain = reader.chain()
            # An initial load replaces everything before it.
            begins = chain.begins if self._loads or not start.lsn else reader.first_readable(chain)
            return begins if start.lsn < begins else LSN(0)

        begins = await asyncio.to_thread(missing)
        if not begins:
            return start
        if not self._loads:
            self.gaps.pruned(f"sink {name}", start.lsn, begins)
        return start.at(begins)

    async def _opened_at(
        self, name: str, serve: Served, at: Position, cleanup: contextlib.AsyncExitStack
    ) -> tuple[Position | None]:
        task = asyncio.current_task()
        assert task is not None
        held_responsible(task, self.statistics[name])
        return (await self._open(name, serve, at, cleanup),)

    async def _initial_load(
        self, readied: Readied, held: Position | None, cleanup: contextlib.AsyncExitStack
    ) -> InitialLoad | None:
        if not self._snapshot or (held is not None and not self._resnapshot):
            return None
        if readied.created is None or readied.created.snapshot_name is None:
            slot = readied.position.slot
            raise SlotError(
                f"slot {slot!r} exists but the journal is empty: its initial load did not finish, or was never made; "
                f"start with resnapshot=True (--resnapshot), or drop the slot (SELECT pg_drop_replication_slot('{slot}')) "
                "and start again"
            )
        source = self._capture.source
        connection = await source.connect_sql()
        cleanup.push_async_callback(_close, connection)
        # What was deleted while nobody looked has to go from mirrors, too.
        load = InitialLoad(
            connection,
            self._capture.types,
            source.options().publications,
            readied.position.lsn,
            truncate=held is not None,
        )
        await load.begin(readied.created.snapshot_name, self._capture)
        return load

    async def _load_and_read(self, window: Window, load: InitialLoad | None) -> None:
        if load is not None:

            async def emit(slices: list[Slice]) -> None:
                window.extend(slices)
                if window.held_back:
                    await self._room(window)

            await load.run(emit)
        await self._read(window)


class _Follower:
    """Reads the journal into a sink's window until its end is announced.

    :param retry: the policy for transient file system errors.
    :param tables: look-ups of tables in the catalog; ``None`` if the sink needs none.
    """

    def __init__(
        self,
        name: str,
        reader: JournalReader,
        window: Window,
        after: LSN,
        retry: RetryPolicy,
        tables: Tables | None,
    ) -> None:
        self.window = window
        self._name = name
        self._rereads = Resends(retry)
        self._reader = reader
        self._tables = tables
        self._reached = after
        self._end: LSN | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def run(self) -> None:
        """Until ``end_at``'s position is in the window."""
        self._task = asyncio.current_task()
        if self._done():
            return None
        try:
            while True:
                try:
                    return await self._read()
                except JournalError as error:
                    pause = self._rereads.pause(self._reached) if _may_pass(error) else None
                    if pause is None:
                        raise
                    _log.warning(
                        "sink %s reads the journal again from %s: %s", self._name, self._reached, error
                    )
                    await asyncio.sleep(pause)
        except asyncio.CancelledError:
            if not self._stopped:
                raise

    async def _read(self) -> None:
        # The sink's runner drops the repeated slices of an unfinished transaction.
        async with aclosing(self._reader.follow(self._reached, poll=_LOOK_AGAIN_SECONDS)) as parts:
            async for part in parts:
                if self._tables is not None:
                    await self._tables.require(part)
                self.window.extend((part,))
                if part.end_lsn is not None:
                    self._reached = part.end_lsn
                    if self._done():
                        return
                await self.window.room()

    def end_at(self, end: LSN) -> None:
        """The journal will not grow past ``end``."""
        self._end = end
        if self._done() and self._task is not None:
            # It waits for more, or for room that nothing depends on any longer.
            self._stopped = True
            self._task.cancel()

    async def go_back(self, lsn: LSN) -> None:
        """Have the next ``run`` begin behind ``lsn``."""
        self._reached = lsn
        self._stopped = False
        self._task = None

    def _done(self) -> bool:
        return self._end is not None and self._reached >= self._end


def _may_pass(error: JournalError) -> bool:
    """Whether the failure was transient, such as a lack of file descriptors."""
    return isinstance(error.__cause__, OSError) and transient(error.__cause__)


class _AtCursor:
    """The progress of a sink that reads the journal: nothing waits for it but its own next start."""

    def __init__(self, cursors: Cursors, name: str, at: Position, retry: RetryPolicy) -> None:
        self._cursors = cursors
        self._name = name
        self._at = at
        self._retry = retry

    async def accepted(self, end_lsn: LSN) -> None:
        """Nobody asks."""

    async def stands(self, lsn: LSN) -> None:
        """Nobody asks. A cursor does not move back: what is still kept behind it is read again all the same."""

    async def durable(self, end_lsn: LSN) -> None:
        """Keep the position.

        :raises SinkError: the journal's folder cannot be written, and retries are spent or pointless.
        """
        async for attempt in self._retry.sink(f"sink {self._name}: moving its cursor"):
            with attempt:
                await asyncio.to_thread(self._advance, self._at.at(end_lsn))

    def _advance(self, position: Position) -> None:
        try:
            self._cursors.advance(self._name, position)
        except OSError as error:
            raise storage_error(error, f"cursor {self._name!r} of journal {self._cursors.url}") from error


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _close(connection: object) -> None:
    await connection.close()  # type: ignore[attr-defined]
