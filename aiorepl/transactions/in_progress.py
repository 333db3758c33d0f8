"""All transactions that are not committed yet, within one byte budget: those in progress by xid, prepared ones by gid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiorepl.errors import ProtocolError, SpoolError
from aiorepl.lsn import LSN
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
# The minimum for transactions, chunks and descriptions together, even if the budget is smaller.
_MINIMUM: Final = 8 * 1024 * 1024


class InProgress:
    """Keeps the transactions that are not committed yet.

    The budget includes data that cannot go to the spool: empty transactions, descriptions of tables, and the index of
    chunks in the spool. Content gets the rest of the budget, and at least half of it.

    :param budget: bytes in memory for everything; when it is exceeded, the largest content goes to the spool.
    :param slice_bytes: the approximate size of a slice, and of a chunk in the spool.
    """

    def __init__(self, budget: int, spool: Spool, slice_bytes: int = SLICE_BYTES) -> None:
        self._budget = self._room = budget
        self._spool = spool
        self._slice_bytes = slice_bytes
        self._content = 0
        self._fixed = 0
        self._streams: dict[int, Pending] = {}
        # Prepared transactions by gid, each with the end LSN of its PREPARE.
        self._prepared: dict[str, tuple[Pending, int]] = {}
        self._preparing: Pending | None = None

    @property
    def memory(self) -> int:
        """Bytes in memory."""
        return self._content + self._fixed

    @property
    def fixed(self) -> int:
        """The bytes in memory that cannot go to the spool."""
        return self._fixed

    @property
    def spooled(self) -> int:
        """Bytes in the spool."""
        return sum(pending.spooled_bytes for pending in self._all() if pending.chunks)

    def __len__(self) -> int:
        return len(self._streams) + len(self._prepared)

    def clear(self) -> None:
        """Drop all transactions; the server sends them again on the next connection."""
        self._streams.clear()
        self._prepared.clear()
        self._preparing = None
        self._content = 0
        self._fix(-self._fixed)

    def empty(self, xid: int) -> Pending:
        """Return a transaction without content. ``InProgress`` does not keep it."""
        return Pending(xid, self._slice_bytes)

    def stream_start(self, message: m.StreamStart) -> Pending:
        """Begin a stream block.

        :raises ProtocolError: the flag for the first segment contradicts the blocks before.
        :raises SpoolError: too many transactions are in progress.
        """
        pending = self._streams.get(message.xid)
        if message.first_segment != (pending is None):
            problem = (
                "is not set, but there was no segment before"
                if pending is None
                else "is set, but there were segments before"
            )
            raise ProtocolError(f"{problem}: {message.xid}", message="Stream Start", field="first segment")
        if pending is None:
            pending = self._streams[message.xid] = self._begin(message.xid)
        return pending

    def add(self, pending: Pending, message: Content) -> None:
        """Add content to a transaction.

        :raises SpoolError: the budget is exceeded and the disk is full.
        """
        self._content += pending.add(message)
        if self._content > self._room:
            self._relieve()

    def describe(self, pending: Pending, described: Relation | Type) -> None:
        """Take a description from a stream block; it applies to that transaction only.

        :raises SpoolError: the descriptions take too much memory.
        """
        self._charge(pending, _DESCRIPTION * len(described.payload))

    def stream_abort(self, message: m.StreamAbort) -> None:
        """Roll back a streamed transaction, or a subtransaction of it.

        PostgreSQL 18 also sends this for subtransactions of a transaction that it never streamed, if it found before
        streaming that the transaction had rolled back (``ReorderBufferCheckAndTruncateAbortedTXN``). These are ignored.

        :raises ProtocolError: the transaction is not in progress.
        :raises SpoolError: the spool cannot be read, or its content is damaged.
        """
        if message.subxid != message.xid and message.xid not in self._streams:
            return
        pending = self._stream(message.xid, "Stream Abort")
        if message.subxid == message.xid:
            self._forget(self._streams.pop(message.xid))
            return
        memory, chunks = pending.memory, pending.chunks
        pending.abort(message.subxid)
        self._content += pending.memory - memory
        self._charge(pending, (pending.chunks - chunks) * _CHUNK)

    def take_stream(self, xid: int, message: str) -> Pending:
        """Remove and return a streamed transaction.

        :param message: the name of the message that ends it.
        :raises ProtocolError: the transaction is not in progress.
        """
        pending = self._stream(xid, message)
        self._forget(self._streams.pop(xid))
        return pending

    def begin_prepare(self, message: m.BeginPrepare) -> Pending:
        """Begin a transaction that is sent whole up to its PREPARE."""
        self._preparing = self._begin(message.xid)
        return self._preparing

    def take_preparing(self) -> Pending | None:
        """Remove and return the transaction that ``begin_prepare`` began."""
        pending, self._preparing = self._preparing, None
        if pending is not None:
            self._forget(pending)
        return pending

    def prepare(self, message: m.Prepare | m.StreamPrepare, pending: Pending) -> None:
        """Keep a prepared transaction under its gid.

        :raises ProtocolError: the gid is in use.
        """
        if message.gid in self._prepared:
            raise ProtocolError("is prepared already", message="Prepare", field="gid")
        self._prepared[message.gid] = pending, message.end_lsn
        self._content += pending.memory
        self._fix(pending.fixed)

    def take_prepared(self, message: m.CommitPrepared | m.RollbackPrepared) -> Pending | None:
        """Remove and return the transaction that ``message`` decides; ``None`` if its PREPARE was not sent.

        :raises ProtocolError: another transaction is prepared under this gid. That transaction is kept.
        """
        found = self._prepared.get(message.gid)
        if found is None:
            return None
        pending, prepare_end_lsn = found
        if pending.xid != message.xid:
            raise ProtocolError(
                f"is of transaction {message.xid}, but transaction {pending.xid} is prepared under its gid",
                message=_OUTCOMES[type(message)],
                field="xid",
            )
        if isinstance(message, m.RollbackPrepared) and message.prepare_end_lsn != prepare_end_lsn:
            raise ProtocolError(
                f"names the PREPARE that ends at {LSN(message.prepare_end_lsn)}, but the one of its gid ends at "
                f"{LSN(prepare_end_lsn)}",
                message="Rollback Prepared",
                field="prepare end LSN",
            )
        del self._prepared[message.gid]
        self._forget(pending)
        return pending

    def _stream(self, xid: int, message: str) -> Pending:
        pending = self._streams.get(xid)
        if pending is None:
            raise ProtocolError(f"{UNKNOWN}: {xid}", message=message, field="xid")
        return pending

    def _begin(self, xid: int) -> Pending:
        pending = self.empty(xid)
        self._charge(pending, TRANSACTION)
        return pending

    def _forget(self, pending: Pending) -> None:
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
        if self._fixed > max(half, _MINIMUM):
            raise SpoolError(
                f"{len(self)} transactions in progress take {self._fixed} bytes of memory that cannot go to the spool, more "
                "than half of transaction_buffer_bytes: end transactions on the source, or raise transaction_buffer_bytes"
            )
        if self._content > self._room:
            self._relieve()

    def _relieve(self) -> None:
        """Move the largest content to the spool."""
        largest = max(self._all(), key=lambda each: each.memory)
        memory, chunks = largest.memory, largest.chunks
        largest.spill(self._spool)
        self._content -= memory
        self._charge(largest, (largest.chunks - chunks) * _CHUNK)

    def _all(self) -> Iterator[Pending]:
        yield from self._streams.values()
        yield from (pending for pending, _ in self._prepared.values())
        if self._preparing is not None:
            yield self._preparing


_OUTCOMES: Final[dict[type, str]] = {
    m.CommitPrepared: "Commit Prepared",
    m.RollbackPrepared: "Rollback Prepared",
}
