"""From a real server through a pipeline's journal into Spark and the mirror."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from deltalake import DeltaTable

from aiorepl import Pipeline, Source
from aiorepl.spark import apply_changes, mirror

pytestmark = pytest.mark.xdist_group("spark")

SETUP = """
CREATE TYPE mood AS ENUM ('happy', 'sad');
CREATE DOMAIN cents AS bigint CHECK (value >= 0);
CREATE TABLE things (
  id integer PRIMARY KEY, mood mood, moods mood[], price numeric(12,2), any_price numeric, at timestamptz,
  day date, data jsonb, raw bytea, tags text[], cents cents, flag boolean, ratio float8, big text);
ALTER TABLE things ALTER big SET STORAGE EXTERNAL;
CREATE PUBLICATION things FOR TABLE things;
"""
# Random, so that it is large, out of line, and not sent when it does not change.
LOAD = """
INSERT INTO things SELECT i, (ARRAY['happy', 'sad'])[1 + i % 2]::mood, ARRAY['sad', NULL]::mood[], i / 3.0, i / 7.0,
    '2026-11-21 08:00:00.123456+00'::timestamptz + i * interval '1 hour', '2026-11-21'::date - i,
    jsonb_build_object('i', i, 'text', 'ü'), decode(lpad(to_hex(i), 8, '0'), 'hex'), ARRAY['a,b', NULL, i::text], i,
    i % 2 = 0, i / 7.0::float8, repeat(md5(i::text), 200)
  FROM generate_series(1, 1000) i;
UPDATE things SET price = price + 1 WHERE id % 10 = 0;
"""
LATER = """
UPDATE things SET id = id + 5000 WHERE id BETWEEN 100 AND 109;
UPDATE things SET big = 'small now', mood = NULL WHERE id = 7;
DELETE FROM things WHERE id BETWEEN 500 AND 599;
UPDATE things SET flag = NOT flag, any_price = NULL WHERE id < 50;
"""
COLUMNS = [
    "id",
    "mood",
    "moods",
    "price",
    "any_price",
    "at",
    "day",
    "data",
    "raw",
    "tags",
    "cents",
    "flag",
    "ratio",
    "big",
]


async def run(dsn: str, statements: str, *, fetch: bool = False) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statements)
        if not fetch:
            return []
        # Enums as text, jsonb and unconstrained numeric as PostgreSQL's text: what the schema promises.
        picked = ", ".join(
            {
                "mood": "mood::text",
                "moods": "moods::text[]",
                "any_price": "any_price::text",
                "data": "data::text",
            }.get(name, name)
            for name in COLUMNS
        )
        return [dict(row) for row in await connection.fetch(f"SELECT {picked} FROM things ORDER BY id")]
    finally:
        await connection.close()


def test_server_to_mirror(spark, database, slot_name, tmp_path) -> None:
    """Every column of every row is the same in the mirror, and in that of many tables, after the load and after changes, TOASTed values included."""
    journal, target = str(tmp_path / "journal"), str(tmp_path / "mirror")

    def captured(statements: str) -> list[dict[str, Any]]:
        """Execute statements, capture them, and return the table."""

        async def capture() -> list[dict[str, Any]]:
            rows = await run(database, statements, fetch=True)
            source = Source(database, slot=slot_name, publication="things", create_slot=True)
            await Pipeline(source, journal=journal, until="now").run()
            return rows

        return asyncio.run(capture())

    def mirrored() -> list[dict[str, Any]]:
        changes = (
            spark.readStream.format("aiorepl")
            .option("journal", journal)
            .option("table", "public.things")
            .load()
        )
        assert apply_changes(changes, target, ["id"], trigger={"availableNow": True}).awaitTermination(240)
        return DeltaTable(target).to_pyarrow_table().select(COLUMNS).sort_by("id").to_pylist()

    def in_lake() -> list[dict[str, Any]]:
        query = mirror(spark, journal, ["public.*"], tmp_path / "lake", trigger={"availableNow": True})
        assert query.awaitTermination(240)
        table = DeltaTable(str(tmp_path / "lake" / "public" / "things")).to_pyarrow_table()
        return table.select(COLUMNS).sort_by("id").to_pylist()

    asyncio.run(run(database, SETUP))
    captured("SELECT 1")  # makes the slot, before there is anything
    assert mirrored_or_nothing(spark, journal) == []
    expected = captured(LOAD)
    assert len(expected) == 1000
    assert mirrored() == expected
    expected = captured(LATER)
    assert len(expected) == 900
    assert mirrored() == expected == in_lake()
    expected = captured("TRUNCATE things; INSERT INTO things (id, price) VALUES (1, 2.5)")
    assert mirrored() == expected == in_lake()


def mirrored_or_nothing(spark: Any, journal: str) -> list[Any]:
    """Return the mirror of a table that the journal may not have yet, by a given schema."""
    reader = spark.read.format("aiorepl").option("journal", journal).option("table", "public.things")
    return reader.schema("id int").load().collect()
