"""Replay of dead letters, as by ``aiorepl dlq replay``, after later changes."""

from __future__ import annotations

from dataclasses import replace

from aiorepl.sink import Batch
from aiorepl.testing.conformance.base import Conformance, skip_without
from aiorepl.testing.conformance.running import ContractBroken
from aiorepl.testing.conformance.scenario import ITEMS, Scenario
from aiorepl.transactions.slices import Slice

REPLAYS = "replay writes a dead letter whatever position the sink keeps, and does not change that position: override replay"


class Replays(Conformance):
    """``replay`` writes changes before the position, and does not move it."""

    def test_replay_behind_later_rows(self) -> None:
        """Replayed changes are in the target, and the stream continues at the same position."""
        skip_without(
            not self.exactly_once or self.new_sink().replays, "how its sink replays: it keeps a position"
        )
        scenario = Scenario()
        # A whole transaction was rejected, and of the next transaction only the second change.
        done, rejected = scenario.items(2), scenario.items(2)
        (part,) = scenario.commit(
            scenario.item(), scenario.table(ITEMS).insert("2000000", "rejected", None), scenario.item()
        )
        done.append(replace(part, changes=[part.changes[0], part.changes[2]]))
        rejected.append(replace(part, changes=[part.changes[1]]))
        done += scenario.items(2)

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, done)

        async def replaying() -> None:
            async with self.opened(scenario) as (sink, held):
                for letter in rejected:
                    await sink.replay(Batch((letter,)))
                    await sink.flush()
                await self.expect(done, replayed=rejected, after="dead letters were written again")
            async with self.opened(scenario) as (sink, left):
                if left != held:
                    raise ContractBroken(
                        f"open returned {None if held is None else held.lsn} before a replay and "
                        f"{None if left is None else left.lsn} after it",
                        REPLAYS,
                    )

        async def again() -> None:
            async with self.opened(scenario) as (sink, held):
                rest = self.missing(scenario, held, confirmed) if self.exactly_once else later
                await self.write(sink, rest)
                await self.expect([*done, *later], replayed=rejected, after="later rows after a replay")

        self.live(life)
        self.live(replaying)
        confirmed = scenario.stream.ends[-1]
        later: list[Slice] = scenario.items(2)
        self.live(again)
