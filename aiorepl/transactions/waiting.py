"""All transactions that wait for their fate, within one byte budget: by xid while they stream, by gid once prepared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from aiorepl.errors import ProtocolError
from aiorepl.pgoutput import messages as m
from aiorepl.transactions.changes import Content
from aiorepl.transactions.pending import Pending
from aiorepl.transactions.states import UNKNOWN


class Waiting:
    """Keeps what is not committed yet.

    :param budget: bytes in memory for all of it; past that the largest goes to disk.
    :param folder: where spool files are made; the system's temporary folder unless given.
    """

    def __init__(self, budget: int, folder: Path | None) -> None:
        self._budget = budget
        self._folder = folder
        self._memory = 0
        self._streams: dict[int, Pending] = {}
        self._prepared: dict[str, Pending] = {}
        self._preparing: Pending | None = None

    @property
    def memory(self) -> int:
        """Bytes in memory."""
        return self._memory

    @property
    def spooled(self) -> int:
        """Bytes on disk."""
        return sum(pending.spooled_bytes for pending in self._all())

    def __len__(self) -> int:
        return len(self._streams) + len(self._prepared)

    def enter(self, message: m.StreamStart) -> Pending:
        """A block begins.

        :raises ProtocolError: when it says to be the first and is not, or the other way round.
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
            known = self._streams[message.xid] = Pending(message.xid)
        return known

    def add(self, pending: Pending, message: Content) -> None:
        """Content of a transaction that waits.

        :raises SpoolError: when the budget is spent and the disk has no room.
        """
        self._memory += pending.add(message)
        if self._memory > self._budget:
            largest = max(self._all(), key=lambda each: each.memory)
            moved = largest.memory
            largest.spill(self._folder)
            self._memory -= moved

    def abort(self, message: m.StreamAbort) -> None:
        """A streamed transaction rolled back, or a subtransaction of it.

        PostgreSQL 18 tells of subtransactions of which it never streamed anything, when it finds before it streams
        that the whole had rolled back (``ReorderBufferCheckAndTruncateAbortedTXN``): these are passed over.

        :raises ProtocolError: when no such transaction streams.
        """
        if message.subxid != message.xid and message.xid not in self._streams:
            return
        pending = self._stream(message.xid, "Stream Abort")
        self._memory -= pending.memory
        if message.subxid == message.xid:
            del self._streams[message.xid]
        else:
            pending.abort(message.subxid)
            self._memory += pending.memory

    def take_stream(self, xid: int, message: str) -> Pending:
        """The streamed transaction, which waits no longer.

        :raises ProtocolError: when no such transaction streams.
        """
        pending = self._stream(xid, message)
        del self._streams[xid]
        self._memory -= pending.memory
        return pending

    def begin_prepare(self, message: m.BeginPrepare) -> Pending:
        """A transaction begins that is sent whole, and then prepared."""
        self._preparing = Pending(message.xid)
        return self._preparing

    def take_preparing(self) -> Pending | None:
        """What ``begin_prepare`` began, which waits no longer."""
        pending, self._preparing = self._preparing, None
        if pending is not None:
            self._memory -= pending.memory
        return pending

    def prepare(self, gid: str, pending: Pending) -> None:
        """The transaction is prepared as ``gid``.

        :raises ProtocolError: when that name is taken.
        """
        if gid in self._prepared:
            raise ProtocolError("is prepared already", message="Prepare", field="gid")
        self._prepared[gid] = pending
        self._memory += pending.memory

    def take_prepared(self, gid: str) -> Pending | None:
        """What was prepared as ``gid``, which waits no longer; ``None`` when we never saw it."""
        pending = self._prepared.pop(gid, None)
        if pending is not None:
            self._memory -= pending.memory
        return pending

    def _stream(self, xid: int, message: str) -> Pending:
        pending = self._streams.get(xid)
        if pending is None:
            raise ProtocolError(f"{UNKNOWN}: {xid}", message=message, field="xid")
        return pending

    def _all(self) -> Iterator[Pending]:
        yield from self._streams.values()
        yield from self._prepared.values()
        if self._preparing is not None:
            yield self._preparing
