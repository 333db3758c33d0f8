"""The initial snapshot of a pipeline's start, and the rest of an interrupted initial snapshot.

If the slot is created now, its exported snapshot is read before the stream, and the consumers begin below the slot's
consistent point. A start that finds a slot whose initial snapshot is not complete hands the rest over to be read while the
stream runs: the exported snapshot is gone. It recognizes consumers whose positions are in the range of the snapshot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from aiorepl.errors import AioreplError, ConnectionFailed, ConnectionLost, SlotError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN, ZERO
from aiorepl.pipeline.published import everything, everything_again, truncation_of_all
from aiorepl.position import Position
from aiorepl.snapshot.altered import AlteredWhileRead
from aiorepl.snapshot.chunks import SnapshotPlan, TablePlan
from aiorepl.snapshot.gap import Gap
from aiorepl.snapshot.initial.snapshot import InitialSnapshot, SnapshotFailed
from aiorepl.snapshot.ledger.file import LedgerFile
from aiorepl.snapshot.ledger.ledger import ChunkLedger, initial_ledger
from aiorepl.snapshot.ledger.store import LedgerStore, MemoryLedger, persisted
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.planning import HidesKey
from aiorepl.snapshot.reading_transaction import SnapshotGone, TableLocked
from aiorepl.snapshot.statistics import TableStatistics
from aiorepl.source.capture import Capture
from aiorepl.source.preflight import PreflightResult
from aiorepl.storage.opening import Location
from aiorepl.storage.store import Store
from aiorepl.transactions.slices import Slice

_log = logger("aiorepl.snapshot")

Emit = Callable[[list[Slice]], Awaitable[None]]


class InitialPhase:
    """The initial snapshot of one start, up to the beginning of the stream.

    :param folder: the folder of the chunk ledger; ``None`` if there are no snapshots.
    :param wanted: whether to read the rows of all tables if the slot is created now.
    :param resnapshot: whether to create the slot again, and to start with a truncate.
    :param hides_key: as in ``plan_tables``.
    :ivar known: whether the slot existed before. If so, a missing slot counts as lost.
    :ivar loads: whether this start reads the snapshot that its slot exports.
    """

    def __init__(
        self,
        capture: Capture,
        folder: Location | Store | None,
        options: SnapshotOptions,
        *,
        wanted: bool,
        resnapshot: bool,
        hides_key: HidesKey,
    ) -> None:
        self.known = False
        self.hides_key = hides_key
        self.loads = False
        self.options = options
        self._capture = capture
        self._wanted = wanted or resnapshot
        self._resnapshot = resnapshot
        self._file = None if folder is None else LedgerFile(folder, capture.source.slot)
        # Set if an earlier process ended while it created the slot. The value tells whether the snapshot begins with a
        # truncate.
        self._intended: bool | None = None
        self._empty_journal = False
        self._ledger: ChunkLedger | None = None
        # Set by ``begin``: the slot and its cluster.
        self._source_position: Position
        self._initial: InitialSnapshot | None = None
        # The number of the chunk that ``read`` delivers next; None once all chunks are delivered.
        self._next: int | None = None
        self._truncate = False
        # Set after a loss of the slot. After ``begin``, set only if the rows of the gap are enough for some tables.
        self._gap: Gap | None = None
        # The end of the last chunk that was delivered as a whole, and whether a part of the next chunk was delivered.
        self._delivered = ZERO
        self._partial = False
        self._end_early = False

    @property
    def ledger(self) -> ChunkLedger | None:
        """The chunk ledger; ``None`` if the slot never had a snapshot."""
        return self._ledger

    @property
    def store(self) -> LedgerStore:
        """The store of the chunk ledger, for the tables that are read while the stream runs; in memory without a folder."""
        if self._file is None:
            return MemoryLedger(ChunkLedger(self._source_position))
        if self._file.ledger is None:
            self._file.ledger = ChunkLedger(self._source_position)
        return self._file

    @property
    def start(self) -> LSN | None:
        """The position before the initial snapshot; ``None`` if consumers begin in the stream."""
        ledger = self._ledger
        return None if ledger is None or ledger.initial is None or not ledger.plan else ledger.initial.start

    @property
    def truncates(self) -> bool:
        """Whether this start begins with a truncate of all tables."""
        return self.loads and self._resnapshot and self._gap is None

    @property
    def plan(self) -> SnapshotPlan | None:
        """The tables that this start reads before the stream; ``None`` if it reads none."""
        return None if self._ledger is None or not self.loads else self._ledger.plan

    @property
    def reading(self) -> bool:
        """Whether tables are read, or going to be read, before the stream."""
        return self._next is not None

    def statistics(self, durable: LSN) -> list[TableStatistics]:
        """Return the progress of the tables that are read before the stream, without tables that were handed over.

        :param durable: the position up to which all consumers are durable.
        """
        ledger = self._ledger
        if self._initial is None or ledger is None or ledger.initial is None:
            return []
        done = ledger.chunks_done(durable)
        # Once the rest is handed over, the plan is empty.
        in_stream = durable not in ledger.initial
        found, end = [], 0
        for counters in self._initial.counters.values():
            table = counters.statistics()
            end += table.chunks or 0
            if table.state == "delivered" and (in_stream or end <= done):
                table = replace(table, state="complete")
            # Tables that were handed over, or left out, are in the ledger.
            if self.reading or table.state in ("delivered", "complete"):
                found.append(table)
        return found

    def require_empty(self, journal_lsn: LSN) -> None:
        """Read the rows of all tables only if the journal is empty, unless they replace the journal's rows.

        :param journal_lsn: the journal's end.
        """
        self._empty_journal = not journal_lsn
        self._wanted = self._wanted and (self._resnapshot or self._empty_journal)

    async def prepare(self) -> dict[str, Any]:
        """Return the arguments with which the capture has to connect."""
        if self._file is None:
            return {}
        self._intended = await self._file.intended()
        # A record of the intent means that the earlier process may have dropped the slot itself.
        known = {"known": self.known and self._intended is None}
        if not self._wanted:
            return known
        intend = partial(self._file.intend, truncates=self._resnapshot)
        return {"snapshot": "export", "replace": self._resnapshot, "creating": intend, **known}

    def replace_slot(self, gap: Gap | None) -> None:
        """Let this start create the slot again, and read all tables after a truncate.

        :param gap: the gap, if its rows may be enough for some tables; ``None`` if all tables have to be read as a whole.
        """
        if not self._resnapshot:
            self._gap = gap
        self._wanted = self._resnapshot = True

    async def begin(
        self, result: PreflightResult, cleanup: contextlib.AsyncExitStack, previous: LSN = ZERO
    ) -> Position:
        """Import the snapshot of a slot that was created now, and plan its chunks; or read the ledger.

        :param previous: the journal's end.
        :returns: the position at which consumers without a position of their own begin.
        :raises AioreplError: the tables cannot be read; the message names each.
        """
        self._source_position = result.position.at(ZERO)
        gap, self._gap = self._gap, None
        if self._file is None:
            return result.position
        created = result.created
        known = await self._file.read(result.position)
        if created is not None and not self._wanted and self._intended is not None:
            # The earlier process recorded that it would create the slot, and never did.
            await self._file.discard_intent()
            self._intended = None
        if created is None or created.snapshot_name is None:
            # If the slot exists and the journal is empty, the journal lacks the rows from before the slot.
            missed = known is None and self._wanted and self._empty_journal
            if missed and not self._capture.source.has_catalog:
                raise SlotError(
                    f"slot {result.position.slot!r} exists but the journal is empty, and the source has no tables that could be "
                    "read: start without a snapshot"
                )
            self._ledger = (
                await self._everything(result.position, truncates=bool(self._intended))
                if missed or self._intended is not None
                else known
            )
            if self._ledger is None and self._wanted:
                # Logged once, because from now on there is a ledger.
                _log.warning(
                    "slot %s exists, and there is no %s: the rows from before the slot are not read. If an earlier snapshot was not "
                    "complete, start with resnapshot=True (--resnapshot), or request its tables",
                    result.position.slot,
                    self._file.location,
                )
                self._ledger = ChunkLedger(self._source_position)
        else:
            source, point = self._capture.source, result.position.lsn
            publications = source.options().publications
            self._initial = InitialSnapshot(
                source.connect_sql,
                self._capture.types,
                publications,
                point,
                self.options,
                binary=source.binary,
            )
            cleanup.push_async_callback(self._initial.close)
            try:
                await self._initial.begin(created.snapshot_name, self._capture)
                plan = await self._initial.plan(self.hides_key)
                # The snapshot has rows with an origin, and the stream of such a source has none.
                if gap is not None and known is not None and source.origin != "none":
                    plan = gap.narrowed(plan, known, await self._initial.append_only())
            except TableLocked as error:
                # Nothing of the snapshot has been delivered.
                _log.warning("all tables are read while the stream runs: %s", error)
                self._ledger = await self._everything(result.position, truncates=self._resnapshot)
            else:
                self._ledger = initial_ledger(
                    result.position, plan, point, previous=previous, truncates=self._resnapshot
                )
                self.loads = True
                if any(table.since is not None for table in plan.tables):
                    self._gap = gap
        return result.position if self.start is None else result.position.at(self.start)

    def require_before_gap(self, stored: Iterable[Position | None]) -> None:
        """Read all tables as a whole unless every consumer has the rows from before the gap.

        A consumer may lack these rows, because it is empty or was restored from a copy.

        :param stored: the positions of the consumers; ``None`` for a consumer that keeps no position.
        """
        gap, ledger, current = self._gap, self._ledger, self._source_position
        if gap is None or ledger is None or ledger.initial is None:
            return
        start, tables = ledger.initial.start, ledger.plan.tables
        for position in stored:
            if position is not None and (
                position.timeline != current.timeline or not gap.lsn <= position.lsn < start
            ):
                self._gap = None
                _log.warning(
                    "all tables are read as a whole: a sink or the journal may lack rows from before the gap"
                )
                self._ledger = replace(
                    ledger, plan=SnapshotPlan(tuple(replace(table, since=None) for table in tables))
                )
                return
        narrowed = sum(table.since is not None for table in tables)
        _log.warning(
            "%d of %d tables are not truncated: only the rows of the gap are read from them",
            *(narrowed, len(tables)),
        )

    async def write_plan(self) -> None:
        """Write the ledger of a snapshot that begins now, before ``opened`` does.

        :raises TransientError, PermanentError: the ledger cannot be written.
        """
        if self.loads and self._file is not None and self._ledger is not None:
            await self._file.write(self._ledger)

    def in_stream(self, position: Position) -> Position:
        """Return a consumer's position in the slot's stream: the beginning of the stream for a consumer in the initial
        snapshot.
        """
        if self._ledger is None:
            return position
        return replace(position, lsn=self._ledger.stream_position(position.lsn))

    def require_behind(self, holder: str, stored: Position) -> None:
        """Check that a consumer is not ahead of the initial snapshot that is going to be delivered.

        :raises SlotError: the consumer would skip the snapshot.
        """
        if self.loads and self.start is not None and stored.lsn > self.start:
            raise SlotError(
                f"{holder} has a position at {stored.lsn}, ahead of the initial snapshot at {self.start}, and would skip it: "
                "start again with an empty one"
            )

    def durable_position(self, slot_lsn: LSN) -> LSN:
        """Return the durable position of a consumer that keeps none, or of an empty journal.

        :param slot_lsn: the slot's position.
        """
        return slot_lsn if self._ledger is None else self._ledger.durable_position(slot_lsn)

    async def opened(self, durable: LSN, readings: Collection[str] = ()) -> None:
        """Write the ledger, now that the positions of all consumers are known and before the stream starts.

        :param durable: the lowest position of a consumer.
        :param readings: the readings of tables that the journal has in full.
        :raises AioreplError: the ledger cannot be written.
        """
        ledger = self._ledger
        if self._file is None or ledger is None:
            return
        if self.loads:
            self._next, self._truncate = 0, self._resnapshot
        else:
            initial = ledger.initial
            self._truncate = initial is not None and initial.truncates and durable < initial.base
            if self._truncate and not ledger.plan:
                # A consumer may have been restored to before the truncate. It also lacks the chunks that are recorded as durable.
                ledger = await everything_again(
                    self._capture.source, ledger, lock_timeout=self.options.lock_timeout
                )
            ledger = ledger.without_complete(readings).hand_over(durable).durable(durable).rewound(durable)
        if ledger != self._file.ledger or self._intended is not None:
            await persisted(partial(self._file.write, ledger))
        self._ledger = ledger

    @property
    def pending(self) -> frozenset[int]:
        """The oids of the tables whose snapshots continue, unless they are complete."""
        ledger = self._ledger if self._file is None else self._file.ledger
        if ledger is None:
            return frozenset()
        failed = {table.oid for table in ledger.tables if table.status == "failed"}
        pending = {table.oid for table in ledger.unfinished}
        flushed = ZERO if self._capture.ledger is None else self._capture.ledger.flushed
        if ledger.chunks_done(flushed) < len(ledger.plan):
            pending |= {table.oid for table in ledger.plan.tables} - failed
        return frozenset(pending)

    async def read(self, emit: Emit) -> None:
        """Deliver the chunks that come before the stream. A call that is cancelled can be repeated, after ``rewind``.

        :raises AioreplError: the server failed in the middle of a chunk.
        """
        if self._initial is None or self._next is None:
            if self._truncate:
                assert self._ledger is not None
                assert self._ledger.initial is not None
                await emit([await truncation_of_all(self._capture.source, self._ledger.initial.base)])
                self._truncate = False
            return
        ledger = self._ledger
        assert ledger is not None
        assert ledger.initial is not None

        async def emit_chunk(slices: list[Slice]) -> None:
            await emit(slices)
            for part in slices:
                self._partial = part.end_lsn is None
                self._delivered = part.end_lsn or self._delivered
            if (
                self._end_early
                and not self._partial
                and ledger.chunks_done(self._delivered) < len(ledger.plan)
            ):
                raise _EndedEarly("the slot keeps more WAL than max_wal_bytes")

        try:
            rows = await self._initial.run(
                emit_chunk,
                ledger.plan,
                base=ledger.initial.base,
                from_chunk=self._next,
                truncates=self._truncate,
                skip=self._left_out,
            )
        except SnapshotFailed as error:
            if self._partial:
                # The consumers have a part of a transaction, and the chunks after it were neither read nor handed over.
                raise SnapshotFailed(
                    f"{error}; a part of it was delivered: start again, and the rest is read while the stream runs"
                ) from None
            _log.error("the initial snapshot is not complete, and the stream begins: %s", error)
        except (_EndedEarly, SnapshotGone, ConnectionFailed, ConnectionLost) as error:
            await self._hand_over(error)
        else:
            _log.info("the initial snapshot is complete: %s rows of %s tables", rows, len(ledger.plan.tables))
        self._next, self._truncate = None, False

    def end_early(self) -> None:
        """End the initial snapshot after the next chunk, and leave the rest to be read while the stream runs."""
        self._end_early = True

    async def rewind(self, lsn: LSN) -> LSN:
        """Deliver everything after ``lsn`` again, with the next ``read``.

        :returns: where the stream has to be read again from.
        :raises TransientError, PermanentError: the chunk ledger cannot be written.
        """
        if not self.loads or self._file is None:
            return lsn
        # The rest may have been handed over a moment ago. Then the ledger counts chunks as delivered that are lost now.
        update = partial(self._file.update, lambda ledger: ledger.rewound(lsn))
        ledger = self._ledger = await persisted(update)
        if ledger.initial is None or lsn not in ledger.initial:
            return lsn
        self._next = ledger.chunks_done(lsn)
        self._truncate = ledger.initial.truncates and lsn < ledger.initial.base
        # If the snapshot is lost before these chunks are delivered again, they must not count as delivered.
        self._delivered, self._partial = min(self._delivered, lsn), False
        return ledger.initial.consistent_point

    async def durable(self, lsn: LSN, *, record: bool) -> None:
        """Record that all consumers have everything up to ``lsn``.

        :param record: whether to write it to the chunk ledger, because a consumer keeps no position.
        """
        ledger, file = self._ledger, self._file
        if file is None or ledger is None or not self.loads or not ledger.plan:
            return
        done = ledger.chunks_done(lsn)
        if record and done > ledger.chunks_done(ledger.durable_lsn):
            try:
                self._ledger = await file.update(lambda current: replace(current, durable_lsn=lsn))
            except AioreplError as error:
                # Only the next start needs the record; without it, that start reads the chunks again.
                _log.warning("%s", error)
        if done == len(ledger.plan):
            await self.close()

    async def close(self) -> None:
        """End the exported snapshot, and release the locks of the tables."""
        if self._initial is not None:
            await self._initial.close()

    async def forget(self) -> None:
        """Delete the ledger: the slot of this start was dropped."""
        if self._file is not None and self.loads:
            await self._file.forget()

    async def _everything(self, position: Position, *, truncates: bool) -> ChunkLedger:
        return await everything(
            self._capture.source, position, truncates=truncates, lock_timeout=self.options.lock_timeout
        )

    async def _left_out(self, table: TablePlan, error: Exception) -> None:
        assert self._file is not None
        reason = None if isinstance(error, AlteredWhileRead) else str(error)
        update = partial(self._file.update, lambda ledger: ledger.left_out(table, reason))
        self._ledger = await persisted(update)
        if reason is None:
            _log.warning("table %s is read again while the stream runs", table)

    async def _hand_over(self, error: Exception) -> None:
        """Leave the rest to be read while the stream runs.

        :raises Exception: ``error``, if a part of a chunk was delivered: the next start delivers it again.
        """
        if self._partial:
            if isinstance(error, TableLocked):
                raise TableLocked(
                    f"{error}. A part of a chunk was delivered: start again, and the rest is read while the stream runs"
                ) from None
            raise error
        # Sessions that are going to alter a table wait for these locks.
        await self.close()
        assert self._file is not None
        flushed = ZERO if self._capture.ledger is None else self._capture.ledger.flushed
        delivered = 0 if self._ledger is None else self._ledger.chunks_done(max(flushed, self._delivered))
        update = partial(self._file.update, lambda ledger: ledger.hand_over(flushed, delivered))
        self._ledger = await persisted(update)
        _log.warning("the initial snapshot ends early, and the stream begins: %s", error)


class _EndedEarly(Exception):
    """Ends the reading of the exported snapshot between two chunks."""
