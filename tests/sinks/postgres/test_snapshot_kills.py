"""Snapshots that are killed at every chunk, with writes going on: the target ends equal to the source."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import asyncpg
import pytest

WORKER = Path(__file__).with_name("snapshot_worker.py")
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, doc text)",
    "CREATE TABLE unkeyed (id int, v text)",
    "CREATE TABLE empty (id int PRIMARY KEY)",
)
ROWS = 60


class Load:
    """Transactions that insert, update, delete and change keys, until it is left."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stopping = False

    async def __aenter__(self):
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_):
        self._stopping = True
        await self._task

    async def _run(self) -> None:
        chance, number = random.Random(3), 1000
        connection = await asyncpg.connect(self._dsn)
        try:
            while not self._stopping:
                number += 1
                some = chance.randint(1, ROWS)
                statements = [
                    f"INSERT INTO t VALUES ({number}, 'new', repeat('d', 3000)); INSERT INTO unkeyed VALUES ({number}, 'new')",
                    f"UPDATE t SET v = v || '.' WHERE id BETWEEN {some} AND {some + 3}",
                    f"DELETE FROM t WHERE id = {some}",
                    f"UPDATE t SET id = {-number} WHERE id = {some}",
                    f"INSERT INTO t VALUES ({some}, 'again') ON CONFLICT (id) DO UPDATE SET doc = 'replaced'",
                ]
                end = chance.choice(["COMMIT", "COMMIT", "ROLLBACK"])
                await connection.execute(f"BEGIN; {'; '.join(chance.sample(statements, 2))}; {end}")
                await asyncio.sleep(0.02)
        finally:
            await connection.close()


@pytest.fixture
async def filled(pair):
    """A pair whose source has rows in several blocks."""
    await pair.both(*TABLES)
    await pair.source.execute("ALTER TABLE t ALTER doc SET STORAGE EXTERNAL")
    await pair.source.execute(
        f"INSERT INTO t SELECT i, repeat('v', 700), repeat('d', i % 2 * 3000) FROM generate_series(1, {ROWS}) i"
    )
    await pair.source.execute("INSERT INTO unkeyed SELECT i, 'old' FROM generate_series(1, 20) i")
    return pair


async def run(fork_server, pair, folder, way, moment, passes):
    """Run the process until it dies or the snapshot is complete; say which, and return it."""
    await pair.free()
    arguments = (pair.source_dsn, pair.slot, pair.target_dsn, folder, way, moment, passes)
    pipe = asyncio.subprocess.PIPE
    process = await fork_server.start(
        WORKER, *arguments, stdin=pipe, stdout=pipe, imports=["aiorepl_sinks.postgres"]
    )
    async with asyncio.timeout(90):
        told = await process.stdout.readline()
        if told == b"complete\n":
            return process
        assert told == b""
        assert -signal.SIGKILL == await process.wait()
    return None


@pytest.mark.parametrize(("way", "first"), [("direct", 0), ("journal", 3)])
@pytest.mark.by_day
async def test_killed_at_every_chunk(fork_server, filled, tmp_path, way, first):
    """Each process dies before or after the second chunk that it makes durable, until none is left."""
    folder = str(tmp_path / "folder")
    async with Load(filled.source_dsn):
        assert await run(fork_server, filled, folder, way, "after", first) is None
        kills = 0
        process = None
        while process is None:
            kills += 1
            process = await run(fork_server, filled, folder, way, "before" if kills % 2 else "after", 1)
    assert kills > 2
    await filled.source.execute("INSERT INTO unkeyed VALUES (-1, 'last')")
    async with asyncio.timeout(90):
        while not await filled.target.fetchval("SELECT count(*) FROM unkeyed WHERE id = -1"):
            await asyncio.sleep(0.02)
    process.stdin.close()
    assert 0 == await process.wait()
    await filled.require_equal("t", "unkeyed", "empty")
