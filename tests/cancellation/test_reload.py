"""A reload that is cancelled at any await is carried out as a whole, or not at all."""

from __future__ import annotations

from aiorepl import BatchPolicy, Delivery, Pipeline, Selection
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream


async def test_reload_cancelled_at_every_await(cancelling, tmp_path):
    """The pipeline has all former sinks or all new ones, and every sink has every row."""
    number, cancelled = 1, True
    while cancelled:
        stream = Stream()
        table = stream.table("items", column("id", 23, key=True))
        stream.transaction(table.insert("0"))
        former, gone, successor, new = (MemorySink() for _ in range(4))
        pipeline = Pipeline(
            MemorySource(stream=stream),
            {"a": former, "b": gone},
            journal=tmp_path / str(number),
            batches=BatchPolicy(flush_seconds=0.0),
        )
        async with pipeline:
            await former.wait_for_changes(1, durable=True)
            await gone.wait_for_changes(1, durable=True)
            sinks = {"a": Delivery(successor, selection=Selection(tables=("public.*",))), "c": new}
            steps = cancelling(number)
            await steps.run(pipeline.reload(sinks))
            cancelled = steps.cancelled
            stream.transaction(table.insert("1"))
            if {"journal", "a", "c"} == set(pipeline.statistics().sinks):
                await new.wait_for_changes(2)
                await successor.wait_for_changes(1)
                assert former.closed
            else:
                assert cancelled
                assert {"journal", "a", "b"} == set(pipeline.statistics().sinks)
                await former.wait_for_changes(2)
                await gone.wait_for_changes(2)
                # The cancelled call has not used the sinks, so another one may.
                await pipeline.reload(sinks)
                await new.wait_for_changes(2)
        number += 1
    assert number > 2
