"""The stretch of the stream that is in memory, and every sink's cursor in it.

Slices are kept once, however many sinks read them: from the slowest cursor to the newest. That stretch is what the
byte budget bounds. Past the high mark ``room`` waits until the slowest reader has brought it below the low mark;
the gap between the marks keeps a full buffer from stopping and starting with every slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from aiorepl.transactions.transaction import Slice


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """A look at a buffer: what it holds, what it may hold, and whether its source is being held back, by
    the ``slowest`` of its readers.
    """

    bytes: int
    slices: int
    limit: int
    backpressured: bool
    slowest: str | None


class SliceBuffer:
    """Slices between one writer and the cursors that were opened before the first slice came.

    :param limit: the high mark in bytes. One slice may exceed it; none is ever split here.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._low = limit // 2
        self._slices: deque[Slice] = deque()
        self._base = 0
        self._bytes = 0
        self._cursors: list[Cursor] = []
        self._closed = False
        self._room = asyncio.Event()
        self._room.set()

    def cursor(self, reader: str = "") -> Cursor:
        """A cursor at the beginning, for ``reader``."""
        cursor = Cursor(self, reader)
        self._cursors.append(cursor)
        return cursor

    def extend(self, slices: Iterable[Slice]) -> None:
        """Append, past the limit if need be: ``await room()`` before reading on."""
        for part in slices:
            self._slices.append(part)
            self._bytes += part.size
        if self._bytes > self.limit:
            self._room.clear()
        self._notify()

    @property
    def backpressured(self) -> bool:
        """Whether it is over its limit."""
        return not self._room.is_set()

    @property
    def slowest(self) -> str | None:
        """Who is furthest behind, while anything is kept for anyone."""
        if not self._slices or not self._cursors:
            return None
        return min(self._cursors, key=lambda cursor: cursor._place).reader

    async def room(self) -> None:
        """Wait while the buffer is over its limit."""
        await self._room.wait()

    def open(self) -> None:
        """More comes, also after ``close``."""
        self._closed = False

    def close(self) -> None:
        """Nothing more comes: readers get the rest and then the end."""
        self._closed = True
        self._notify()

    def statistics(self) -> BufferStatistics:
        """What the buffer holds now."""
        return BufferStatistics(self._bytes, len(self._slices), self.limit, self.backpressured, self.slowest)

    def _notify(self) -> None:
        for cursor in self._cursors:
            cursor._news.set()

    def _release(self) -> None:
        done = min(cursor._place for cursor in self._cursors)
        while self._base < done:
            self._bytes -= self._slices.popleft().size
            self._base += 1
        if self._bytes <= self._low:
            self._room.set()


class Cursor:
    """One reader's place. What was taken stays in memory until ``release``."""

    def __init__(self, buffer: SliceBuffer, reader: str) -> None:
        self.reader = reader
        self._buffer = buffer
        self._place = buffer._base
        self._next = buffer._base
        self._news = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the buffer is closed and everything was taken."""
        return self._buffer._closed and self._next - self._buffer._base >= len(self._buffer._slices)

    @property
    def waiting(self) -> int:
        """How many slices are there to be taken."""
        return len(self._buffer._slices) - (self._next - self._buffer._base)

    @property
    def holds_back(self) -> bool:
        """Whether the buffer's source waits for room, and this reader has taken all there is."""
        return not self._buffer._room.is_set() and self.waiting == 0

    def take(self) -> Slice | None:
        """The next slice, or ``None`` when there is none just now."""
        buffer = self._buffer
        at = self._next - buffer._base
        if at >= len(buffer._slices):
            self._news.clear()
            return None
        self._next += 1
        return buffer._slices[at]

    async def news(self) -> None:
        """Wait until there may be a slice to take, or the end."""
        if self.waiting == 0 and not self._buffer._closed:
            self._news.clear()
            await self._news.wait()

    def release(self, count: int) -> None:
        """The first ``count`` slices taken and not yet released need not be kept for this reader."""
        self._place += count
        self._buffer._release()

    def pass_over(self) -> None:
        """Go on with what comes next: nothing of what is there now is wanted."""
        self._place = self._next = self._buffer._base + len(self._buffer._slices)
        self._buffer._release()

    def leave(self) -> None:
        """Read no more, and hold nothing back."""
        self._buffer._cursors.remove(self)
        if self._buffer._cursors:
            self._buffer._release()
        else:
            self._buffer._room.set()
