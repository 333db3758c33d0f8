"""A bounded buffer of slices with one cursor per reader.

Each slice is stored once, however many sinks read it, until the slowest cursor has released it. The byte limit bounds the
stored slices. Above the limit, ``wait_for_room`` waits until the slowest reader has brought the buffer down to half the
limit; this hysteresis keeps a full buffer from stopping and starting the source with every slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from aiorepl.transactions.slices import Slice


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """The state of a buffer.

    :param bytes: the size of the stored slices, in bytes.
    :param slices: the number of stored slices.
    :param limit: the size in bytes above which reading from the source pauses.
    :param backpressured: whether reading from the source is paused.
    :param slowest: the name of the sink whose cursor is furthest behind; ``None`` if the buffer is empty.
    """

    bytes: int
    slices: int
    limit: int
    backpressured: bool
    slowest: str | None


class SliceBuffer:
    """Slices between one writer and its readers. All cursors must be created before the first slice is added.

    :param limit: the limit in bytes. A single slice may exceed it; slices are never split here.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._low = limit // 2
        self._slices: deque[Slice] = deque()
        # The number of slices that were released by all cursors: the index of the first stored slice.
        self._base = 0
        self._bytes = 0
        self._cursors: list[Cursor] = []
        self._closed = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        # Whether the last slice ends a transaction.
        self._between = True
        # Whether the writer has to stop at the next end of a transaction, and whether the writer has stopped.
        self._held = False
        self._stopped = asyncio.Event()

    def cursor(self, reader: str = "") -> Cursor:
        """Create a cursor at the beginning.

        :param reader: the name of the reader, for statistics.
        """
        cursor = Cursor(self, reader)
        self._cursors.append(cursor)
        return cursor

    def extend(self, slices: Iterable[Slice]) -> None:
        """Append slices, even if this exceeds the limit. Call ``wait_for_room`` before reading more."""
        for part in slices:
            self._slices.append(part)
            self._bytes += part.size
            self._between = part.last
        if self._bytes > self.limit:
            self._has_room.clear()
        for cursor in self._cursors:
            if cursor.skipping:
                cursor.skip_all()
        if self._held and self._between:
            self._has_room.clear()
            self._stopped.set()
        self._notify()

    @property
    def backpressured(self) -> bool:
        """Whether the writer has to wait for room."""
        return not self._has_room.is_set()

    @property
    def slowest(self) -> str | None:
        """The name of the reader that is furthest behind; ``None`` if the buffer is empty."""
        if not self._slices or not self._cursors:
            return None
        return min(self._cursors, key=lambda cursor: cursor._released).reader

    async def wait_for_room(self) -> None:
        """Wait until the writer may add more slices."""
        await self._has_room.wait()

    async def hold(self) -> None:
        """Stop the writer at the end of its transaction. Wait until the writer has reached that end, or closed the buffer."""
        self._held = True
        if not (self._between or self._closed):
            self._stopped.clear()
            await self._stopped.wait()

    @property
    def shared(self) -> bool:
        """Whether the buffer has more than one reader."""
        return len(self._cursors) > 1

    def open(self) -> None:
        """Allow more slices after ``close`` and ``hold``."""
        self._closed = self._held = False
        self._between = True
        self._release()

    def close(self) -> None:
        """Mark the end of the stream. Readers get the stored slices, and then the end."""
        self._closed = True
        self._stopped.set()
        self._notify()

    def clear(self) -> None:
        """Drop all slices, once no reader is left."""
        self._base += len(self._slices)
        self._slices.clear()
        self._bytes = 0
        self._has_room.set()

    def statistics(self) -> BufferStatistics:
        """Return the current state."""
        return BufferStatistics(self._bytes, len(self._slices), self.limit, self.backpressured, self.slowest)

    def _notify(self) -> None:
        for cursor in self._cursors:
            cursor._changed.set()

    def _release(self) -> None:
        released = min((cursor._released for cursor in self._cursors), default=self._base)
        while self._base < released:
            self._bytes -= self._slices.popleft().size
            self._base += 1
        if self._bytes <= self._low and not (self._held and self._between):
            self._has_room.set()


class Cursor:
    """The position of one reader. Slices that it has taken stay in the buffer until it releases them."""

    def __init__(self, buffer: SliceBuffer, reader: str) -> None:
        self.reader = reader
        self.skipping = False
        """Whether each slice is released as soon as it is added, because the reader will get all slices again."""
        self._buffer = buffer
        # The number of slices that this reader has taken and released, since the first slice was added.
        self._released = buffer._base
        self._next = buffer._base
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the buffer is closed and this reader has taken everything."""
        return self._buffer._closed and self._next - self._buffer._base >= len(self._buffer._slices)

    @property
    def waiting(self) -> int:
        """The number of slices that can be taken now."""
        return len(self._buffer._slices) - (self._next - self._buffer._base)

    @property
    def blocks_writer(self) -> bool:
        """Whether the writer waits for room although this reader has taken every slice: it must release slices."""
        return not self._buffer._has_room.is_set() and self.waiting == 0

    def take(self) -> Slice | None:
        """Return the next slice, or ``None`` if there is none now."""
        buffer = self._buffer
        index = self._next - buffer._base
        if index >= len(buffer._slices):
            self._changed.clear()
            return None
        self._next += 1
        return buffer._slices[index]

    async def wait(self) -> None:
        """Wait until a slice may be available, or the buffer is closed."""
        if self.waiting == 0 and not self._buffer._closed:
            self._changed.clear()
            await self._changed.wait()

    def wake(self) -> None:
        """End ``wait``."""
        self._changed.set()

    def release(self, count: int) -> None:
        """Release the oldest ``count`` slices that were taken and not yet released."""
        self._released += count
        self._buffer._release()

    def skip_all(self) -> None:
        """Release everything in the buffer, taken or not."""
        self._released = self._next = self._buffer._base + len(self._buffer._slices)
        self._buffer._release()

    def close(self) -> None:
        """Stop reading, so that the buffer no longer keeps slices for this reader."""
        self._buffer._cursors.remove(self)
        if self._buffer._cursors:
            self._buffer._release()
        else:
            self._buffer._has_room.set()
