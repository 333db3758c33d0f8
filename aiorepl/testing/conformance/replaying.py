"""Dead letters that are written again, as ``aiorepl dlq replay`` does, after later changes have arrived."""

from __future__ import annotations

from dataclasses import replace

from aiorepl.sink import Batch
from aiorepl.testing.conformance.base import Conformance, skip_without
from aiorepl.testing.conformance.running import ContractBroken
from aiorepl.testing.conformance.scenario import ITEMS, Scenario
from aiorepl.transactions.slices import Slice

REPLAYS = (
    "a dead letter that is written again is written whatever the position that the sink keeps, and leaves that position "
    "where it is: override replay"
)


class Replays(Conformance):
    """``replay`` writes changes that lie before the position, and does not move it."""

    def test_replay_behind_later_rows(self) -> None:
        """Refused changes are written again after later ones: they are there, and the stream goes on as before."""
        skip_without(
            not self.exactly_once or self.new_sink().replays, "how its sink replays: it keeps a position"
        )
        scenario = Scenario()
        # One transaction was refused whole, of another only the second change.
        done, refused = scenario.items(2), scenario.items(2)
        (part,) = scenario.commit(
            scenario.item(), scenario.table(ITEMS).insert("2000000", "refused", None), scenario.item()
        )
        done.append(replace(part, changes=[part.changes[0], part.changes[2]]))
        refused.append(replace(part, changes=[part.changes[1]]))
        done += scenario.items(2)

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, done)

        async def replaying() -> None:
            async with self.opened(scenario) as (sink, held):
                for letter in refused:
                    await sink.replay(Batch((letter,)))
                    await sink.flush()
                await self.expect(done, replayed=refused, after="dead letters were written again")
            async with self.opened(scenario) as (sink, left):
                if left != held:
                    raise ContractBroken(
                        f"open returned {None if held is None else held.lsn} before a replay and "
                        f"{None if left is None else left.lsn} behind it",
                        REPLAYS,
                    )

        async def again() -> None:
            async with self.opened(scenario) as (sink, held):
                rest = self.missing(scenario, held, confirmed) if self.exactly_once else behind
                await self.write(sink, rest)
                await self.expect([*done, *behind], replayed=refused, after="later rows behind a replay")

        self.live(life)
        self.live(replaying)
        confirmed = scenario.stream.ends[-1]
        behind: list[Slice] = scenario.items(2)
        self.live(again)
