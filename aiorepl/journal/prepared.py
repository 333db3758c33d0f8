"""Prepared transactions, kept beside the segments until they are decided.

Once a PREPARE is confirmed the server never sends its rows again, and COMMIT PREPARED brings just the name. So the rows
are made durable here before that, in the form of a segment with one transaction. When it commits they are appended to
the journal under its commit, as if they had come then, and when that is durable they are removed: a segment holds
nothing but what is committed, and its readers know nothing of two-phase commit.

Blocking, and used by the writer alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from aiorepl.errors import DamagedJournal, ProtocolError
from aiorepl.journal.builder import SegmentBuilder
from aiorepl.journal.format import checksum, frames
from aiorepl.journal.index import SegmentIndex, dump, load
from aiorepl.journal.reader import decoder
from aiorepl.journal.store import Store, Upload
from aiorepl.lsn import LSN, ZERO
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.transaction import Slice, Transaction
from aiorepl.values.registry import Types

CONTENT: Final = ".prepared"
INDEX: Final = ".prepared-index"


class PreparedTransactions:
    """Those of one journal. A name is the PREPARE's position and a hash of the gid, which may have any form."""

    def __init__(self, store: Store, block_bytes: int) -> None:
        self._store = store
        self._block_bytes = block_bytes
        self._names: dict[str, str] = {}
        self._builder: SegmentBuilder | None = None
        self._upload: Upload | None = None

    def open(self) -> None:
        """Find what is kept, and remove what a crash left half-way."""
        names = set(self._store.names())
        self._names = {
            name.removesuffix(INDEX).partition("-")[2]: name.removesuffix(INDEX)
            for name in sorted(names)
            if name.endswith(INDEX)
        }
        for name in names:
            if name.endswith(CONTENT) and name.removesuffix(CONTENT) + INDEX not in names:
                self._store.delete(name)

    def add(self, part: Slice) -> None:
        """A slice of a transaction that is being prepared; with its last it is durable on return."""
        header = part.transaction
        assert header is not None
        assert header.gid is not None
        builder = self._builder
        if builder is None or (part.first and builder.open is None):
            builder = self._builder = SegmentBuilder(ZERO, self._block_bytes)
        known = builder.ordinal if builder.open is not None else 0
        left = [change for change in part.changes if change.ordinal >= known]
        builder.add(replace(part, changes=left, two_phase=None))
        self._push(builder)
        if part.last:
            self._publish(builder, f"{header.commit_lsn:016X}-{_hash(header.gid)}")
            self._names[_hash(header.gid)] = f"{header.commit_lsn:016X}-{_hash(header.gid)}"

    def committed(self, header: Transaction, end_lsn: LSN) -> Iterator[Slice]:
        """What was prepared, as the transaction that it became; without changes when we never saw it.

        :raises JournalError: when it is damaged.
        """
        name = self._names.get(_hash(header.gid or ""))
        held: Slice | None = None
        if name is not None:
            index = load(self._store.read(name + INDEX), f"{name}{INDEX} in {self._store.url}")
            for part in self._read(name, index):
                if held is not None:
                    yield held
                before = part.transaction or header
                origin = replace(header, origin=before.origin, prepared=False)
                held = Slice(origin, part.changes, held is None, None, part.size)
        if held is None:
            held = Slice(replace(header, prepared=False), (), True, None, 0)
        yield replace(held, end_lsn=end_lsn)

    def forget(self, gid: str) -> None:
        """It is decided, and that is durable."""
        name = self._names.pop(_hash(gid), None)
        if name is not None:
            self._store.delete(name + INDEX)
            self._store.delete(name + CONTENT)

    def close(self) -> None:
        """Throw away what is not whole; it comes again."""
        if self._upload is not None:
            self._upload.discard()
        self._upload = self._builder = None

    def _push(self, builder: SegmentBuilder) -> None:
        if self._upload is None:
            self._upload = self._store.create()
        # An upload takes all or nothing; what it took must not be given again.
        self._upload.write(builder.take())

    def _publish(self, builder: SegmentBuilder, name: str) -> None:
        index = builder.finish(ZERO, 0)
        self._push(builder)
        assert self._upload is not None
        self._upload.publish(name + CONTENT)
        self._store.write(name + INDEX, dump(index))
        self._upload.discard()
        self._upload = self._builder = None

    def _read(self, name: str, index: SegmentIndex) -> Iterator[Slice]:
        place = f"{name}{CONTENT} in {self._store.url}"
        assembler = Assembler(Types(index.types), binary=index.binary)
        for block in index.blocks:
            data = self._store.read(name + CONTENT, block.offset, block.length)
            if len(data) != block.length or checksum(data) != block.checksum:
                raise DamagedJournal(place, "its checksum does not match")
            decode = decoder(index, block).decode
            try:
                yield from assembler.feed(decode(payload) for payload in frames(data))
            except ProtocolError as error:
                raise DamagedJournal(place, str(error)) from None


def _hash(gid: str) -> str:
    return hashlib.sha256(gid.encode()).hexdigest()[:32]
