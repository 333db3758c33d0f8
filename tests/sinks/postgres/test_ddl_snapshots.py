"""``ddl = "apply"`` beside snapshots: tables are created and altered while they are read, and processes are killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from pathlib import Path

import asyncpg
import pytest

pytestmark = pytest.mark.by_day

WORKER = Path(__file__).with_name("lost_worker.py")
ROWS = 40


class Load:
    """Run transactions that change rows and tables during the block."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._random = random.Random(seed)
        self._stopping = False
        self.tables = ["t", "u"]
        self.added = 0

    async def __aenter__(self):
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_):
        self._stopping = True
        await self._task

    def _statement(self) -> str:
        chance, table = self._random, self._random.choice(self.tables)
        some = chance.randint(1, ROWS)
        self.added += 1
        match chance.choices(range(6), (6, 6, 3, 0.3, 0.2, 0.1))[0]:
            case 0:
                return f"INSERT INTO {table} (id, v) VALUES ({1000 + self.added}, 'new')"
            case 1:
                return f"UPDATE {table} SET v = right(v || '.', 300) WHERE id BETWEEN {some} AND {some + 3}"
            case 2:
                return f"DELETE FROM {table} WHERE id = {some}"
            case 3:
                default = chance.choice(("", " DEFAULT 'd'", " NOT NULL DEFAULT 'x'"))
                return f"ALTER TABLE {table} ADD c{self.added} text{default}"
            case 4:
                return f"ALTER TABLE {table} ALTER v TYPE varchar({1000 + self.added})"
            case _:
                self.tables.append(f"n{self.added}")
                return f"CREATE TABLE n{self.added} (id int PRIMARY KEY, v varchar(1000))"

    async def _run(self) -> None:
        connection = await asyncpg.connect(self._dsn, server_settings={"lock_timeout": "300ms"})
        try:
            while not self._stopping:
                tables = list(self.tables)
                statements = [self._statement() for _ in range(self._random.randint(1, 3))]
                end = self._random.choice(["COMMIT", "COMMIT", "ROLLBACK"])
                try:
                    await connection.execute(f"BEGIN; {'; '.join(statements)}; {end}")
                except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                    end = "ROLLBACK"
                    await connection.execute("ROLLBACK")
                if end == "ROLLBACK":
                    self.tables = tables
                await asyncio.sleep(0.02)
        finally:
            await connection.close()


async def start(fork_server, pair, folder, way, count):
    """Start a process that dies after this number of chunks."""
    await pair.free()
    pipe = asyncio.subprocess.PIPE
    arguments = (pair.source_dsn, pair.slot, pair.target_dsn, folder, way, count)
    return await fork_server.start(
        WORKER, *arguments, stdin=pipe, stdout=pipe, imports=["aiorepl_sinks.postgres"]
    )


async def kill_some(fork_server, pair, folder, way, seed):
    """Start processes that die after more and more chunks; kill a process that lives too long."""
    for number in range(4):
        process = await start(fork_server, pair, folder, way, 3 * number + seed % 2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await process.stdout.readline()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        assert -signal.SIGKILL == await process.wait()


async def rows(connection, table):
    """A table's rows as sorted text; the order of columns does not matter."""
    return sorted(row[0] for row in await connection.fetch(f"SELECT to_jsonb(x)::text FROM {table} x"))


@pytest.mark.parametrize("way", ["direct", "journal"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_while_tables_are_read(fork_server, pair, tmp_path, way, seed):
    """Twice: at the first start, and after the slot was lost, when rows were deleted meanwhile. Tables change all the time."""
    folder = str(tmp_path / "folder")
    for table in ("t", "u"):
        await pair.source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(1000))")
        await pair.source.execute(
            f"INSERT INTO {table} SELECT i, repeat('v', 250) FROM generate_series(1, {ROWS * 4}) i"
        )
    async with Load(pair.source_dsn, seed) as load:
        await kill_some(fork_server, pair, folder, way, seed)
        await pair.free()
        await pair.source.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1",
            pair.slot,
        )
        await pair.source.execute("DELETE FROM t WHERE id % 3 = 0; DELETE FROM u WHERE id % 5 = 0")
        await kill_some(fork_server, pair, folder, way, seed + 1)
    process = await start(fork_server, pair, folder, way, -1)
    async with asyncio.timeout(90):
        assert b"complete\n" == await process.stdout.readline()
    tables = sorted(set(load.tables))
    for table in tables:
        await pair.source.execute(f"INSERT INTO {table} (id, v) VALUES (-1, 'last')")
    await pair.reached(await pair.wal())
    process.stdin.close()
    assert 0 == await process.wait()
    for table in tables:
        assert await rows(pair.source, table) == await rows(pair.target, table), table
