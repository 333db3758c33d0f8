"""Transactions that are not committed yet: streamed ones in progress, and prepared ones.

Their content waits in memory, all of them together within a byte budget; past it the largest goes to a spool file.
What a subtransaction sent is dropped when it aborts by cutting the tail off at its first change: everything behind
that is its own, or of subtransactions inside it, or a message that the server sends under the name of the top-level
transaction. (PostgreSQL's apply worker cuts at the same place: ``stream_abort_internal`` in worker.c.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, overload

from aiorepl.errors import SpoolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.framing import framed, unframed
from aiorepl.pgoutput.relations import Relation
from aiorepl.transactions import changes as c
from aiorepl.transactions.spool import SpoolFile
from aiorepl.transactions.transaction import Transaction

LayoutOf = Callable[[Relation], c.Layout]

# A slice of a delivered transaction, and a chunk of a spool file, are about this large.
SLICE_BYTES: Final = 1024 * 1024
# What a change costs in memory beside its message's bytes: the message, the change, their places in lists.
OVERHEAD: Final = 400


@dataclass(slots=True)
class _Chunk:
    """A stretch of the spool file that decodes alone: ``count`` changes from the ``first`` on."""

    first: int
    count: int
    offset: int
    length: int
    size: int


class Pending:
    """The content of one transaction."""

    def __init__(self, xid: int) -> None:
        self.xid = xid
        self.origin: str | None = None
        self.memory = 0
        self._messages: list[c.Content] = []
        # Changes before the first message in memory: those that are in the spool file.
        self._spooled = 0
        self._spool: SpoolFile | None = None
        self._chunks: list[_Chunk] = []
        # For each subtransaction the number of its first change, and once that is spooled, where it lies.
        self._firsts: dict[int, int] = {}
        self._offsets: dict[int, int] = {}

    def __len__(self) -> int:
        return self._spooled + len(self._messages)

    @property
    def spooled_bytes(self) -> int:
        """How much of it is on disk."""
        return 0 if self._spool is None else self._spool.size

    def add(self, message: c.Content) -> int:
        """Take a change, and return what it costs in memory."""
        if message.xid is not None and message.xid != self.xid and message.xid not in self._firsts:
            self._firsts[message.xid] = len(self)
        self._messages.append(message)
        cost = len(message.payload) + OVERHEAD
        self.memory += cost
        return cost

    def abort(self, subxid: int) -> None:
        """A subtransaction rolled back; one that never sent a change leaves no trace."""
        first = self._firsts.get(subxid)
        if first is None:
            return
        if first >= self._spooled:
            for message in self._messages[first - self._spooled :]:
                self.memory -= len(message.payload) + OVERHEAD
            del self._messages[first - self._spooled :]
        else:
            self._messages.clear()
            self.memory = 0
            self._cut(first, self._offsets[subxid])
        _forget(self._firsts, first)

    def spill(self, folder: Path | None) -> None:
        """Move what is in memory to disk, a chunk at a time.

        :raises SpoolError: when there is no room; everything is still here.
        """
        if self._spool is None:
            self._spool = SpoolFile(folder)
        before = self._spool.size
        starts = {place: xid for xid, place in self._firsts.items() if place >= self._spooled}
        offsets: dict[int, int] = {}
        chunks: list[_Chunk] = []
        try:
            place, behind = self._spooled, len(self)
            while place < behind:
                chunk = self._write(self._spool, place, starts, offsets)
                chunks.append(chunk)
                place += chunk.count
        except SpoolError:
            self._spool.truncate(before)
            raise
        self._chunks += chunks
        self._offsets |= offsets
        self._spooled += len(self._messages)
        self._messages.clear()
        self.memory = 0

    def _write(self, spool: SpoolFile, first: int, starts: dict[int, int], offsets: dict[int, int]) -> _Chunk:
        chunk = _Chunk(first, 0, spool.size, 0, 0)
        parts: list[bytes] = []
        known: set[int] = set()
        for place in range(first, len(self)):
            message = self._messages[place - self._spooled]
            if place in starts:
                offsets[starts[place]] = chunk.offset + chunk.length
            written = b"".join(framed(payload) for payload in _described(message, known))
            parts.append(written)
            chunk.length += len(written)
            chunk.count += 1
            chunk.size += len(message.payload) + OVERHEAD
            if chunk.length >= SLICE_BYTES:
                break
        spool.append(b"".join(parts))
        return chunk

    def slices(
        self, transaction: Transaction, layout: LayoutOf, *, known: int = 0
    ) -> Iterator[tuple[Sequence[c.Change], int]]:
        """The content as changes of ``transaction``, in parts of about a megabyte, each with its size.

        :param known: leave out this many at the beginning.
        """
        for chunk in self._chunks:
            skip = max(0, known - chunk.first)
            if skip < chunk.count and self._spool is not None:
                yield SpooledChanges(self._spool, chunk, transaction, layout, skip), chunk.size
        part: list[c.Change] = []
        size = 0
        for ordinal, message in enumerate(self._messages, self._spooled):
            if ordinal < known:
                continue
            part.append(c.change_of(transaction, ordinal, message, layout))
            size += len(message.payload) + OVERHEAD
            if size >= SLICE_BYTES:
                yield part, size
                part, size = [], 0
        if part:
            yield part, size

    def _cut(self, first: int, offset: int) -> None:
        assert self._spool is not None
        while self._chunks and self._chunks[-1].first >= first:
            self._chunks.pop()
        if self._chunks:
            last = self._chunks[-1]
            last.count = min(last.count, first - last.first)
            last.length = min(last.length, offset - last.offset)
        self._spool.truncate(offset)
        self._spooled = first
        _forget(self._offsets, offset)


class SpooledChanges(Sequence[c.Change]):
    """Changes that are read from a spool file each time they are walked; none is kept."""

    __slots__ = ("_chunk", "_layout", "_skip", "_spool", "_transaction")

    def __init__(
        self,
        spool: SpoolFile,
        chunk: _Chunk,
        transaction: Transaction,
        layout: LayoutOf,
        skip: int,
    ) -> None:
        self._spool = spool
        self._chunk = chunk
        self._transaction = transaction
        self._layout = layout
        self._skip = skip

    def __len__(self) -> int:
        return self._chunk.count - self._skip

    def __iter__(self) -> Iterator[c.Change]:
        chunk = self._chunk
        decode = Decoder().decode
        layouts: dict[Relation, c.Layout] = {}
        ordinal = chunk.first
        last = chunk.first + chunk.count
        for payload in self._payloads():
            message = decode(payload)
            if isinstance(message, Relation):
                layouts[message] = self._layout(message)
            elif isinstance(message, c.Content) and ordinal < last:
                if ordinal >= chunk.first + self._skip:
                    yield c.change_of(self._transaction, ordinal, message, layouts.__getitem__)
                ordinal += 1

    def _payloads(self) -> Iterator[bytes]:
        try:
            yield from unframed(self._spool.read(self._chunk.offset, self._chunk.length))
        except ValueError as error:
            raise SpoolError(f"the spool holds something else than what was written to it: {error}") from None

    @overload
    def __getitem__(self, place: int) -> c.Change: ...
    @overload
    def __getitem__(self, place: slice) -> list[c.Change]: ...
    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]

    def __repr__(self) -> str:
        return f"<{len(self)} spooled changes>"


def _forget(places: dict[int, int], least: int) -> None:
    """Drop the entries from ``least`` on; they are in order."""
    while places:
        xid, place = places.popitem()
        if place < least:
            places[xid] = place
            return


def _described(message: c.Content, known: set[int]) -> Iterator[bytes]:
    """The message's bytes, and before them the descriptions of its relations that are not ``known`` yet."""
    if isinstance(message, m.Truncate):
        relations = message.relations
    else:
        relations = () if isinstance(message, m.Message) else (message.relation,)
    for relation in relations:
        if id(relation) not in known:
            known.add(id(relation))
            yield from (m.without_xid(named.payload, named.xid) for named in relation.types)
            yield m.without_xid(relation.payload, relation.xid)
    yield m.without_xid(message.payload, message.xid)
