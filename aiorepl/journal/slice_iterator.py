"""The iterator that ``JournalReader.follow`` returns. Its calls may be cancelled and repeated."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self

from aiorepl.cancellation import Resumable
from aiorepl.journal.notifier import Notifier
from aiorepl.transactions.slices import Slice


class SliceIterator(AsyncIterator[Slice]):
    """Iterates over the slices of a journal, and waits for more at its end.

    An async generator ends when it is cancelled. This iterator continues where it was, such as after a time-out.

    :param url: the journal's URL.
    :param blocks: yields the slices of one block at a time, and an empty list at the journal's end.
    :param poll: seconds between two looks at the journal's end, unless the writer is in this process and notifies.
    """

    def __init__(self, url: str, blocks: AsyncGenerator[list[Slice]], poll: float) -> None:
        self._url = url
        self._blocks = blocks
        self._poll = poll
        self._notifier: Notifier | None = None
        self._slices: deque[Slice] = deque()
        # One call reads one block, so no task outlives a dropped iterator for long.
        self._reading = Resumable(self._read, "aiorepl journal reader")
        self._at_end = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Slice:
        if self._notifier is None:
            self._notifier = Notifier(self._url)
        while not self._slices:
            if self._at_end:
                await self._notifier.wait(self._poll)
                self._at_end = False
            slices = await self._reading.result()
            self._slices.extend(slices)
            self._at_end = not slices
            slices.clear()  # the generator keeps the list until its next step
        return self._slices.popleft()

    async def aclose(self) -> None:
        """Stop reading."""
        try:
            await self._reading.stop()
        finally:
            await self._blocks.aclose()

    async def _read(self) -> list[Slice]:
        return await anext(self._blocks)
