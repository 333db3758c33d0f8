"""NATS keeps the contract."""

from __future__ import annotations

import pytest

from aiorepl.testing.conformance import Event, SinkConformance, native_events
from aiorepl_sinks.nats import Nats


class TestNats(SinkConformance):
    """One subject for everything, so that a truncate of several tables is one message."""

    order = "commit"
    seconds = 120.0
    poison = "p" * 1_100_000

    @pytest.fixture(autouse=True)
    def _target(self, target, name, request) -> None:
        self.server = target
        self.name = name
        # An outage is waited out; nothing else is to be taken for one.
        self.timeout = 5.0 if {"outage", "away", "told"} & set(request.node.name.split("_")) else 60.0
        self.server.create(name, f"{name}.>")

    def make_sink(self) -> Nats:
        return Nats(self.name, self.server.url, subject=f"{self.name}.all", timeout=self.timeout)

    def outage(self):
        return self.server.away()

    async def read(self) -> list[Event]:
        return native_events([message.data for message in await self.server.read(self.name)])
