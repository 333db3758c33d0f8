"""Appends slices to a journal: blocks go to a temporary file, which becomes a segment when it is complete.

Blocking; runs in a thread. After an error the same call may be repeated: built bytes wait to be written, and slices that were
built before are recognized and dropped. The exception is a failed fsync: the kernel may have dropped the pages, and a second
fsync would succeed without them.

A transaction that is larger than a batch starts in a segment of its own. So everything before it can be made durable while
the rest of it arrives.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from aiorepl.errors import JournalError, PermanentError
from aiorepl.journal import notifier
from aiorepl.journal.chain import Chain, Segment
from aiorepl.journal.index import SegmentIndex, dump
from aiorepl.journal.metadata import Gap, Manifest, State, segment_name
from aiorepl.journal.metadata_files import (
    INDEX,
    SEGMENT,
    load_index,
    read_chain,
    unindexed,
    write_manifest,
    write_state,
)
from aiorepl.journal.prepared import PreparedStore
from aiorepl.journal.segment_builder import SegmentBuilder
from aiorepl.journal.store import Store, Upload
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.messages import CommitPrepared, RollbackPrepared
from aiorepl.position import Position
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction


class JournalWriter:
    """The only writer of a journal.

    :param segment_bytes: a segment is closed at the first transaction end past this size.
    :param block_bytes: a block is closed past this size.
    """

    def __init__(self, store: Store, *, segment_bytes: int, block_bytes: int) -> None:
        self._store = store
        self._segment_bytes = segment_bytes
        self._block_bytes = block_bytes
        # A cancelled call continues in its thread, and close must wait for it.
        self._lock = threading.Lock()
        # An open that was cancelled before its thread started must not lock the journal after close.
        self._closed = False
        self._source: Position | None = None
        self._start_lsn = ZERO
        # The state on disk.
        self._state: State | None = None
        # The slices accepted so far; they are durable up to the state's position.
        self._accepted = ReplayFilter()
        self._builder: SegmentBuilder | None = None
        self._upload: Upload | None = None
        self._ready: list[bytes | bytearray] = []
        # The index of a complete segment that is being published.
        self._index: SegmentIndex | None = None
        self._prepared = PreparedStore(store, block_bytes)
        # Segments without an index, left by a crash; deleted once their transactions are durable in other segments.
        self._leftovers: list[Segment] = []

    def open(self, source: Position, holder: str = "journal") -> Position | None:
        """Lock and verify the journal.

        :param holder: how errors name the journal.
        :returns: its end; ``None`` if it is empty.
        :raises JournalError: it is damaged, another process writes it, or this writer was closed.
        :raises SlotError: it belongs to another source.
        """
        with self._working():
            store = self._store
            store.lock()
            try:
                self._load(source, f"{holder} in {store.url}")
            except BaseException:
                # open may be called again.
                store.unlock()
                raise
            return self._state.position if self._state is not None and self._state.position.lsn else None

    def _load(self, source: Position, holder: str) -> None:
        store, chain = self._store, read_chain(self._store)
        if chain is None:
            state = State(source.at(ZERO))
        else:
            chain.manifest.source.require_same_source(source, holder)
            state = self._recovered(chain)
            state.position.require_same_source(source, holder)
        self._prepared.open(state.prepared)
        self._start_lsn = source.lsn if chain is None else chain.manifest.start_lsn
        if not state.position.lsn:
            # An empty journal starts at the slot's current position.
            self._start_lsn = source.lsn
            write_manifest(store, Manifest(source.at(ZERO), self._start_lsn))
        if not state.position.lsn or (chain is not None and state is not chain.state):
            write_state(store, state)
        start = ZERO if chain is None else chain.start_lsn
        self._leftovers = [segment for segment in unindexed(store) if segment.after >= start]
        store.clean()
        self._source, self._state, self._accepted = source, state, ReplayFilter(state.position.lsn)

    def _recovered(self, chain: Chain) -> State:
        """The state, corrected after a crash between the publication of an index and of ``position.json``."""
        last = chain.last
        if last is None or last.last_end_lsn <= chain.state.last_segment_end:
            return chain.state
        index = load_index(self._store, last.name)
        state = replace(chain.state, position=index.end, segment=last.name, prepared=index.prepared)
        return _with_chunk(state, index)

    def write(self, slices: Sequence[Slice]) -> None:
        """Append slices, and close the segment if it has become large.

        :raises PermanentError: changes of a transaction are missing.
        """
        with self._working():
            if self._index is not None:  # an earlier call failed to close the segment
                self._seal()
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
        return ZERO if self._state is None else self._state.last_segment_end

    def skip(self, after: LSN, until: Position) -> None:
        """Record a gap from ``after`` to ``until``, and continue after it. Call it before ``write``."""
        with self._working():
            state = self._require_state()
            gap = Gap(after, until.lsn, state.segment)
            self._advance(replace(state, position=until, gaps=(*state.gaps, gap)))
            self._accepted = ReplayFilter(until.lsn)

    def void_prepared(self) -> None:
        """Forget all prepared transactions: a new slot sends them when they commit."""
        with self._working():
            self._prepared.void()
            self._advance(replace(self._require_state(), prepared=()))

    @property
    def open_snapshots(self) -> frozenset[int]:
        """The oids of the tables whose snapshots are not complete."""
        tables = () if self._state is None else self._state.tables
        return frozenset(table.oid for table in tables if table.open)

    def abandon_snapshots(self, besides: Collection[int]) -> None:
        """Record which snapshots will not be completed.

        :param besides: the oids of the tables whose snapshots go on.
        """
        with self._working():
            state = self._require_state()
            tables = tuple(
                replace(table, abandoned=True) if table.open and table.oid not in besides else table
                for table in state.tables
            )
            if tables != state.tables:
                self._advance(replace(state, tables=tables))

    def flush(self) -> None:
        """Make every whole transaction that was written durable."""
        with self._working():
            # An open transaction has a segment of its own, so there is no whole transaction to make durable.
            if self._builder is None or self._builder.open is None:
                self._seal()

    def close(self) -> None:
        """Discard what was not flushed, and release the lock. No call may follow."""
        with self._lock:
            self._closed = True
            try:
                if self._upload is not None:
                    self._upload.discard()
                self._upload = self._builder = self._index = None
                self._prepared.discard()
            finally:
                self._store.unlock()

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        # A call that was cancelled before its thread started may start after close. It would record as durable what close has
        # discarded.
        with self._lock:
            if self._closed:
                raise JournalError(
                    f"this writer of the journal in {self._store.url} is closed: create another one"
                )
            yield

    def _write_plain(self, slices: Sequence[Slice]) -> None:
        whole = next((count for count in range(len(slices), 0, -1) if slices[count - 1].last), 0)
        for part in slices[:whole]:
            self._add(part)
        if whole < len(slices):
            if self._builder is not None and self._builder.open is None:
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
            # Also if the call is repeated because the last push failed.
            self._prepared.decide(header.xid, header.commit_lsn)
            # A repeated call can bring an outcome that was accepted, and part of a later transaction as well.
            self._accepted.add(part)
        elif self._accepted.known(header.commit_lsn) is not None:
            self._prepared.add(part, header, self._require_source())
            if part.end_lsn is not None:
                self._accepted.add(part)

    def _add(self, repeated: Slice) -> None:
        part = self._accepted.new(repeated)
        if part is None:
            return
        self._close_around_chunk(part)
        self._close_at_promotion(part)
        if self._builder is not None and self._builder.open is None and self._builder.redefines(part):
            self._seal()
        if part.changes or part.transaction is not None:
            builder = self._require_builder()
            builder.add(part)
            self._ready += builder.take()
        if isinstance(part.two_phase, CommitPrepared) and part.transaction is not None:
            # It was prepared before this slot was created, so the server sends it whole at its commit. The rows from the older slot
            # are obsolete.
            self._prepared.decide(part.transaction.xid, part.transaction.commit_lsn)
        self._accepted.add(part)

    def _close_around_chunk(self, part: Slice) -> None:
        """Close the segment before and after a chunk of a snapshot, which has a segment of its own."""
        builder, header = self._builder, part.transaction
        if builder is not None and builder.open is None:
            begins = header is not None and header.snapshot is not None
            if begins or builder.chunk is not None:
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

    def _require_builder(self) -> SegmentBuilder:
        if self._builder is None:
            self._builder = SegmentBuilder(self._block_bytes)
        return self._builder

    def _require_source(self) -> Position:
        if self._source is None:
            raise RuntimeError("call open first")
        return self._source

    def _require_state(self) -> State:
        if self._state is None:
            raise RuntimeError("call open first")
        return self._state

    def _push(self) -> None:
        """Write the built bytes to the store."""
        if not self._ready:
            return
        if self._upload is None:
            self._upload = self._store.create()
        self._upload.write(self._ready)
        self._ready = []

    def _seal(self) -> None:
        """Publish the open segment, and write the state. A repeated call after an error continues with the failed step."""
        builder, state = self._builder, self._require_state()
        end, prepared = self._require_source().at(self._accepted.after), self._prepared.undecided
        if builder is None:
            if self._accepted.after > state.position.lsn:
                self._advance(replace(state, position=end, prepared=prepared))
            return
        if self._index is None:
            # An initial snapshot needs nothing before it.
            start = state.last_segment_end or (ZERO if builder.begins_snapshot else self._start_lsn)
            self._index = builder.finish(
                end, after=state.last_segment_end, start_lsn=start, prepared=prepared
            )
            self._ready += builder.take()
        index = self._index
        name = segment_name(index.after, index.end.lsn)
        self._push()
        if self._upload is None:
            raise PermanentError(f"segment {name} of the journal {self._store.url} is empty")
        self._leftovers = [segment for segment in self._leftovers if segment.name != name]
        self._upload.publish(name + SEGMENT)
        self._store.write(name + INDEX, dump(index))
        state = replace(state, position=index.end, segment=name, prepared=index.prepared)
        self._advance(_with_chunk(state, index))
        self._upload.discard()
        self._builder = self._upload = self._index = None
        notifier.notify(self._store.url)

    def _advance(self, state: State) -> None:
        """Make a state durable, then delete the files that are obsolete in it."""
        write_state(self._store, state)
        self._state = state
        self._prepared.forget()
        with contextlib.suppress(OSError):  # retried with the next state
            for segment in self._leftovers[:]:
                if segment.last_end_lsn <= state.last_segment_end:
                    self._store.delete(segment.name + SEGMENT)
                    self._leftovers.remove(segment)


def _with_chunk(state: State, index: SegmentIndex) -> State:
    """Return the state with the chunk that the segment is, if it is one."""
    if index.chunk is None:
        return state
    commit_lsn = index.blocks[0].first_commit_lsn
    assert commit_lsn is not None  # the index was verified
    return state.with_chunk(index.chunk, commit_lsn, index.end.lsn)
