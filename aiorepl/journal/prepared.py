"""Prepared transactions, kept beside the segments until they are decided. Blocking; used by the writer only.

Once a PREPARE is confirmed, the server does not send its rows again, and COMMIT PREPARED has none. So the rows are made
durable here first, in a file like a segment with one transaction. At COMMIT PREPARED they are appended to the journal as a
transaction of that commit. Segments have committed transactions only, so their readers need not know two-phase commit.

Xid and PREPARE LSN identify a transaction; its gid can be reused at once. ``position.json`` lists the undecided transactions.
A file that is not listed is a leftover, and is deleted. A listed file that is missing is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from aiorepl.errors import DamagedJournal, JournalError, ProtocolError
from aiorepl.journal.index import SegmentIndex, dump, load
from aiorepl.journal.metadata import PreparedTransaction
from aiorepl.journal.metadata_files import PREPARED, require_own
from aiorepl.journal.reader import block_decoder
from aiorepl.journal.segment_builder import SegmentBuilder
from aiorepl.journal.segment_format import FOOTER_BYTES, frames, index_offset
from aiorepl.journal.stored_blocks import read_block
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.storage.store import Store, Upload
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction
from aiorepl.values.registry import Types

SUFFIX: Final = ".prepared"


class PreparedStore:
    """The prepared transactions of one journal."""

    def __init__(self, store: Store, block_bytes: int) -> None:
        self._store = store
        self._block_bytes = block_bytes
        self._source: Position | None = None
        self._undecided: list[PreparedTransaction] = []
        self._decided: list[PreparedTransaction] = []
        self._preparing: _Preparing | None = None

    @property
    def undecided(self) -> tuple[PreparedTransaction, ...]:
        """The undecided transactions, in the order of their PREPAREs."""
        return tuple(self._undecided)

    def open(self, undecided: Iterable[PreparedTransaction], source: Position) -> None:
        """Start with these undecided transactions.

        :param source: the slot and cluster of the journal.
        :raises JournalError: the file of an undecided transaction is missing or damaged.
        """
        self._source, self._undecided, self._decided = source, list(undecided), []
        for transaction in self._undecided:
            load_prepared_index(self._store, transaction, source)

    def clean(self) -> None:
        """Delete all files except those of undecided transactions. Only the writer that holds the journal may call it."""
        self._store.clean(PREPARED)
        names = {transaction.name + SUFFIX for transaction in self._undecided}
        for file in self._store.names(PREPARED):
            if file not in names:
                with contextlib.suppress(OSError):  # nobody reads the file
                    self._store.delete(f"{PREPARED}/{file}")

    def add(self, part: Slice, header: Transaction, source: Position) -> None:
        """Add a slice of a prepared transaction. After the last slice, the transaction is durable on return.

        After an error, the caller may repeat the slice or the whole transaction.
        """
        transaction = PreparedTransaction(header.commit_lsn, header.xid, header.gid or "")
        preparing = self._preparing
        if preparing is None or preparing.transaction != transaction:
            self.discard()
            preparing = self._preparing = _Preparing(self._store, transaction, self._block_bytes)
        preparing.add(part)
        if part.end_lsn is not None:
            preparing.publish(source.at(part.end_lsn))
            self._undecided.append(transaction)
            self._preparing = None

    def committed(self, header: Transaction, end_lsn: LSN) -> Iterator[Slice]:
        """Read the slices of a prepared transaction, with the header of its commit.

        One slice without changes if the transaction is unknown: PostgreSQL 15 and 16 do not send the PREPARE of an empty
        transaction.

        :raises JournalError: its file is missing or damaged.
        """
        transaction = self._find(header.xid, header.commit_lsn)
        # Yield each slice one step late, because only the last one gets the end LSN.
        pending: Slice | None = None
        for part in () if transaction is None else self._read(transaction):
            if pending is not None:
                yield pending
            prepared = part.transaction or header
            committed = replace(header, origin=prepared.origin, prepared=False)
            pending = Slice(committed, part.changes, pending is None, None, part.size)
        if pending is None:
            pending = Slice(replace(header, prepared=False), (), True, None, 0)
        yield replace(pending, end_lsn=end_lsn)

    def decide(self, xid: int, decided_at: LSN) -> None:
        """Mark a transaction as committed or rolled back. Its files stay until ``forget``."""
        transaction = self._find(xid, decided_at)
        if transaction is not None:
            self._decided.append(transaction)
            self._undecided.remove(transaction)

    def void(self) -> None:
        """Forget all undecided transactions: a new slot sends their rows when they commit."""
        self._decided += self._undecided
        self._undecided.clear()

    def forget(self) -> None:
        """Delete the files of decided transactions. Call it once the decisions are durable. The next call retries failures."""
        remaining = []
        for transaction in self._decided:
            try:
                self._store.delete(prepared_file(transaction))
            except OSError:
                remaining.append(transaction)
        self._decided = remaining

    def discard(self) -> None:
        """Discard the incomplete transaction: the server sends it again."""
        if self._preparing is not None:
            self._preparing.discard()
            self._preparing = None

    def _read(self, transaction: PreparedTransaction) -> Iterator[Slice]:
        assert self._source is not None
        return read_prepared(self._store, transaction, self._source)

    def _find(self, xid: int, before: LSN) -> PreparedTransaction | None:
        """Find the latest transaction with this xid that was prepared before ``before``."""
        found = [each for each in self._undecided if each.xid == xid and each.lsn < before]
        return max(found, key=lambda each: each.lsn, default=None)


class _Preparing:
    """The prepared transaction whose slices are being written."""

    def __init__(self, store: Store, transaction: PreparedTransaction, block_bytes: int) -> None:
        self.transaction = transaction
        self._store = store
        self._builder = SegmentBuilder(block_bytes)
        self._upload: Upload | None = None
        self._ready: list[bytes | bytearray] = []
        self._index: SegmentIndex | None = None
        self._built = ReplayFilter()

    def add(self, part: Slice) -> None:
        new = self._built.new(part)
        if new is not None:
            if self._builder.redefines(new):
                self._builder.retype()
            self._builder.add(replace(new, two_phase=None))
            self._built.add(new)
        self._push()

    def publish(self, end: Position) -> None:
        if self._index is None:
            self._index = self._builder.finish(end, after=ZERO, epoch=0, part=0)
            self._ready += [*self._builder.take(), dump(self._index)]
        self._push()
        assert self._upload is not None
        self._upload.publish(prepared_file(self.transaction))
        self._upload.discard()

    def discard(self) -> None:
        if self._upload is not None:
            self._upload.discard()

    def _push(self) -> None:
        self._ready += self._builder.take()
        if self._upload is None:
            self._upload = self._store.create(prepared_file(self.transaction))
        self._upload.write(self._ready)
        self._ready = []


def prepared_file(transaction: PreparedTransaction) -> str:
    """Return the file of a prepared transaction."""
    return f"{PREPARED}/{transaction.name}{SUFFIX}"


def load_prepared_index(store: Store, transaction: PreparedTransaction, source: Position) -> SegmentIndex:
    """Read the index of a prepared transaction.

    :param source: the slot and cluster of the journal.
    :raises JournalError: the index is missing or damaged.
    """
    file = prepared_file(transaction)
    location = f"{file} in the journal {store.url}"
    try:
        size, _ = store.about(file)
        tail = store.read(file, max(0, size - FOOTER_BYTES), FOOTER_BYTES)
        try:
            offset = index_offset(tail)
        except JournalError as error:
            raise DamagedJournal(f"{location} is damaged: {error}") from None
        data = store.read(file, offset, max(0, size - offset))
    except FileNotFoundError:
        raise DamagedJournal(
            f"{location} is missing: the prepared transaction {transaction.gid!r} is undecided, and the server does not resend it"
        ) from None
    loaded = load(data, offset, location)
    require_own(source, loaded, location)
    return loaded


def read_prepared(store: Store, transaction: PreparedTransaction, source: Position) -> Iterator[Slice]:
    """Read the slices of a prepared transaction.

    :param source: the slot and cluster of the journal.
    :raises JournalError: its file is missing or damaged.
    """
    index = load_prepared_index(store, transaction, source)
    file = prepared_file(transaction)
    location = f"{file} in the journal {store.url}"
    assembler = Assembler(Types(index.types), binary=index.binary)
    for number, block in enumerate(index.blocks):
        if index.earlier_types:
            assembler.retype(Types(index.types_of_block(number)))
        data = read_block(store, file, block)
        decode = block_decoder(index, block).decode
        try:
            parts = assembler.feed(decode(payload) for payload in frames(data))
        except (ProtocolError, JournalError) as error:
            raise DamagedJournal(f"{location} is damaged: {error}") from None
        for part in parts:
            header = part.transaction
            if header is None or (header.commit_lsn, header.xid) != (transaction.lsn, transaction.xid):
                raise DamagedJournal(f"{location} is damaged: it has another transaction")
            yield part
