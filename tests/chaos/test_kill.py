"""After a kill and a restart no change is missing, none is invented, and duplicates are equal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from pathlib import Path
from typing import Any, Self

import asyncpg
import pytest

from aiorepl import LSN, BatchPolicy, Pipeline, RetryPolicy, Source
from aiorepl.testing import EmbeddedServer
from aiorepl.testing.faults import MemorySink

WORKER = Path(__file__).with_name("worker.py")
MOMENTS = ["written", "torn", "synced", "before status", "after status"]


class Load:
    """Transactions of all sizes, a third of them rolled back, until ``stop``."""

    def __init__(self, dsn: str, seed: int = 1) -> None:
        self.dsn = dsn
        self._chance = random.Random(seed)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        connection = await asyncpg.connect(self.dsn)
        await connection.execute("CREATE TABLE items (id serial PRIMARY KEY, note text NOT NULL)")
        await connection.execute("CREATE PUBLICATION p FOR TABLE items")
        # Statuses are sent often, to be wrong often if they are.
        await connection.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET wal_sender_timeout = 900', current_database()); END $$"
        )
        await connection.close()
        self._task = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        await self._task

    async def rows(self) -> dict[int, str]:
        """Return the committed rows, once the load has stopped."""
        self._stopping.set()
        await self._task
        connection = await asyncpg.connect(self.dsn)
        try:
            return dict(await connection.fetch("SELECT id, note FROM items"))
        finally:
            await connection.close()

    async def _write(self) -> None:
        while not self._stopping.is_set():
            try:
                connection = await asyncpg.connect(self.dsn)
                try:
                    await self._write_on(connection)
                finally:
                    connection.terminate()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.05)  # the server is away just now

    async def _write_on(self, connection: asyncpg.Connection) -> None:
        while not self._stopping.is_set():
            rows = self._chance.choice([1, 1, 1, 5, 200])
            end = self._chance.choice(["COMMIT", "COMMIT", "ROLLBACK"])
            await connection.execute(
                f"BEGIN; INSERT INTO items (note) SELECT '{end} ' || i FROM generate_series(1, {rows}) i; {end}"
            )
            await asyncio.sleep(0.005)


class Worker:
    """The process to kill, restarted on the same slot and files."""

    def __init__(self, fork_server: Any, dsn: str, slot: str, folder: Path, journal: Path | None) -> None:
        self._fork_server = fork_server
        self.files = folder / "files"
        self._arguments = (dsn, slot, str(self.files), "-" if journal is None else str(journal))

    async def start(self, moment: str = "-", passes: int = 0) -> asyncio.subprocess.Process:
        """Start the process; it kills itself at ``moment``, if one is given."""
        await self._free()
        process = await self._fork_server.start(
            WORKER,
            *self._arguments,
            moment,
            str(passes),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        told = await process.stdout.readline()
        assert told == b"started\n" or moment != "-"
        return process

    async def _free(self) -> None:
        """Wait until the server has noticed that the slot's consumer was killed."""
        dsn, slot, *_ = self._arguments
        connection = await asyncpg.connect(dsn)
        async with asyncio.timeout(90):
            while await connection.fetchval(
                "SELECT active FROM pg_replication_slots WHERE slot_name = $1", slot
            ):
                await asyncio.sleep(0.01)
        await connection.close()

    async def catch_up(self, rows: dict[int, str]) -> None:
        """Run the process until the files have all of these rows, and stop it."""
        process = await self.start()
        async with asyncio.timeout(90):
            while True:
                with contextlib.suppress(FileNotFoundError):  # rotated just now
                    if not rows.keys() - self.delivered().keys():
                        break
                await asyncio.sleep(0.1)
        await process.communicate(b"")
        assert 0 == process.returncode

    def delivered(self) -> dict[int, str]:
        """Return every row in the files; duplicates must be equal, and each file in order."""
        events: dict[tuple[str, int], bytes] = {}
        for path in sorted(self.files.iterdir()):
            before = (LSN(0), -1)
            *lines, torn = path.read_bytes().split(b"\n")
            assert torn == b"" or path.suffix == ".part" or not torn.endswith(b"}")
            for line in lines:
                event = json.loads(line)
                identity = (event["commit_lsn"], event["ordinal"])
                assert line == events.setdefault(identity, line)
                assert before < (before := (LSN.parse(event["commit_lsn"]), event["ordinal"]))
        news = [json.loads(line)["new"] for line in events.values()]
        rows = {new["id"]: new["note"] for new in news}
        assert len(rows) == len(news)
        return rows


