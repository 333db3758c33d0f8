"""Redis keeps the contract."""

from __future__ import annotations

import pytest

from aiorepl.testing.conformance import Event, SinkConformance, native_events
from aiorepl_sinks.redis import RedisSink

pytestmark = pytest.mark.by_day


class TestRedis(SinkConformance):
    """One stream for everything, so that the order of commits can be seen."""

    exactly_once = True
    order = "commit"
    poison = "p" * 200_000

    @pytest.fixture(autouse=True)
    def _target(self, target, lossy) -> None:
        self.server = target
        self.proxy = lossy(f"{target.folder}/socket", answer=b"done")
        self.url = f"redis://127.0.0.1:{self.proxy.port}"

    def make_sink(self) -> RedisSink:
        return RedisSink(self.url, stream="all", max_event_bytes=150_000, timeout=60.0)

    def lost_answer(self):
        """The script runs, and its answer is lost."""
        return self.proxy.losing()

    def outage(self):
        return self.server.away()

    def read(self) -> list[Event]:
        with self.server.client() as client:
            entries = client.xrange("all")
            return native_events([fields["value"] for _, fields in entries], [at for at, _ in entries])


class TestRedisByTable(TestRedis):
    """A stream for each table, in CloudEvents."""

    order = "table"

    def make_sink(self) -> RedisSink:
        return RedisSink(self.url, format="cloudevents", max_event_bytes=150_000, timeout=60.0)

    def read(self) -> list[Event]:
        import orjson

        with self.server.client() as client:
            values = [
                orjson.loads(fields["value"])["data"]
                for stream in client.scan_iter()
                if client.type(stream) == "stream"
                for _, fields in client.xrange(stream)
            ]
        # A truncate of several tables is in the stream of each.
        unique = {(event.lsn, event.ordinal): event for event in native_events(values)}
        return list(unique.values())
