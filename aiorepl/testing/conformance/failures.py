"""Rejected rows, outages, lost answers, and rows that must not leak into logs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from aiorepl.errors import PermanentError, SinkError, TransientError
from aiorepl.sink import Batch, Sink
from aiorepl.testing.conformance.base import LOST_ANSWER, ONE_BATCH, OUTAGE, Conformance, skip_without
from aiorepl.testing.conformance.event import identity
from aiorepl.testing.conformance.running import ContractBroken, Watch
from aiorepl.testing.conformance.scenario import ITEMS, SECRET, Scenario
from aiorepl.transactions.slices import Slice

POISON = "poison: a value of public.items.note that the target always rejects"


@dataclass(frozen=True, slots=True)
class _Failed:
    """A call that raised TransientError."""

    call: str
    rewind: bool


class Failures(Conformance):
    """Errors have the right class, and a failed call has no partial effect."""

    def test_poison(self) -> None:
        """A sink names the rejected row, or rejects its batch and accepts the other transactions one by one."""
        skip_without(self.poison, POISON)
        scenario, poisoned, good = self._poisoned()
        batch = Batch((*good[:2], *poisoned, *good[2:]))

        async def life() -> list[Slice]:
            async with self.opened(scenario) as (sink, _):
                error = await self.try_write(sink, batch)
                permanent = self._permanent(error)
                if permanent.rejected:
                    await sink.flush()
                    return self._without(poisoned, batch, permanent)
                # Write each transaction alone, as the engine does.
                for part in batch.slices:
                    error = await self.try_write(sink, Batch((part,)))
                    if part in poisoned:
                        self._permanent(error)
                    elif error is not None:
                        raise ContractBroken(
                            f"after a rejected batch a good transaction raised {type(error).__name__}",
                            "after an error a sink is as it was before the call",
                        )
                return []

        rest = self.live(life)
        self.live(lambda: self.expect([*good, *rest], after="a row was rejected"))

    def test_an_outage(self) -> None:
        """During an outage calls raise TransientError; repeated after it, they succeed."""
        outage = self.outage()
        skip_without(outage, OUTAGE)
        assert outage is not None
        scenario = Scenario()
        done, pending = scenario.items(2), scenario.items(2) + scenario.items(3)

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, done)
                batch = Batch(tuple(pending))
                written = False
                with outage:
                    for _ in range(2):
                        written = await self._fails(sink, batch, written=written)
                if not written:
                    await sink.write(batch)
                await sink.flush()

        self.live(life)
        self.live(lambda: self.expect([*done, *pending], after="an outage"))

    @pytest.mark.parametrize("then", ["again", "restart"])
    def test_a_lost_answer(self, then: str) -> None:
        """A call that failed because its answer was lost is repeated; no change gets a second identity."""
        lost = self.lost_answer()
        skip_without(lost, LOST_ANSWER)
        assert lost is not None
        scenario = Scenario()
        done, pending = scenario.items(2), scenario.items(2) + scenario.items(3)
        confirmed = scenario.stream.ends[0]

        async def unheard(sink: Sink) -> _Failed:
            await sink.open(scenario.context)
            await self.write(sink, done)
            with lost:
                return await self._unheard(sink, Batch(tuple(pending)))

        async def again() -> None:
            sink = self.new_sink()
            try:
                failed = await unheard(sink)
                if failed.rewind:
                    held = await sink.open(scenario.context)
                    await self.write(sink, self.missing(scenario, held, confirmed))
                else:
                    await self.write(sink, () if failed.call == "flush" else pending, ONE_BATCH)
                await self.write(sink, scenario.items(2))
            finally:
                await sink.close()

        async def restart() -> None:
            async with self.opened(scenario) as (sink, held):
                await self.write(sink, [*self.missing(scenario, held, confirmed), *scenario.items(2)])

        if then == "again":
            self.live(again)
        else:
            self.die(unheard)
            self.live(
                lambda: self.expect(done, pending, after="an answer was lost and the process was killed")
            )
            self.live(restart)
        self.live(lambda: self.expect(scenario.stream.again(), after="an answer was lost"))

    def test_a_target_that_is_away_at_the_start(self) -> None:
        """If the target is unavailable at the start, a call raises a SinkError, and the sink can be closed."""
        outage = self.outage()
        skip_without(outage, OUTAGE)
        assert outage is not None
        scenario = Scenario()
        scenario.items(2)

        async def life() -> None:
            sink = self.new_sink()
            with outage:
                try:
                    await sink.open(scenario.context)
                    await self.write(sink, scenario.stream.again())
                except SinkError:
                    pass
                else:
                    raise ContractBroken(
                        "open, write and flush returned while the target was away",
                        "flush returning means durable",
                    )
                finally:
                    await self._close(sink)

        self.live(life)

    def test_rows_are_never_logged(self) -> None:
        """Logs at INFO and above, errors, their causes and ``repr`` contain no rows."""
        scenario, watch = Scenario(), Watch()
        slices = scenario.everything(self.kinds, self.tables)
        self.watched(scenario, slices, watch)
        if watch.leaks:
            raise ContractBroken(
                f"rows are quoted by {', '.join(sorted(set(watch.leaks)))}",
                "a sink never logs or raises the contents of rows: raise with names and positions, and `from None` where "
                "the cause quotes what was sent",
            )

    def watched(self, scenario: Scenario, slices: list[Slice], watch: Watch) -> None:
        """Write, and cause the declared failures, while logs and errors are searched."""
        poison: list[Slice] = []
        if self.poison is not None:
            rejected = scenario.table(ITEMS).insert("2000000", self.poison, f"{SECRET} beside it")
            poison = scenario.items(1) + scenario.commit(rejected)

        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, slices)
                watch.look(repr(sink), "repr(sink)")
                if poison:
                    await self.try_write(sink, Batch(tuple(poison)), watch)
                if (outage := self.outage()) is not None:
                    with outage:
                        await self.try_write(sink, Batch(tuple(scenario.items(2))), watch)

        with watch.watching():
            self.live(life)

    async def _fails(self, sink: Sink, batch: Batch, *, written: bool) -> bool:
        try:
            if not written:
                await sink.write(batch)
                written = True
            await sink.flush()
        except TransientError:
            return written
        except Exception as error:
            raise ContractBroken(
                f"while the target was away, {type(error).__name__} was raised",
                "raise TransientError when the same batch may succeed later",
            ) from error
        raise ContractBroken("flush returned while the target was away", "flush returning means durable")

    async def _unheard(self, sink: Sink, batch: Batch) -> _Failed:
        """Write and flush while answers are lost."""
        call = "write"
        try:
            await sink.write(batch)
            call = "flush"
            await sink.flush()
        except TransientError as error:
            return _Failed(call, error.rewind)
        except Exception as error:
            raise ContractBroken(
                f"when the target's answer was lost, {call} raised {type(error).__name__}",
                "raise TransientError when the same batch may succeed later",
            ) from error
        raise ContractBroken(
            "write and flush returned in spite of a lost answer", "flush returning means durable"
        )

    async def _close(self, sink: Sink) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                await sink.close()
        except SinkError:
            pass

    def _poisoned(self) -> tuple[Scenario, list[Slice], list[Slice]]:
        scenario = Scenario()
        good = scenario.items(2) + scenario.items(1)
        assert self.poison is not None
        rejected = scenario.table(ITEMS).insert("2000000", self.poison, None)
        poisoned = scenario.commit(scenario.item(), rejected, scenario.item())
        return scenario, poisoned, good + scenario.items(2)

    def _permanent(self, error: SinkError | None) -> PermanentError:
        if not isinstance(error, PermanentError):
            did = "nothing was raised" if error is None else f"{type(error).__name__} was raised"
            raise ContractBroken(
                f"the target rejected a row, and {did}",
                "raise PermanentError when the batch can never succeed",
            )
        return error

    def _without(self, poisoned: list[Slice], batch: Batch, error: PermanentError) -> list[Slice]:
        """Return the transaction without its rejected row; the sink has accepted the rest."""
        (part,) = poisoned
        expected = {identity(part.changes[1])}
        named = {identity(change) for change in error.rejected}
        if named != expected:
            raise ContractBroken(
                f"rejected names {len(named)} changes, {len(named & expected)} of them the one that was rejected",
                "rejected: these changes are rejected for good, and all others of the batch were accepted",
            )
        taken = [change for change in part.changes if identity(change) not in named]
        return [Slice(part.transaction, taken, True, part.end_lsn, part.size)]
