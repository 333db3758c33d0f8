"""``aiorepl.follow``: read the journal of another process from its end on, so that several processes share one slot."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from anyio import CancelScope

from aiorepl.cancellation import Resumable, require_asyncio
from aiorepl.checked import checked
from aiorepl.durations import Duration, seconds_of
from aiorepl.journal.following import blocks_from_end
from aiorepl.journal.slice_iterator import SliceIterator
from aiorepl.source.transaction_stream import ReplicationTransaction, TransactionStream
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store
from aiorepl.transactions.slices import Slice


@checked(own=("journal",))
def follow(journal: Location, *, poll: Duration = 0.2) -> JournalStream:
    """Read a journal from its end on, while another process writes to it::

        async with aiorepl.follow("/var/lib/aiorepl/shop") as stream:
            async for transaction in stream:
                async for change in transaction:
                    ...

    Use it in several processes that keep no state, such as web workers: one process holds the slot and writes the journal. The stream
    begins with a ``Resync``. The stream has no cursor, so retention may delete segments before they are read. Another ``Resync`` comes
    after such a loss, and if the journal has a gap, was replaced or is damaged. If there is no journal, the stream waits for one.

    :param journal: the folder of the journal, or its URL in an object store, as in the pipeline's options.
    :param poll: the interval at which the end of the journal is read again, such as ``"50ms"``.
    :raises ConfigurationError: an option is out of range.
    """
    return JournalStream(open_store(journal), seconds_of("follow: poll", poll))


class JournalStream(TransactionStream):
    """The new transactions of a journal, returned by ``aiorepl.follow``. Only one task may use a stream.

    Any call may be cancelled and repeated without loss. Iteration raises JournalError if the journal is still damaged after repeated attempts.
    """

    def __init__(self, store: Store, poll: float) -> None:
        super().__init__(Resumable(self._next, "aiorepl follower"))
        self._url = store.url
        self._iterator = SliceIterator(store.url, blocks_from_end(store), poll)

    async def __aenter__(self) -> Self:
        require_asyncio()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with CancelScope(shield=True):
            await self._receiving.stop()
            await self._iterator.aclose()

    async def ack(self, transaction: ReplicationTransaction) -> None:
        """Do nothing, because no position is kept. The method exists for code that reads streams of both ``connect`` and ``follow``."""

    def _passed(self, part: Slice) -> None:
        pass

    async def _next(self) -> list[Slice] | None:
        return [await anext(self._iterator)]

    def __repr__(self) -> str:
        return f"<JournalStream of {self._url}>"
