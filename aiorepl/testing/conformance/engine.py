"""The sink in a pipeline: small batches, little memory, lost connections."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Final

import pytest

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.config import Delivery
from aiorepl.errors import TransientError
from aiorepl.pipeline.pipeline import Pipeline
from aiorepl.position import Position
from aiorepl.retry import RetryPolicy
from aiorepl.sink import Batch, Sink, SinkContext
from aiorepl.testing.conformance.base import LOST_ANSWER, OUTAGE, Conformance, skip_without
from aiorepl.testing.conformance.running import ContractBroken
from aiorepl.testing.conformance.scenario import Scenario
from aiorepl.testing.memory import MemorySource
from aiorepl.transactions.slices import Slice

AGAIN: Final = RetryPolicy(wait_initial=0.001, wait_max=0.01)


class Engine(Conformance):
    """At any time, every acknowledged change is in the target."""

    def test_a_pipeline(self) -> None:
        """Acknowledged changes are in the target, with more changes than fit in memory, and after a restart."""
        scenario = Scenario()
        source = MemorySource(stream=scenario.stream)
        batches = BatchPolicy(max_bytes=3000, flush_bytes=10_000, flush_seconds=0.02)

        async def work() -> None:
            for _ in range(3):
                scenario.items(3)
                source.disconnect()
                scenario.commit(*(scenario.item(f"of many {number}") for number in range(100)))
                await source.acknowledged(scenario.stream.ends[-2])
                done, rest = _split_at(scenario, source.confirmed)
                await self.expect(done, rest, after=f"{source.confirmed} was acknowledged")

        async def life() -> None:
            delivery = Delivery(self.make_sink(), batches=batches)
            pipeline = retrying(source, delivery, buffer_bytes=20_000, shutdown_timeout=self.seconds)
            await beside(pipeline, work())
            await self.expect(scenario.stream.again(), after="a pipeline ended")

        for _ in range(2):
            self.live(life)

    @pytest.mark.parametrize("call", [1, 2, 4, 7])
    def test_an_outage_within_a_transaction(self, call: int) -> None:
        """After an outage in the middle of a transaction, the whole transaction arrives."""
        skip_without(self.outage(), OUTAGE)
        self._fails_within_a_transaction(call, self.outage, "an outage")

    @pytest.mark.parametrize("call", [1, 4])
    def test_a_lost_answer_within_a_transaction(self, call: int) -> None:
        """After a lost answer in the middle of a transaction, every change has its one identity."""
        skip_without(self.lost_answer(), LOST_ANSWER)
        self._fails_within_a_transaction(call, self.lost_answer, "a lost answer")

    def _fails_within_a_transaction(
        self, call: int, fault: Callable[[], AbstractContextManager[object] | None], named: str
    ) -> None:
        scenario = Scenario()
        source = MemorySource(stream=scenario.stream, read_bytes=500)

        async def work(failing: _FailsAt) -> None:
            scenario.items(2)
            await source.acknowledged()
            scenario.commit(*(scenario.item(f"of many {number}") for number in range(100)))
            scenario.items(2)
            await _either(failing.failed.wait(), source.acknowledged())
            if not failing.failed.is_set():
                raise ContractBroken(
                    f"everything was acknowledged in spite of {named}, and no call failed",
                    f"flush returning means durable; {fault.__name__}() must take effect within a transaction of the sink",
                )
            await source.acknowledged()

        async def life() -> None:
            made = fault()
            assert made is not None
            failing = _FailsAt(call, self.new_sink(), made)
            delivery = Delivery(failing, batches=BatchPolicy(max_bytes=3000, flush_seconds=0.02))
            pipeline = retrying(source, delivery, buffer_bytes=20_000, shutdown_timeout=self.seconds)
            try:
                await beside(pipeline, work(failing))
            finally:
                failing.end()
            await self.expect(scenario.stream.again(), after=f"{named} within a transaction")

        for _ in range(2):
            self.live(life)

    def test_schema_changes(self) -> None:
        """Schema changes precede rows and share their identity; the rows still arrive."""
        scenario = Scenario()
        source = MemorySource(stream=scenario.stream)

        async def work() -> None:
            # The first row of a table after a start causes a schema change.
            scenario.items(2)
            await source.acknowledged()

        async def life() -> None:
            # The sink may prefer other batches than the pipeline's.
            batches = BatchPolicy(flush_seconds=0.02)
            delivery = Delivery(self.make_sink(), schema_changes=True, batches=batches)
            await beside(Pipeline(source, [delivery], shutdown_timeout=self.seconds), work())
            await self.expect(scenario.stream.again(), after="schema changes were delivered")

        for _ in range(2):
            self.live(life)


def retrying(source: MemorySource, delivery: Delivery, **options: Any) -> Pipeline:
    """Return a pipeline that reconnects and retries within milliseconds."""
    return Pipeline(source, [delivery], reconnect=AGAIN, retry=AGAIN, **options)


class _FailsAt(Sink):
    """A sink whose target has a fault, from the n-th write of a partial transaction until a call fails."""

    def __init__(self, call: int, sink: Sink, fault: AbstractContextManager[object]) -> None:
        self.supports_prepared = sink.supports_prepared
        self.needs_attributes = sink.needs_attributes
        self._sink = sink
        self._writes = call
        self._fault = fault
        self._faulty = False
        self.failed = asyncio.Event()
        """Set when a call has failed."""

    @property
    def durable_on_write(self) -> bool:
        return self._sink.durable_on_write

    async def open(self, context: SinkContext) -> Position | None:
        return await self._sink.open(context)

    async def write(self, batch: Batch) -> None:
        self._writes -= not batch.slices[-1].last
        if self._writes == 0:
            # Some targets cannot become unavailable while a sink has unflushed data.
            await self._sink.flush()
            self._writes, self._faulty = -1, True
            self._fault.__enter__()
        await self._call(self._sink.write(batch))

    async def flush(self) -> None:
        await self._call(self._sink.flush())

    async def close(self) -> None:
        await self._sink.close()

    def end(self) -> None:
        """End the fault."""
        if self._faulty:
            self._faulty = False
            self._fault.__exit__(None, None, None)

    async def _call(self, call: Coroutine[Any, Any, None]) -> None:
        try:
            await call
        except TransientError:
            self.failed.set()
            self.end()
            raise


async def beside(pipeline: Pipeline, work: Coroutine[Any, Any, None]) -> None:
    """Run a pipeline and ``work`` until one of them ends, then stop the pipeline."""
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


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of these ends, and cancel the others."""
    waiting = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waiting:
            wait.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _split_at(scenario: Scenario, confirmed: int) -> tuple[list[Slice], list[Slice]]:
    """Return the acknowledged slices, and all later slices."""
    slices = scenario.stream.again()
    count = bisect_right(scenario.stream.ends, confirmed)
    return slices[:count], slices[count:]
