"""The content of one transaction that is not committed yet, in memory and in the spool.

When a subtransaction aborts, everything from its first change on is dropped. Every later change belongs to the subtransaction or
to subtransactions inside it, or is a message that the server sends under the toplevel xid. PostgreSQL's apply worker truncates at
the same point: ``stream_abort_internal`` in worker.c.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final

from aiorepl import byteops
from aiorepl.errors import ConnectionLost
from aiorepl.pgoutput.messages import Message
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.rows import RowMessage
from aiorepl.transactions import changes as c
from aiorepl.transactions.changes import row_change
from aiorepl.transactions.lazy_changes import LayoutOf
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.spooled_changes import Chunk, SpooledChanges, descriptions
from aiorepl.transactions.trace import TraceContext
from aiorepl.transactions.transaction import Transaction

# The default size of a slice, and of a chunk in the spool.
SLICE_BYTES: Final = 1024 * 1024
# Memory for a change beside its message's bytes: the objects and their places in lists.
OVERHEAD: Final = 400
# Memory for each subtransaction with changes in memory.
SUBTRANSACTION: Final = 160
# C numbers in the compiled form.
_OVERHEAD, _SUBTRANSACTION = OVERHEAD, SUBTRANSACTION


class DoubtfulMessages(ConnectionLost):
    """Logical messages of a streamed transaction may belong to savepoints that were rolled back. Without streaming, the server
    leaves such messages out.
    """


class Pending:
    """The content of one transaction. ``memory`` is the size of the content in memory, ``fixed`` the size of the bookkeeping.

    :param xid: the toplevel xid.
    :param slice_bytes: the approximate size of a slice, and of a chunk in the spool.
    """

    def __init__(self, xid: int, slice_bytes: int = SLICE_BYTES) -> None:
        self.xid = xid
        self.origin: str | None = None
        self.trace: TraceContext | None = None
        self.messages = False
        """Whether the transaction has logical messages."""
        self.doubtful = False
        """Whether a logical message may belong to a subtransaction that rolled back, see ``abort``."""
        self.memory = 0
        self.fixed = 0
        self._slice_bytes = slice_bytes
        self._messages: list[c.Content] = []
        # The number of changes before those in memory: in the spool, or received on an earlier connection.
        self._spooled = 0
        self._chunks: list[Chunk] = []
        # The ordinal of the first change of each subtransaction in memory. Ordinals in the spool are read from its chunks,
        # because a transaction may have millions of subtransactions.
        self._first_ordinals: dict[int, int] = {}

    def __len__(self) -> int:
        return self._spooled + len(self._messages)

    def begin_at(self, ordinal: int) -> None:
        """Give the first change this ordinal, because the changes before were received on an earlier connection."""
        self._spooled = ordinal

    @property
    def chunks(self) -> int:
        """The number of chunks in the spool."""
        return len(self._chunks)

    @property
    def spooled_bytes(self) -> int:
        """The number of bytes in the spool."""
        return sum(chunk.extent.length for chunk in self._chunks)

    def add(self, message: c.Content) -> int:
        """Add a change, and return the memory that it takes."""
        cost = len(message.payload) + _OVERHEAD
        xid = message.xid
        if xid is not None and xid != self.xid and xid not in self._first_ordinals:
            self._first_ordinals[xid] = self._spooled + len(self._messages)
            cost += _SUBTRANSACTION
        self._messages.append(message)
        self.memory += cost
        return cost

    def abort(self, subxid: int) -> None:
        """Drop a subtransaction that rolled back; it may have no changes.

        A message directly before its first change may belong to the subtransaction, or not; the server does not tell. The same
        holds for the last message, if the subtransaction has no other changes.

        :raises SpoolError: its first change cannot be read back.
        """
        if self._chunks and self._abort_spooled(subxid):
            self.doubtful |= self._spool_ends_with_message()
            return
        first = self._first_ordinals.get(subxid)
        before = (len(self) if first is None else first) - self._spooled - 1
        self.doubtful |= (
            isinstance(self._messages[before], Message) if before >= 0 else self._spool_ends_with_message()
        )
        if first is None:
            return
        for message in self._messages[first - self._spooled :]:
            self.memory -= len(message.payload) + OVERHEAD
        del self._messages[first - self._spooled :]
        # The dictionary is in the order of the ordinals.
        while self._first_ordinals:
            xid, ordinal = self._first_ordinals.popitem()
            if ordinal < first:
                self._first_ordinals[xid] = ordinal
                break
            self.memory -= SUBTRANSACTION

    def spill(self, spool: Spool) -> None:
        """Move the content in memory to the spool, in chunks.

        :raises SpoolError: the spool has no room; all content is still in memory.
        """
        subtransactions = list(self._first_ordinals.items())
        chunks: list[Chunk] = []
        reach = self._chunks[-1].reach if self._chunks else 0
        ordinal, stop, number = self._spooled, len(self), 0
        while ordinal < stop:
            chunk = self._write(spool, ordinal)
            ordinal += chunk.count
            while number < len(subtransactions) and subtransactions[number][1] < ordinal:
                distance = self._distance(subtransactions[number][0])
                chunk.low, chunk.high = min(chunk.low, distance), max(chunk.high, distance)
                number += 1
            chunk.reach = reach = max(reach, chunk.high)
            chunks.append(chunk)
        self._chunks += chunks
        self._spooled += len(self._messages)
        self._forget_memory()

    def _write(self, spool: Spool, first: int) -> Chunk:
        xid = None if self._messages[first - self._spooled].xid is None else self.xid
        data = bytearray()
        size = 0
        described: set[int] = set()
        relations: dict[Relation, None] = {}
        last: Any = None
        ordinal, stop = first, self._spooled + len(self._messages)
        while ordinal < stop and len(data) < self._slice_bytes:
            message = self._messages[ordinal - self._spooled]
            # Most rows have the same relation as the row before.
            if not isinstance(message, RowMessage) or message.relation is not last:
                for description in descriptions(message, described, xid):
                    byteops.put_framed(data, description, 0, 0)
                last = message.relation if isinstance(message, RowMessage) else None
                if last is not None:
                    relations[last] = None
            payload = message.payload
            byteops.put_framed(data, payload, 0, 0)
            size += len(payload) + _OVERHEAD
            ordinal += 1
        return Chunk(xid, first, ordinal - first, spool.write(data), size, 1 << 32, 0, 0, tuple(relations))

    def _distance(self, subxid: int) -> int:
        """The distance of a subxid from the toplevel xid, modulo 2**32."""
        return subxid - self.xid & 0xFFFF_FFFF

    def _abort_spooled(self, subxid: int) -> bool:
        """Drop everything from the first change of a subtransaction on, if that change is in the spool."""
        distance = self._distance(subxid)
        start = bisect_left(self._chunks, distance, key=lambda chunk: chunk.reach)
        for number in range(start, len(self._chunks)):
            chunk = self._chunks[number]
            if not chunk.low <= distance <= chunk.high:
                continue
            left = chunk.truncate(subxid, OVERHEAD)
            if left is not None:
                self._spooled = chunk.first + left
                del self._chunks[number + (left > 0) :]
                self._forget_memory()
                return True
        return False

    def _spool_ends_with_message(self) -> bool:
        return self.messages and bool(self._chunks) and self._chunks[-1].ends_with_message()

    def _forget_memory(self) -> None:
        self._messages.clear()
        self._first_ordinals.clear()
        self.memory = 0

    def slices(
        self, transaction: Transaction, layout_of: LayoutOf, *, known: int = 0
    ) -> Iterator[tuple[Sequence[c.Change], int]]:
        """Yield the content as changes of ``transaction``, in parts of about ``slice_bytes``, each with its size.

        :param known: the number of changes to leave out at the beginning.
        """
        for chunk in self._chunks:
            skip = max(0, known - chunk.first)
            if skip < chunk.count:
                changes = SpooledChanges(chunk, transaction, layout_of, skip)
                if any(layout_of(relation).expands() for relation in chunk.relations):
                    yield from self._split(changes)
                else:
                    yield changes, chunk.size
        ordinal = max(known, self._spooled)
        while ordinal < len(self):
            part, size = self._slice(ordinal, transaction, layout_of)
            yield part, size
            ordinal += len(part)

    def _split(self, changes: SpooledChanges) -> Iterator[tuple[Sequence[c.Change], int]]:
        """Yield a chunk in parts by the size of its text, because text can be much longer than binary values."""
        part: list[c.Change] = []
        size = 0
        for change in changes:
            message: Any = change.message  # type: ignore[attr-defined]  # every pending change has a message
            part.append(change)
            size += len(message.payload) + OVERHEAD
            if isinstance(change, c.RowChange):
                size += change.layout.expansion(message)
            if size >= self._slice_bytes:
                yield part, size
                part, size = [], 0
        if part:
            yield part, size

    def _slice(
        self, ordinal: int, transaction: Transaction, layout_of: LayoutOf
    ) -> tuple[list[c.Change], int]:
        """A slice of the content in memory, from ``ordinal`` on."""
        part: list[c.Change] = []
        size = 0
        relation: Any = None
        layout: Any = None
        stop = self._spooled + len(self._messages)
        while ordinal < stop and size < self._slice_bytes:
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
