"""``aiorepl.connect``: one consumer, transaction by transaction, acknowledged by hand.

The consumer pulls. While it does not, about a megabyte is read ahead and then the server waits; status updates go
out all the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, overload

from anyio import CancelScope

from aiorepl.cancellation import Resumable
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.retry import RetryPolicy
from aiorepl.source.capture import Capture
from aiorepl.source.ledger import Ledger
from aiorepl.source.source import Source
from aiorepl.transactions.changes import Change
from aiorepl.transactions.transaction import Slice, Transaction

_CONSUMER: Final = "stream"
# Yield to other tasks after this many bytes.
_TURN_BYTES: Final = 1024 * 1024

FOR_EVER: Final = RetryPolicy(timeout=None)


@overload
def connect(
    dsn: Source, *, until: LSN | str | None = None, reconnect: RetryPolicy | None = FOR_EVER
) -> ReplicationStream: ...
@overload
def connect(
    dsn: str | None = None,
    *,
    slot: str,
    publication: str | tuple[str, ...] | list[str],
    until: LSN | str | None = None,
    reconnect: RetryPolicy | None = FOR_EVER,
    **options: Any,
) -> ReplicationStream: ...
def connect(
    dsn: str | Source | None = None,
    *,
    until: LSN | str | None = None,
    reconnect: RetryPolicy | None = FOR_EVER,
    **options: Any,
) -> ReplicationStream:
    """Consume a slot: ``async with aiorepl.connect(dsn, slot=…, publication=…) as stream``.

    :param dsn: as asyncpg takes it; ``None`` for the PG* environment. Or an ``aiorepl.Source``, which says all of it.
    :param until: stop before the first transaction that commits at or after it; ``"now"``: at the end of WAL.
    :param reconnect: how to go on after a lost connection; ``None`` raises ConnectionLost instead.
    :param options: of ``aiorepl.Source``: ``create_slot``, ``temporary``, ``messages``, ``origin`` …
    :raises ConfigurationError: an option that cannot work.
    """
    if not isinstance(dsn, Source):
        source = Source(dsn, **options)
    elif options:
        raise ConfigurationError(f"the source says it itself: {', '.join(sorted(options))}")
    else:
        source = dsn
    return ReplicationStream(Capture(source, retry=reconnect, until=until))


class ReplicationStream:
    """The transactions of a slot, in commit order. Made by ``aiorepl.connect``; one task may use it.

    Any call may be cancelled and repeated without loss. A step in progress (a reconnect, a catalog look-up, a poll of the
    SQL source) continues meanwhile, so it completes even if it takes longer than the caller's time-outs.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._ledger = Ledger(LSN(0), ())
        self._slices: deque[Slice] = deque()
        # Bytes given out since the last yield to the event loop.
        self._given = 0
        self._receiving = Resumable(capture.receive, "aiorepl stream")
        self._ended = False
        self._current: ReplicationTransaction | None = None

    async def __aenter__(self) -> Self:
        try:
            readied = await self._capture.connect()
            self._ledger = await self._capture.begin(readied.position.lsn, (_CONSUMER,))
        except BaseException:
            await self._capture.roll_back()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

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
                self._idle(part)
                continue
            self._current = ReplicationTransaction(self, part)
            return self._current

    @property
    def confirmed(self) -> LSN:
        """What the slot was or will next be told: every transaction that ended up to here is acknowledged."""
        return self._ledger.flushed

    async def ack(self, transaction: ReplicationTransaction) -> None:
        """Everything up to the end of ``transaction`` is safe with you and need not come again.

        The server is told within a second or so.

        :raises ValueError: when the transaction has not been read to its end.
        """
        if transaction.end_lsn is None:
            raise ValueError("read a transaction to its end before acknowledging it")
        self._ledger.durable(_CONSUMER, transaction.end_lsn)

    async def _stop(self) -> None:
        # Within a cancelled scope anyio cancels every await, and the slot would stay in use.
        with CancelScope(shield=True):
            try:
                await self._receiving.stop()
            finally:
                await self._capture.stop()

    async def _slice(self) -> Slice | None:
        if self._given >= _TURN_BYTES:
            # A consumer that never waits would keep statuses from the server until a huge transaction is read. Reset before
            # the await, for one that is cancelled gives others their turn as well.
            self._given = 0
            await asyncio.sleep(0)
        while not self._slices:
            slices = None if self._ended else await self._receiving.result()
            if slices is None:
                self._ended = True
                return None
            self._slices.extend(slices)
        part = self._slices.popleft()
        self._given += part.size
        return part

    def _idle(self, part: Slice) -> None:
        # Nothing to acknowledge by hand: it is as durable as what came before it.
        before = self._current
        acknowledged = before is None or (before.end_lsn or LSN(0)) <= self._ledger.flushed
        if part.end_lsn is not None and acknowledged:
            self._ledger.durable(_CONSUMER, part.end_lsn)


class ReplicationTransaction:
    """A transaction being read: ``async for change in transaction``. What is left unread is skipped.

    A message that is not transactional comes as one of these with ``transaction`` ``None``.
    """

    def __init__(self, stream: ReplicationStream, first: Slice) -> None:
        self._stream = stream
        self._slice = first
        # The rest of the slice, iterated lazily because it may be on disk.
        self._changes: Iterator[Change] | None = None
        self.transaction: Transaction | None = first.transaction
        self.end_lsn: LSN | None = None
        """The end LSN, known once everything has been read; what ``ack`` confirms."""

    @property
    def xid(self) -> int | None:
        """The transaction id."""
        return None if self.transaction is None else self.transaction.xid

    @property
    def commit_lsn(self) -> LSN | None:
        """Where the commit record starts."""
        return None if self.transaction is None else self.transaction.commit_lsn

    @property
    def commit_time(self) -> datetime | None:
        """When it committed, UTC."""
        return None if self.transaction is None else self.transaction.commit_time

    @property
    def origin(self) -> str | None:
        """The replication origin it came from."""
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
        while await self._advance():
            pass

    async def _advance(self) -> bool:
        """Go to the next slice, if there is one."""
        if self._slice.last:
            self._changes = iter(())
            self.end_lsn = self._slice.end_lsn
            return False
        part = await self._stream._slice()
        if part is None:
            return False
        self._slice, self._changes = part, None
        return True

    def __repr__(self) -> str:
        return f"<ReplicationTransaction {self.xid} at {self.commit_lsn}>"