async def create_slot(dsn: str, slot: str) -> None:
    """Create the slot, after which everything must be delivered."""
    connection = await asyncpg.connect(dsn)
    await connection.fetchval("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    await connection.close()


@pytest.mark.parametrize("journaled", [False, True], ids=["direct", "journaled"])
async def test_killed_at_random(fork_server, database, slot_name, tmp_path, journaled):
    """The pipeline is killed five times under load, at random moments."""
    chance = random.Random(5)
    await create_slot(database, slot_name)
    worker = Worker(fork_server, database, slot_name, tmp_path, tmp_path / "journal" if journaled else None)
    async with Load(database) as load:
        for _ in range(5):
            process = await worker.start()
            await asyncio.sleep(chance.uniform(0, 0.6))
            process.kill()
            await process.communicate()
        rows = await load.rows()
    await worker.catch_up(rows)
    assert rows == worker.delivered()
    assert len(rows) > 500
    assert all(note.startswith("COMMIT") for note in rows.values())


@pytest.mark.parametrize("journaled", [False, True], ids=["direct", "journaled"])
async def test_killed_at_named_moments(fork_server, database, slot_name, tmp_path, journaled):
    """The pipeline is killed in the middle of a line, and before and after each step from a write to its confirmation."""
    await create_slot(database, slot_name)
    worker = Worker(fork_server, database, slot_name, tmp_path, tmp_path / "journal" if journaled else None)
    async with Load(database) as load:
        for moment in MOMENTS:
            process = await worker.start(moment, passes=2)
            async with asyncio.timeout(90):
                await process.stdout.read()
                assert -signal.SIGKILL == await process.wait()
            process.stdin.close()
        rows = await load.rows()
    await worker.catch_up(rows)
    assert rows == worker.delivered()


async def test_the_server_is_killed(slot_name):
    """The server is killed three times under load: the pipeline reconnects, and delivers every committed row once, in order."""
    with EmbeddedServer() as server:
        async with Load(server.dsn) as load:
            await create_slot(server.dsn, slot_name)
            connection = await asyncpg.connect(server.dsn)
            before = dict(await connection.fetch("SELECT id, note FROM items"))
            await connection.close()
            sink = MemorySink()
            pipeline = Pipeline(
                Source(server.dsn, slot=slot_name, publication="p"),
                [sink],
                reconnect=RetryPolicy(timeout=None, wait_initial=0.05, wait_max=0.2),
                batches=BatchPolicy(flush_seconds=0.05),
            )
            async with pipeline:
                for number in range(3):
                    await sink.wait_for_changes((number + 1) * 400)
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                    async with asyncio.timeout(90):
                        while pipeline.statistics().reconnects <= number:
                            await asyncio.sleep(0.02)
                rows = await load.rows()
                async with asyncio.timeout(90):
                    while rows.keys() - before.keys() - {change.key["id"] for change in sink.changes}:
                        await asyncio.sleep(0.1)
                assert pipeline.statistics().reconnects >= 3
    delivered = [(change.new["id"], change.new["note"]) for change in sink.changes]
    assert len(delivered) == len(dict(delivered))
    assert rows == before | dict(delivered)
    identities = [(change.transaction.commit_lsn, change.ordinal) for change in sink.changes]
    assert sorted(identities) == identities
