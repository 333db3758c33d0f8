"""The initial snapshot of a pipeline's start, and the rest of an interrupted initial snapshot.

If the slot is created now, its exported snapshot is read before the stream, and the consumers begin below the slot's
consistent point. A start that finds a slot whose initial snapshot is not complete hands the rest over to be read while the
stream runs: the exported snapshot is gone. It recognizes consumers whose positions are in the range of the snapshot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial

from aiorepl.errors import AioreplError, ConnectionFailed, ConnectionLost
from aiorepl.loggers import logger
from aiorepl.lsn import LSN, ZERO
from aiorepl.pipeline.published import everything, truncation_of_all
from aiorepl.pipeline.start import Beginning, Rows, Start, begin_without_export, beginning_with_all
from aiorepl.position import Position
from aiorepl.snapshot.altered import AlteredWhileRead
from aiorepl.snapshot.chunks import SnapshotPlan, TablePlan
from aiorepl.snapshot.gap import Gap
from aiorepl.snapshot.initial.progress import progress
from aiorepl.snapshot.initial.snapshot import InitialSnapshot, SnapshotFailed
from aiorepl.snapshot.ledger.file import LedgerFile
from aiorepl.snapshot.ledger.ledger import ChunkLedger, initial_ledger
from aiorepl.snapshot.ledger.store import LedgerStore, MemoryLedger, persisted
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.planning import HidesKey
from aiorepl.snapshot.reading_transaction import SnapshotGone, TableLocked
from aiorepl.snapshot.statistics import TableStatistics
from aiorepl.source.capture import Capture
from aiorepl.source.preflight import PreflightResult, SlotRequest
from aiorepl.storage.opening import Location
from aiorepl.storage.store import Store
from aiorepl.transactions.slices import Slice

_log = logger("aiorepl.snapshot")

Emit = Callable[[list[Slice]], Awaitable[None]]


class InitialPhase:
    """The initial snapshot of one start, up to the beginning of the stream.

    Call ``prepare``, and connect with the ``SlotRequest``. Then call ``begin`` with the ``PreflightResult``, ``carry_out`` with the ``Start``
    that ``plan_start`` makes of the ``Beginning``, and ``read``.

    :param folder: the folder of the chunk ledger; ``None`` if there are no snapshots.
    :param wanted: whether to read the rows of all tables if the slot is created now.
    :param resnapshot: whether to create the slot again, and to start with a truncate.
    :param hides_key: as in ``plan_tables``.
    :ivar known: whether the slot existed before. If so, a missing slot counts as lost.
    :ivar has_histories: whether the plan has the histories of its tables, for the repair of a later gap.
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
        self.known = self.has_histories = False
        self.hides_key = hides_key
        self.options = options
        self._capture = capture
        self._wanted = wanted or resnapshot
        self._resnapshot = resnapshot
        self._file = None if folder is None else LedgerFile(folder, capture.source.slot)
        # Set if an earlier process ended while it created the slot. The value tells whether the snapshot begins with a
        # truncate.
        self._intended: bool | None = None
        # The end of the journal; ``None`` without a journal.
        self._journal_end: LSN | None = None
        # Set after a loss of the slot.
        self._gap: Gap | None = None
        # Set by ``begin``; ``carry_out`` replaces it, because the gap is checked by then.
        self._beginning: Beginning | None = None
        self._ledger: ChunkLedger | None = None
        self._initial: InitialSnapshot | None = None
        # The number of the chunk that ``read`` delivers next; None once all chunks are delivered.
        self._next: int | None = None
        self._truncate = False
        # The end of the last chunk that was delivered as a whole, and whether a part of the next chunk was delivered.
        self._delivered = ZERO
        self._partial = False
        self._end_early = False

    @property
    def store(self) -> LedgerStore:
        """The store of the chunk ledger, for the tables that are read while the stream runs; in memory without a folder."""
        assert self._beginning is not None
        source = self._beginning.found.position.at(ZERO)
        if self._file is None:
            return MemoryLedger(ChunkLedger(source))
        if self._file.ledger is None:
            self._file.ledger = ChunkLedger(source)
        return self._file

    @property
    def loads(self) -> bool:
        """Whether this start reads the snapshot that its slot exports."""
        return self._beginning is not None and self._beginning.loads

    @property
    def start(self) -> LSN | None:
        """The position before the exported snapshot; ``None`` if this start reads none, or has handed it over."""
        ledger = self._ledger
        if not self.loads or ledger is None or ledger.initial is None or not ledger.plan:
            return None
        return ledger.initial.start

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
        return progress(self._initial.counters.values(), ledger, durable, reading=self.reading)

    async def prepare(self, journal: Position | None = None, journal_end: LSN | None = None) -> SlotRequest:
        """Return what the start needs of its slot.

        The rows of all tables are read only if the journal is empty, unless they replace the journal's rows.

        :param journal: the position of the journal; ``None`` if there is no journal yet.
        :param journal_end: the journal's end, 0 if it is empty; ``None`` without a journal.
        """
        self._journal_end = journal_end
        self._wanted = self._wanted and (self._resnapshot or not journal_end)
        if self._file is None:
            return SlotRequest()
        self._intended = await self._file.intended()
        # A record of the intent means that the earlier process may have dropped the slot itself.
        request = SlotRequest(known=self.known and self._intended is None, journal=journal)
        if not self._wanted:
            return request
        intend = partial(self._file.intend, truncates=self._resnapshot)
        return replace(request, snapshot="export", replace=self._resnapshot, creating=intend)

    def replace_slot(self, gap: Gap | None) -> None:
        """Let this start create the slot again, and read all tables after a truncate.

        :param gap: the gap, if its rows may be enough for some tables; ``None`` if all tables have to be read as a whole.
        """
        if not self._resnapshot:
            self._gap = gap
        self._wanted = self._resnapshot = True

    async def begin(self, found: PreflightResult, cleanup: contextlib.AsyncExitStack) -> Beginning:
        """Import the snapshot of a slot that was created now, and plan its chunks; or read the ledger.

        The ledger of an exported snapshot is written before the consumers are opened. They may store the beginning of the snapshot when
        they open, and the next start must recognize it.

        :raises AioreplError: the ledger or tables cannot be read; the message names each table.
        """
        beginning = Beginning(found) if self._file is None else await self._begin(self._file, found, cleanup)
        self._beginning, self._ledger = beginning, beginning.ledger
        if beginning.loads and self._file is not None and beginning.ledger is not None:
            await persisted(partial(self._file.write, beginning.ledger))
        return beginning

    async def _begin(
        self, file: LedgerFile, found: PreflightResult, cleanup: contextlib.AsyncExitStack
    ) -> Beginning:
        known = await file.read(found.position)
        if found.created is not None and not self._wanted and self._intended is not None:
            # The earlier process recorded that it would create the slot, and never did.
            await file.discard_intent()
            self._intended = None
        if found.created is not None and found.created.snapshot_name is not None:
            return await self._load(found.created.snapshot_name, found, known, cleanup)
        return begin_without_export(
            found,
            known,
            wanted=self._wanted,
            intended=self._intended,
            empty_journal=self._journal_end == 0,
            has_catalog=self._capture.source.has_catalog,
            location=file.location,
        )

    async def _load(
        self,
        snapshot_name: str,
        found: PreflightResult,
        known: ChunkLedger | None,
        cleanup: contextlib.AsyncExitStack,
    ) -> Beginning:
        """Import the exported snapshot, and plan its chunks.

        :param known: the ledger from before this start.
        """
        source, point, gap = self._capture.source, found.position.lsn, self._gap
        self._initial = InitialSnapshot(
            source.connect_sql,
            self._capture.types,
            source.options().publications,
            point,
            self.options,
            binary=source.binary,
        )
        cleanup.push_async_callback(self._initial.close)
        try:
            await self._initial.begin(snapshot_name, self._capture)
            plan = await self._initial.plan(self.hides_key, histories=self.has_histories)
            # An empty journal lacks the rows from before the gap. With origin "none", the snapshot has rows that the stream never had.
            if gap is not None and known is not None and self._journal_end != 0 and source.origin != "none":
                plan = gap.narrowed(plan, known, await self._initial.append_only())
        except TableLocked as error:
            # Nothing of the snapshot has been delivered.
            _log.warning("all tables are read while the stream runs: %s", error)
            return beginning_with_all(found, truncates=self._resnapshot)
        previous, truncates = self._journal_end or ZERO, self._resnapshot
        ledger = initial_ledger(found.position, plan, point, previous=previous, truncates=truncates)
        narrowed = any(table.since is not None for table in plan.tables)
        return Beginning(found, ledger, Rows.EXPORTED, gap if narrowed else None)

    async def carry_out(self, start: Start, readings: Collection[str] = ()) -> None:
        """Write the ledger of ``start``. The stream must not have started.

        :param readings: the readings of tables that the journal has in full.
        :raises AioreplError: the ledger cannot be written.
        """
        self._beginning, ledger = start.beginning, start.beginning.ledger
        if self._file is None or ledger is None:
            return
        self._truncate = start.truncates
        if self.loads:
            self._next = 0
        else:
            if start.rereads:
                lock_timeout = self.options.lock_timeout
                ledger = await everything(self._capture.source, ledger, lock_timeout=lock_timeout)
            durable = min(start.durable.values())
            ledger = ledger.without_complete(readings).hand_over(durable).durable(durable).rewound(durable)
        if ledger != self._file.ledger or self._intended is not None:
            await persisted(partial(self._file.write, ledger))
        self._ledger = ledger

    @property
    def pending(self) -> frozenset[int]:
        """The oids of the tables whose snapshots continue, unless they are complete."""
        ledger = self._ledger if self._file is None else self._file.ledger
        return frozenset() if ledger is None else ledger.pending(self._flushed)

    @property
    def _flushed(self) -> LSN:
        """The position up to which all consumers are durable; 0 before the stream has started."""
        return ZERO if self._capture.ledger is None else self._capture.ledger.flushed

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
            ends = self._end_early and not self._partial
            if ends and ledger.chunks_done(self._delivered) < len(ledger.plan):
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
        ledger = self._ledger = await persisted(partial(self._file.update, lambda each: each.rewound(lsn)))
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

    async def _left_out(self, table: TablePlan, error: Exception) -> None:
        assert self._file is not None
        reason = None if isinstance(error, AlteredWhileRead) else str(error)
        self._ledger = await persisted(
            partial(self._file.update, lambda ledger: ledger.left_out(table, reason))
        )
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
        flushed = self._flushed
        delivered = 0 if self._ledger is None else self._ledger.chunks_done(max(flushed, self._delivered))
        self._ledger = await persisted(
            partial(self._file.update, lambda each: each.hand_over(flushed, delivered))
        )
        _log.warning("the initial snapshot ends early, and the stream begins: %s", error)


class _EndedEarly(Exception):
    """Ends the reading of the exported snapshot between two chunks."""
