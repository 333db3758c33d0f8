"""A sink whose calls block runs in worker threads, one call at a time, cancelled or not."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from aiorepl import SinkContext, SyncSink
from aiorepl.delivery.sync_sink import ThreadedSink


class Blocking(SyncSink):
    """A sink whose write blocks until it is released."""

    def __init__(self, error: Exception | None = None):
        self.writing, self.go_on = threading.Event(), threading.Event()
        self.calls: list[str] = []
        self.error = error

    def write(self, batch):
        self.calls.append("write begins")
        self.writing.set()
        assert self.go_on.wait(60)
        self.calls.append("write ends")
        if self.error is not None:
            raise self.error

    def close(self):
        self.calls.append("close")


@pytest.mark.parametrize("error", [None, ValueError("late")])
async def test_a_cancelled_call_is_waited_for(error):
    """Close is called only after a blocked call has ended, however often the pipeline is cancelled."""
    blocking = Blocking(error)
    sink = ThreadedSink(blocking)
    write = asyncio.create_task(sink.write(None))
    await asyncio.to_thread(blocking.writing.wait, 60)
    for _ in range(2):
        write.cancel()
        await asyncio.sleep(0.01)
        assert not write.done()
    blocking.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await write
    await sink.close()
    assert ["write begins", "write ends", "close"] == blocking.calls


async def test_a_call_in_a_cancelled_scope_is_waited_for():
    """The same holds for anyio's cancellation."""
    blocking = Blocking()
    sink = ThreadedSink(blocking)
    async with anyio.create_task_group() as group:
        group.start_soon(sink.write, None)
        await asyncio.to_thread(blocking.writing.wait, 60)
        group.cancel_scope.cancel()
        asyncio.get_running_loop().call_later(0.05, blocking.go_on.set)
    assert ["write begins", "write ends"] == blocking.calls


async def test_what_a_call_gives_and_raises():
    """An exception of the sink is raised unchanged."""
    blocking = Blocking(ValueError("no"))
    blocking.go_on.set()
    sink = ThreadedSink(blocking)
    assert await sink.open(SinkContext("s", None)) is None
    with pytest.raises(ValueError, match="no"):
        await sink.write(None)
    assert blocking.writing.is_set()
