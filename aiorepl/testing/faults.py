"""Sinks for tests: one that remembers what it was given, and one that fails as it is told to.

::

    memory = MemorySink()
    hang = Hang()
    sink = FaultySink(memory, write=[Reject(TransientError("not now")), None, hang])

fails the first ``write``, lets the second through and holds the third until ``hang.release()``. Faults are used up in
the order in which they are listed, a call each; after the last one everything works.
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
    """Keeps every batch, and lets a test wait until something has come.

    It can be opened again after ``close`` or ``crash``, as a target outlives its writers.

    :param keeps_position: keep the position with the data and return it from ``open``.
    """

    def __init__(self, *, keeps_position: bool = False) -> None:
        self.batches: list[Batch] = []
        """What was accepted, duplicates included."""
        self.context: SinkContext | None = None
        self.position: Position | None = None
        """What the sink holds, if it keeps a position: that of the last flush after a ``crash``."""
        self.closed = False
        self.durable = LSN(0)
        """The end LSN that the last flush made safe."""
        self._keeps_position = keeps_position
        self._flushed = 0
        self._durable_position: Position | None = None
        self._changed = asyncio.Condition()

    @property
    def changes(self) -> list[Change]:
        """All changes of all batches, in order."""
        return [change for batch in self.batches for change in batch.changes]

    @property
    def durable_batches(self) -> list[Batch]:
        """What was flushed."""
        return self.batches[: self._flushed]

    def crash(self) -> None:
        """Forget what was accepted and not flushed."""
        del self.batches[self._flushed :]
        self.position = self._durable_position

    async def wait_for_changes(self, count: int, *, durable: bool = False) -> list[Change]:
        """All changes, once ``count`` of them or more are accepted, or durable."""
        await self._wait(lambda: sum(map(len, self.durable_batches if durable else self.batches)) >= count)
        return self.changes

    async def wait_until_durable(self, lsn: int) -> LSN:
        """``durable``, once it is ``lsn`` or more. A sink without a position hears of no WAL behind its changes."""
        await self._wait(lambda: self.durable >= lsn)
        return self.durable

    async def open(self, context: SinkContext) -> Position | None:
        self.context = context
        self.closed = False
        if not self._keeps_position:
            return None
        if self.position is None:
            self.position = self._durable_position = context.position
        # Slices of a transaction that has no end lie behind the position, and come again.
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
    """The call raises before anything is done."""

    error: Exception

    async def strike(self, call: Callable[[], Awaitable[_T]]) -> _T:
        raise self.error


@dataclass(frozen=True)
class FailAfterWrite:
    """The call does its work and raises all the same, as when the answer is lost on its way back."""

    error: Exception

    async def strike(self, call: Callable[[], Awaitable[_T]]) -> _T:
        await call()
        raise self.error


@dataclass(frozen=True)
class Slow:
    """The call takes this much longer."""

    seconds: float

    async def strike(self, call: Callable[[], Awaitable[_T]]) -> _T:
        await asyncio.sleep(self.seconds)
        return await call()


@dataclass(frozen=True, eq=False)
class Hang:
    """The call does nothing until ``release``. ``reached`` is set once it hangs."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Let the call go on."""
        self._released.set()

    async def strike(self, call: Callable[[], Awaitable[_T]]) -> _T:
        self.reached.set()
        await self._released.wait()
        return await call()


Fault = Reject | FailAfterWrite | Slow | Hang


class FaultySink(Sink):
    """A sink that fails by script, and otherwise passes every call on.

    :param inner: the sink that does the work; a new ``MemorySink`` if not given.
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
        """The names of all calls, failed ones too."""
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
