"""A bounded buffer of slices with one cursor per reader.

Each slice is stored once, however many sinks read it, until the slowest cursor has released it. The byte limit bounds the
stored slices. Above the limit, ``wait_for_room`` waits until the slowest reader has brought the buffer down to half the
limit; this hysteresis keeps a full buffer from stopping and starting the source with every slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

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


@dataclass(slots=True, eq=False)
class _Reader:
    """The progress of one reader, in slices since the first one was added.

    :param taken: the number of slices that the reader has taken.
    :param released: the number of slices that it has released.
    :param skipping: whether each slice is released as soon as it is added.
    :param changed: set when a slice may be available.
    """

    name: str
    taken: int
    released: int
    skipping: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _State:
    """The stored slices, which a buffer and its cursors share.

    :param low: the size in bytes at which the writer continues after backpressure.
    :param base: the number of slices that all readers have released: the index of the first stored slice.
    :param between: whether the last slice ends a transaction.
    :param held: whether the writer has to stop at the next end of a transaction.
    """

    low: int
    slices: deque[Slice] = field(default_factory=deque)
    base: int = 0
    bytes: int = 0
    readers: list[_Reader] = field(default_factory=list)
    closed: bool = False
    between: bool = True
    held: bool = False
    has_room: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end(self) -> int:
        """The number of slices that were added."""
        return self.base + len(self.slices)

    def release(self) -> None:
        """Drop the slices that all readers have released."""
        released = min((reader.released for reader in self.readers), default=self.base)
        while self.base < released:
            self.bytes -= self.slices.popleft().size
            self.base += 1
        if self.bytes <= self.low and not (self.held and self.between):
            self.has_room.set()


class SliceBuffer:
    """Slices between one writer and its readers. All cursors must be created before the first slice is added.

    :param limit: the limit in bytes. A single slice may exceed it; slices are never split here.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._state = _State(limit // 2)
        self._state.has_room.set()
        # Set once the writer has stopped because of ``hold``.
        self._stopped = asyncio.Event()

    def cursor(self, reader: str = "") -> Cursor:
        """Create a cursor at the beginning.

        :param reader: the name of the reader, for statistics.
        """
        state = self._state
        added = _Reader(reader, state.base, state.base)
        state.readers.append(added)
        return Cursor(state, added)

    def extend(self, slices: Iterable[Slice]) -> None:
        """Append slices, even if this exceeds the limit. Call ``wait_for_room`` before reading more."""
        state = self._state
        for part in slices:
            state.slices.append(part)
            state.bytes += part.size
            state.between = part.last
        if state.bytes > self.limit:
            state.has_room.clear()
        if skipping := [reader for reader in state.readers if reader.skipping]:
            for reader in skipping:
                reader.released = reader.taken = state.end
            state.release()
        if state.held and state.between:
            state.has_room.clear()
            self._stopped.set()
        self._notify()

    def resize(self, limit: int) -> None:
        """Set another limit. Slices beyond it stay in the buffer."""
        self.limit, self._state.low = limit, limit // 2
        self._state.release()

    @property
    def backpressured(self) -> bool:
        """Whether the writer has to wait for room."""
        return not self._state.has_room.is_set()

    @property
    def slowest(self) -> str | None:
        """The name of the reader that is furthest behind; ``None`` if the buffer is empty."""
        if not self._state.slices or not self._state.readers:
            return None
        return min(self._state.readers, key=lambda reader: reader.released).name

    async def wait_for_room(self) -> None:
        """Wait until the writer may add more slices."""
        await self._state.has_room.wait()

    async def hold(self) -> None:
        """Stop the writer at the end of its transaction. Wait until the writer has reached that end, or closed the buffer."""
        self._state.held = True
        if not (self._state.between or self._state.closed):
            self._stopped.clear()
            await self._stopped.wait()

    @property
    def shared(self) -> bool:
        """Whether the buffer has more than one reader."""
        return len(self._state.readers) > 1

    def open(self) -> None:
        """Allow more slices after ``close`` and ``hold``."""
        self._state.closed = self._state.held = False
        self._state.between = True
        self._state.release()

    def close(self) -> None:
        """Mark the end of the stream. Readers get the stored slices, and then the end."""
        self._state.closed = True
        self._stopped.set()
        self._notify()

    def clear(self) -> None:
        """Drop all slices. No reader may be left."""
        state = self._state
        state.base = state.end
        state.slices.clear()
        state.bytes = 0
        state.has_room.set()

    def statistics(self) -> BufferStatistics:
        """Return the current state."""
        state = self._state
        return BufferStatistics(state.bytes, len(state.slices), self.limit, self.backpressured, self.slowest)

    def _notify(self) -> None:
        for reader in self._state.readers:
            reader.changed.set()


class Cursor:
    """The position of one reader. Slices that it has taken stay in the buffer until it releases them."""

    def __init__(self, state: _State, reader: _Reader) -> None:
        self._state = state
        self._reader = reader

    @property
    def reader(self) -> str:
        """The name of the reader."""
        return self._reader.name

    @property
    def ended(self) -> bool:
        """Whether the buffer is closed and this reader has taken everything."""
        return self._state.closed and self.waiting == 0

    @property
    def waiting(self) -> int:
        """The number of slices that can be taken now."""
        return self._state.end - self._reader.taken

    @property
    def blocks_writer(self) -> bool:
        """Whether the writer waits for room and this reader has taken every slice. If so, only ``release`` makes room."""
        return not self._state.has_room.is_set() and self.waiting == 0

    def take(self) -> Slice | None:
        """Return the next slice, or ``None`` if there is none now."""
        state, reader = self._state, self._reader
        index = reader.taken - state.base
        if index >= len(state.slices):
            reader.changed.clear()
            return None
        reader.taken += 1
        return state.slices[index]

    async def wait(self) -> None:
        """Wait until a slice may be available, or the buffer is closed."""
        if self.waiting == 0 and not self._state.closed:
            self._reader.changed.clear()
            await self._reader.changed.wait()

    def wake(self) -> None:
        """End ``wait``."""
        self._reader.changed.set()

    def release(self, count: int) -> None:
        """Release the oldest ``count`` slices that were taken and not yet released."""
        self._reader.released += count
        self._state.release()

    @property
    def skipping(self) -> bool:
        """Whether each slice is released as soon as it is added, because the reader will get all slices again."""
        return self._reader.skipping

    @skipping.setter
    def skipping(self, value: bool) -> None:
        self._reader.skipping = value

    def skip_all(self) -> None:
        """Release everything in the buffer, taken or not."""
        self._reader.released = self._reader.taken = self._state.end
        self._state.release()

    def close(self) -> None:
        """Stop reading. The buffer keeps no slices for this reader."""
        self._state.readers.remove(self._reader)
        if self._state.readers:
            self._state.release()
        else:
            self._state.has_room.set()
