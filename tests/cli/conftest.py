"""The installed command, run as a process of its own, and a database for it to read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from aiorepl import LSN
from tests.cli.deployment import Deployment
from tests.waiting import DEADLINE

COMMAND = Path(sys.executable).with_name("aiorepl")
# Nothing of the caller's settings is to decide what a test sees.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "AIOREPL"))}


@dataclass(frozen=True)
class Finished:
    """The result of a process that has ended."""

    code: int
    out: str
    err: str

    def events(self) -> list[dict[str, Any]]:
        """Its output as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Running:
    """A process under way."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> dict[str, Any]:
        """The next line of its output."""
        async with asyncio.timeout(DEADLINE):
            return json.loads(await self.process.stdout.readline())

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def finished(self) -> Finished:
        """Wait until it ends."""
        async with asyncio.timeout(DEADLINE):
            out, err = await self.process.communicate()
        return Finished(self.process.returncode, out.decode(), err.decode())


class Database:
    """A database with a published table ``items``."""

    def __init__(self, dsn: str, slot: str, connection: asyncpg.Connection) -> None:
        self.dsn = dsn
        self.slot = slot
        self.connection = connection

    @property
    def flags(self) -> list[str]:
        """The options of ``tail`` for the database."""
        return ["--dsn", self.dsn, "--slot", self.slot, "--publication", "p"]

    async def create_slot(self) -> None:
        """Create the slot."""
        await self.connection.fetchval("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", self.slot)

    async def execute(self, *statements: str) -> None:
        """Run each in a transaction of its own."""
        for statement in statements:
            await self.connection.execute(statement)

    async def confirmed(self) -> LSN:
        """Return the slot's confirmed LSN."""
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1"
        return LSN.parse(await self.connection.fetchval(query, self.slot))

    async def wait_until_active(self) -> None:
        """Until somebody streams from the slot."""
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = $1"
        async with asyncio.timeout(DEADLINE):
            while not await self.connection.fetchval(query, self.slot):
                await asyncio.sleep(0.02)


async def end(processes: list[asyncio.subprocess.Process]) -> None:
    """Kill what still runs."""
    while processes:
        process = processes.pop()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.fixture
def processes():
    """The started processes, which are ended after the test."""
    return []


@pytest.fixture
async def start(processes, fork_server):
    """Start the command; what still runs when the test ends is killed."""

    async def start(*arguments: str, **environment: str) -> Running:
        process = await fork_server.start(
            COMMAND,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
            env=ENVIRONMENT | environment,
        )
        processes.append(process)
        return Running(process)

    yield start
    await end(processes)


@pytest.fixture
def run(start):
    """Run the command to its end."""

    async def run(*arguments: str, **environment: str) -> Finished:
        return await (await start(*arguments, **environment)).finished()

    return run


@pytest.fixture
def refused(run):
    """Run the command, and return its one line of error after checking the exit code and that it has no secret."""

    async def refused(code: int, reason: str, *arguments: str, secret: str = "s3cret") -> None:
        finished = await run(*arguments)
        # On a loaded machine, an import alone blocks the event loop.
        lines = [line for line in finished.err.splitlines() if "has blocked the event loop" not in line]
        assert (code, "", 1) == (finished.code, finished.out, len(lines)), finished.err
        assert lines[0].startswith("aiorepl: ")
        assert reason in lines[0]
        assert secret not in finished.err

    return refused


@pytest.fixture
async def published(database: str, slot_name: str, processes) -> AsyncIterator[Database]:
    """The test's database. What reads it is ended first."""
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
    yield Database(database, slot_name, connection)
    await end(processes)
    await connection.close()


@pytest.fixture
def command():
    """The path of the command."""
    return COMMAND


@pytest.fixture
async def deployment(fork_server, database, slot_name, tmp_path) -> AsyncIterator[Deployment]:
    """A deployment with a row in its table."""
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY)")
    await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
    await connection.execute("INSERT INTO items VALUES (0)")
    (tmp_path / "dsn").write_text(database + "\n")
    yield Deployment(fork_server, tmp_path, connection, slot_name)
    await connection.close()
