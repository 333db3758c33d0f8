"""For sinks that set ``supports_prepared``: transactions that are prepared now and decided later."""

from __future__ import annotations

import pytest

from aiorepl.testing.conformance.base import Conformance, skip_without
from aiorepl.testing.conformance.story import Scenario


class Prepared(Conformance):
    """What is prepared is durable when it was flushed, and is seen as it was decided."""

    @pytest.mark.parametrize("decision", ["commit", "rollback"])
    def test_a_prepared_transaction(self, decision: str) -> None:
        """Prepared, flushed, and decided by another process, with other transactions between."""
        skip_without(self.new_sink().supports_prepared, "that its sink takes prepared transactions")
        story = Scenario()
        before = story.items(1)
        story.stream.prepare("conformance 'gid'", story.item("prepared"), story.item("prepared"))
        prepared = story.stream.slices()
        between = story.items(2)
        confirmed = story.stream.ends[-1]

        async def life() -> None:
            async with self.opened(story) as (sink, _):
                await self.write(sink, [*before, *prepared, *between])
                await self.expect([*before, *prepared, *between], after="a PREPARE was flushed")

        async def later() -> None:
            async with self.opened(story) as (sink, held):
                await self.write(sink, self.missing(story, held, confirmed))
                await self.expect(story.stream.again(), after=f"a prepared transaction's {decision}")

        self.live(life)
        decide = story.stream.commit_prepared if decision == "commit" else story.stream.rollback_prepared
        decide("conformance 'gid'")
        story.items(1)
        for _ in range(2):
            self.live(later)
