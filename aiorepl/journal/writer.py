"""Appends slices to a journal: blocks to a file without a name, which becomes a segment when it is complete.

Blocking; called from a thread. An error leaves the writer so that the same call can be made again: what was built
stays ready to be written, and slices that were built already are recognised and dropped. The one exception is an
fsync that failed: the kernel may have dropped the pages, and a second fsync would lie.

A transaction that does not fit a batch gets a segment of its own to begin in, so that everything before it can be
made durable while it is still coming.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
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
    """The one writer of a journal.

    :param segment_bytes: a segment is closed at the first transaction end past this size.
    :param block_bytes: a block is closed past this size.
    """

    def __init__(self, store: Store, *, segment_bytes: int, block_bytes: int) -> None:
        self._store = store
        self._segment_bytes = segment_bytes
        self._block_bytes = block_bytes
        # A cancelled call goes on in its thread; close must not pull the file from under it.
        self._lock = threading.Lock()
        # Nor must an open that was cancelled before it came to anything take the lock once nobody is left to release it.
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
        """Take the lock, verify the journal, and return how far it goes; ``None`` when it is empty.

        :raises JournalError: when it is damaged, or another process writes it, or this writer was closed.
        :raises SlotError: when it is the journal of another source.
        """
        with self._working():
            store = self._store
            store.lock()
            try:
                self._take_over(source, f"{holder} in {store.url}")
            except BaseException:
                # So that open may be called again.
                store.unlock()
                raise
            return self._state.position if self._state is not None and self._state.position.lsn else None

    def _take_over(self, source: Position, holder: str) -> None:
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
            # An empty journal begins at the slot's current position.
            self._start_lsn = source.lsn
            write_manifest(store, Manifest(source.at(ZERO), self._start_lsn))
        if not state.position.lsn or (chain is not None and state is not chain.state):
            write_state(store, state)
        kept_from = ZERO if chain is None else chain.start_lsn
        self._leftovers = [segment for segment in unindexed(store) if segment.after >= kept_from]
        store.clean()
        self._source, self._state, self._accepted = source, state, ReplayFilter(state.position.lsn)

    def _recovered(self, chain: Chain) -> State:
        """The state, corrected after a crash between a segment's index and ``position.json``."""
        last = chain.last
        if last is None or last.last_end_lsn <= chain.state.last_segment_end:
            return chain.state
        index = load_index(self._store, last.name)
        return State(index.end, last.name, chain.state.gaps, index.prepared)

    def write(self, slices: Sequence[Slice]) -> None:
        """Append, and close the segment if it has become large.

        :raises PermanentError: when changes are missing.
        """
        with self._working():
            if self._index is not None:  # closing it failed
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
        """The end of the last segment: as far as anybody can read."""
        return ZERO if self._state is None else self._state.last_segment_end

    def skip(self, after: LSN, until: Position) -> None:
        """Go on behind what the slot has lost; what is missing is noted for good. Before anything is written."""
        with self._working():
            state = self._opened()
            gap = Gap(after, until.lsn, state.segment)
            self._advance(replace(state, position=until, gaps=(*state.gaps, gap)))
            self._accepted = ReplayFilter(until.lsn)

    def void_prepared(self) -> None:
        """Forget all prepared transactions, because a new slot sends them again when they commit."""
        with self._working():
            self._prepared.void()
            self._advance(replace(self._opened(), prepared=()))

    def flush(self) -> None:
        """Make every whole transaction that was written durable."""
        with self._working():
            # An open transaction is alone in its segment: there is nothing whole to make durable.
            if self._builder is None or self._builder.open is None:
                self._seal()

    def close(self) -> None:
        """Throw away what was not flushed, and release the lock. The last call."""
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
        # A call that was cancelled before its thread began may begin after close. Without the lock it would note as durable
        # what close has thrown away.
        with self._lock:
            if self._closed:
                raise JournalError(
                    f"this writer of the journal in {self._store.url} was closed: make another"
                )
            yield

    def _write_plain(self, slices: Sequence[Slice]) -> None:
        whole = next((place for place in range(len(slices), 0, -1) if slices[place - 1].last), 0)
        for part in slices[:whole]:
            self._add(part)
        if whole < len(slices):
            if self._builder is not None and self._builder.open is None:
                self._seal()
            for part in slices[whole:]:
                self._add(part)

    def _write_prepared(self, part: Slice, header: Transaction) -> None:
        """Take a slice of a prepared transaction, or its outcome."""
        message = part.two_phase
        if isinstance(message, (CommitPrepared, RollbackPrepared)) and part.end_lsn is not None:
            if self._accepted.new(part) is not None and isinstance(message, CommitPrepared):
                for committed in self._prepared.committed(header, part.end_lsn):
                    self._add(committed)
                    self._push()
            # Also on a repeated call after the last push failed.
            self._prepared.decide(header.xid, header.commit_lsn)
            # A repeated call can bring an outcome that was accepted, and part of a later transaction as well.
            self._accepted.add(part)
        elif self._accepted.known(header.commit_lsn) is not None:
            self._prepared.add(part, header, self._from())
            if part.end_lsn is not None:
                self._accepted.add(part)

    def _add(self, repeated: Slice) -> None:
        part = self._accepted.new(repeated)
        if part is None:
            return
        self._require_one_timeline(part)
        if self._builder is not None and self._builder.open is None and self._builder.redefines(part):
            self._seal()
        if part.changes or part.transaction is not None:
            builder = self._built()
            builder.add(part)
            self._ready += builder.take()
        if isinstance(part.two_phase, CommitPrepared) and part.transaction is not None:
            # Prepared before this slot was created, so it is sent whole now; the rows from the older slot are void.
            self._prepared.decide(part.transaction.xid, part.transaction.commit_lsn)
        self._accepted.add(part)

    def _require_one_timeline(self, part: Slice) -> None:
        """A segment is of one timeline: close it where the source was promoted."""
        source = self._from()
        if self._builder is None or self._builder.open is not None or source.timelines is None:
            return
        lsn = part.end_lsn if part.transaction is None else part.transaction.commit_lsn
        timeline = source.timelines.at
        if lsn is not None and timeline(self._accepted.after) < timeline(lsn):
            self._seal()

    def _built(self) -> SegmentBuilder:
        if self._builder is None:
            self._builder = SegmentBuilder(self._block_bytes)
        return self._builder

    def _from(self) -> Position:
        if self._source is None:
            raise RuntimeError("open first")
        return self._source

    def _opened(self) -> State:
        if self._state is None:
            raise RuntimeError("open first")
        return self._state

    def _push(self) -> None:
        """Give what is ready to the store."""
        if not self._ready:
            return
        if self._upload is None:
            self._upload = self._store.create()
        self._upload.write(self._ready)
        self._ready = []

    def _seal(self) -> None:
        """Publish the open segment, and write the state. After an error, a repeated call continues where it failed."""
        builder, state = self._builder, self._opened()
        end, prepared = self._from().at(self._accepted.after), self._prepared.undecided
        if builder is None:
            if self._accepted.after > state.position.lsn:
                self._advance(replace(state, position=end, prepared=prepared))
            return
        if self._index is None:
            # An initial load ends where the slot begins, and needs nothing before it.
            start = state.last_segment_end or (
                self._start_lsn if builder.first_end > self._start_lsn else ZERO
            )
            self._index = builder.finish(
                end, after=state.last_segment_end, start_lsn=start, prepared=prepared
            )
            self._ready += builder.take()
        index = self._index
        name = segment_name(index.after, index.end.lsn)
        self._push()
        if self._upload is None:
            raise PermanentError(f"segment {name} has no contents")
        self._leftovers = [segment for segment in self._leftovers if segment.name != name]
        self._upload.publish(name + SEGMENT)
        self._store.write(name + INDEX, dump(index))
        self._advance(replace(state, position=index.end, segment=name, prepared=index.prepared))
        self._upload.discard()
        self._builder = self._upload = self._index = None
        notifier.grown(self._store.url)

    def _advance(self, state: State) -> None:
        """Make a state durable, then delete the files that it no longer needs."""
        write_state(self._store, state)
        self._state = state
        self._prepared.forget()
        with contextlib.suppress(OSError):  # retried with the next state
            for segment in self._leftovers[:]:
                if segment.last_end_lsn <= state.last_segment_end:
                    self._store.delete(segment.name + SEGMENT)
                    self._leftovers.remove(segment)
