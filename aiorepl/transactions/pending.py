"""Transactions that are not committed yet: streamed ones in progress, and prepared ones.

Their content waits in memory within one byte budget for all; when it is exceeded, the largest content goes to the spool.
What a subtransaction sent is dropped when it aborts by cutting the tail off at its first change: everything behind
that is its own, or of subtransactions inside it, or a message that the server sends under the name of the top-level
transaction. (PostgreSQL's apply worker cuts at the same place: ``stream_abort_internal`` in worker.c.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

from aiorepl import byteops
from aiorepl.errors import SpoolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.framing import unframed
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.pgoutput.rows import RowMessage
from aiorepl.transactions import changes as c
from aiorepl.transactions.changes import row_change
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.spool import Extent, Spool
from aiorepl.transactions.transaction import Transaction

LayoutOf = Callable[[Relation], Layout]

# The approximate size of a slice, and of a chunk in the spool.
SLICE_BYTES: Final = 1024 * 1024
# What a change costs in memory beside its message's bytes: the message, the change, their places in lists.
OVERHEAD: Final = 400
# Memory for each subtransaction with changes in memory.
SUBTRANSACTION: Final = 160
# C's own numbers in the compiled form.
_OVERHEAD, _SUBTRANSACTION = OVERHEAD, SUBTRANSACTION
_XID_BYTES: Final = slice(1, 5)
_CONTENT: Final = frozenset(b"IUDTM")


@dataclass(slots=True)
class _Chunk:
    """A part of the content in the spool that can be decoded alone: ``count`` changes, beginning with number ``first``.

    :param xid: the xid of the changes' stream block; ``None`` if they were not streamed.
    :param low, high: the least and the greatest subtransaction that may begin in this chunk, as distances from the
        transaction's xid; those in between may be in it or not.
    :param reach: the greatest ``high`` of this and all earlier chunks.
    :param relations: the tables whose rows the chunk may contain.
    """

    xid: int | None
    first: int
    count: int
    extent: Extent
    size: int
    low: int
    high: int
    reach: int
    relations: tuple[Relation, ...]


class Pending:
    """The content of one transaction. ``memory`` is the size of the content in memory, ``fixed`` that of the bookkeeping."""

    def __init__(self, xid: int, slice_bytes: int = SLICE_BYTES) -> None:
        self.xid = xid
        self._slice_bytes = slice_bytes
        self.origin: str | None = None
        self.memory = 0
        self.fixed = 0
        self._messages: list[c.Content] = []
        # The number of changes in the spool, which come before those in memory.
        self._spooled = 0
        self._chunks: list[_Chunk] = []
        # The number of the first change of each subtransaction in memory. For the spool, this is read from the chunks: a
        # transaction may have millions of subtransactions.
        self._firsts: dict[int, int] = {}

    def __len__(self) -> int:
        return self._spooled + len(self._messages)

    @property
    def chunks(self) -> int:
        """The number of its chunks in the spool."""
        return len(self._chunks)

    @property
    def spooled_bytes(self) -> int:
        """Its bytes in the spool."""
        return sum(chunk.extent.length for chunk in self._chunks)

    def add(self, message: c.Content) -> int:
        """Take a change, and return what it costs in memory."""
        cost = len(message.payload) + _OVERHEAD
        xid = message.xid
        if xid is not None and xid != self.xid and xid not in self._firsts:
            self._firsts[xid] = self._spooled + len(self._messages)
            cost += _SUBTRANSACTION
        self._messages.append(message)
        self.memory += cost
        return cost

    def abort(self, subxid: int) -> None:
        """Drop a subtransaction that rolled back; it may have no changes.

        :raises SpoolError: its beginning cannot be read back.
        """
        if self._chunks and self._abort_spooled(subxid):
            return
        first = self._firsts.get(subxid)
        if first is None:
            return
        for message in self._messages[first - self._spooled :]:
            self.memory -= len(message.payload) + OVERHEAD
        del self._messages[first - self._spooled :]
        # They are in the order of their places.
        while self._firsts:
            xid, place = self._firsts.popitem()
            if place < first:
                self._firsts[xid] = place
                break
            self.memory -= SUBTRANSACTION

    def spill(self, spool: Spool) -> None:
        """Move the content in memory to the spool, a chunk at a time.

        :raises SpoolError: when there is no room; everything is still here.
        """
        firsts = list(self._firsts.items())
        chunks: list[_Chunk] = []
        reach = self._chunks[-1].reach if self._chunks else 0
        place, behind, at = self._spooled, len(self), 0
        while place < behind:
            chunk = self._write(spool, place)
            place += chunk.count
            while at < len(firsts) and firsts[at][1] < place:
                distance = self._distance(firsts[at][0])
                chunk.low, chunk.high = min(chunk.low, distance), max(chunk.high, distance)
                at += 1
            chunk.reach = reach = max(reach, chunk.high)
            chunks.append(chunk)
        self._chunks += chunks
        self._spooled += len(self._messages)
        self._messages.clear()
        self._firsts.clear()
        self.memory = 0

    def _write(self, spool: Spool, first: int) -> _Chunk:
        xid = None if self._messages[first - self._spooled].xid is None else self.xid
        data = bytearray()
        size = 0
        known: set[int] = set()
        relations: dict[Relation, None] = {}
        last: Any = None
        place, behind = first, self._spooled + len(self._messages)
        while place < behind and len(data) < self._slice_bytes:
            message = self._messages[place - self._spooled]
            # Asked of each row, so by the last one's first.
            if not isinstance(message, RowMessage) or message.relation is not last:
                for described in _descriptions(message, known, xid):
                    byteops.put_framed(data, described, 0, 0)
                last = message.relation if isinstance(message, RowMessage) else None
                if last is not None:
                    relations[last] = None
            payload = message.payload
            byteops.put_framed(data, payload, 0, 0)
            size += len(payload) + _OVERHEAD
            place += 1
        return _Chunk(xid, first, place - first, spool.write(data), size, 1 << 32, 0, 0, tuple(relations))

    def _distance(self, subxid: int) -> int:
        """The distance of an xid from the transaction's own, modulo 2**32."""
        return subxid - self.xid & 0xFFFF_FFFF

    def _abort_spooled(self, subxid: int) -> bool:
        """Drop everything from the first change of a subtransaction on, if that change is in the spool."""
        distance = self._distance(subxid)
        for number in range(
            bisect_left(self._chunks, distance, key=lambda chunk: chunk.reach), len(self._chunks)
        ):
            chunk = self._chunks[number]
            if chunk.low <= distance <= chunk.high and self._cut(number, subxid):
                self._messages.clear()
                self._firsts.clear()
                self.memory = 0
                return True
        return False

    def _cut(self, number: int, subxid: int) -> bool:
        """Drop everything from the first change of a subtransaction on, if that change is in this chunk."""
        chunk, sought = self._chunks[number], subxid.to_bytes(4, "big")
        data = chunk.extent.read()
        count, at, size = 0, 0, 0
        for payload in unframed(data):
            if payload[0] in _CONTENT:
                if count == chunk.count:
                    break
                if payload[_XID_BYTES] == sought:
                    self._spooled = chunk.first + count
                    del self._chunks[number + 1 :]
                    if count:
                        chunk.count, chunk.size = count, size
                        chunk.extent.shorten(data[:at])
                    else:
                        del self._chunks[number]
                    return True
                count += 1
                size += len(payload) + OVERHEAD
            at += 4 + len(payload)
        return False

    def slices(
        self, transaction: Transaction, layout: LayoutOf, *, known: int = 0
    ) -> Iterator[tuple[Sequence[c.Change], int]]:
        """The content as changes of ``transaction``, in parts of about a megabyte, each with its size.

        :param known: leave out this many at the beginning.
        """
        for chunk in self._chunks:
            skip = max(0, known - chunk.first)
            if skip < chunk.count:
                changes = SpooledChanges(chunk, transaction, layout, skip)
                if any(layout(relation).expands() for relation in chunk.relations):
                    yield from self._apart(changes)
                else:
                    yield changes, chunk.size
        ordinal = max(known, self._spooled)
        while ordinal < len(self):
            part, size = self._portion(ordinal, transaction, layout)
            yield part, size
            ordinal += len(part)

    def _apart(self, changes: SpooledChanges) -> Iterator[tuple[Sequence[c.Change], int]]:
        """A chunk whose text can be much longer than it is, in parts by the text, which are kept."""
        part: list[c.Change] = []
        size = 0
        for change in changes:
            message: Any = change.message  # type: ignore[attr-defined]  # whatever waits is of a message
            part.append(change)
            size += len(message.payload) + OVERHEAD
            if isinstance(change, c.RowChange):
                size += change.layout.expansion(message)
            if size >= self._slice_bytes:
                yield part, size
                part, size = [], 0
        if part:
            yield part, size

    def _portion(
        self, ordinal: int, transaction: Transaction, layout_of: LayoutOf
    ) -> tuple[list[c.Change], int]:
        """A slice of what is in memory, from ``ordinal`` on."""
        part: list[c.Change] = []
        size = 0
        relation: Any = None
        layout: Any = None
        behind = self._spooled + len(self._messages)
        while ordinal < behind and size < self._slice_bytes:
            message = self._messages[ordinal - self._spooled]
            if isinstance(message, RowMessage):
                if message.relation is not relation:
                    relation, layout = message.relation, layout_of(message.relation)
                    layout.expands()
                part.append(row_change(transaction, ordinal, layout, message))
                size += layout.expansion(message)
            else:
                part.append(c.change_of(transaction, ordinal, message, layout_of))
            size += len(message.payload) + _OVERHEAD
            ordinal += 1
        return part, size


