"""The sink in a pipeline: small batches, little memory, a connection that breaks."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Coroutine
from typing import Any

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.delivery import Delivery
from aiorepl.delivery.pipeline import Pipeline
from aiorepl.delivery.retry import RetryPolicy
from aiorepl.testing.conformance.base import Conformance
from aiorepl.testing.conformance.story import Story
from aiorepl.testing.memory import MemorySource
from aiorepl.transactions.transaction import Slice


class Engine(Conformance):
    """Whatever the slot has been told is in the target, at any time."""

    def test_a_pipeline(self) -> None:
        """Through more than fits in memory at once, twice started: what is acknowledged is there."""
        story = Story()
        source = MemorySource(stream=story.stream)
        again = RetryPolicy(first=0.001, longest=0.01)
        batches = BatchPolicy(bytes=3000, flush_bytes=10_000, flush_seconds=0.02)

        async def work() -> None:
            for _ in range(5):
                story.items(3)
                source.lose()
                story.commit(*(story.item(f"of many {number}") for number in range(100)))
                await source.acknowledged(story.stream.ends[-2])
                done, rest = _parted(story, source.confirmed)
                await self.expect(done, rest, after=f"{source.confirmed} was acknowledged")

        async def life() -> None:
            delivery = Delivery(self.make_sink(), batches=batches)
            pipeline = Pipeline(source, [delivery], memory=20_000, reconnect=again)
            await _beside(pipeline, work())
            await self.expect(story.stream.again(), after="a pipeline ended")

        for _ in range(2):
            self.live(life)

    def test_schema_changes(self) -> None:
        """Where the user wants them, they stand before rows and share their identities: the rows are there all the same."""
        story = Story()
        source = MemorySource(stream=story.stream)

        async def work() -> None:
            # The first row of a table after a start brings one.
            story.items(2)
            await source.acknowledged()

        async def life() -> None:
            # Its own batches: a sink may ask for others than the pipeline's.
            batches = BatchPolicy(flush_seconds=0.02)
            delivery = Delivery(self.make_sink(), schema_changes=True, batches=batches)
            await _beside(Pipeline(source, [delivery]), work())
            await self.expect(story.stream.again(), after="schema changes were delivered, too")

        for _ in range(2):
            self.live(life)


async def _beside(pipeline: Pipeline, work: Coroutine[Any, Any, None]) -> None:
    """Do this while the pipeline runs, and no longer than it runs."""
    running = asyncio.create_task(pipeline.run())
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({running, working}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        pipeline.stop()
        _, failed = await asyncio.gather(running, working, return_exceptions=True)
    await running
    if isinstance(failed, Exception):
        raise failed


def _parted(story: Story, confirmed: int) -> tuple[list[Slice], list[Slice]]:
    """What is acknowledged, and the rest."""
    slices = story.stream.again()
    count = bisect_right(story.stream.ends, confirmed)
    return slices[:count], slices[count:]
