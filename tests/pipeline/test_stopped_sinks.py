"""Beside a journal, a sink that has stopped is not forgotten."""

from __future__ import annotations

import asyncio
import logging

from aiorepl import PermanentError, Pipeline
from aiorepl.pipeline import journaled
from aiorepl.testing import FaultySink, MemorySink, MemorySource, Stream
from aiorepl.testing.faults import Reject
from aiorepl.testing.messages import column


async def test_a_stopped_sink_is_reported_again(monkeypatch, tmp_path, caplog):
    """The log names it with its error and its lag, as long as the pipeline runs."""
    monkeypatch.setattr(journaled, "_REMINDER_SECONDS", 0.01)
    stream = Stream()
    stream.transaction(stream.table("items", column("id", 23, key=True)).insert("1"))
    sinks = {"good": MemorySink(), "bad": FaultySink(write=[Reject(PermanentError("refused"))])}
    reminders = asyncio.Queue()

    class Handler(logging.Handler):
        def emit(self, record):
            if "has stopped and is" in record.getMessage():
                reminders.put_nowait(record.getMessage())

    handler = Handler()
    logging.getLogger("aiorepl.sink").addHandler(handler)
    try:
        pipeline = Pipeline(MemorySource(stream=stream), sinks, journal=tmp_path / "journal")
        running = asyncio.create_task(pipeline.run())
        first, second = [await asyncio.wait_for(reminders.get(), 60) for _ in range(2)]
        assert first == second
        assert first.startswith("sink bad has stopped and is ")
        assert first.endswith(": refused")
        pipeline.stop()
        await asyncio.wait([running])
        assert "refused" == str(running.exception())
    finally:
        logging.getLogger("aiorepl.sink").removeHandler(handler)


async def test_a_stopped_sink_holds_no_memory(tmp_path):
    """What a sink had in its buffer when it failed is freed, while the other sinks continue."""
    stream = Stream()
    table = stream.table("items", column("id", 23, key=True), column("text"))
    for number in range(50):
        stream.transaction(table.insert(str(number), "x" * 10_000))
    sinks = {"good": MemorySink(), "bad": FaultySink(write=[Reject(PermanentError("refused"))])}
    pipeline = Pipeline(MemorySource(stream=stream), sinks, journal=tmp_path / "journal", buffer_bytes=60_000)
    running = asyncio.create_task(pipeline.run())
    await sinks["good"].wait_for_changes(50)
    async with asyncio.timeout(60):
        while (
            not (statistics := pipeline.statistics()).sinks["bad"].failed or statistics.buffers["bad"].bytes
        ):
            await asyncio.sleep(0.01)
    assert not statistics.buffers["bad"].backpressured
    pipeline.stop()
    await asyncio.wait([running])
    running.exception()
