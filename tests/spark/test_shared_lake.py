"""Two real databases with the same tables and keys, mirrored at the same time into one Delta or Iceberg table."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from aiorepl import LSN, Pipeline, Source
from aiorepl.spark import DeltaLake, IcebergLake, MirroredTables, mirror, verify
from aiorepl.spark.lake.table import Run
from aiorepl.spark.verifying.repair import removal
from aiorepl.testing.messages import column
from tests.growing_journal import GrowingJournal
from tests.waiting import until

ID, NOTE = column("id", 23, key=True), column("note")
SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE other (id int PRIMARY KEY);
CREATE PUBLICATION p FOR ALL TABLES;
"""


def catalog(folder: Path) -> SqlCatalog:
    return SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog", warehouse=f"file://{folder}/warehouse")


def read(form: str, folder: Path, table: str = "orders") -> list[dict[str, Any]]:
    """Return all rows of a table, as a reader that knows nothing of sources finds them."""
    if form == "delta":
        rows = DeltaTable(folder / "shared" / "public" / table).to_pyarrow_table()
    else:
        rows = catalog(folder).load_table(("public", table)).scan().to_arrow()
    return [
        {name: row[name] for name in row if name not in ("_commit_lsn", "_ordinal")}
        for row in rows.to_pylist()
    ]


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("form", ["delta", "iceberg"])
async def test_two_databases(spark, server, new_database, slot_name, tmp_path, form) -> None:
    """Rows, a truncate, a new column and a repair of one database leave the rows of the other as they are."""
    names = ["a", "b"]
    dsns = {name: new_database(server) for name in names}

    def lake(name: str) -> Any:
        if form == "delta":
            return DeltaLake(tmp_path / "shared", source=name)
        return IcebergLake(catalog(tmp_path), source=name)

    def found(name: str, *columns: str) -> set[tuple[Any, ...]]:
        try:
            rows = read(form, tmp_path)
        except Exception:  # noqa: BLE001 - there is no table yet
            return set()
        return {tuple(row.get(each) for each in columns) for row in rows if row["_source"] == name}

    async with AsyncExitStack() as stack:
        connections, queries = {}, {}
        for name, dsn in dsns.items():
            connections[name] = await asyncpg.connect(dsn)
            stack.push_async_callback(connections[name].close)
            await connections[name].execute(SETUP)
            source = Source(dsn, slot=f"{slot_name[:50]}_{name}", publication="p", create_slot=True)
            await stack.enter_async_context(Pipeline(source, journal=tmp_path / name))
        for name, connection in connections.items():
            await connection.execute(
                f"INSERT INTO orders SELECT i, '{name}' || i FROM generate_series(1, 50) i"
            )
            await until((tmp_path / name / "segments").is_dir)
        for name in names:
            queries[name] = mirror(
                spark,
                tmp_path / name,
                ["public.*"],
                tmp_path / f"state {name}",
                lake=lake(name),
                trigger={"processingTime": "200 milliseconds"},
            )
            stack.callback(queries[name].stop)

        async def has(name: str, wanted: set[tuple[Any, ...]], *columns: str) -> None:
            for query in queries.values():
                assert query.isActive, query.exception()
            await until(lambda: found(name, *columns), lambda rows: rows == wanted)

        rows = {name: {(i, f"{name}{i}") for i in range(1, 51)} for name in names}
        for name in names:
            await has(name, rows[name], "id", "note")
        for number in range(51, 56):
            for name, connection in connections.items():
                await connection.execute("INSERT INTO orders VALUES ($1, $2)", number, f"{name}{number}")
                rows[name].add((number, f"{name}{number}"))
        for name in names:
            await has(name, rows[name], "id", "note")

        await connections["a"].execute("TRUNCATE orders; INSERT INTO orders VALUES (7, 'after')")
        rows["a"] = {(7, "after")}
        await has("a", rows["a"], "id", "note")
        assert found("b", "id", "note") == rows["b"]

        await connections["a"].execute(
            "ALTER TABLE orders ADD priority int DEFAULT 3; INSERT INTO orders VALUES (8, 'new', 4)"
        )
        await has("a", {(7, 3), (8, 4)}, "id", "priority")
        assert found("b", "id", "note", "priority") == {(*row, None) for row in rows["b"]}
        # The other database follows later, with another default, and a column that only it has.
        await connections["b"].execute(
            "ALTER TABLE orders ADD own text; ALTER TABLE orders ADD priority int DEFAULT 9; DELETE FROM orders WHERE id > 2; "
            "UPDATE orders SET id = 7 WHERE id = 2"
        )
        await has("b", {(1, "b1", 9, None), (7, "b2", 9, None)}, "id", "note", "priority", "own")
        assert found("a", "id", "note", "priority", "own") == {(7, "after", 3, None), (8, "new", 4, None)}

        async def compared(name: str, **options: Any) -> Any:
            results = await asyncio.to_thread(
                verify,
                dsns[name],
                tmp_path / name,
                tmp_path / f"state {name}",
                slot=f"{slot_name[:50]}_{name}",
                publication="p",
                lake=lake(name),
                timeout=60,
                **options,
            )
            return next(each for each in results if each.table == "public.orders")

        assert (await compared("a")).same
        assert (await compared("b")).same
        # Lose a row of b, and invent one: a is the same, and b is repaired.
        target = lake("b").table(("public", "orders"))
        lost = spoiled(target)
        target.correct(lost)
        assert found("b", "id") == {(7,)}
        assert (await compared("a")).same
        result = await compared("b", repair=True)
        assert not result.same
        await has("b", {(1,), (7,)}, "id")
        assert found("a", "id") == {(7,), (8,)}
        for name in names:
            tables = MirroredTables(tmp_path / f"state {name}", lake(name))
            assert tables.as_of()["public.orders"].lsn == tables.lsn


