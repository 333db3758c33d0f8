"""NATS keeps the contract."""

from __future__ import annotations

from contextlib import contextmanager
from weakref import WeakSet

import pytest

from aiorepl.testing.conformance import Event, SinkConformance, native_events
from aiorepl_sinks.nats import NatsSink

pytestmark = pytest.mark.by_day


class TestNats(SinkConformance):
    """One subject for everything, so that a truncate of several tables is one message."""

    order = "commit"
    seconds = 120.0
    poison = "p" * 1_100_000

    @pytest.fixture(autouse=True)
    def _target(self, target, name, request, lossy) -> None:
        self.server = target
        self.name = name
        self.sinks: WeakSet[NatsSink] = WeakSet()
        self.timeout = 1.0 if "away_at_the_start" in request.node.name else 60.0
        self.server.create(name, f"{name}.>")
        self.proxy = lossy(("127.0.0.1", target.port), answer=b'"seq":')

    def make_sink(self) -> NatsSink:
        sink = NatsSink(
            self.name, f"nats://127.0.0.1:{self.proxy.port}", subject=f"{self.name}.all", timeout=self.timeout
        )
        self.sinks.add(sink)
        return sink

    @contextmanager
    def outage(self):
        """The server is stopped; calls wait a second for it."""
        with self.server.away():
            for sink in self.sinks:
                sink._stream._timeout = 1.0
            try:
                yield
            finally:
                for sink in self.sinks:
                    sink._stream._timeout = self.timeout

    def lost_answer(self):
        """The stream stores a message, and its acknowledgement is lost."""
        return self.proxy.losing()

    async def read(self) -> list[Event]:
        messages = await self.server.read(self.name)
        ids = [message.headers["Nats-Msg-Id"] for message in messages]
        return native_events([message.data for message in messages], ids)
