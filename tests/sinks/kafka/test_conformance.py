"""Kafka keeps the contract, at least and exactly once."""

from __future__ import annotations

from contextlib import contextmanager
from weakref import WeakSet

import pytest

from aiorepl.testing.conformance import Event, SinkConformance, native_events
from aiorepl_sinks.kafka import KafkaSink

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("kafka")]


class TestKafka(SinkConformance):
    """One topic of three partitions."""

    order = "key"
    poison = "p" * 200_000
    seconds = 120.0

    @pytest.fixture(autouse=True)
    def _target(self, broker, name, request) -> None:
        self.broker = broker
        self.name = name
        self.sinks: WeakSet[KafkaSink] = WeakSet()
        self.timeout = 1.0 if "away_at_the_start" in request.node.name else 60.0

    def make_sink(self, **options) -> KafkaSink:
        sink = KafkaSink(
            self.broker.urls["LOSSY"],
            topic=self.name,
            max_event_bytes=150_000,
            timeout=self.timeout,
            **options,
        )
        self.sinks.add(sink)
        return sink

    def outage(self):
        return self.waited_out(self.broker.away())

    def lost_answer(self):
        """The broker writes records or ends a transaction, and its answer is lost."""
        return self.waited_out(self.broker.proxy.losing())

    @contextmanager
    def waited_out(self, fault):
        """Ignore timeouts for a second, and no other error."""
        with fault:
            for sink in self.sinks:
                sink._timeout = 1.0
            try:
                yield
            finally:
                for sink in self.sinks:
                    sink._timeout = self.timeout

    async def read(self) -> list[Event]:
        # Also while a transaction is open.
        records = await self.broker.read(self.name, patience=3.0)
        ids = [dict(record.headers)["event_id"].decode() for record in records]
        return native_events([record.value for record in records], ids)


class TestKafkaExactlyOnce(TestKafka):
    """The sink with Kafka transactions that have the position."""

    exactly_once = True
    atomic = True

    def make_sink(self) -> KafkaSink:
        return super().make_sink(
            exactly_once=True, transactional_id=self.name, position_topic=f"positions-of-{self.name}"
        )
