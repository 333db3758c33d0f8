"""A rejected change in a pipeline: no start passes it until the user chooses how to handle it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.config import Delivery
from aiorepl.errors import SinkError
from aiorepl.lsn import LSN
from aiorepl.testing.conformance.base import EACH_ALONE, IN_PARTS, ONE_BATCH, Conformance, skip_without
from aiorepl.testing.conformance.engine import beside, retrying
from aiorepl.testing.conformance.event import identity
from aiorepl.testing.conformance.failures import POISON
from aiorepl.testing.conformance.running import ContractBroken
from aiorepl.testing.conformance.scenario import ITEMS, Scenario
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.memory import MemorySource
from aiorepl.transactions.slices import Slice

KEEPS_POSITION = (
    "a sink that returned a position from open does not move it past a change that it rejects; the engine does, with a batch "
    "without changes, once the rejected change is a dead letter or skipped"
)


class Halting(Conformance):
    """Tests of sinks with ``poison``: a rejected change halts the sink until it is handled."""

    @pytest.mark.parametrize("limit", [ONE_BATCH, EACH_ALONE, IN_PARTS], ids=["at-once", "batches", "parts"])
    def test_a_rejection_halts_every_start(self, limit: int) -> None:
        """Under ``halt`` every start stops at the rejected change; once it is a dead letter, the next start passes it."""
        skip_without(self.poison, POISON)
        assert self.poison is not None
        scenario = Scenario()
        rejected = scenario.table(ITEMS).insert("2000000", self.poison, None)
        scenario.items(2)
        scenario.items(1)
        poisoned = scenario.commit(scenario.item(), rejected, scenario.item())
        source = MemorySource(stream=scenario.stream, read_bytes=1 if limit == IN_PARTS else 64 * 1024)
        lost = {identity(poisoned[0].changes[1])}

        for start in ("the first start", "the next start"):
            scenario.items(2)
            self.live(partial(self._halt, source, limit, start))
        letters = MemorySink()
        self.live(lambda: self._deliver(source, letters))
        aside = {identity(change) for change in letters.changes}
        if not lost <= aside:
            raise ContractBroken(
                "the rejected change is neither in the target nor a dead letter", KEEPS_POSITION
            )
        # Slices before the rejected change may be in the target, though their whole transaction became dead letters.
        shown = aside - lost if limit == IN_PARTS and not self.atomic else set()

        async def look(after: str) -> None:
            slices = scenario.stream.again()
            done = _with(slices, lambda at: at not in aside)
            await self.expect(done, _with(slices, lambda at: at in shown), after=after)

        self.live(lambda: look("dead letters were written"))
        # The position is past the dead letter, so no start stops there again.
        scenario.items(2)
        self.live(lambda: self._deliver(source, None))
        self.live(lambda: look("a start after dead letters"))

    async def _halt(self, source: MemorySource, limit: int, start: str) -> None:
        batches = BatchPolicy(max_bytes=limit, flush_seconds=0.02)
        delivery = Delivery(self.make_sink(), batches=batches)
        try:
            await beside(retrying(source, delivery, shutdown_timeout=self.seconds), _all_of(source))
        except SinkError:
            return
        raise ContractBroken(f"{start} did not stop at a change that the target rejects", KEEPS_POSITION)

    async def _deliver(self, source: MemorySource, letters: MemorySink | None) -> None:
        batches = BatchPolicy(max_bytes=ONE_BATCH, flush_seconds=0.02)
        delivery = Delivery(
            self.make_sink(),
            batches=batches,
            on_error="halt" if letters is None else "dead_letter",
            dead_letters=letters,
        )
        await beside(retrying(source, delivery, shutdown_timeout=self.seconds), _all_of(source))


async def _all_of(source: MemorySource) -> None:
    await source.acknowledged()


def _with(slices: list[Slice], wanted: Callable[[tuple[LSN, int]], bool]) -> list[Slice]:
    """Return the slices with only those changes whose identity is wanted."""
    chosen = ([change for change in part.changes if wanted(identity(change))] for part in slices)
    return [replace(part, changes=changes) for part, changes in zip(slices, chosen, strict=True)]
