"""A CancelledError from user code, although the pipeline was not cancelled, is an error of the sink and does not end the pipeline silently."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import BatchPolicy, Delivery, Pipeline, SinkError
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream


async def cancelled() -> None:
    """Await a task that was cancelled."""
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


class Target(MemorySink):
    """A sink with one method that raises CancelledError."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at

    async def open(self, context):
        if self._at == "open":
            await cancelled()
        return await super().open(context)

    async def write(self, batch):
        if self._at == "write" and any(change.new["id"] == 2 for change in batch.changes):
            await cancelled()
        await super().write(batch)

    async def flush(self):
        if self._at == "flush":
            await cancelled()
        await super().flush()


def written() -> MemorySource:
    stream = Stream()
    table = stream.table("items", column("id", 23, key=True))
    for number in range(4):
        stream.transaction(table.insert(str(number)))
    return MemorySource(stream=stream)


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
@pytest.mark.parametrize("at", ["open", "write", "flush", "transform"])
async def test_the_pipeline_fails(tmp_path, at, journal):
    """The pipeline fails with an error that names the sink and the call."""

    async def transform(change):
        await cancelled()

    source, sink = written(), Target(at)
    delivery = Delivery(sink, transform=transform if at == "transform" else None)
    options = {"journal": tmp_path} if journal else {}
    running = Pipeline(
        source, {"s": delivery}, until=source.stream.lsn, batches=BatchPolicy(max_rows=1), **options
    )

    with pytest.raises(
        SinkError, match=f"sink s: (its )?{at} raised UnexpectedCancellation .test_by_itself.py"
    ):
        async with asyncio.timeout(60):
            await running.run()


async def test_the_policy_of_the_sink_applies(tmp_path):
    """With ``on_error="dead_letter"``, the transaction becomes a dead letter, as after any other error."""
    source, sink = written(), Target("write")
    delivery = Delivery(sink, on_error="dead_letter", dead_letters=tmp_path)
    await Pipeline(source, {"s": delivery}, until=source.stream.lsn, batches=BatchPolicy(max_rows=1)).run()

    assert [0, 1, 3] == [change.new["id"] for change in sink.changes]
    assert 1 == len(list(tmp_path.glob("*.json")))