def spoiled(target: Any) -> Run:
    """Return a delete of the row with the key 1, which the source did not make."""
    schema = target.newest().schema()
    keys = pa.table({"id": pa.array([1], schema.field("id").type)})
    return removal(schema, keys, "current", LSN(2**60))


PROGRAM = """
import os, signal, sys
from aiorepl.cli import main
from aiorepl.spark.lake.transaction import Transaction

left = int(sys.argv[2])
add = Transaction.add

def adding(self, files):
    global left
    left -= bool(files)
    if files and left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, files)

Transaction.add = adding
main(["spark", "mirror", "--once", sys.argv[1]])
"""
IMPORTS = [
    "aiorepl.spark",
    "aiorepl.spark.lake.delta",
    "aiorepl.spark.lake.iceberg",
    "aiorepl.spark.mirroring.running",
]


@pytest.mark.by_day
@pytest.mark.xdist_group("spark-programs")
@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_one_of_two_is_killed(fork_server, worker_python, tmp_path, monkeypatch, form) -> None:
    """One mirror is killed between the files and the commit of a table, while the other one runs; a restart completes it."""
    monkeypatch.setenv("PYSPARK_PYTHON", str(worker_python))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    for name in ("a", "b"):
        journal = GrowingJournal(tmp_path / name)
        tables = [journal.stream.table(each, ID, NOTE) for each in ("orders", "other")]
        for number in range(5):
            journal.stream.transaction(*[each.insert(str(number), name) for each in tables])
        journal.write()
        lake = f"[delta]\nroot = {json.dumps(str(tmp_path / 'shared'))}\nsource = '{name}'"
        if form == "iceberg":
            properties = f"type = 'sql', uri = 'sqlite:///{tmp_path}/catalog', warehouse = 'file://{tmp_path}/warehouse'"
            lake = f"[iceberg]\ncatalog = 'lake'\nproperties = {{ {properties} }}\nsource = '{name}'"
        (tmp_path / f"{name}.toml").write_text(
            f"""
            [journal]
            url = {json.dumps(str(tmp_path / name))}
            [mirror]
            tables = ["public.*"]
            target = {json.dumps(str(tmp_path / f"state {name}"))}
            {lake}
            [spark]
            cores = 1
            memory = "512m"
            log = {json.dumps(str(tmp_path / f"log {name}"))}
            """
        )

    def start(name: str, kill_at: int) -> Any:
        return fork_server.popen(program, tmp_path / f"{name}.toml", kill_at, imports=IMPORTS, env=os.environ)

    running = [start("a", 2), start("b", 0)]
    assert [each.wait(200) for each in running] == [-signal.SIGKILL, 0]
    assert start("a", 0).wait(200) == 0
    for table in ("orders", "other"):
        rows = sorted((row["_source"], row["id"], row["note"]) for row in read(form, tmp_path, table))
        assert rows == [(name, number, name) for name in ("a", "b") for number in range(5)]
