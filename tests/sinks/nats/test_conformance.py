"""NATS keeps the contract."""

from __future__ import annotations

import pytest

from aiorepl.testing.conformance import Event, SinkConformance, native_events
from aiorepl_sinks.nats import Nats


class TestNats(SinkConformance):
    """One subject for everything, so that a truncate of several tables is one message."""

    order = "commit"
    poison = "p" * 1_100_000

    @pytest.fixture(autouse=True)
    def _target(self, target, name) -> None:
        self.server = target
        self.name = name
        self.server.create(name, f"{name}.>")

    def make_sink(self) -> Nats:
        return Nats(self.name, self.server.url, subject=f"{self.name}.all", timeout=2.0)

    def outage(self):
        return self.server.away()

    async def read(self) -> list[Event]:
        return native_events([message.data for message in await self.server.read(self.name)])
