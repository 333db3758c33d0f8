"""Runs an example as its reader would: a process of its own, the database named in the environment, Ctrl-C at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from tests.waiting import DEADLINE

EXAMPLES = Path(__file__).parents[2] / "examples"


class Running:
    """A process under way."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.seen: list[str] = []

    async def line(self, *parts: str) -> str:
        """The next line that has all of these in it."""
        async with asyncio.timeout(DEADLINE):
            while line := (await self.process.stdout.readline()).decode():
                self.seen.append(line)
                if all(part in line for part in parts):
                    return line
        raise AssertionError(f"it ended without {parts}: {''.join(self.seen)}")

    async def interrupt(self, number: signal.Signals = signal.SIGINT) -> str:
        """Ctrl-C; it has to end in order, and the rest of what it says is returned."""
        self.process.send_signal(number)
        async with asyncio.timeout(DEADLINE):
            said, _ = await self.process.communicate()
        text = "".join(self.seen) + said.decode()
        # uvicorn ends in order, and then by the signal that it was sent.
        assert self.process.returncode in (0, -number), text
        assert "Traceback" not in text
        return text


@pytest.fixture
async def connection(database: str) -> AsyncIterator[asyncpg.Connection]:
    """An ordinary connection to the test's database."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture
def running(database: str) -> Callable[..., object]:
    """Examples as processes that read the test's database; use what it gives in an ``async with``."""

    @asynccontextmanager
    async def start(*command: str, folder: Path = EXAMPLES, **environment: str) -> AsyncIterator[Running]:
        # SIGINT is as it is at a prompt, also where whoever started the tests ignores it.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *command),
            cwd=folder,
            env={**os.environ, "DATABASE_URL": database, "PYTHONUNBUFFERED": "1", **environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            yield Running(process)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()

    return start


@pytest.fixture
def slot(connection: asyncpg.Connection) -> Callable[..., Awaitable[int]]:
    """Waits for a slot by its name: until nobody uses it any more, or with ``active`` until somebody reads it.

    Of a slot that is free: how many pgoutput messages would come again.
    """

    async def wait(name: str, publication: str = "shop", *, active: bool = False) -> int:
        # While it is created it is in use, too, and has no position.
        there = (
            "SELECT 1 FROM pg_replication_slots "
            "WHERE slot_name = $1 AND active = $2 AND confirmed_flush_lsn IS NOT NULL"
        )
        async with asyncio.timeout(DEADLINE):
            while await connection.fetchval(there, name, active) is None:
                await asyncio.sleep(0.02)
        peek = (
            "SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', "
            "'publication_names', $2, 'messages', 'true')"
        )
        return -1 if active else await connection.fetchval(peek, name, publication)

    return wait
