"""Kafka keeps the contract, at least and exactly once."""

from __future__ import annotations

import pytest

from aiorepl.testing.conformance import Event, SinkConformance, native_events
from aiorepl_sinks.kafka import Kafka

pytestmark = pytest.mark.xdist_group("kafka")


class TestKafka(SinkConformance):
    """One topic of three partitions."""

    order = "key"
    poison = "p" * 200_000
    seconds = 120.0

    @pytest.fixture(autouse=True)
    def _target(self, broker, name, request) -> None:
        self.broker = broker
        self.name = name
        # An outage is waited out; nothing else is to be taken for one.
        self.timeout = 4.0 if {"outage", "away", "told"} & set(request.node.name.split("_")) else 60.0

    def make_sink(self) -> Kafka:
        return Kafka(self.broker.url, topic=self.name, max_event_bytes=150_000, timeout=self.timeout)

    def outage(self):
        return self.broker.away()

    async def read(self) -> list[Event]:
        # Also while a transaction is open.
        return native_events([record.value for record in await self.broker.read(self.name, patience=3.0)])


class TestKafkaExactlyOnce(TestKafka):
    """In Kafka transactions, with the position."""

    exactly_once = True
    atomic = True

    def make_sink(self) -> Kafka:
        return Kafka(
            self.broker.url,
            topic=self.name,
            max_event_bytes=150_000,
            timeout=self.timeout,
            exactly_once=True,
            transactional_id=self.name,
            position_topic=f"positions-of-{self.name}",
        )
