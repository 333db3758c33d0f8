"""Puts the rows of chunks that are read at the same time into the order of the plan, within a limit of bytes.

A chunk is released once all of it was read, so that a chunk whose reading fails is not delivered in part. Only a chunk that is
larger than the limit is released while it is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

Part = tuple[bytes, int]
"""Rows in COPY's binary format, and their number."""


@dataclass(slots=True)
class _Reading:
    """A chunk that is being read.

    :ivar received: how many rows were added.
    :ivar begun: whether a part of it was released.
    """

    parts: deque[Part] = field(default_factory=deque, repr=False)
    received: int = 0
    begun: bool = False
    ended: bool = False
    error: Exception | None = None


class ChunkOrder:
    """Holds the rows of chunks between their readers and the task that releases them.

    :param limit: the limit of waiting bytes. The chunk that is being released may always add one part.
    :param start: the number of the first chunk.
    """

    def __init__(self, limit: int, start: int) -> None:
        self._limit = limit
        self._turn = start
        self._held = 0
        # Whether the reader of the chunk that is being released waits for room.
        self._stuck = False
        self._chunks: dict[int, _Reading] = {}
        # Why no more rows are read; None while rows are read.
        self._stopped: Exception | None = None
        self._changed = asyncio.Condition()

    def wanted(self, number: int) -> bool:
        """Return whether the chunk was neither released nor skipped."""
        return number >= self._turn

    def begun(self, number: int) -> bool:
        """Return whether a part of the chunk was released."""
        return self._chunk(number).begun

    def ended(self, number: int) -> bool:
        """Return whether the chunk was read to its end."""
        return self._chunk(number).ended

    def ended_chunks(self) -> set[int]:
        """Return the chunks that were read to their end and are not released yet."""
        return {number for number, chunk in self._chunks.items() if chunk.ended}

    def received(self, number: int) -> int:
        """Return how many rows of the chunk were added."""
        return self._chunk(number).received

    async def add(self, number: int, part: Part) -> None:
        """Add rows of a chunk, and wait until there is room for them. Rows of a chunk that is not wanted are dropped."""
        size = len(part[0])
        async with self._changed:
            chunk = self._chunk(number)

            def accepted() -> bool:
                its_turn = number == self._turn
                room = self._held + size <= self._limit or (its_turn and not chunk.parts)
                if its_turn and not room and not self._stuck:
                    self._stuck = True
                    self._changed.notify_all()
                return room or not self.wanted(number)

            await self._changed.wait_for(accepted)
            if not self.wanted(number):
                self._chunks.pop(number, None)
                return
            chunk.parts.append(part)
            chunk.received += part[1]
            self._held += size
            if chunk.begun:
                self._changed.notify_all()

    async def end(self, number: int, error: Exception | None = None) -> None:
        """Record that a chunk was read to its end, or that it cannot be read."""
        async with self._changed:
            if self.wanted(number):
                chunk = self._chunk(number)
                chunk.ended, chunk.error = True, error
                self._changed.notify_all()

    async def stop(self, error: Exception) -> None:
        """Record why no more rows are read. Chunks that were read to their end are still released."""
        async with self._changed:
            self._stopped = error
            self._changed.notify_all()

    async def restart(self, number: int) -> None:
        """Drop the rows of a chunk that is read again from its beginning. None of them was released."""
        async with self._changed:
            chunk = self._chunk(number)
            self._drop(chunk)
            chunk.received = 0

    async def release(self, number: int) -> AsyncGenerator[Part]:
        """Yield the rows of a chunk. Call it for the chunks in their order.

        :raises Exception: the error that was given to ``end`` or ``stop``.
        """
        async with self._changed:
            self._turn = number
            self._changed.notify_all()
            chunk = self._chunk(number)
        while True:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: (
                        chunk.ended
                        or self._stopped is not None
                        or (bool(chunk.parts) and (chunk.begun or self._stuck))
                    )
                )
                if chunk.error is not None:
                    raise chunk.error
                if self._stopped is not None and not chunk.ended:
                    raise self._stopped
                if not chunk.parts:
                    return
                chunk.begun = True
                part = chunk.parts.popleft()
                self._held -= len(part[0])
                self._changed.notify_all()
            yield part

    async def pass_by(self, number: int) -> None:
        """End the turn of a chunk: it was released, or is not wanted."""
        async with self._changed:
            self._drop(self._chunks.pop(number, _Reading()))
            self._turn, self._stuck = number + 1, False
            self._changed.notify_all()

    def _drop(self, chunk: _Reading) -> None:
        self._held -= sum(len(data) for data, _ in chunk.parts)
        chunk.parts.clear()
        self._changed.notify_all()

    def _chunk(self, number: int) -> _Reading:
        return self._chunks.setdefault(number, _Reading())
