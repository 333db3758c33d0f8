"""Concurrent writes on a real server: a row's changes stay in order through ALTER TABLE and between partitions."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import BatchPolicy, Delivery, Pipeline
from aiorepl.testing.faults import MemorySink


class Slow(MemorySink):
    """A sink that finishes small batches first, once it may begin."""

    concurrent = True

    def __init__(self) -> None:
        super().__init__()
        self.begin = asyncio.Event()
        self.done: list[tuple[str, int]] = []

    async def write(self, batch) -> None:
        await self.begin.wait()
        changes = [(change.kind, (change.new or change.old)["id"]) for change in batch.changes]
        for _ in range(len(changes) * 20):
            await asyncio.sleep(0)
        self.done += changes
        await super().write(batch)


@pytest.fixture
def deliver(published, tmp_path):
    """``deliver(*statements)`` delivers them together, by key, and returns the changes of row 1 in their order."""

    async def deliver(*statements: str, journal: bool = False) -> list[str]:
        await published.create_slot()
        await published.execute(*statements)
        sink = Slow()
        batches = BatchPolicy(linger=1, flush_seconds=0.01)
        delivery = Delivery(sink, concurrency=4, batches=batches)
        folder = str(tmp_path / "journal") if journal else None
        running = asyncio.create_task(
            Pipeline(published.source(), [delivery], journal=folder, until="now").run()
        )
        sink.begin.set()
        async with asyncio.timeout(90):
            await running
        return [kind for kind, number in sink.done if number == 1]

    return deliver


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE items REPLICA IDENTITY FULL",
        "ALTER TABLE items RENAME TO things; CREATE VIEW items AS SELECT * FROM things",
        "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, note)",
    ],
)
async def test_a_table_that_is_altered(published, deliver, ddl):
    """Changes from before ALTER TABLE are written first."""
    await published.execute("INSERT INTO items SELECT n, 'x' FROM generate_series(2, 9) n")
    done = await deliver(
        *("INSERT INTO items VALUES (1, 'x')", "UPDATE items SET note = 'y'", "UPDATE items SET note = 'z'"),
        ddl,
        "DELETE FROM items WHERE id = 1",
    )
    assert ["insert", "update", "update", "delete"] == done


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_a_row_that_moves_to_another_partition(published, deliver, journal):
    """The delete in one partition precedes the insert in the other."""
    await published.execute(
        "CREATE TABLE parts (id int, at int) PARTITION BY LIST (at)",
        "CREATE TABLE one PARTITION OF parts (PRIMARY KEY (id)) FOR VALUES IN (1)",
        "CREATE TABLE two PARTITION OF parts (PRIMARY KEY (id)) FOR VALUES IN (2)",
    )
    done = await deliver(
        "INSERT INTO parts SELECT n, 1 FROM generate_series(1, 50) n",
        "UPDATE parts SET at = 2 WHERE id = 1",
        "UPDATE parts SET at = 1 WHERE id = 1",
        journal=journal,
    )
    assert ["insert", "delete", "insert", "delete", "insert"] == done
