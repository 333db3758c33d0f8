"""A folder with a pipeline's file, in which ``aiorepl run`` runs as a process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.waiting import DEADLINE

COMMAND = (Path(sys.executable).with_name("aiorepl"), "--verbose", "run")

JOURNAL = """
[journal]
url = "journal"
snapshot = true
"""
FILE = """
[source]
dsn = "file:${SECRETS}/dsn"
slot = "${SLOT}"
publication = "p"
create_slot = true
[pipeline]
buffer_bytes = "1MiB"
[[sinks]]
type = "jsonl"
name = "archive"
path = "events"
[sinks.batches]
flush_seconds = 0.05
[[sinks]]
type = "jsonl"
path = "few"
[sinks.selection]
kinds = ["delete"]
"""


class Deployment:
    """A published table ``items``, and a folder with ``aiorepl.toml`` in which the command is run."""

    def __init__(self, fork_server, folder, connection, slot):
        self.fork_server = fork_server
        self.folder = folder
        self.connection = connection
        self.slot = slot

    async def start(self, *arguments: str, **pipes: int) -> asyncio.subprocess.Process:
        """Start the command."""
        environment = {"SECRETS": str(self.folder), "SLOT": self.slot}
        return await self.fork_server.start(*COMMAND, *arguments, cwd=self.folder, env=environment, **pipes)

    async def ended(self, *arguments: str) -> tuple[int | None, str]:
        """Run the command to its end; return its exit code and its standard error."""
        process = await self.start(*arguments, stderr=asyncio.subprocess.PIPE)
        _, told = await asyncio.wait_for(process.communicate(), DEADLINE)
        return process.returncode, told.decode()

    @asynccontextmanager
    async def running(self, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """The command, once it streams."""
        process = await self.start(*arguments, stderr=asyncio.subprocess.PIPE)
        try:
            await self.until(self.streams, process)
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()

    async def streams(self):
        """Return whether the slot is in use."""
        return await self.connection.fetchval(
            "SELECT active FROM pg_replication_slots WHERE slot_name = $1", self.slot
        )

    async def until(self, good, process) -> None:
        """Repeat ``good`` until it returns true. Fail if the process ends first."""
        try:
            async with asyncio.timeout(DEADLINE):
                while not await good():
                    if process.returncode is not None:
                        pytest.fail((await process.stderr.read()).decode())
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"not within {DEADLINE} s")

    async def delivers(self, rows: int, process, sink: str = "archive") -> None:
        """Wait until so many rows are in the sink's files."""

        async def enough():
            return len(self.events(sink)) >= rows

        await self.until(enough, process)

    def events(self, sink: str):
        """Return the events of the whole lines in a sink's files."""
        folder = self.folder / {"archive": "events", "jsonl": "few"}[sink]
        texts = [path.read_text() for path in sorted(folder.glob("*"))]
        return [json.loads(line) for text in texts for line in text.rpartition("\n")[0].splitlines()]

    async def stop(self, process, number) -> str:
        """Send a signal, and return the output until the end."""
        process.send_signal(number)
        _, told = await asyncio.wait_for(process.communicate(), DEADLINE)
        assert 0 == process.returncode, told.decode()
        return told.decode()
