"""The task that fills a buffer, and begins anew where a sink has lost what it had been given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aiorepl.delivery.buffer import Cursor, SliceBuffer
from aiorepl.lsn import LSN

T = TypeVar("T")


class Feeder:
    """Fills a buffer until the end of the stream, ``stop``, or an error.

    :param group: where its task runs.
    :param read: puts slices into the buffer, from wherever the reading stands to the end.
    :param go_back: has the next ``read`` begin behind a position, or before it; ``None`` where nothing comes again.
    :param failed: is told what ``read`` raised.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        buffer: SliceBuffer,
        read: Callable[[], Coroutine[Any, Any, None]],
        go_back: Callable[[LSN], Awaitable[None]] | None,
        failed: Callable[[Exception], None],
    ) -> None:
        self.stopped = asyncio.Event()
        """Set when nothing is read any more that has not been read."""
        self._group = group
        self._buffer = buffer
        self._read = read
        self._go_back = go_back
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._turning = asyncio.Lock()

    @property
    def repeats(self) -> bool:
        """Whether what was read can be read again."""
        return self._go_back is not None

    def start(self) -> None:
        """Begin to read."""
        filling = self._fill()
        self._buffer.open()
        self._task = task = self._group.create_task(filling, name="aiorepl reader")
        # Not in the task itself: one that is cancelled before its first step never gets to its finally.
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: filling.close())

    def stop(self) -> None:
        """Read no more. What is in the buffer is still delivered."""
        self.stopped.set()
        if self._task is not None:
            self._task.cancel()

    async def again(self, cursor: Cursor, lsn: LSN) -> bool:
        """Have everything behind ``lsn`` come once more, for the reader of ``cursor``; others may know some of it.

        :returns: whether it will: not after ``stop``.
        """
        assert self._go_back is not None
        # One at a time: of two sinks that have lost the same target, the second may go further back.
        async with self._turning:
            if self.stopped.is_set():
                return False
            task, self._task = self._task, None
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
            cursor.pass_over()
            try:
                await self._go_back(lsn)
            except Exception as error:  # noqa: BLE001 - told as what ``read`` raises
                self._fail(error)
            if self.stopped.is_set():
                self._buffer.close()
                return False
            self.start()
            return True

    async def _fill(self) -> None:
        try:
            await self._read()
        except Exception as error:  # noqa: BLE001 - raised again once the sinks are done
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.stopped.set()
        self._failed(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._buffer.close()


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Do the work, unless the event comes first: then it is cancelled, and ``None`` returned."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        waiting.cancel()
        working.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
