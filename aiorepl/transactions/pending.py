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

from aiorepl import octets
from aiorepl.errors import SpoolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.framing import frame_length
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.pgoutput.rows import RowMessage
from aiorepl.transactions import changes as c
from aiorepl.transactions.changes import row_change
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.spool import SpoolFile
from aiorepl.transactions.transaction import Transaction

LayoutOf = Callable[[Relation], Layout]

# A slice of a delivered transaction, and a chunk of a spool file, are about this large.
SLICE_BYTES: Final = 1024 * 1024
# What a change costs in memory beside its message's bytes: the message, the change, their places in lists.
OVERHEAD: Final = 400
# C's own numbers in the compiled form.
_SLICE_BYTES, _OVERHEAD = SLICE_BYTES, OVERHEAD


@dataclass(slots=True)
class _Chunk:
    """A stretch of the spool file that decodes alone: ``count`` changes from the ``first`` on.

    :param xid: of the stream block that they came in, ``None`` if they did not.
    """

    xid: int | None
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
        xid = message.xid
        if xid is not None and xid != self.xid and xid not in self._firsts:
            self._firsts[xid] = self._spooled + len(self._messages)
        self._messages.append(message)
        cost = len(message.payload) + _OVERHEAD
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
        xid = None if self._messages[first - self._spooled].xid is None else self.xid
        begin, length, size = spool.size, 0, 0
        parts: list[bytes] = []
        known: set[int] = set()
        last: Any = None
        place, behind = first, self._spooled + len(self._messages)
        while place < behind and length < _SLICE_BYTES:
            message = self._messages[place - self._spooled]
            if starts and place in starts:
                offsets[starts[place]] = begin + length
            # Asked of each row, so by the last one's first.
            if not isinstance(message, RowMessage) or message.relation is not last:
                for described in _descriptions(message, known, xid):
                    parts += (frame_length(len(described)), described)
                    length += 4 + len(described)
                last = message.relation if isinstance(message, RowMessage) else None
            payload = message.payload
            parts.append(frame_length(len(payload)))
            parts.append(payload)
            length += 4 + len(payload)
            size += len(payload) + _OVERHEAD
            place += 1
        spool.append(b"".join(parts))
        return _Chunk(xid, first, place - first, begin, length, size)

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
        ordinal = max(known, self._spooled)
        while ordinal < len(self):
            part, size = self._portion(ordinal, transaction, layout)
            yield part, size
            ordinal += len(part)

    def _portion(
        self, ordinal: int, transaction: Transaction, layout_of: LayoutOf
    ) -> tuple[list[c.Change], int]:
        """A slice of what is in memory, from ``ordinal`` on."""
        part: list[c.Change] = []
        size = 0
        relation: Any = None
        layout: Any = None
        behind = self._spooled + len(self._messages)
        while ordinal < behind and size < _SLICE_BYTES:
            message = self._messages[ordinal - self._spooled]
            if isinstance(message, RowMessage):
                if message.relation is not relation:
                    relation, layout = message.relation, layout_of(message.relation)
                part.append(row_change(transaction, ordinal, layout, message))
            else:
                part.append(c.change_of(transaction, ordinal, message, layout_of))
            size += len(message.payload) + _OVERHEAD
            ordinal += 1
        return part, size

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
        return iter(self._between(self._skip, self._chunk.count))

    def _between(self, first: int, behind: int) -> list[c.Change]:
        chunk = self._chunk
        data = self._spool.read(chunk.offset, chunk.length)
        decoder = Decoder()
        if chunk.xid is not None:
            decoder.streaming = Streaming.ON
            decoder.decode(b"S" + chunk.xid.to_bytes(4, "big") + b"\x01")
        return _read(
            data,
            decoder,
            self._transaction,
            self._layout,
            chunk.first,
            chunk.first + first,
            chunk.first + behind,
        )

    @overload
    def __getitem__(self, place: int) -> c.Change: ...
    @overload
    def __getitem__(self, place: slice) -> list[c.Change]: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int) and 0 <= place < len(self):
            # Who asks for the first shall not read the others.
            return self._between(self._skip + place, self._skip + place + 1)[0]
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


def _read(
    data: bytes,
    decoder: Decoder,
    transaction: Transaction,
    layout_of: LayoutOf,
    ordinal: int,
    first: int,
    behind: int,
) -> list[c.Change]:
    """The changes of a chunk from the ``first`` to before ``behind``; ``ordinal`` is that of the first in ``data``.

    A list, a chunk being small: a generator would cost as much again.

    :raises SpoolError: when there is something else in it.
    """
    changes: list[c.Change] = []
    layouts: dict[int, Layout] = {}
    relation: Any = None
    layout: Any = None
    octets_: Any = data  # a pointer in the compiled form
    at, size = 0, len(data)
    while at < size and ordinal < behind:
        start = at + 4
        at = start + octets.uint32(octets_, at) if start <= size else size + 1
        if at > size:
            break
        message = decoder.decode(octets.cut(octets_, start, at))
        if isinstance(message, RowMessage):
            row = message  # known to be one in the compiled form, too
            if row.relation is not relation:
                relation = row.relation
                layout = layouts[id(relation)]
            if ordinal >= first:
                changes.append(row_change(transaction, ordinal, layout, row))
            ordinal += 1
        elif isinstance(message, Relation):
            layouts[id(message)] = layout_of(message)
        elif isinstance(message, (m.Truncate, m.Message)):
            if ordinal >= first:
                changes.append(c.change_of(transaction, ordinal, message, layout_of))
            ordinal += 1
    if ordinal != behind:
        raise SpoolError("the spool holds something else than what was written to it")
    return changes


def _descriptions(message: c.Content, known: set[int], xid: int | None) -> list[bytes]:
    """The descriptions of the message's relations that are not ``known`` yet, as a block of ``xid`` has them."""
    if isinstance(message, m.Truncate):
        relations: tuple[Relation, ...] = message.relations
    else:
        relations = () if isinstance(message, m.Message) else (message.relation,)
    parts: list[bytes] = []
    for relation in relations:
        if id(relation) not in known:
            known.add(id(relation))
            needed: tuple[Relation | Type, ...] = (*relation.types, relation)
            for described in needed:
                plain = m.without_xid(described.payload, described.xid)
                parts.append(plain if xid is None else plain[:1] + xid.to_bytes(4, "big") + plain[1:])
    return parts
