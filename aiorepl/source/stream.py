"""``aiorepl.connect``: one consumer reads transaction by transaction and acknowledges them itself.

The consumer pulls. While it does not, about a megabyte is read ahead and then the server waits; status updates continue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Self, Unpack, overload

from anyio import CancelScope

from aiorepl.cancellation import Resumable, require_asyncio
from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.retry import RetryPolicy
from aiorepl.source.capture import Capture
from aiorepl.source.ledger import Ledger
from aiorepl.source.source import Source, SourceOptions
from aiorepl.suggestions import require_options
from aiorepl.transactions.changes import Change
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction

_CONSUMER: Final = "stream"
# Yield to other tasks after this many bytes.
_TURN_BYTES: Final = 1024 * 1024

FOR_EVER: Final = RetryPolicy(timeout=None)


@overload
def connect(
    dsn: Source, *, until: LSN | Literal["now"] | None = None, reconnect: RetryPolicy | None = FOR_EVER
) -> ReplicationStream: ...
@overload
def connect(
    dsn: str | None = None,
    *,
    slot: str,
    publication: str | tuple[str, ...] | list[str],
    until: LSN | Literal["now"] | None = None,
    reconnect: RetryPolicy | None = FOR_EVER,
    **options: Unpack[SourceOptions],
) -> ReplicationStream: ...
@checked(empty=("dsn",), own=("until",))
def connect(
    dsn: str | Source | None = None,
    *,
    until: LSN | Literal["now"] | None = None,
    reconnect: RetryPolicy | None = FOR_EVER,
    **options: Any,
) -> ReplicationStream:
    """Consume a slot, transaction by transaction::

        async with aiorepl.connect(dsn, slot="orders", publication="shop") as stream:
            async for transaction in stream:
                async for change in transaction:
                    ...
                await stream.ack(transaction)

    Nothing is connected before ``async with``, which raises the errors of a start: ConnectionFailed, ConfigurationError
    (the server or a publication does not fit) and SlotError (the slot is missing, lost or in use). Reading raises what a
    reconnect cannot solve; with ``reconnect=None`` also ConnectionLost.

    :param dsn: a DSN or URL as asyncpg takes it, ``None`` for the PG* environment, or an ``aiorepl.Source``, which has all
        other options itself.
    :param slot: the replication slot's name.
    :param publication: one name or several.
    :param until: stop before the first transaction that commits at or after this LSN; ``"now"``: at the end of WAL.
    :param reconnect: how to retry after a lost connection; ``None``: never. The first connection is not retried.
    :param options: further parameters of ``aiorepl.Source``: ``create_slot``, ``temporary``, ``messages``, ``origin`` …
    :raises ConfigurationError: the options contradict each other, or are given beside a ``Source``.
    """
    required = ("slot", "publication")
    if not isinstance(dsn, Source):
        require_options("connect", options, (*SourceOptions.__annotations__, *required, "until", "reconnect"))
        if missing := [name for name in required if name not in options]:
            raise TypeError(f"connect() needs {' and '.join(missing)}, or a Source")
        source = Source(dsn, **options)
    elif options:
        raise ConfigurationError(f"set these in the Source instead: {', '.join(sorted(options))}")
    else:
        source = dsn
    return ReplicationStream(Capture(source, retry=reconnect, until=until))


class ReplicationStream:
    """The transactions of a slot, in commit order. ``aiorepl.connect`` makes a stream; one task may use it.

    Any call may be cancelled and repeated without loss. A step in progress (a reconnect, a catalog look-up, a poll of the
    SQL interface) continues meanwhile, so it completes even if it takes longer than the caller's time-outs.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._slices: deque[Slice] = deque()
        # Bytes returned since the last yield to the event loop.
        self._bytes_since_yield = 0
        self._receiving = Resumable(capture.receive, "aiorepl stream")
        self._finished = False
        self._current: ReplicationTransaction | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        require_asyncio()
        try:
            result = await self._capture.connect()
            await self._capture.begin(result.position.lsn, (_CONSUMER,))
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
                self._acknowledge_idle(part)
                continue
            self._current = ReplicationTransaction(self, part)
            return self._current

    @property
    def confirmed(self) -> LSN:
        """The LSN with which the next status confirms the slot: all transactions that end before this LSN are acknowledged.

        :raises RuntimeError: the stream was not entered.
        """
        return self._ledger.flushed

    async def ack(self, transaction: ReplicationTransaction) -> None:
        """Acknowledge everything up to the end of ``transaction``: the consumer has made it durable.

        The next status confirms it to the server, within about a second. If this process crashes before that, or the server crashes
        before its next checkpoint, the next start may deliver the transaction again.

        :raises ValueError: the transaction has not been read to its end, or is of another stream.
        :raises RuntimeError: the stream was not entered, or is closed: nothing would be confirmed.
        """
        if transaction._stream is not self:
            raise ValueError("acknowledge a transaction to the stream that it was read from")
        if self._closed:
            raise RuntimeError("the stream is closed: acknowledge a transaction within its async with")
        if transaction.end_lsn is None:
            raise ValueError("read a transaction to its end before acknowledging it")
        self._ledger.durable(_CONSUMER, transaction.end_lsn)

    async def visible(self, transaction: ReplicationTransaction) -> None:
        """Wait until every new snapshot of the database sees ``transaction``, whose rows you are going to read again.

        With ``visible=True`` the stream itself waits before it returns a transaction. A prepared transaction becomes visible when
        it is committed. A message between transactions needs no wait.

        :raises SlotError: the transaction is not visible after ``visible_timeout``.
        :raises ConnectionLost: the server was restarted meanwhile, or the connection was lost; call this again after the next read.
        :raises ConnectionFailed, ServerError: the server cannot be asked.
        """
        if transaction.transaction is not None:
            await self._capture.visible(transaction.transaction)

    def __repr__(self) -> str:
        if self._closed:
            state = "closed"
        elif self._capture.ledger is None:
            state = "not entered"
        else:
            state = "finished" if self._finished else f"open, confirmed up to {self.confirmed}"
        return f"<ReplicationStream {self._capture.source.slot}: {state}>"

    @property
    def _ledger(self) -> Ledger:
        if self._capture.ledger is None:
            raise RuntimeError("enter the stream first: async with aiorepl.connect(…) as stream")
        return self._capture.ledger

    async def _stop(self) -> None:
        self._closed = True
        # Within a cancelled scope anyio cancels every await, and the slot would stay in use.
        with CancelScope(shield=True):
            try:
                await self._receiving.stop()
            finally:
                await self._capture.stop()

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

    def _acknowledge_idle(self, part: Slice) -> None:
        """Acknowledge WAL without changes, if every transaction before it is acknowledged."""
        previous = self._current
        acknowledged = previous is None or (previous.end_lsn or LSN(0)) <= self._ledger.flushed
        if part.end_lsn is not None and acknowledged:
            self._ledger.durable(_CONSUMER, part.end_lsn)


class ReplicationTransaction:
    """A transaction being read: ``async for change in transaction``. The next transaction skips its unread rest.

    A message that is not transactional comes as a transaction of its own, whose ``xid``, ``commit_lsn`` and ``commit_time`` are
    ``None``.
    """

    def __init__(self, stream: ReplicationStream, first: Slice) -> None:
        self._stream = stream
        self._slice = first
        # The rest of the slice, iterated lazily because it may be on disk.
        self._changes: Iterator[Change] | None = None
        self.transaction: Transaction | None = first.transaction
        self.end_lsn: LSN | None = None
        """The end LSN, which ``ack`` confirms; ``None`` until everything has been read."""

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
