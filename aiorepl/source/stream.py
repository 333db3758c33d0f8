"""``aiorepl.connect``: one consumer reads transaction by transaction and acknowledges them itself.

The consumer pulls. While it does not, about a megabyte is read ahead and then the server waits; status updates continue.
"""

from __future__ import annotations

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
from aiorepl.source.transaction_stream import ReplicationTransaction, TransactionStream
from aiorepl.suggestions import require_options
from aiorepl.transactions.slices import Slice

_CONSUMER: Final = "stream"

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


class ReplicationStream(TransactionStream):
    """The transactions of a slot, in commit order. ``aiorepl.connect`` makes a stream; one task may use it.

    Any call may be cancelled and repeated without loss. A step in progress (a reconnect, a catalog look-up, a poll of the
    SQL interface) continues meanwhile, so it completes even if it takes longer than the caller's time-outs.
    """

    def __init__(self, capture: Capture) -> None:
        super().__init__(Resumable(capture.receive, "aiorepl stream"))
        self._capture = capture
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

    @property
    def confirmed(self) -> LSN:
        """The LSN with which the next status confirms the slot: all transactions that end before this LSN are acknowledged.

        :raises RuntimeError: the stream was not entered.
        """
        return self._ledger.flushed

    async def ack(self, transaction: ReplicationTransaction) -> None:
        """Acknowledge everything up to the end of ``transaction``: the consumer has made it durable.

        The next status confirms the transaction to the server, within about a second. If this process crashes before the status, or the
        server crashes before its next checkpoint, the next start may deliver the transaction again. A void transaction is not confirmed.

        :raises ValueError: the transaction has not been read to its end, or is of another stream.
        :raises RuntimeError: the stream was not entered, or is closed: nothing would be confirmed.
        """
        if transaction.void:
            return
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

    def _passed(self, part: Slice) -> None:
        """Acknowledge WAL without changes, if every transaction before it is acknowledged."""
        previous = self._current
        acknowledged = previous is None or (previous.end_lsn or LSN(0)) <= self._ledger.flushed
        if part.end_lsn is not None and acknowledged:
            self._ledger.durable(_CONSUMER, part.end_lsn)
