"""The task that fills a buffer. It starts again from an earlier position when a sink has lost accepted data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiorepl.delivery.buffer import Cursor, SliceBuffer
from aiorepl.lsn import LSN


class Feeder:
    """Fills a buffer until the end of the stream, ``stop``, or an error.

    :param group: the task group in which the reading task runs.
    :param read: reads from the current position to the end of the stream, and puts slices into the buffer.
    :param rewind: makes the next ``read`` start at or before a position; ``None`` if the stream cannot be read again.
    :param failed: called with an exception that ``read`` or ``rewind`` raised.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        buffer: SliceBuffer,
        read: Callable[[], Coroutine[Any, Any, None]],
        rewind: Callable[[LSN], Awaitable[None]] | None,
        failed: Callable[[Exception], None],
    ) -> None:
        self.stopped = asyncio.Event()
        """Set once reading has stopped, by ``stop`` or by an error."""
        self._group = group
        self._buffer = buffer
        self._read = read
        self._rewind = rewind
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._rewinding = asyncio.Lock()

    @property
    def can_rewind(self) -> bool:
        """Whether the stream can be read again from an earlier position."""
        return self._rewind is not None

    def start(self) -> None:
        """Start the reading task."""
        work = self._fill()
        self._buffer.open()
        self._task = task = self._group.create_task(work, name="aiorepl reader")
        # A callback, because a task that is cancelled before its first step never reaches a finally of its own.
        task.add_done_callback(self._task_done)
        task.add_done_callback(lambda _: work.close())

    def stop(self) -> None:
        """Stop reading. Slices in the buffer are still delivered."""
        self.stopped.set()
        if self._task is not None:
            self._task.cancel()

    async def rewind(self, cursor: Cursor, lsn: LSN) -> bool:
        """Read everything after ``lsn`` again, for the reader of ``cursor``. Other readers drop the repeated slices.

        If there are other readers, the current transaction is first read to its end. The server may decode it differently the next
        time, and then a reader with a part of the transaction could not tell which of its changes are repeated.

        :returns: whether reading continues; false after ``stop`` or an error.
        """
        assert self._rewind is not None
        cursor.skipping = True
        cursor.skip_all()
        # Rewind for one sink at a time: if two sinks have lost data, the second sink may need an earlier position.
        async with self._rewinding:
            if self.stopped.is_set():
                return False
            if self._buffer.shared:
                await self._buffer.hold()
                if self.stopped.is_set():
                    return False
            task, self._task = self._task, None
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
            cursor.skipping = False
            try:
                await self._rewind(lsn)
            except Exception as error:  # noqa: BLE001 - reported like an error of ``read``
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

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if task is self._task:
            self._buffer.close()
