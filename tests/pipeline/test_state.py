"""A pipeline says what it does, and never ends silently."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aiorepl import Batch, PermanentError, Pipeline, PipelineState, TransientError
from aiorepl.delivery.batching import BatchPolicy
from aiorepl.retry import RetryPolicy
from aiorepl.testing import MemorySink, MemorySource, Stream
from aiorepl.testing.messages import column

AT_ONCE = BatchPolicy(flush_seconds=0.0)
QUICK = RetryPolicy(wait_initial=0.001, wait_max=0.001)


class Gated(MemorySink):
    """Fails as often as ``errors`` has errors, each when it is let."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.called = asyncio.Event()
        self.go_on = asyncio.Event()

    async def write(self, batch: Batch) -> None:
        self.called.set()
        await self.go_on.wait()
        if self.errors:
            self.go_on.clear()
            self.called.clear()
            raise self.errors.pop(0)
        await super().write(batch)


@pytest.fixture
def stream() -> Stream:
    stream = Stream()
    stream.transaction(stream.table("items", column("id", 23, key=True)).insert("1"))
    return stream


async def test_a_failure_that_passes(stream):
    """The state follows a sink that repeats a call, and its error is forgotten when the call succeeds."""
    sink = Gated(TransientError("busy"))
    source = MemorySource(stream=stream)
    pipeline = Pipeline(source, {"s": sink}, batches=AT_ONCE, retry=QUICK)
    assert PipelineState.STARTING is pipeline.state

    async with pipeline:
        await sink.called.wait()
        assert PipelineState.RUNNING is pipeline.state
        sink.called.clear()
        sink.go_on.set()
        await sink.called.wait()
        statistics = pipeline.statistics()
        assert (PipelineState.DEGRADED, "busy") == (statistics.state, statistics.sinks["s"].retrying)
        sink.go_on.set()
        await sink.wait_for_changes(1)
        assert (PipelineState.RUNNING, None) == (pipeline.state, pipeline.statistics().sinks["s"].retrying)
    assert (PipelineState.STOPPED, None) == (pipeline.state, pipeline.statistics().error)
    await pipeline.wait()


async def test_the_end_can_be_awaited(stream, caplog):
    """A task that waits gets the error, the statistics have it, and one line of the log."""
    sink = Gated(PermanentError("refused"))
    pipeline = Pipeline(MemorySource(stream=stream), {"s": sink}, batches=AT_ONCE)

    async def watch() -> str:
        with pytest.raises(PermanentError) as caught:
            await pipeline.wait()
        return str(caught.value)

    watching = asyncio.create_task(watch())
    sink.go_on.set()
    with caplog.at_level(logging.ERROR, "aiorepl"), pytest.raises(PermanentError):
        await asyncio.wait_for(pipeline.run(), 60)

    assert "refused" == await watching
    statistics = pipeline.statistics()
    assert (PipelineState.FAILED, "refused") == (statistics.state, statistics.error)
    assert ["pipeline memory has failed: refused"] == caplog.messages


async def test_the_changes_of_a_batch_are_a_view(stream):
    """They are counted, indexed and iterated any number of times."""
    (part,) = stream.slices()
    batch = Batch((part, part))
    changes = batch.changes
    assert 2 == len(changes) == len(batch) == len(list(changes)) == len(list(changes))
    assert [*part.changes, *part.changes] == list(changes)
    assert (part.changes[0], part.changes[0], [part.changes[0]]) == (changes[1], changes[-1], changes[1:])
    with pytest.raises(IndexError):
        changes[2]