class SpooledChanges(Sequence[c.Change]):
    """Changes that are read from the spool each time they are walked; none is kept."""

    __slots__ = ("_chunk", "_layout", "_skip", "_transaction")

    def __init__(
        self,
        chunk: _Chunk,
        transaction: Transaction,
        layout: LayoutOf,
        skip: int,
    ) -> None:
        self._chunk = chunk
        self._transaction = transaction
        self._layout = layout
        self._skip = skip

    @property
    def first_ordinal(self) -> int:
        """The ordinal of the first change; those of the others follow without a gap."""
        return self._chunk.first + self._skip

    @property
    def relations(self) -> tuple[Relation, ...]:
        """Whose rows there may be."""
        return self._chunk.relations

    def by(self, layout: LayoutOf) -> SpooledChanges:
        """The same, laid out by others."""
        return SpooledChanges(self._chunk, self._transaction, layout, self._skip)

    def __len__(self) -> int:
        return self._chunk.count - self._skip

    def __iter__(self) -> Iterator[c.Change]:
        return iter(self._between(self._skip, self._chunk.count))

    def _between(self, first: int, behind: int) -> list[c.Change]:
        chunk = self._chunk
        data = chunk.extent.read()
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
    def __getitem__(self, place: slice) -> Sequence[c.Change]: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice) and place.stop is None and place.step is None and (place.start or 0) >= 0:
            # What a replay repeats is left out without reading anything.
            skip = min(self._skip + (place.start or 0), self._chunk.count)
            return SpooledChanges(self._chunk, self._transaction, self._layout, skip)
        if isinstance(place, int) and 0 <= place < len(self):
            # Who asks for the first shall not read the others.
            return self._between(self._skip + place, self._skip + place + 1)[0]
        return list(self)[place]

    def __repr__(self) -> str:
        return f"<{len(self)} spooled changes>"


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
        at = start + byteops.uint32(octets_, at) if start <= size else size + 1
        if at > size:
            break
        message = decoder.decode(byteops.cut(octets_, start, at))
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
