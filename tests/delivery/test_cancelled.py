"""A whole pipeline, cancelled at any of its awaits: while it starts, delivers, connects again and ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aiorepl import BatchPolicy, Pipeline, RetryPolicy
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

AT_ONCE = RetryPolicy(seconds=None, first=0.0001, longest=0.0001)


def committed(count):
    """A stream of that many transactions."""
    stream = Stream()
    table = stream.table("items", column("id", 23, key=True))
    for number in range(count):
        stream.transaction(table.insert(str(number)))
    return stream


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_cancelled_at_every_await(tmp_path, journal):
    """Nothing of it is left, and the slot was never told of more than what is durable."""
    before = asyncio.all_tasks()

    async def run(number):
        source = MemorySource(stream=committed(6))
        begin = source.confirmed
        sink = MemorySink()
        folder = tmp_path / str(number)
        pipeline = Pipeline(
            source,
            [sink],
            journal=str(folder) if journal else None,
            until=source.stream.lsn,
            reconnect=AT_ONCE,
            batches=BatchPolicy(bytes=300, flush_seconds=0),
        )
        work = asyncio.create_task(pipeline.run())
        left = number
        while left and not work.done():
            await asyncio.sleep(0)
            left -= 1
            if left == number // 2:
                source.lose()
        finished = work.done()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert asyncio.all_tasks() == before
        if not journal:
            assert source.confirmed <= max(begin, sink.durable)
        assert [change.key["id"] for change in sink.changes] == list(range(len(sink.changes)))
        return finished, sink

    number, finished = 0, False
    while not finished:
        finished, sink = await run(number)
        # Beside the journal's threads the loop goes round many times.
        number += 1 if number < 60 else number // 4
    assert 6 == len(sink.changes)
    assert number > 10
    async with asyncio.timeout(60):
        for thread in threading.enumerate():
            if thread.name == "aiorepl watchdog":
                await asyncio.to_thread(thread.join)
