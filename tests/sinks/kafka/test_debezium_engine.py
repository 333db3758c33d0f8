"""The pipeline file of docs/migrating/debezium.md writes the records of Debezium Engine: the same changes, record by record."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import LSN
from aiorepl.cli import pipeline_file

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("kafka")]
ROOT = Path(__file__).parents[3]
ENGINE = Path(sys.prefix, "debezium")
PAGE = (ROOT / "docs/migrating/debezium.md").read_text(encoding="utf-8")
DEADLINE = 200.0
TABLES = """
CREATE TABLE orders (
  id int PRIMARY KEY, status text, total numeric(12,2), rate numeric, at timestamptz, until timestamp, day date, paid bool,
  raw bytea, tags text[], document jsonb, share float8, price money, note text);
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
CREATE TABLE items (order_id int, number int, product text, PRIMARY KEY (order_id, number));
CREATE PUBLICATION shop FOR TABLE orders, items;
"""
ROWS = """
INSERT INTO orders VALUES
  (1, 'new', 129.90, 0.5, '2026-11-21 08:00:00.123456+01', '2026-11-21 08:00', '2026-11-21', true, '\\x00ff', '{a,NULL}',
   '{"a": 1}', 1.5, 9.50, repeat(md5('1'), 200)),
  (2, NULL, -0.01, 12345678901234567890.123, 'infinity', NULL, 'infinity', false, '', '{}', NULL, 'NaN', -1, NULL);
INSERT INTO items VALUES (1, 1, 'tea'), (1, 2, 'cup');
"""
CHANGES = [
    ROWS,
    "UPDATE orders SET status = 'paid' WHERE id = 1; UPDATE items SET product = 'pot' WHERE number = 2",
    "UPDATE orders SET id = 3 WHERE id = 2",
    "DELETE FROM orders WHERE id = 3; DELETE FROM items WHERE number = 1",
    "SELECT pg_logical_emit_message(true, 'audit', 'by Ada')",
    "TRUNCATE items",
    "INSERT INTO items VALUES (2, 1, 'last')",
]
# The page lists these differences.
SOURCE = {"version", "sequence", "lsn", "xmin", "origin", "origin_lsn"}
TIMES = {"ts_ms", "ts_us", "ts_ns"}


@pytest.fixture
def engine() -> Any:
    """``bench/debezium.py``, with the engine compiled."""
    if not any(ENGINE.glob("debezium-embedded-*.jar")):
        pytest.skip("no Debezium Engine: .venv/bin/python scripts/debezium.py")
    spec = importlib.util.spec_from_file_location("bench_debezium", ROOT / "bench/debezium.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.ready()
    return module


async def ours(dsn: str, broker: Any, folder: Path, end: LSN | None) -> list[tuple[str, Any, Any]]:
    """The records of the page's pipeline file, which has read everything up to ``end``, or a snapshot and no more."""
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    os.environ["DATABASE_URL"] = dsn
    text = text.replace("localhost:9092", broker.url).replace("/var/lib/aiorepl", str(folder))
    (folder / "pipeline.toml").write_text(text)
    pipeline = pipeline_file.load(folder / "pipeline.toml").pipeline

    def done() -> bool:
        statistics = pipeline.statistics()
        if end is not None:
            return statistics.flushed >= end
        tables = () if statistics.snapshot is None else statistics.snapshot.tables
        return len(tables) == 2 and all(table.state == "complete" for table in tables)

    async with pipeline, asyncio.timeout(DEADLINE):
        while not done():
            await asyncio.sleep(0.05)
    records = await broker.read("shop.")
    for topic in {record.topic for record in records}:
        await broker.delete(topic)
    return [(record.topic, parsed(record.key), parsed(record.value)) for record in records]


async def theirs(
    engine: Any, dsn: str, slot: str, count: int, folder: Path, **settings: str
) -> list[tuple[str, Any, Any]]:
    """The records of Debezium Engine under the defaults of its connector."""
    url = urlsplit(dsn)
    environment = {
        "PGHOST": url.hostname or "localhost",
        "PGPORT": str(url.port or 5432),
        "PGUSER": url.username or "postgres",
        "PGPASSWORD": url.password or "x",
        "PGDATABASE": url.path.strip("/"),
    }
    file = folder / "engine"
    command = engine.command(
        slot,
        count,
        file,
        topic_prefix="shop",
        publication_name="shop",
        tombstones_on_delete="true",
        **settings,
    )
    process = await asyncio.create_subprocess_exec(
        *command, env=os.environ | environment, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(DEADLINE):
        await process.communicate()
    assert process.returncode == 0
    lines = (line.split("\t") for line in file.read_text().splitlines())
    return [(topic, parsed(key), parsed(value)) for topic, key, value in lines]


def parsed(text: str | bytes | None) -> Any:
    """JSON, or ``None`` for a tombstone."""
    return json.loads(text) if text else None


def by_key(records: list[tuple[str, Any, Any]]) -> dict[tuple[str, str], list[Any]]:
    """The values of each topic and key in order, without the fields in which the two differ as documented."""
    found = defaultdict(list)
    for topic, key, value in records:
        kept = value and {name: part for name, part in value.items() if name not in TIMES}
        if kept:
            # Debezium has the columns that the server did not send, as null.
            kept["before"] = kept.get("before") and {
                name: part for name, part in kept["before"].items() if part is not None
            }
            kept["source"] = {name: part for name, part in value["source"].items() if name not in SOURCE}
            if value["source"]["snapshot"] != "false":
                for name in ("snapshot", "txId", *TIMES):
                    del kept["source"][name]
        place = re.sub(r"^shop\.message\..*", "shop.message", topic)
        found[place, json.dumps(key)].append(kept)
    return found


async def test_the_stream(items, engine, broker, tmp_path):
    """Inserts, updates, unchanged TOAST, changed keys, deletes with tombstones, messages and truncates, after an existing slot."""
    client = await asyncpg.connect(items.dsn)
    await client.execute("DROP TABLE items;" + TABLES)
    for slot in ("orders", "engine"):
        await client.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    for statements in CHANGES:
        await client.execute(statements)
    end = LSN.parse(await client.fetchval("SELECT pg_current_wal_lsn()::text"))
    await client.close()

    our = await ours(items.dsn, broker, tmp_path, end)
    their = await theirs(engine, items.dsn, "engine", len(our), tmp_path, snapshot_mode="no_data")

    assert by_key(our) == by_key(their)
    assert [value for _, _, value in our].count(None) == 3  # two deletes, and a changed key


async def test_the_snapshot(items, engine, broker, tmp_path):
    """The rows that exist, before a slot exists."""
    client = await asyncpg.connect(items.dsn)
    # Debezium's snapshot, unlike its stream, has another number for an infinite date.
    rows = ROWS.replace("NULL, 'infinity', false", "NULL, '2026-11-22', false")
    await client.execute("DROP TABLE items;" + TABLES + rows)
    await client.close()

    our = await ours(items.dsn, broker, tmp_path, None)
    their = await theirs(engine, items.dsn, "engine", len(our), tmp_path, snapshot_mode="initial_only")

    assert len(our) == 4
    assert by_key(our) == by_key(their)
