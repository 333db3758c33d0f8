"""Batches of every size, slices, and repetition after a restart, a crash or a cancelled call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest

from aiorepl.lsn import LSN
from aiorepl.position import Position, Timelines
from aiorepl.sink import Batch, Sink
from aiorepl.testing.conformance.base import EACH_ALONE, IN_PARTS, ONE_BATCH, Conformance, skip_without
from aiorepl.testing.conformance.running import ContractBroken, cancelled
from aiorepl.testing.conformance.scenario import ITEMS, SECRET, Scenario
from aiorepl.transactions.slices import Slice

LARGE_BATCH: Final = 1200
EXACTLY_ONCE = (
    "exactly_once = True: after a flush, open returns the end LSN of the last batch, kept in the same atomic step as "
    "the data"
)


class Batches(Conformance):
    """Changes arrive in order, whatever the size of batches."""

    @pytest.mark.parametrize("limit", [ONE_BATCH, EACH_ALONE, IN_PARTS], ids=["at-once", "batches", "parts"])
    def test_what_is_flushed_is_there(self, limit: int) -> None:
        """Changes of all kinds arrive once, in order, in batches of any size."""
        scenario = Scenario()
        slices = scenario.everything(self.kinds, self.tables)

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, self._cut(scenario, limit), limit)
                await self.expect(slices, after="a flush")

        self.live(life)
        self.live(lambda: self.expect(slices, after="a flush and close"))

    def test_a_large_batch(self) -> None:
        """More than a thousand changes of a few rows in one batch keep their order, even if the sink splits the batch."""
        scenario = Scenario()
        items, keys = scenario.table(ITEMS), [scenario.int(number) for number in range(1, 41)]
        slices = scenario.commit(*(items.insert(key, f"{SECRET} 0", None) for key in keys))
        rounds = range(1, LARGE_BATCH // len(keys))
        slices += scenario.commit(
            *(items.update(key, f"{SECRET} {number}", None) for number in rounds for key in keys)
        )
        for number in range(5):
            slices += scenario.commit(
                *(items.update(key, f"{SECRET} last {number}", None) for key in keys[:3])
            )

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, slices, ONE_BATCH)
                await self.expect(slices, after="a batch of more than a thousand changes")

        self.live(life)

    def test_rows_of_a_snapshot(self) -> None:
        """Rows of a snapshot arrive, whether the target has them or not; so do chunks without rows."""
        scenario = Scenario()
        slices = scenario.snapshots()

        async def life(at_once: int | None, limit: int) -> None:
            async with self.opened(scenario) as (sink, held):
                await self.write(sink, self.missing(scenario, held, at_once=at_once), limit)
            await self.expect(slices, after="a snapshot")

        self.live(lambda: life(1, IN_PARTS))
        # The last confirmation did not reach the server.
        self.live(lambda: life(None, ONE_BATCH))

    def test_a_sink_is_opened_and_closed(self) -> None:
        """A sink can be checked, and opened and closed repeatedly, without a write."""
        scenario = Scenario()

        async def checked() -> None:
            sink = self.new_sink()
            try:
                await sink.check([])
            finally:
                await _close_unopened(sink)

        self.live(checked, leaves_nothing=True)

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await sink.flush()
                await self.expect([], after="nothing was written")

        for _ in range(2):
            self.live(life)

    def test_close_lets_go_of_everything(self) -> None:
        """After close no task runs, and a sink that was never opened can be closed."""
        scenario = Scenario()

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, scenario.items(2))

        self.live(life, leaves_nothing=True)
        self.live(lambda: _close_unopened(self.new_sink()), leaves_nothing=True)

    def test_a_transaction_in_slices(self) -> None:
        """Slices of a transaction can be flushed one by one; an atomic sink shows none of them before the last."""
        scenario = Scenario()
        before = scenario.items(2)
        scenario.commit(*(scenario.item(f"of many {number}") for number in range(300)))
        parts = scenario.stream.again(40, after=scenario.stream.ends[0])

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, before)
                await self.write(sink, parts[:-1], IN_PARTS)
                await self.expect(before, parts[:-1], after="all slices of a transaction but the last")
                # The last slice arrives in one batch with later transactions.
                later = scenario.items(2)
                await self.write(sink, [parts[-1], *later], ONE_BATCH)
                await self.expect([*before, *parts, *later], after="its last slice")

        self.live(life)

    def test_the_position_of_batches_without_changes(self) -> None:
        """A batch without changes advances the position of a sink that keeps one."""
        scenario = Scenario()
        slices = scenario.items(2)
        scenario.stream.transaction()
        empty = scenario.stream.slices()
        end = LSN(scenario.stream.ends[-1] + 0x100)

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, slices)
                if self.exactly_once:
                    await self.write(sink, [*empty, Slice(None, (), True, end, 0)])

        async def again() -> None:
            async with self.opened(scenario) as (_, held):
                if self.exactly_once and (held is None or held.lsn != end):
                    raise ContractBroken(
                        f"{end} was flushed, and open returned {None if held is None else held.lsn}",
                        EXACTLY_ONCE,
                    )
                await self.expect(slices, after="a batch without changes")

        self.live(life)
        self.live(again)

    @pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
    def test_a_promotion(self, *, running: bool) -> None:
        """After the promotion of a standby, while the sink is open or closed, the position has the new timeline."""
        skip_without(self.exactly_once, "exactly_once = True")
        scenario = Scenario()
        timelines = scenario.context.position.timelines
        assert timelines is not None
        slices: list[Slice] = []

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                slices.extend(fresh := scenario.items(2))
                await self.write(sink, fresh)
                if timelines.current == 1:
                    timelines.grow(Timelines(2, [(1, scenario.stream.ends[-1])]))
                    if not running:
                        return
                slices.extend(fresh := scenario.items(2))
                await self.write(sink, fresh)

        async def again() -> None:
            async with self.opened(scenario) as (_, held):
                if held is None or held.timeline != 2:
                    raise ContractBroken(
                        f"{scenario.stream.ends[-1]} of timeline 2 was flushed, and open returned "
                        f"{None if held is None else held.timeline} for the timeline",
                        "keep context.position.at(batch.end_lsn): neither the position that was read back nor its "
                        "timeline know of a promotion",
                    )
                await self.expect(slices, after="a promotion")

        self.live(life)
        if not running:
            self.live(life)
        self.live(again)

    def test_a_position_is_kept_whole(self) -> None:
        """``open`` returns every field of the position, because the next start compares them with the server."""
        skip_without(self.exactly_once, "exactly_once = True")
        scenario = Scenario()
        context = replace(scenario.context, position=scenario.context.position.followed())
        trail = context.position.trail
        assert trail is not None
        trail.begin(context.position)
        kept: list[Position] = []

        async def life() -> None:
            sink = self.new_sink()
            try:
                await sink.open(context)
                slices = scenario.items(2)
                (header,) = (part.transaction for part in slices if part.last)
                assert header is not None
                trail.add(scenario.stream.ends[-1], header)
                await self.write(sink, slices)
                kept.append(context.position.at(scenario.stream.ends[-1]))
            finally:
                await sink.close()

        async def again() -> None:
            async with self.opened(scenario) as (_, held):
                if held != kept[0]:
                    raise ContractBroken(
                        f"{kept[0]} was flushed, and open returned {held}",
                        "keep all that context.position.at(batch.end_lsn).to_json() has, and read it by Position.from_json",
                    )

        self.live(life)
        self.live(again)

    def _cut(self, scenario: Scenario, limit: int) -> list[Slice]:
        return scenario.stream.again(1 if limit == IN_PARTS else None)


class Crashes(Conformance):
    """Flushed changes survive; others are sent again. Nothing is lost, and exactly-once sinks have no duplicates."""

    def test_what_was_flushed_survives_a_crash(self) -> None:
        """Flushed changes survive a process that is killed before close."""
        scenario = Scenario()
        done = scenario.items(3) + scenario.items(2)

        async def life(sink: Sink) -> None:
            await sink.open(scenario.context)
            await self.write(sink, done)

        self.die(life)
        self.live(lambda: self.expect(done, after="a flush and a crash"))

    @pytest.mark.parametrize("again", [ONE_BATCH, EACH_ALONE, IN_PARTS], ids=["at-once", "batches", "parts"])
    def test_a_crash_between_write_and_flush(self, again: int) -> None:
        """Changes that were not flushed are sent to a new sink again, in other batches."""
        scenario = Scenario()
        done = scenario.items(3)
        confirmed = scenario.stream.ends[-1]
        pending = scenario.items(2) + scenario.items(40)

        async def life(sink: Sink) -> None:
            await sink.open(scenario.context)
            await self.write(sink, done)
            await self.write(sink, pending, flush=False)

        self.die(life)
        self.live(lambda: self.expect(done, pending, after="a crash between write and flush"))
        self._go_on(scenario, confirmed, again)

    def test_a_crash_within_a_transaction(self) -> None:
        """A transaction of which some slices were flushed is sent again from its first slice, in other slices."""
        scenario = Scenario()
        done = scenario.items(3)
        confirmed = scenario.stream.ends[-1]
        scenario.commit(*(scenario.item(f"of many {number}") for number in range(60)))
        parts = scenario.stream.again(7, after=confirmed)[:5]

        async def life(sink: Sink) -> None:
            held = await sink.open(scenario.context)
            slices = self.missing(scenario, held, at_once=7)
            await self.write(sink, slices[:-4], IN_PARTS)

        for _ in range(2):
            self.die(life)
            self.live(lambda: self.expect(done, parts, after="a crash within a transaction"))
        self._go_on(scenario, confirmed, IN_PARTS, at_once=11)

    def test_a_restart_with_an_older_confirmation(self) -> None:
        """If the last confirmation did not reach the server, the same changes are sent again with the same identities."""
        scenario = Scenario()
        slices = scenario.everything(self.kinds, self.tables)

        async def life() -> None:
            async with self.opened(scenario) as (sink, held):
                await self.write(sink, self.missing(scenario, held))

        for _ in range(3):
            self.live(life)
        self.live(lambda: self.expect(slices, after="a restart with an older confirmation"))

    @pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
    @pytest.mark.parametrize("call", ["open", "write", "flush"])
    def test_cancellation(self, call: str, late: bool) -> None:
        """A call that is cancelled at any await ends, the sink can be closed, and a new one accepts the unflushed changes."""
        scenario = Scenario()
        confirmed = LSN(0)
        for at in range(1, self.cancellations + 1):
            done, pending = scenario.stream.again(), scenario.items(3) + scenario.items(2)

            async def life(
                at: int = at, done: Sequence[Slice] = done, pending: Sequence[Slice] = pending
            ) -> bool:
                sink = self.new_sink()
                try:
                    return await self._interrupted(call, at, late, sink, scenario, pending)
                finally:
                    await sink.close()
                    await self.expect(done, pending, after=f"{call} was cancelled at await {at}")

            reached = self.live(life)
            self._go_on(scenario, confirmed, EACH_ALONE)
            confirmed = scenario.stream.ends[-1]
            if not reached:
                return

    async def _interrupted(
        self, call: str, at: int, late: bool, sink: Sink, scenario: Scenario, pending: Sequence[Slice]
    ) -> bool:
        if call == "open":
            return await cancelled(sink.open(scenario.context), at, "open", late=late)
        await sink.open(scenario.context)
        if call == "write":
            return await cancelled(sink.write(Batch(tuple(pending))), at, "write", late=late)
        await self.write(sink, pending, flush=False)
        return await cancelled(sink.flush(), at, "flush", late=late)

    def _go_on(self, scenario: Scenario, confirmed: LSN, limit: int, at_once: int | None = None) -> None:
        """Write the missing changes and a new one to a new sink."""
        scenario.items(2)

        async def life() -> None:
            async with self.opened(scenario) as (sink, held):
                if self.exactly_once and held is not None and held.lsn < confirmed:
                    raise ContractBroken(
                        f"{confirmed} was flushed, and open returned {held.lsn}", EXACTLY_ONCE
                    )
                cut = 1 if limit == IN_PARTS and at_once is None else at_once
                await self.write(sink, self.missing(scenario, held, confirmed, cut), limit)
                await self.expect(scenario.stream.again(), after="the rest came again")

        self.live(life)


class Concurrency(Conformance):
    """For sinks that set ``concurrent``."""

    def test_writes_at_once(self) -> None:
        """Batches that share no key can be written concurrently; the changes of each key stay in order."""
        import asyncio

        skip_without(self.new_sink().concurrent, "that its sink is concurrent")
        scenario = Scenario()
        slices = [part for _ in range(6) for part in scenario.items(4)]

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await asyncio.gather(*(sink.write(Batch((part,))) for part in slices))
                await sink.flush()

        self.live(life)
        self.live(lambda: self.expect(slices, after="writes at the same time"))


async def _close_unopened(sink: Sink) -> None:
    try:
        await sink.close()
    except Exception as error:
        raise ContractBroken(
            f"close raised {type(error).__name__} without a call of open",
            "close is also called after a failure, and if open did not finish",
        ) from error
