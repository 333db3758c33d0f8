"""The history of a real server's changes: replayed, it gives the server's tables."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import asyncpg
import pyarrow.parquet as pq
import pytest

from aiorepl import Pipeline, Source, history
from aiorepl.history.opening import open_compaction
from aiorepl.storage.local import LocalStore

DDL = """
CREATE TABLE plain (id int PRIMARY KEY, big text, day date, twice int GENERATED ALWAYS AS (id * 2) STORED);
ALTER TABLE plain ALTER big SET STORAGE EXTERNAL;
CREATE TABLE parted (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE high PARTITION OF parted FOR VALUES FROM (100) TO (200);
CREATE TABLE "Whole Rows" (id int, note text);
ALTER TABLE "Whole Rows" REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root);
"""
CHANGES = (
    "INSERT INTO plain SELECT i, repeat('x', 3000) || i, 'infinity' FROM generate_series(1, 5) i",
    "UPDATE plain SET day = '2026-11-22' WHERE id < 4",
    "UPDATE plain SET id = id + 10 WHERE id = 1",
    "DELETE FROM plain WHERE id = 2",
    "INSERT INTO parted SELECT i, 'n' || i FROM generate_series(90, 105) i",
    "UPDATE parted SET id = id + 20 WHERE id BETWEEN 85 AND 95",
    "INSERT INTO \"Whole Rows\" VALUES (1, NULL), (2, repeat('y', 3000))",
    'UPDATE "Whole Rows" SET id = 3 WHERE id = 2',
    'DELETE FROM "Whole Rows" WHERE id = 1',
    "ALTER TABLE plain ADD extra int DEFAULT 7",
    "INSERT INTO plain (id, extra) VALUES (50, NULL)",
)


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
async def test_a_replay_gives_the_tables(database, slot_name, tmp_path, binary):
    """Key changes, unchanged values, partitions and whole old rows are in the history as they happened."""
    sql = await asyncpg.connect(database)
    folder = str(tmp_path)
    source = Source(database, slot=slot_name, publication="p", create_slot=True, binary=binary)
    try:
        await sql.execute(DDL)
        async with Pipeline(source, journal=folder):
            for statement in CHANGES:
                await sql.execute(statement)
        source = Source(database, slot=slot_name, publication="p", binary=binary)
        await Pipeline(source, journal=folder, until="now").run()
        await asyncio.to_thread(open_compaction(folder).run)

        plain = replay(folder, "plain")
        expected = {
            row["id"]: (row["big"], row["day"] and str(row["day"]))
            for row in await sql.fetch("SELECT id, big, day::text FROM plain")
        }
        assert expected == {
            key: (
                row["big"],
                str(row["day"]) if row["day"] else dict(row["_unrepresentable"] or ()).get("day"),
            )
            for key, row in plain.items()
        }
        found = await sql.fetch("SELECT id, note FROM parted")
        assert {row["id"]: row["note"] for row in found} == {
            key: row["note"] for key, row in replay(folder, "parted").items()
        }
        assert history.tables(folder) == [("public", "Whole Rows"), ("public", "parted"), ("public", "plain")]
        whole = rows(folder, "Whole Rows")
        assert [(row["_op"], row["id"], row["_before"] and row["_before"]["id"]) for row in whole] == [
            ("insert", 1, None), ("insert", 2, None), ("update", 3, 2), ("delete", 1, None),
        ]  # fmt: skip
        assert len({whole[2]["note"], whole[2]["_before"]["note"], "y" * 3000}) == 1
        assert [row["_unchanged"] for row in rows(folder, "plain")][5:8] == [["big"]] * 3
        assert rows(folder, "plain")[-1]["extra"] is None
    finally:
        await sql.close()


def rows(folder: str, table: str) -> list[dict[str, Any]]:
    store = LocalStore(folder).within("history")
    found = history.files(folder, "public", table)
    return [
        row for file in found.files for row in pq.read_table(io.BytesIO(store.read(file.path))).to_pylist()
    ]


def replay(folder: str, table: str) -> dict[int, dict[str, Any]]:
    """The rows of a table by key, after all changes."""
    found: dict[int, dict[str, Any]] = {}
    moved: dict[str, Any] = {}
    for row in rows(folder, table):
        if row["_op"] == "delete":
            moved = found.pop(row["id"])
            continue
        before = found.get(row["id"], moved)
        found[row["id"]] = row | {name: before[name] for name in row["_unchanged"]}
    return found
