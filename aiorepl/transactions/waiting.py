"""All transactions that wait for their fate, within one byte budget: by xid while they stream, by gid once prepared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiorepl.errors import ProtocolError, SpoolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.transactions.changes import Content
from aiorepl.transactions.pending import SLICE_BYTES, Pending
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.states import UNKNOWN

# Memory for each transaction, here and in the decoder, even if it has no content.
TRANSACTION: Final = 800
# Memory for each chunk in the spool.
_CHUNK: Final = 400
# Memory for a description, per byte of its message.
_DESCRIPTION: Final = 16
# The minimum allowed for all of these, however small the budget.
_LEAST: Final = 8 * 1024 * 1024


class Waiting:
    """Keeps what is not committed yet.

    Data that cannot go to the spool counts as well: empty transactions, descriptions of tables, and the index of chunks in
    the spool. Content gets the rest of the budget, and at least half of it.

    :param budget: bytes in memory for everything; when it is exceeded, the largest content goes to the spool.
    """

    def __init__(self, budget: int, spool: Spool, slice_bytes: int = SLICE_BYTES) -> None:
        self._budget = self._room = budget
        self._spool = spool
        self._slice_bytes = slice_bytes
        self._content = 0
        self._fixed = 0
        self._streams: dict[int, Pending] = {}
        self._prepared: dict[str, Pending] = {}
        self._preparing: Pending | None = None

    @property
    def memory(self) -> int:
        """Bytes in memory."""
        return self._content + self._fixed

    @property
    def fixed(self) -> int:
        """The bytes that cannot go to the spool."""
        return self._fixed

    @property
    def spooled(self) -> int:
        """Bytes in the spool."""
        return sum(pending.spooled_bytes for pending in self._all() if pending.chunks)

    def __len__(self) -> int:
        return len(self._streams) + len(self._prepared)

    def clear(self) -> None:
        """Forget everything; the server sends it again on the next connection."""
        self._streams.clear()
        self._prepared.clear()
        self._preparing = None
        self._content = 0
        self._fix(-self._fixed)

    def empty(self, xid: int) -> Pending:
        """A transaction without content, which is not kept here."""
        return Pending(xid, self._slice_bytes)

    def enter(self, message: m.StreamStart) -> Pending:
        """A block begins.

        :raises ProtocolError: when it says to be the first and is not, or the other way round.
        :raises SpoolError: too many transactions are in progress.
        """
        known = self._streams.get(message.xid)
        if message.first_segment != (known is None):
            problem = (
                "is not set, but none came before"
                if known is None
                else "is set, but there were segments before"
            )
            raise ProtocolError(f"{problem} of {message.xid}", message="Stream Start", field="first segment")
        if known is None:
            known = self._streams[message.xid] = self._begun(message.xid)
        return known

    def add(self, pending: Pending, message: Content) -> None:
        """Content of a transaction that waits.

        :raises SpoolError: when the budget is spent and the disk has no room.
        """
        self._content += pending.add(message)
        if self._content > self._room:
            self._relieve()

    def describe(self, pending: Pending, described: Relation | Type) -> None:
        """Take a description from a stream block; it applies to that transaction only.

        :raises SpoolError: the descriptions take too much memory.
        """
        self._charge(pending, _DESCRIPTION * len(described.payload))

    def abort(self, message: m.StreamAbort) -> None:
        """A streamed transaction rolled back, or a subtransaction of it.

        PostgreSQL 18 tells of subtransactions of which it never streamed anything, when it finds before it streams
        that the whole had rolled back (``ReorderBufferCheckAndTruncateAbortedTXN``): these are passed over.

        :raises ProtocolError: when no such transaction streams.
        :raises SpoolError: the spool cannot be read, or its content is damaged.
        """
        if message.subxid != message.xid and message.xid not in self._streams:
            return
        pending = self._stream(message.xid, "Stream Abort")
        if message.subxid == message.xid:
            self._ended(self._streams.pop(message.xid))
            return
        before, chunks = pending.memory, pending.chunks
        pending.abort(message.subxid)
        self._content += pending.memory - before
        self._charge(pending, (pending.chunks - chunks) * _CHUNK)

    def take_stream(self, xid: int, message: str) -> Pending:
        """The streamed transaction, which waits no longer.

        :raises ProtocolError: when no such transaction streams.
        """
        pending = self._stream(xid, message)
        self._ended(self._streams.pop(xid))
        return pending

    def begin_prepare(self, message: m.BeginPrepare) -> Pending:
        """A transaction begins that is sent whole, and then prepared."""
        self._preparing = self._begun(message.xid)
        return self._preparing

    def take_preparing(self) -> Pending | None:
        """What ``begin_prepare`` began, which waits no longer."""
        pending, self._preparing = self._preparing, None
        if pending is not None:
            self._ended(pending)
        return pending

    def prepare(self, gid: str, pending: Pending) -> None:
        """The transaction is prepared as ``gid``.

        :raises ProtocolError: when that name is taken.
        """
        if gid in self._prepared:
            raise ProtocolError("is prepared already", message="Prepare", field="gid")
        self._prepared[gid] = pending
        self._content += pending.memory
        self._fix(pending.fixed)

    def take_prepared(self, gid: str) -> Pending | None:
        """What was prepared as ``gid``, which waits no longer; ``None`` when we never saw it."""
        pending = self._prepared.pop(gid, None)
        if pending is not None:
            self._ended(pending)
        return pending

    def _stream(self, xid: int, message: str) -> Pending:
        pending = self._streams.get(xid)
        if pending is None:
            raise ProtocolError(f"{UNKNOWN}: {xid}", message=message, field="xid")
        return pending

    def _begun(self, xid: int) -> Pending:
        pending = self.empty(xid)
        self._charge(pending, TRANSACTION)
        return pending

    def _ended(self, pending: Pending) -> None:
        self._content -= pending.memory
        self._fix(-pending.fixed)

    def _charge(self, pending: Pending, cost: int) -> None:
        pending.fixed += cost
        self._fix(cost)

    def _fix(self, cost: int) -> None:
        """Count bytes that cannot go to the spool."""
        self._fixed += cost
        half = self._budget // 2
        self._room = max(self._budget - self._fixed, half)
        if cost <= 0:
            return
        if self._fixed > max(half, _LEAST):
            raise SpoolError(
                f"{len(self)} transactions in progress take {self._fixed} bytes of memory that cannot go to the spool, more "
                "than half of transaction_buffer_bytes: end transactions on the source, or raise transaction_buffer_bytes"
            )
        if self._content > self._room:
            self._relieve()

    def _relieve(self) -> None:
        """Move the largest content to the spool."""
        largest = max(self._all(), key=lambda each: each.memory)
        moved, chunks = largest.memory, largest.chunks
        largest.spill(self._spool)
        self._content -= moved
        self._charge(largest, (largest.chunks - chunks) * _CHUNK)

    def _all(self) -> Iterator[Pending]:
        yield from self._streams.values()
        yield from self._prepared.values()
        if self._preparing is not None:
            yield self._preparing
