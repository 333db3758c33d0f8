"""Appends slices to a journal: blocks go to an upload, which becomes a segment when it is complete.

Blocking; runs in a thread. After an error the same call may be repeated: built bytes wait to be written, and slices that were
built before are recognized and dropped. The exception is a failed fsync: the kernel may have dropped the pages, and a second
fsync would succeed without them.

A transaction that is larger than a batch starts in a segment of its own. So everything before it can be made durable while
the rest of it arrives. If it is larger than a segment, it is uploaded in parts, which ``publisher`` publishes together.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from aiorepl.errors import JournalError, PermanentError
from aiorepl.journal import notifier
from aiorepl.journal.completeness import Completeness, Gap, PublishedChunk
from aiorepl.journal.index import SegmentIndex, dump
from aiorepl.journal.metadata import JournalState
from aiorepl.journal.prepared import PreparedStore
from aiorepl.journal.publisher import Publisher
from aiorepl.journal.segment_builder import SegmentBuilder
from aiorepl.journal.segments import FOLDER as SEGMENTS
from aiorepl.journal.segments import Entry, Segment, segment_file, segment_name
from aiorepl.journal.times import Proofs, Times
from aiorepl.loggers import logger
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.messages import CommitPrepared, RollbackPrepared
from aiorepl.position import Position
from aiorepl.storage.store import Store, Upload
from aiorepl.table_name import TableName
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction

_log = logger("aiorepl.journal")

# A segment gets no more chunks of snapshots past this size, or with this many: a commit costs the disk more than a small chunk, and
# readers of one table read the blocks of a segment that have rows of it.
_SMALL_BYTES: Final = 1024 * 1024
_SMALL_CHUNKS: Final = 1000


class JournalWriter:
    """The only writer of a journal.

    :param segment_bytes: a segment, or a part of one, is closed past this size.
    :param block_bytes: a block is closed past this size.
    :param proofs: the commit times that heartbeats prove.
    """

    def __init__(
        self, store: Store, *, segment_bytes: int, block_bytes: int, proofs: Proofs | None = None
    ) -> None:
        self._store = store
        self._segment_bytes = segment_bytes
        self._block_bytes = block_bytes
        # A cancelled call continues in its thread, and close must wait for it.
        self._lock = threading.Lock()
        # An open that was cancelled before its thread started must not lock the journal after close.
        self._closed = False
        self._source: Position | None = None
        self._start_lsn = ZERO
        self._publisher = Publisher(store)
        # The slices accepted so far; they are durable up to the state's position.
        self._accepted = ReplayFilter()
        self._builder: SegmentBuilder | None = None
        self._upload: Upload | None = None
        self._ready: list[bytes | bytearray] = []
        # The index of the complete part that is being uploaded, and the size of its file.
        self._index: SegmentIndex | None = None
        self._size = 0
        # The uploaded parts of the present segment, whose end is not known yet.
        self._parts: list[Entry] = []
        # The end of the last uploaded part, and the oids and names of the parts' tables.
        self._end: Position | None = None
        self._described: dict[tuple[int, TableName], None] = {}
        self._prepared = PreparedStore(store, block_bytes)
        self._cleaned = False
        self._proofs = Proofs() if proofs is None else proofs
        # The commit times up to the last accepted slice.
        self._times = Times()
        self._warned = False

    def open(self, source: Position, holder: str = "journal") -> Position | None:
        """Lock and verify the journal.

        :param holder: how errors name the journal.
        :returns: the journal's end; ``None`` if the journal is empty.
        :raises JournalError: the journal is damaged, another process writes it, or this writer was closed.
        :raises SlotError: the journal belongs to another source.
        """
        with self._lock:
            self._require_open()
            store = self._store
            store.lock()
            try:
                identity = self._publisher.open(source, f"{holder} in {store.url}")
                state = self._require_state()
                self._prepared.open(state.prepared, identity.source)
            except BaseException:
                # open may be called again.
                store.unlock()
                raise
            self._start_lsn, self._times = identity.start_lsn, state.times
            self._source, self._accepted = source, ReplayFilter(state.position.lsn)
            return state.position if state.position.lsn else None

    def write(self, slices: Sequence[Slice]) -> None:
        """Append slices, and close the segment if it has become large.

        :raises PermanentError: changes of a transaction are missing.
        """
        with self._working():
            self._claim()
            if self._index is not None and self._builder is not None:  # an earlier call could not upload it
                self._upload_part()
                if self._builder.open is None:
                    self._publish()
            self._push()
            plain: list[Slice] = []
            for part in slices:
                if part.transaction is None or not part.transaction.prepared:
                    plain.append(part)
                    continue
                self._write_plain(plain)
                plain = []
                self._write_prepared(part, part.transaction)
            self._write_plain(plain)
            self._push()
            builder = self._builder
            if builder is not None and builder.open is None and builder.size >= self._segment_bytes:
                self._seal()

    @property
    def end(self) -> LSN:
        """The end of the last segment, which is the limit for readers."""
        state = self._publisher.state
        return ZERO if state is None else state.end.lsn

    def skip(self, after: LSN, until: Position) -> None:
        """Record a gap from ``after`` to ``until``, and continue after it. Call it before ``write``."""
        with self._working():
            self._claim()
            # The slot has lost the transactions of the gap, so the server cannot send them again.
            self._publisher.keep_orphans()
            complete, end = self._publisher.completeness, self._require_state().end.lsn
            gap = Gap(after, until.lsn, end)
            self._commit(until, completeness=replace(complete, gaps=(*complete.gaps, gap)))
            self._accepted = ReplayFilter(until.lsn)

    def void_prepared(self) -> None:
        """Forget all prepared transactions: a new slot sends them when they commit."""
        with self._working():
            if self._require_state().prepared:
                self._claim()
                self._prepared.void()
                self._commit(self._require_state().position)

    @property
    def open_snapshots(self) -> frozenset[int]:
        """The oids of the tables whose snapshots are not complete."""
        return frozenset(table.oid for table in self._publisher.completeness.tables if table.open)

    @property
    def readings(self) -> frozenset[str]:
        """The readings of tables that are complete."""
        return self._publisher.completeness.readings

    def abandon_snapshots(self, besides: Collection[int]) -> None:
        """Record which snapshots will not be completed.

        :param besides: the oids of the tables whose snapshots continue.
        """
        with self._working():
            complete = self._publisher.completeness.abandoned(besides)
            if complete != self._publisher.completeness:
                self._claim()
                self._commit(self._require_state().position, completeness=complete)

    def flush(self) -> None:
        """Make every whole transaction that was written durable."""
        with self._working():
            # An open transaction has a segment of its own, so there is no whole transaction to make durable.
            if self._builder is None or self._builder.open is None:
                self._seal()

    def close(self) -> None:
        """Discard the changes that were not flushed, and release the lock. No call may follow."""
        with self._lock:
            self._closed = True
            try:
                if self._upload is not None:
                    self._upload.discard()
                self._upload = self._builder = self._index = None
                self._parts = []
                self._prepared.discard()
            finally:
                self._store.unlock()

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        # A call that was cancelled before its thread started may start after close. It would record slices as durable that close
        # has discarded.
        with self._lock:
            self._require_open()
            try:
                # An earlier call failed to finish its commit.
                if self._publisher.finish():
                    self._committed()
                yield
            except FileNotFoundError:
                # A later writer deletes the files that this one has not published.
                self._publisher.require_epoch()
                raise

    def _require_open(self) -> None:
        if self._closed:
            raise JournalError(
                f"this writer of the journal in {self._store.url} is closed: create another one"
            )

    def _claim(self) -> None:
        """Fence earlier writers, once. From then on, the files that they left can be deleted."""
        self._publisher.claim()
        if not self._cleaned:
            self._store.clean(SEGMENTS)
            self._prepared.clean()
            self._cleaned = True

    def _write_plain(self, slices: Sequence[Slice]) -> None:
        whole = next((count for count in range(len(slices), 0, -1) if slices[count - 1].last), 0)
        for part in slices[:whole]:
            self._add(part)
        if whole < len(slices):
            # Seal even if there is no segment: a prepared transaction, or WAL without changes, may have been accepted, and
            # ``flush`` does nothing while a transaction is open.
            if self._builder is None or self._builder.open is None:
                self._seal()
            for part in slices[whole:]:
                self._add(part)

    def _write_prepared(self, part: Slice, header: Transaction) -> None:
        """Write a slice of a prepared transaction, or the outcome of one."""
        message = part.two_phase
        if isinstance(message, (CommitPrepared, RollbackPrepared)) and part.end_lsn is not None:
            if self._accepted.new(part) is not None and isinstance(message, CommitPrepared):
                for committed in self._prepared.committed(header, part.end_lsn):
                    self._add(committed)
                    self._push()
            # Decide even if the outcome is known: the call may be repeated because the last push failed.
            self._prepared.decide(header.xid, header.commit_lsn)
            # A repeated call can bring an outcome that was accepted, together with part of a later transaction.
            self._accepted.add(part)
        elif self._accepted.known(header.commit_lsn) is not None:
            self._prepared.add(part, header, self._require_source())
            if part.end_lsn is not None:
                self._accepted.add(part)

    def _add(self, repeated: Slice) -> None:
        part = self._accepted.new(repeated)
        if part is None:
            return
        self._close_around_chunks(part)
        self._close_at_promotion(part)
        self._judge_time(part)
        if self._builder is not None and self._builder.redefines(part):
            if self._builder.open is None:
                self._seal()
            else:
                self._upload_part()
        if part.changes or part.transaction is not None:
            builder = self._require_builder()
            builder.add(part)
            self._ready += builder.take()
        if isinstance(part.two_phase, CommitPrepared) and part.transaction is not None:
            # The transaction was prepared before this slot was created, so the server sends it whole at its commit. The rows from
            # the older slot are obsolete.
            self._prepared.decide(part.transaction.xid, part.transaction.commit_lsn)
        self._accepted.add(part)
        opened = self._builder
        if opened is not None and opened.open is not None and opened.size >= self._segment_bytes:
            self._upload_part()

    def _close_around_chunks(self, part: Slice) -> None:
        """Close the segment between chunks of snapshots and the stream. Only small chunks share a segment."""
        builder, header = self._builder, part.transaction
        if builder is None or builder.open is not None or (header is None and not part.changes):
            return
        begins = header is not None and header.snapshot is not None
        full = builder.size >= _SMALL_BYTES or len(builder.chunks) >= _SMALL_CHUNKS
        if (begins and full) or begins != bool(builder.chunks):
            self._seal()

    def _close_at_promotion(self, part: Slice) -> None:
        """Close the segment if ``part`` is on a later timeline: a segment has one timeline."""
        source = self._require_source()
        if self._builder is None or self._builder.open is not None or source.timelines is None:
            return
        lsn = part.end_lsn if part.transaction is None else part.transaction.commit_lsn
        timeline = source.timelines.at
        if lsn is not None and timeline(self._accepted.after) < timeline(lsn):
            self._seal()

    def _judge_time(self, part: Slice) -> None:
        """Count a transaction that committed before a time up to which the journal was complete."""
        header = part.transaction
        if header is None or not part.first or header.snapshot is not None:
            return
        before = self._times
        self._times = before.after(header.commit_timestamp, header.commit_lsn)
        if self._times is before:
            self._warned = False
        elif not self._warned:
            self._warned = True
            _log.warning(
                "%s: the transaction at %s committed at %s, and the journal %s was complete until a later "
                "time. complete_until does not go back, and such transactions are counted as late",
                "the clock of the server went back"
                if header.origin is None
                else f"commit times of the origin {header.origin} are those of another server",
                header.commit_lsn,
                header.commit_time,
                self._store.url,
            )

    def _require_builder(self) -> SegmentBuilder:
        if self._builder is None:
            self._builder = SegmentBuilder(self._block_bytes)
        return self._builder

    def _require_source(self) -> Position:
        if self._source is None:
            raise RuntimeError("call open first")
        return self._source

    def _require_state(self) -> JournalState:
        if self._publisher.state is None:
            raise RuntimeError("call open first")
        return self._publisher.state

    def _push(self) -> None:
        """Write the built bytes to the store."""
        if not self._ready:
            return
        if self._upload is None:
            state = self._require_state()
            name = segment_name(state.end.lsn, state.epoch, len(self._parts))
            self._upload = self._store.create(segment_file(name))
        self._upload.write(self._ready)
        self._ready = []

    def _upload_part(self) -> None:
        """Complete the open part and upload it. A repeated call after an error continues with the failed step."""
        builder, state = self._builder, self._require_state()
        assert builder is not None
        if self._index is None:
            self._times = self._times.proven(self._proofs.reached(self._accepted.after))
            index = self._index = replace(
                builder.finish(
                    self._require_source().at(self._accepted.after),
                    after=state.end.lsn,
                    epoch=state.epoch,
                    part=len(self._parts),
                ),
                times=self._times,
            )
            tail = dump(index)
            self._size = index.offset + len(tail)
            self._ready += [*builder.take(), tail]
        index = self._index
        self._push()
        name = segment_name(index.after, index.epoch, index.part)
        if self._upload is None:
            raise PermanentError(f"segment {name} of the journal {self._store.url} is empty")
        self._upload.publish(segment_file(name))
        self._upload.discard()
        segment = Segment(
            after=index.after,
            last_end_lsn=index.after,
            epoch=index.epoch,
            part=index.part,
            parts=0,
            size=self._size,
            index_offset=index.offset,
            blocks=len(index.blocks),
            published=int(time.time()),
        )
        self._parts.append(Entry(segment, index.tables))
        self._described |= dict.fromkeys((each.oid, each.table) for each in index.descriptions)
        self._end = index.end
        self._upload = self._index = None
        if builder.open is not None:
            builder.begin_part()

    def _seal(self) -> None:
        """Publish the open segment, and write the state. A repeated call after an error continues with the failed step."""
        if self._builder is not None:
            self._upload_part()
            self._publish()
        elif self._accepted.after > self._require_state().position.lsn:
            self._times = self._times.proven(self._proofs.reached(self._accepted.after))
            self._commit(self._require_source().at(self._accepted.after))

    def _publish(self) -> None:
        """Publish the uploaded parts together."""
        assert self._builder is not None
        begins = ZERO if self._builder.begins_snapshot else self._start_lsn
        assert self._end is not None
        self._publisher.finish()
        # From here on, a repeated call repeats the commit only.
        chunks, end = self._builder.chunks, self._end
        parts, self._parts, self._builder = self._parts, [], None
        entries = [
            Entry(replace(segment, last_end_lsn=end.lsn, parts=len(parts)), tables)
            for segment, tables in parts
        ]
        completeness = None
        if not chunks:
            completeness = self._publisher.completeness.with_rows(
                self._described, entries[0].segment.after or self._start_lsn, end.lsn
            )
        self._described = {}
        self._commit(end, entries=entries, begins=begins, completeness=completeness, chunks=chunks)

    def _commit(
        self,
        position: Position,
        *,
        entries: Sequence[Entry] = (),
        begins: LSN = ZERO,
        completeness: Completeness | None = None,
        chunks: Sequence[PublishedChunk] = (),
    ) -> None:
        """Make a state durable, then delete the files that are obsolete in it."""
        self._publisher.commit(
            position=position,
            entries=entries,
            end=position if entries else None,
            begins=begins,
            prepared=self._prepared.undecided,
            times=self._times,
            completeness=completeness,
            published=chunks,
        )
        self._publisher.finish()
        self._committed()

    def _committed(self) -> None:
        self._prepared.forget()
        notifier.notify(self._store.url)
