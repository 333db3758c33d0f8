"""Tables that are read while the stream runs: every row ends as it is on the server, whatever is committed meanwhile."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import asyncpg
import pytest

from aiorepl import ConfigurationError, Pipeline
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.testing.faults import MemorySink

LARGE = "SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100)"


class Mirror:
    """The rows of a table as a target that merges by key has them."""

    def __init__(self, table: str, key: str = "id") -> None:
        self.rows: dict[Any, dict[str, Any]] = {}
        self.kinds: list[str] = []
        self.complete = 0
        self._table = table
        self._key = key
        self._taken = 0

    def catch_up(self, sink: MemorySink) -> dict[Any, dict[str, Any]]:
        """Apply the batches since the last call; return the rows."""
        for batch in sink.batches[self._taken :]:
            for part in batch.slices:
                header = part.transaction
                for change in part.changes:
                    self._apply(change)
                if header is not None and header.snapshot is not None and part.end_lsn is not None:
                    self.complete += header.snapshot.last_of_table
        self._taken = len(sink.batches)
        return self.rows

    def _apply(self, change: Any) -> None:
        if change.kind == "truncate":
            if any(relation.name == self._table for relation in change.relations):
                self.rows.clear()
            return
        if getattr(change, "table", None) != self._table or change.kind == "schema":
            return
        self.kinds.append(change.kind)
        if change.kind == "delete":
            self.rows.pop(change.old[self._key], None)
            return
        old = change.old
        base = self.rows.pop(change.new[self._key] if old is None else old[self._key], {})
        new = {
            name: base.get(name) if value is UNCHANGED else value for name, value in change.new.items()
        }
        self.rows[new[self._key]] = new


async def on_server(published, table: str, key: str = "id") -> dict[Any, dict[str, Any]]:
    return {row[key]: dict(row) for row in await published.connection.fetch(f"SELECT * FROM {table}")}


@pytest.fixture
def small(tmp_path):
    """Chunks of one block, whose ledger survives a restart."""
    return SnapshotOptions(chunk_bytes=8192, state=str(tmp_path / "state"))


@pytest.fixture
async def large(published):
    """A table ``t`` of some chunks, with values out of line; its rows are older than the slot."""
    await published.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, doc text)",
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i, repeat('v', 200), CASE WHEN i % 5 = 0 THEN ({LARGE}) END FROM generate_series(1, 200) i",
    )
    await published.create_slot()
    return published


@pytest.mark.parametrize("server", [14, 18], indirect=True)
@pytest.mark.parametrize("options", [{}, {"binary": True}], ids=["text", "binary"])
async def test_all_rows(large, small, options):
    """All rows are delivered in several chunks, as rows of a snapshot, and the table is complete once."""
    sink, mirror = MemorySink(), Mirror("t")
    async with Pipeline(large.source(**options), [sink], snapshot=small) as pipeline:
        await pipeline.resnapshot("public.t")
        (status,) = pipeline.snapshots.tables.values()
        assert ("complete", 200) == (status.state, status.rows)
        assert status.chunks > 3
    assert await on_server(large, "t") == mirror.catch_up(sink)
    assert ({"read"}, 1) == (set(mirror.kinds), mirror.complete)


async def test_without_messages_of_users(large, small):
    """Neither watermarks nor the messages that users write are delivered, if they were not requested."""
    sink = MemorySink()
    async with Pipeline(large.source(), [sink], snapshot=small) as pipeline:
        await large.execute("SELECT pg_logical_emit_message(true, 'theirs', 'x')")
        await pipeline.resnapshot("t")
    assert {"read"} == {change.kind for change in sink.changes}


class Load:
    """Clients that change a table all the time, until the test ends them."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._chance = random.Random(seed)
        self.commits = 0

    async def run(self, stop: asyncio.Event) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            while not stop.is_set():
                try:
                    await self._transaction(connection)
                except (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError):
                    continue
                self.commits += 1
        finally:
            await connection.close()

    async def _transaction(self, connection: asyncpg.Connection) -> None:
        chance = self._chance
        transaction = connection.transaction()
        await transaction.start()
        try:
            for _ in range(chance.randrange(1, 4)):
                key = chance.randrange(1, 300)
                match chance.randrange(6):
                    case 0:
                        await connection.execute("DELETE FROM t WHERE id = $1", key)
                    case 1:
                        await connection.execute(
                            f"INSERT INTO t SELECT $1, 'new', ({LARGE}) ON CONFLICT DO NOTHING", key
                        )
                    case 2:
                        await connection.execute(
                            "UPDATE t SET id = $2 WHERE id = $1 AND NOT EXISTS (SELECT FROM t WHERE id = $2)",
                            key,
                            chance.randrange(1, 300),
                        )
                    case _:
                        await connection.execute("UPDATE t SET v = md5(random()::text) WHERE id = $1", key)
        except BaseException:
            await transaction.rollback()
            raise
        if chance.random() < 0.1:
            await transaction.rollback()
        else:
            await transaction.commit()


@pytest.mark.parametrize("options", [{}, {"streaming": "on", "two_phase": True}], ids=["plain", "streaming"])
async def test_under_load(large, small, options):
    """Rows that are changed while their chunks are read end as they are on the server, with all of their columns."""
    sink, mirror, stop = MemorySink(), Mirror("t"), asyncio.Event()
    loads = [asyncio.create_task(Load(large.dsn, seed).run(stop)) for seed in range(3)]
    try:
        async with Pipeline(large.source(**options), [sink], snapshot=small) as pipeline:
            for _ in range(2):
                await pipeline.resnapshot("public.t")
            stop.set()
            await asyncio.gather(*loads)
            await large.execute("CREATE TABLE IF NOT EXISTS e (id int)", "INSERT INTO e VALUES (1)")
            end = await large.wal()
            await large.confirmed_past(end)
    finally:
        stop.set()
        await asyncio.gather(*loads, return_exceptions=True)
    assert await on_server(large, "t") == mirror.catch_up(sink)
    assert 2 == mirror.complete


async def test_a_table_that_is_not_published(large, small):
    """The error names the table, and other tables are read."""
    sink = MemorySink()
    async with Pipeline(large.source(), [sink], snapshot=small) as pipeline:
        with pytest.raises(ConfigurationError, match=r"public\.missing does not exist, or is not published by p"):
            await pipeline.resnapshot("missing")
        await pipeline.resnapshot("t")
    assert ["failed", "complete"] == [status.state for status in pipeline.snapshots.tables.values()]
