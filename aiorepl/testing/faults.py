"""Sinks for tests: one that keeps its batches, and one that fails as scripted.

::

    memory = MemorySink()
    hang = Hang()
    sink = FaultySink(memory, write=[Reject(TransientError("not now")), None, hang])

rejects the first ``write``, passes the second one on and blocks the third until ``hang.release()``. Each call uses up one
fault, in order; after the last fault every call works.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.sink import Batch, Sink, SinkContext
from aiorepl.transactions.changes import Change

_T = TypeVar("_T")


class MemorySink(Sink):
    """Keeps every batch, and lets a test wait for changes.

    It can be opened again after ``close`` or ``crash``, because it stands for a target, not for one writer.

    :param keeps_position: keep the position with the data and return it from ``open``.
    """

    def __init__(self, *, keeps_position: bool = False) -> None:
        self.batches: list[Batch] = []
        """Accepted batches, duplicates included."""
        self.context: SinkContext | None = None
        self.position: Position | None = None
        """The position of the accepted data, if the sink keeps one; after ``crash``, the position of the last flush."""
        self.closed = False
        self.durable = LSN(0)
        """The end LSN of the flushed data."""
        self._keeps_position = keeps_position
        self._flushed = 0
        self._durable_position: Position | None = None
        self._changed = asyncio.Condition()

    @property
    def changes(self) -> list[Change]:
        """The changes of all batches, in order."""
        return [change for batch in self.batches for change in batch.changes]

    @property
    def durable_batches(self) -> list[Batch]:
        """The flushed batches."""
        return self.batches[: self._flushed]

    def crash(self) -> None:
        """Drop the batches that were accepted but not flushed."""
        del self.batches[self._flushed :]
        self.position = self._durable_position

    async def wait_for_changes(self, count: int, *, durable: bool = False) -> list[Change]:
        """Wait until at least ``count`` changes are accepted, or flushed if ``durable``; return all changes."""
        await self._wait(lambda: sum(map(len, self.durable_batches if durable else self.batches)) >= count)
        return self.changes

    async def wait_until_durable(self, lsn: int) -> LSN:
        """Wait until ``durable`` reaches ``lsn``, and return it.

        Without ``keeps_position``, the sink does not learn of WAL after its last change.
        """
        await self._wait(lambda: self.durable >= lsn)
        return self.durable

    async def open(self, context: SinkContext) -> Position | None:
        self.context = context
        self.closed = False
        if not self._keeps_position:
            return None
        if self.position is None:
            self.position = self._durable_position = context.position
        # Slices of an unfinished transaction are past the position and will be sent again.
        while self.batches and self.batches[-1].end_lsn is None:
            del self.batches[-1]
        self._flushed = min(self._flushed, len(self.batches))
        return self.position

    async def write(self, batch: Batch) -> None:
        self.batches.append(batch)
        if self.position is not None and self.context is not None and batch.end_lsn is not None:
            self.position = self.context.position.at(batch.end_lsn)
        await self._notify()

    async def replay(self, batch: Batch) -> None:
        position = self.position
        await self.write(batch)
        self.position = position

    async def flush(self) -> None:
        self._flushed = len(self.batches)
        self._durable_position = self.position
        ends = [batch.end_lsn for batch in self.batches if batch.end_lsn is not None]
        self.durable = max(self.durable, *ends, LSN(0))
        await self._notify()

    async def close(self) -> None:
        self.closed = True

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _wait(self, satisfied: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(satisfied)


@dataclass(frozen=True)
class Reject:
    """The call raises without doing anything."""

    error: Exception

    async def strike(self, call: Callable[[], Awaitable[_T]]) -> _T:
        raise self.error


@dataclass(frozen=True)
class FailAfterWrite:
    """The call does its work and then raises, as if the answer had been lost."""

    error: Exception

    async def strike(self, call: Callable[[], Awaitable[_T]]) -> _T:
        await call()
        raise self.error


@dataclass(frozen=True)
class Slow:
    """The call takes longer.

    :param seconds: the delay before the call.
    """

    seconds: float

    async def strike(self, call: Callable[[], Awaitable[_T]]) -> _T:
        await asyncio.sleep(self.seconds)
        return await call()


@dataclass(frozen=True, eq=False)
class Hang:
    """The call blocks until ``release``. ``reached`` is set when the call blocks."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Let the call continue."""
        self._released.set()

    async def strike(self, call: Callable[[], Awaitable[_T]]) -> _T:
        self.reached.set()
        await self._released.wait()
        return await call()


Fault = Reject | FailAfterWrite | Slow | Hang


class FaultySink(Sink):
    """A sink that fails as scripted, and otherwise passes every call on.

    :param inner: the sink that does the work; a new ``MemorySink`` by default.
    :param open, write, flush, close: faults for the calls of this name, in order; ``None`` is a call without one.
    """

    def __init__(
        self,
        inner: Sink | None = None,
        *,
        open: Iterable[Fault | None] = (),  # noqa: A002 - the call's name
        write: Iterable[Fault | None] = (),
        flush: Iterable[Fault | None] = (),
        close: Iterable[Fault | None] = (),
    ) -> None:
        self.inner = MemorySink() if inner is None else inner
        self.calls: list[str] = []
        """The names of all calls, including failed ones."""
        self._scripts = {
            "open": deque(open),
            "write": deque(write),
            "flush": deque(flush),
            "close": deque(close),
        }

    async def open(self, context: SinkContext) -> Position | None:
        return await self._play("open", lambda: self.inner.open(context))

    async def write(self, batch: Batch) -> None:
        await self._play("write", lambda: self.inner.write(batch))

    async def flush(self) -> None:
        await self._play("flush", self.inner.flush)

    async def close(self) -> None:
        await self._play("close", self.inner.close)

    async def _play(self, name: str, call: Callable[[], Awaitable[_T]]) -> _T:
        self.calls.append(name)
        script = self._scripts[name]
        fault = script.popleft() if script else None
        return await (call() if fault is None else fault.strike(call))
