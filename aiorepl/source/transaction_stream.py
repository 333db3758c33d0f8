"""Streams of transactions: the consumer iterates over transactions, and over the changes of each."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Final, Self

from aiorepl.cancellation import Resumable
from aiorepl.lsn import LSN
from aiorepl.transactions.changes import Change
from aiorepl.transactions.resync import is_resync
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction

# Yield to other tasks after this many bytes.
_TURN_BYTES: Final = 1024 * 1024


class TransactionStream(ABC):
    """The base of ``ReplicationStream`` and ``JournalStream``.

    :param receiving: returns the next slices; ``None`` at the end.
    """

    def __init__(self, receiving: Resumable[list[Slice] | None]) -> None:
        self._receiving = receiving
        self._slices: deque[Slice] = deque()
        # Bytes returned since the last yield to the event loop.
        self._bytes_since_yield = 0
        self._finished = False
        self._current: ReplicationTransaction | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReplicationTransaction:
        while True:
            if self._current is not None:
                await self._current.skip()
            part = await self._slice()
            if part is None:
                raise StopAsyncIteration
            if part.transaction is None and not part.changes:
                self._passed(part)
                continue
            self._current = ReplicationTransaction(self, part)
            return self._current

    @abstractmethod
    async def ack(self, transaction: ReplicationTransaction) -> None:
        """Acknowledge everything up to the end of ``transaction``."""

    @abstractmethod
    def _passed(self, part: Slice) -> None:
        """Account for WAL without changes.

        :param part: an empty slice with the end LSN of that WAL.
        """

    async def _slice(self) -> Slice | None:
        if self._bytes_since_yield >= _TURN_BYTES:
            # A consumer that never waits would delay status updates until a huge transaction is read. Reset before the
            # await, because a cancelled await yields as well.
            self._bytes_since_yield = 0
            await asyncio.sleep(0)
        while not self._slices:
            slices = None if self._finished else await self._receiving.result()
            if slices is None:
                self._finished = True
                return None
            self._slices.extend(slices)
        part = self._slices.popleft()
        self._bytes_since_yield += part.size
        return part


class ReplicationTransaction:
    """A transaction being read: ``async for change in transaction``. The next transaction skips its unread rest.

    A ``Resync`` and each message that is not transactional come as a transaction of their own: ``xid``, ``commit_lsn`` and
    ``commit_time`` are ``None``. If a temporary slot loses its connection within a transaction, the last change of the transaction is
    the ``Resync``, and ``void`` is true.
    """

    def __init__(self, stream: TransactionStream, first: Slice) -> None:
        self._stream = stream
        self._slice = first
        # The rest of the slice, iterated lazily because it may be on disk.
        self._changes: Iterator[Change] | None = None
        self.transaction: Transaction | None = first.transaction
        self.end_lsn: LSN | None = None
        """The LSN that ``ack`` confirms: the end of the transaction; ``None`` until everything has been read."""
        self.void = False
        """Whether the connection was lost before the end of the transaction. The rest never comes, so undo or ignore the changes received."""

    @property
    def xid(self) -> int | None:
        """The transaction id."""
        return None if self.transaction is None else self.transaction.xid

    @property
    def commit_lsn(self) -> LSN | None:
        """The LSN where the commit record starts."""
        return None if self.transaction is None else self.transaction.commit_lsn

    @property
    def commit_time(self) -> datetime | None:
        """The time of the commit, in UTC."""
        return None if self.transaction is None else self.transaction.commit_time

    @property
    def origin(self) -> str | None:
        """The name of the replication origin; ``None`` for a local transaction."""
        return None if self.transaction is None else self.transaction.origin

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while True:
            if self._changes is None:
                self._changes = iter(self._slice.changes)
            for change in self._changes:
                return change
            if not await self._advance():
                raise StopAsyncIteration

    async def skip(self) -> None:
        """Skip to the end of the transaction."""
        while await self._advance(skips=True):
            pass

    async def _advance(self, *, skips: bool = False) -> bool:
        """Go to the next slice, if there is one.

        :param skips: return a ``Resync`` as the next item of the stream, instead of as the last change of this transaction.
        """
        if self._slice.last or self.void:
            self._changes = iter(())
            self.end_lsn = None if self.void else self._slice.end_lsn
            return False
        part = await self._stream._slice()
        if part is None:
            return False
        if is_resync(part):
            self.void = True
            if skips:
                self._stream._slices.appendleft(part)
                return False
        self._slice, self._changes = part, None
        return True

    def __repr__(self) -> str:
        return f"<ReplicationTransaction {self.xid} at {self.commit_lsn}>"
