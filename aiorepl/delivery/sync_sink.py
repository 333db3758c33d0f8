"""Adapts a synchronous sink: its calls run in worker threads, where they may block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

from anyio import to_thread

from aiorepl.cancellation import uninterrupted
from aiorepl.position import Position
from aiorepl.sink import Batch, Sink, SinkContext, SyncSink

_T = TypeVar("_T")
_A = TypeVarTuple("_A")


class ThreadedSink(Sink):
    """Makes each call in a worker thread. A call in progress is completed even if the pipeline is cancelled."""

    def __init__(self, sink: SyncSink) -> None:
        self._sink = sink
        self.supports_prepared = sink.supports_prepared
        self.needs_attributes = sink.needs_attributes
        self.concurrent = sink.concurrent
        self.takes_resync = sink.takes_resync

    @property
    def durable_on_write(self) -> bool:
        """Whether the synchronous sink's batches are durable when ``write`` returns."""
        return self._sink.durable_on_write

    @property
    def replays(self) -> bool:
        """Whether the synchronous sink supports replay."""
        return self._sink.replays

    @property
    def checks(self) -> bool:
        """Whether the synchronous sink can be checked."""
        return self._sink.checks

    @property
    def waiting_for(self) -> str | None:  # type: ignore[override]  # a sink's own attribute
        """What a call of the synchronous sink waits for."""
        return self._sink.waiting_for

    async def open(self, context: SinkContext) -> Position | None:
        return await _call(self._sink.open, context)

    async def check(self, tables: Sequence[tuple[str, str]]) -> None:
        await _call(self._sink.check, tables)

    async def write(self, batch: Batch) -> None:
        await _call(self._sink.write, batch)

    async def replay(self, batch: Batch) -> None:
        await _call(self._sink.replay, batch)

    async def flush(self) -> None:
        await _call(self._sink.flush)

    async def close(self) -> None:
        await _call(self._sink.close)


async def _call(function: Callable[[*_A], _T], *arguments: *_A) -> _T:
    # A thread cannot be interrupted, and the next call must not start before this one has ended.
    return await uninterrupted(to_thread.run_sync(function, *arguments))
