"""A reader that follows a journal: an iterator whose calls may be cancelled and made again."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self

from aiorepl.cancellation import Resumable
from aiorepl.journal.notifier import Notifier
from aiorepl.transactions.slices import Slice


class SliceIterator(AsyncIterator[Slice]):
    """The slices of a journal as they come; it never ends by itself. Made by ``JournalReader.follow``.

    Unlike an async generator, which ends when it is cancelled, it continues after a time-out where it was.

    :param blocks: the slices of one block after the other; an empty list where the journal ends for now.
    :param poll: how many seconds to wait for the writer of this process before the next look.
    """

    def __init__(self, url: str, blocks: AsyncGenerator[list[Slice]], poll: float) -> None:
        self._url = url
        self._blocks = blocks
        self._poll = poll
        self._bell: Notifier | None = None
        self._slices: deque[Slice] = deque()
        # Ends soon in each case, so that nothing runs on where the iterator is dropped.
        self._reading = Resumable(self._read, "aiorepl journal reader")
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Slice:
        if self._bell is None:
            self._bell = Notifier(self._url)
        while not self._slices:
            if self._ended:
                await self._bell.wait(self._poll)
                self._ended = False
            slices = await self._reading.result()
            self._slices.extend(slices)
            self._ended = not slices
        return self._slices.popleft()

    async def aclose(self) -> None:
        """Let go of the journal."""
        try:
            await self._reading.stop()
        finally:
            await self._blocks.aclose()

    async def _read(self) -> list[Slice]:
        return await anext(self._blocks)
