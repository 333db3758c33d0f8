"""A lake that is mirrored from a real server has the masks of a sink, and no file of Spark has a hidden value."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from deltalake import DeltaTable

from aiorepl import Delivery, Pipeline, Selection, Source, decryptor
from aiorepl.testing.faults import MemorySink
from tests.leaks import leaks

pytestmark = [
    pytest.mark.xdist_group("spark-programs"),
    pytest.mark.usefixtures("quick_java"),
    pytest.mark.server,
]

COMMAND = Path(sys.executable).with_name("aiorepl")
PLANTED, SECRET, NUMBER, DAY = "ada@example", "planted-secret-of-masks", "47114711", "1815-12-10"
KEY = "planted-encryption-key-of-this-lake"
METHODS = dict.fromkeys(("email", "born", "price", "at", "tags", "f", "ok", "place"), "hash")
METHODS |= {
    "email": "encrypt",
    "plain": "format",
    "big": "format",
    "n": "partial(4)",
    "raw": "constant(gone)",
    "doc": "null",
}
MASKED = tuple(METHODS)
SETUP = f"""
CREATE TYPE place AS (x int, label text);
CREATE TABLE people (
  id int PRIMARY KEY, note text, gone text, email text, born date, price numeric(12, 2), plain numeric, at timestamptz, doc jsonb,
  tags text[], raw bytea, n int, f float8, ok bool, place place, big text);
ALTER TABLE people ALTER big SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR ALL TABLES;
INSERT INTO people SELECT i, 'note ' || i, '{PLANTED}', '{PLANTED}' || i, date '{DAY}' + i, i / 3.0, i / 7.0,
    '{DAY} 01:02:03.5+00'::timestamptz + i * interval '1 hour', jsonb_build_object('a', '{PLANTED}'),
    ARRAY['{PLANTED}', NULL], '{PLANTED}'::bytea, {NUMBER} + i, i / 7.0, i % 2 = 0, ROW(i, '{PLANTED}')::place, repeat('{PLANTED}', 1000)
  FROM generate_series(1, 200) i;
INSERT INTO people (id) VALUES (1000);
"""
LATER = f"""
UPDATE people SET note = 'later', born = 'infinity' WHERE id <= 3;
UPDATE people SET id = id + 5000, email = '{PLANTED}!' WHERE id BETWEEN 10 AND 19;
DELETE FROM people WHERE id BETWEEN 20 AND 29;
"""
MIRROR = """
[journal]
url = "{folder}/journal"
[mirror]
tables = ["public.*"]
target = "{folder}/lake"
staging = "{folder}/staging"
[mirror.selection]
drop = ["public.people.gone"]
secret = "file:{folder}/secret"
encryption_key = "file:{folder}/key"
[mirror.selection.mask]
{mask}
[spark]
master = "local[1]"
[spark.conf]
"spark.driver.memory" = "512m"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.ui.enabled" = "false"
"spark.local.dir" = "{folder}/local"
"spark.eventLog.enabled" = "true"
"spark.eventLog.dir" = "{folder}/events"
"spark.eventLog.compress" = "false"
"""


async def captured(dsn: str, slot: str, folder: Path, statements: str) -> dict[int, dict[str, Any]]:
    """Execute statements, run a pipeline with a masking sink, and return the sink's last row of each key."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(statements)
    await connection.close()
    sink = MemorySink()
    mask = {f"public.people.{name}": method for name, method in METHODS.items()}
    selection = Selection(mask=mask, drop=("public.people.gone",), secret=SECRET, encryption_key=KEY)
    source = Source(dsn, slot=slot, publication="p", create_slot=True)
    pipeline = Pipeline(
        source,
        {"sink": Delivery(sink, selection=selection)},
        journal=folder / "journal",
        until="now",
        snapshot=True,
    )
    await pipeline.run()
    found: dict[int, dict[str, Any]] = {}
    for change in sink.changes:
        new, old = getattr(change, "new", None), getattr(change, "old", None)
        if new is None or (old is not None and old["id"] != new["id"]):
            found.pop(old["id"], None)
        if new is not None:
            found[new["id"]] = new
    return found


async def test_a_masked_lake(database, slot_name, tmp_path) -> None:
    """Under every method, every value of every type has the sink's mask in the lake, and no file that Spark or the mirror leaves has the value."""
    for name in ("events", "local"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "key").write_text(KEY + "\n")
    mask = "\n".join(f'"public.people.{name}" = "{method}"' for name, method in METHODS.items())
    (tmp_path / "mirror.toml").write_text(MIRROR.format(folder=tmp_path, mask=mask))
    expected: dict[int, dict[str, Any]] = {}
    for statements in (SETUP, LATER):
        rows = await captured(database, slot_name, tmp_path, statements)
        for key, row in rows.items():
            before = expected.get(key) or expected.get(key - 5000, {})
            expected[key] = {
                name: before[name] if value is not None and not isinstance(value, str | int) else value
                for name, value in row.items()
            }
        result = await asyncio.to_thread(
            subprocess.run,
            [COMMAND, "--verbose", "spark", "mirror", "--once", "mirror.toml"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=False,
            timeout=240,
        )
        (tmp_path / "events" / "output").write_bytes(result.stdout + result.stderr)
        assert result.returncode == 0, result.stderr.decode()
    table = DeltaTable(str(tmp_path / "lake" / "public" / "people")).to_pyarrow_table()
    assert "gone" not in table.column_names
    found = {row["id"]: row for row in table.select(["id", "note", *MASKED]).to_pylist()}
    assert len(found) == 191
    for key, row in found.items():
        wanted = expected[key]
        assert row == {name: wanted[name] for name in row}, key
    assert found[1000]["email"] is None
    assert len(found[50]["place"]) == 64
    assert {row["raw"] for row in found.values()} == {None, "gone"}
    assert {row["doc"] for row in found.values()} == {None}
    assert found[50]["n"] == "****4761"
    assert decryptor([KEY])(found[50]["email"]) == f"{PLANTED}50"
    for folder in ("lake", "staging", "events", "local"):
        for word in (PLANTED, SECRET, KEY, NUMBER[:-1], DAY):
            assert leaks(tmp_path / folder, word) == [], word
    assert leaks(tmp_path / "journal", PLANTED)
    assert "SparkListenerSQLExecutionStart" in "".join(
        path.read_text(errors="replace") for path in (tmp_path / "events").rglob("*") if path.is_file()
    )
