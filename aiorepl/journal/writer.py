"""Appends slices to a journal: blocks to a file without a name, which becomes a segment when it is complete.

Blocking; called from a thread. An error leaves the writer so that the same call can be made again: what was built
stays ready to be written, and slices that were built already are recognised and dropped. The one exception is an
fsync that failed: the kernel may have dropped the pages, and a second fsync would lie.

A transaction that does not fit a batch gets a segment of its own to begin in, so that everything before it can be
made durable while it is still coming.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from aiorepl.errors import JournalError, PermanentError
from aiorepl.journal import notify
from aiorepl.journal.builder import SegmentBuilder
from aiorepl.journal.index import SegmentIndex, dump
from aiorepl.journal.manifest import (
    INDEX,
    SEGMENT,
    add_gap,
    last_position,
    load_index,
    read_manifest,
    segment_name,
    segment_names,
    write_manifest,
    write_quiet,
)
from aiorepl.journal.prepared import PreparedTransactions
from aiorepl.journal.store import Store, Upload
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.messages import CommitPrepared, RollbackPrepared
from aiorepl.position import Position
from aiorepl.transactions.transaction import Slice, Transaction


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
        self._durable = ZERO
        self._chain = ZERO
        self._accepted = ZERO
        self._message = ZERO
        self._builder: SegmentBuilder | None = None
        self._upload: Upload | None = None
        self._ready: list[bytes | bytearray] = []
        self._index: SegmentIndex | None = None
        self._prepared = PreparedTransactions(store, block_bytes)
        # Names of prepared transactions whose end is written and not yet durable.
        self._decided: list[str] = []

    def open(self, source: Position, holder: str = "journal") -> Position | None:
        """Take the lock, throw away what a crash left, and return how far the journal goes; ``None`` when empty.

        :raises JournalError: when it is damaged, or another process writes it, or this writer was closed.
        :raises SlotError: when it is the journal of another source.
        """
        with self._lock:
            store = self._store
            if self._closed:
                raise JournalError(f"this writer of the journal in {store.url} was closed: make another")
            store.lock()
            known = read_manifest(store)
            if known is None:
                write_manifest(store, source)
            else:
                known.require_same_source(source, f"{holder} in {store.url}")
            store.clean()
            names = segment_names(store)
            present = set(names)
            for name in store.names():
                if name.endswith(SEGMENT) and name.removesuffix(SEGMENT) not in present:
                    store.delete(name)
            self._prepared.open()
            self._source = source
            if names:
                self._chain = load_index(store, names[-1]).last_end_lsn
            held = last_position(store)
            if held is not None:
                held.require_same_source(source, f"{holder} in {store.url}")
                self._durable = self._accepted = held.lsn
            return held

    def write(self, slices: Sequence[Slice]) -> None:
        """Append, and close the segment if it has become large.

        :raises PermanentError: when changes are missing.
        """
        with self._lock:
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
        return self._chain

    def skip(self, after: LSN, until: Position) -> None:
        """Go on behind what the slot has lost; what is missing is noted for good. Before anything is written."""
        with self._lock:
            add_gap(self._store, after, until.lsn)
            write_quiet(self._store, until)
            self._durable = self._accepted = until.lsn

    def flush(self) -> None:
        """Make every whole transaction that was written durable."""
        with self._lock:
            # An open transaction is alone in its segment: there is nothing whole to make durable.
            if self._builder is None or self._builder.open is None:
                self._seal()

    def close(self) -> None:
        """Throw away what was not flushed, and release the lock. The last call."""
        with self._lock:
            self._closed = True
            if self._upload is not None:
                self._upload.discard()
            self._upload = self._builder = self._index = None
            self._prepared.close()
            self._store.unlock()

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
        """A prepared transaction, or what became of one."""
        message = part.two_phase
        if isinstance(message, (CommitPrepared, RollbackPrepared)) and part.end_lsn is not None:
            if part.end_lsn > self._accepted:
                if isinstance(message, CommitPrepared):
                    for committed in self._prepared.committed(header, part.end_lsn):
                        self._add(committed)
                        self._push()
                self._accepted = part.end_lsn
            self._decided.append(message.gid)
        elif header.commit_lsn >= self._accepted:
            self._prepared.add(part)
            self._accepted = max(self._accepted, part.end_lsn or ZERO)

    def _add(self, part: Slice) -> None:
        if part.transaction is None:
            # Marks and messages have an end of their own, which is where they stand.
            end = part.end_lsn or ZERO
            if end <= max(self._accepted, self._message):
                return
            if part.changes:
                self._message = end
        elif part.end_lsn is not None and part.end_lsn <= self._accepted:
            return
        elif part.transaction.commit_lsn < self._accepted:
            return  # an earlier slice of a transaction that we have
        self._require_one_timeline(part)
        if part.changes or part.transaction is not None:
            builder = self._built()
            known = builder.ordinal if builder.open is not None and _same(builder, part) else 0
            builder.add(_without(part, known) if known else part)
            self._ready += builder.take()
        if part.end_lsn is not None and (self._builder is None or self._builder.open is None):
            self._accepted = max(self._accepted, part.end_lsn)

    def _require_one_timeline(self, part: Slice) -> None:
        """A segment is of one timeline: close it where the source was promoted."""
        if self._source is None:
            raise RuntimeError("open first")
        if self._builder is None or self._builder.open is not None or self._source.timelines is None:
            return
        lsn = part.end_lsn if part.transaction is None else part.transaction.commit_lsn
        timeline = self._source.timelines.at
        if lsn is not None and timeline(self._accepted) < timeline(lsn):
            self._seal()

    def _built(self) -> SegmentBuilder:
        if self._builder is None:
            self._builder = SegmentBuilder(self._chain, self._block_bytes)
        return self._builder

    def _push(self) -> None:
        """Give what is ready to the store."""
        if not self._ready:
            return
        if self._upload is None:
            self._upload = self._store.create()
        self._upload.write(self._ready)
        self._ready = []

    def _seal(self) -> None:
        """Publish the open segment, or note that there was nothing to."""
        builder, source = self._builder, self._source
        if source is None:
            raise RuntimeError("open first")
        if builder is None:
            if self._accepted > self._durable:
                write_quiet(self._store, source.at(self._accepted))
                self._durable = self._accepted
            self._forget()
            return
        if self._index is None:
            self._index = builder.finish(self._accepted, source.at(self._accepted).timeline)
            self._ready += builder.take()
        index = self._index
        name = segment_name(index.first_end_lsn, index.last_end_lsn)
        self._push()
        if self._upload is None:
            raise PermanentError(f"segment {name} has no contents")
        self._upload.publish(name + SEGMENT)
        self._store.write(name + INDEX, dump(index))
        self._upload.discard()
        self._builder = self._upload = self._index = None
        self._chain = self._durable = index.last_end_lsn
        self._forget()
        notify.grown(self._store.url)

    def _forget(self) -> None:
        """What became of these is durable."""
        while self._decided:
            self._prepared.forget(self._decided[0])
            del self._decided[0]


def _same(builder: SegmentBuilder, part: Slice) -> bool:
    opened, header = builder.open, part.transaction
    return opened is not None and header is not None and opened.commit_lsn == header.commit_lsn


def _without(part: Slice, known: int) -> Slice:
    """The slice without changes that were built before an error, when the engine gives the same batch again."""
    if not part.changes or part.changes[0].ordinal >= known:
        return part
    left = [change for change in part.changes if change.ordinal >= known]
    return Slice(part.transaction, left, False, part.end_lsn, part.size)
