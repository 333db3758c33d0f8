"""A broker as a round uses it: Redis and NATS, as the tests of the sinks start them. ``kafka_broker`` has Kafka.

Each sink has a stream of its own in the broker, which holds the changes in the order in which the broker has stored them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from nats.errors import Error as NatsError
from redis.exceptions import RedisError

from aiorepl.testing import CuttingProxy

sys.path.append(str(Path(__file__).parents[2]))
from tests.sinks.server_process import ServerProcess

RESTARTED, CUT = "broker restarted", "broker cut"
AWAY: tuple[type[Exception], ...] = (RedisError, NatsError, TimeoutError, OSError)
"""The errors of a read while the broker is away."""
# How long a killed broker stays away at most, in seconds.
_AWAY_SECONDS = 1.0
# How many entries are read at a time.
_READ = 2_000


class Broker(ABC):
    """A broker as a round uses it.

    :param server: runs; it may be killed and started again.
    :param round_name: begins the names of the round's streams.
    """

    away: tuple[type[Exception], ...] = AWAY
    """The errors of ``read`` while the broker is away."""

    def __init__(self, server: Any, round_name: str) -> None:
        self.server = server
        self._round = round_name

    async def __aenter__(self) -> Self:
        return self

    @abstractmethod
    async def __aexit__(self, *error: object) -> None: ...

    def stream(self, sink: str) -> str:
        """Return the name of a sink's stream."""
        return f"{self._round}-{sink}"

    @abstractmethod
    async def prepare(self, sink: str, drawn: Mapping[str, Any]) -> None:
        """Create what a sink with the drawn options needs."""

    @abstractmethod
    def options(self, sink: str, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a sink, as JSON."""

    @abstractmethod
    async def read(self, stream: str, after: str) -> tuple[list[bytes], str, bool]:
        """Read the events that were stored after a place.

        :param after: empty: from the beginning.
        :returns: the events, the new place, and whether these are all events that were acknowledged before the call.
        """

    async def strike(self, kind: str, size: float) -> None:
        """Strike once, if the broker can have such a fault.

        :param size: the length or amount, from 0 to 1.
        """
        if kind == CUT:
            self._cut()
        elif kind == RESTARTED:
            self.server.kill()
            await asyncio.sleep(size * _AWAY_SECONDS)
            await self._start()

    async def emptied(self) -> None:  # noqa: B027 - Kafka's transactions show which records of ended processes are complete
        """Wait until the broker has read all data that ended processes have sent."""

    @abstractmethod
    def _cut(self) -> None:
        """Cut all connections of the sinks."""

    async def _start(self) -> None:
        self.server.start()


class ProxiedBroker(Broker):
    """A broker that clients reach through a proxy."""

    def __init__(self, server: ServerProcess, port: int, round_name: str) -> None:
        super().__init__(server, round_name)
        self.proxy = CuttingProxy("127.0.0.1", port)

    async def __aenter__(self) -> Self:
        await self.proxy.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.proxy.__aexit__(*error)

    async def prepare(self, sink: str, drawn: Mapping[str, Any]) -> None:
        """Do nothing: the sink creates its stream."""

    async def emptied(self) -> None:
        while self.proxy.open:
            await asyncio.sleep(0.01)

    def _cut(self) -> None:
        self.proxy.cut()


class RedisBroker(ProxiedBroker):
    """Redis: a stream of entries."""

    def options(self, sink: str, drawn: Mapping[str, Any]) -> dict[str, Any]:
        return {"url": f"redis://127.0.0.1:{self.proxy.port}/0", "stream": self.stream(sink)}

    async def read(self, stream: str, after: str) -> tuple[list[bytes], str, bool]:
        from redis import asyncio as client

        lines: list[bytes] = []
        async with client.Redis.from_url(f"unix://{self.server.folder}/socket") as redis:
            while entries := await redis.xrange(stream, f"({after}" if after else "-", "+", _READ):
                for _, fields in entries:
                    lines += [fields[name] for name in fields if name.startswith(b"schema")]
                    lines.append(fields[b"value"])
                after = entries[-1][0].decode()
        return lines, after, True


class NatsBroker(ProxiedBroker):
    """NATS: a stream of JetStream."""

    def options(self, sink: str, drawn: Mapping[str, Any]) -> dict[str, Any]:
        stream = self.stream(sink)
        return {
            "servers": f"nats://127.0.0.1:{self.proxy.port}",
            "stream": stream,
            "subject": f"{stream}.{{schema}}.{{table}}",
            "create_stream": True,
            # The stream forgets a message's id after this time. A program can last minutes on a busy machine.
            "duplicate_window": "1h",
            "timeout": 2.0,
        }

    async def read(self, stream: str, after: str) -> tuple[list[bytes], str, bool]:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
        from nats.js.errors import NotFoundError

        connection = await nats.connect(
            self.server.url, allow_reconnect=False, connect_timeout=2, error_cb=_ignored
        )
        lines: list[bytes] = []
        try:
            jetstream = connection.jetstream()
            try:
                last = (await jetstream.stream_info(stream)).state.last_seq
            except NotFoundError:
                return [], after, True
            first = int(after or 0) + 1
            if first <= last:
                place = ConsumerConfig(
                    ack_policy=AckPolicy.NONE,
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=first,
                )
                pulled = await jetstream.pull_subscribe(">", stream=stream, config=place)
                while len(lines) <= last - first:
                    lines += [
                        one.data for one in await pulled.fetch(min(_READ, last - first + 1 - len(lines)), 10)
                    ]
            return lines, str(last), True
        finally:
            with contextlib.suppress(Exception):
                await connection.close()


async def _ignored(error: Exception) -> None:
    """Do not log an error that is also raised."""
