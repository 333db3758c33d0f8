"""A lost Kafka transaction with slices of a large transaction: the large one is delivered again, and is visible once."""

from __future__ import annotations

import json

import pytest

from aiorepl import Batch, BatchPolicy, Delivery, PermanentError, Pipeline, RetryPolicy
from aiorepl.testing.faults import FaultySink
from aiorepl_sinks.kafka import KafkaSink

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("kafka")]


class Losing(FaultySink):
    """Loses its producer before these calls of ``write``, as after a broker's error, and so the Kafka transaction."""

    def __init__(self, sink, *numbers):
        super().__init__(sink)
        self._numbers = numbers
        self.lost = 0

    async def write(self, batch):
        if self.calls.count("write") + 1 in self._numbers:
            self.lost += self.inner._holds_slices
            await self.inner._cluster.disconnect()
        await super().write(batch)


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_parts_of_a_large_transaction(items, broker, name, tmp_path, journal):
    """Several losses, in the middle and before the end; earlier transactions are not repeated either."""
    await items.execute("INSERT INTO items SELECT -g, 'x' FROM generate_series(1, 10) g")
    await items.execute("INSERT INTO items SELECT g, repeat('x', 500) FROM generate_series(1, 10000) g")
    sink = Losing(
        KafkaSink(broker.url, topic=name, exactly_once=True, position_topic=f"positions-{name}"), 2, 4, 7, 8
    )
    pipeline = Pipeline(
        items.source(),
        {"sink": Delivery(sink, retry=RetryPolicy(wait_initial=0.02, wait_max=0.2))},
        until="now",
        batches=BatchPolicy(max_bytes=100_000),
        buffer_bytes=300_000,
        journal=str(tmp_path) if journal else None,
    )
    await pipeline.run()
    assert 0 < sink.lost == pipeline.statistics().sinks["sink"].rewinds
    found = [json.loads(record.value)["new"]["id"] for record in await broker.read(name)]
    assert [*range(-10, 0), *range(1, 10001)] == sorted(found)


async def test_a_part_that_the_broker_rejects(source, broker, name):
    """The Kafka transaction is aborted with the parts before it, so the sink must halt, and not go on with the parts after it."""
    await broker.create(name, max_message_bytes="2000")
    sink = KafkaSink(broker.url, topic=name, exactly_once=True, position_topic=f"positions-{name}")
    await sink.open(source.context)
    try:
        for fatal in (False, True):
            rows = [source.table.insert("1", "x"), source.table.insert("2", "y" * 5000)]
            source.stream.transaction(*(rows if fatal else rows[::-1]))
            parts = [Batch((part,)) for part in source.stream.slices(1)]
            with pytest.raises(PermanentError, match="larger than max_event_bytes") as caught:
                for part in parts:
                    await sink.write(part)
            assert fatal == caught.value.fatal
    finally:
        await sink.close()
