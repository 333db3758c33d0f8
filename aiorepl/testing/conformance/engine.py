"""The sink in a pipeline: small batches, little memory, a connection that breaks."""

from __future__ import annotations

from bisect import bisect_right

from aiorepl.delivery.batching import BatchPolicy
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

        async def life() -> None:
            async with Pipeline(source, [self.make_sink()], batches=batches, memory=20_000, reconnect=again):
                for _ in range(5):
                    story.items(3)
                    source.lose()
                    story.commit(*(story.item(f"of many {number}") for number in range(100)))
                    await source.acknowledged(story.stream.ends[-2])
                    done, rest = _parted(story, source.confirmed)
                    await self.expect(done, rest, after=f"{source.confirmed} was acknowledged")
            await self.expect(story.stream.again(), after="a pipeline ended")

        for _ in range(2):
            self.live(life)


def _parted(story: Story, confirmed: int) -> tuple[list[Slice], list[Slice]]:
    """What is acknowledged, and the rest."""
    slices = story.stream.again()
    count = bisect_right(story.stream.ends, confirmed)
    return slices[:count], slices[count:]
