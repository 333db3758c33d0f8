"""A snapshot whose process is killed at every chunk, while the tables are written: every row ends as it is on the server."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import asyncpg
import pytest

from aiorepl import BatchPolicy, Pipeline, SnapshotOptions
from aiorepl.errors import AioreplError, PermanentError
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing.faults import MemorySink

pytestmark = pytest.mark.by_day

LARGE = "SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 80)"
TABLES = ("t", "u")


class Killed(PermanentError):
    """Stands for a kill: the pipeline ends with it, and the sink has what it had flushed."""


class Fragile(MemorySink):
    """A target that ends the process after some chunks, before or after they are durable."""

    def __init__(self) -> None:
        super().__init__(keeps_position=True)
        self.left = self.kills = 0

    async def write(self, batch: Any) -> None:
        chunks = sum(
            part.transaction is not None
            and part.transaction.snapshot is not None
            and part.end_lsn is not None
            for part in batch.slices
        )
        await super().write(batch)
        self.left -= chunks
        if chunks and self.left <= 0:
            self.kills += 1
            if self.kills % 2:
                await self.flush()
            raise Killed("killed")


def fold(batches: list[Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """The tables as a target that merges by key has them."""
    tables: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in TABLES}
    for batch in batches:
        for change in batch.changes:
            rows = tables.get(change.table)
            if rows is None:
                continue
            if change.kind == "delete":
                rows.pop(change.old["id"], None)
                continue
            base = rows.pop(change.key["id"], {})
            rows[change.new["id"]] = {
                name: base.get(name) if value is UNCHANGED else value for name, value in change.new.items()
            }
    return tables


async def write(dsn: str, stop: asyncio.Event, seed: int) -> None:
    """Change rows all the time, many of them without their large column."""
    connection, chance = await asyncpg.connect(dsn), random.Random(seed)
    try:
        while not stop.is_set():
            table, key = chance.choice(TABLES), chance.randrange(1, 25)
            match chance.randrange(5):
                case 0:
                    await connection.execute(f"DELETE FROM {table} WHERE id = $1", key)
                case 1:
                    await connection.execute(
                        f"INSERT INTO {table} SELECT $1, 'new', ({LARGE}) ON CONFLICT DO NOTHING", key
                    )
                case _:
                    await connection.execute(f"UPDATE {table} SET v = md5(random()::text) WHERE id = $1", key)
            await asyncio.sleep(0.002)  # or it takes a processor for itself
    finally:
        await connection.close()


@pytest.fixture
async def written(published):
    """Two tables with values out of line, of some chunks each."""
    for table in TABLES:
        await published.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text, doc text)",
            f"ALTER TABLE {table} ALTER doc SET STORAGE EXTERNAL",
            f"INSERT INTO {table} SELECT i, repeat('v', 900), ({LARGE}) FROM generate_series(1, 15) i",
        )
    return published


@pytest.mark.parametrize("beside", [False, True], ids=["initial", "beside"])
async def test_killed_at_every_chunk(written, tmp_path, beside):
    """An initial snapshot, and one beside the stream, go on where they were, and are complete in the end."""
    sink, stop = Fragile(), asyncio.Event()
    options: dict[str, Any] = {"batches": BatchPolicy(max_rows=5), "buffer_bytes": 1}
    options["snapshot"] = SnapshotOptions(chunk_bytes=8192, connections=1, state=str(tmp_path / "state"))
    if beside:
        await written.create_slot()
    writers = [asyncio.create_task(write(written.dsn, stop, seed)) for seed in range(2)]
    requested = not beside
    try:
        for _ in range(60):
            sink.left = 1
            pipeline = Pipeline(written.source(), {"sink": sink}, **options)
            try:
                async with pipeline:
                    if not requested:
                        for table in TABLES:
                            await pipeline.snapshots.add(table)
                        requested = True
                    await pipeline.snapshots.completed()
                break
            except AioreplError:
                sink.crash()
        else:
            pytest.fail("the snapshot is never complete")
        stop.set()
        await asyncio.gather(*writers)
        sink.left = 1000
        await Pipeline(written.source(), {"sink": sink}, until="now", **options).run()
    finally:
        stop.set()
        await asyncio.gather(*writers, return_exceptions=True)
    assert sink.kills > 3
    found = fold(sink.batches)
    for table in TABLES:
        rows = await written.connection.fetch(f"SELECT * FROM {table}")
        assert {row["id"]: dict(row) for row in rows} == found[table]
