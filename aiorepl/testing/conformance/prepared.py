"""Prepared transactions, for sinks that set ``supports_prepared``."""

from __future__ import annotations

import pytest

from aiorepl.testing.conformance.base import Conformance, skip_without
from aiorepl.testing.conformance.scenario import Scenario


class Prepared(Conformance):
    """A flushed PREPARE is durable, and consumers see its decision."""

    @pytest.mark.parametrize("decision", ["commit", "rollback"])
    def test_a_prepared_transaction(self, decision: str) -> None:
        """A prepared transaction is decided by a later process, with other transactions in between."""
        skip_without(self.new_sink().supports_prepared, "that its sink takes prepared transactions")
        scenario = Scenario()
        before = scenario.items(1)
        scenario.stream.prepare("conformance 'gid'", scenario.item("prepared"), scenario.item("prepared"))
        prepared = scenario.stream.slices()
        between = scenario.items(2)
        confirmed = scenario.stream.ends[-1]

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, [*before, *prepared, *between])
                await self.expect([*before, *prepared, *between], after="a PREPARE was flushed")

        async def later() -> None:
            async with self.opened(scenario) as (sink, held):
                await self.write(sink, self.missing(scenario, held, confirmed))
                await self.expect(scenario.stream.again(), after=f"a prepared transaction's {decision}")

        self.live(life)
        decide = (
            scenario.stream.commit_prepared if decision == "commit" else scenario.stream.rollback_prepared
        )
        decide("conformance 'gid'")
        scenario.items(1)
        for _ in range(2):
            self.live(later)
