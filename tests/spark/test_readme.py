"""The Spark programs of README.md and docs/reference/snapshots.md run unchanged, except for their folders."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import asyncpg
import pytest
from deltalake import DeltaTable

from aiorepl.testing.messages import column

pytestmark = pytest.mark.xdist_group("spark")

ROOT = Path(__file__).parents[2]


def block(page: str, text: str) -> str:
    """The Python block with this text in it."""
    (found,) = re.findall(
        rf"^```python\n([^`]*{re.escape(text)}[^`]*)^```", (ROOT / page).read_text(), re.MULTILINE
    )
    return found


def test_the_program(spark, journal, tmp_path):
    """It mirrors the tables of a journal."""
    orders = journal.stream.table("orders", column("id", 23, key=True), column("note"))
    journal.stream.transaction(
        orders.insert("1", "first"), orders.insert("2", "second"), orders.delete("2", None)
    )
    journal.write()
    program = block("README.md", "local_session")
    program = program.replace("/var/lib/app/journal", str(journal.folder)).replace("/lake", str(tmp_path))
    names: dict = {}

    exec(program.replace("query.awaitTermination()", ""), names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()

    rows = DeltaTable(tmp_path / "public" / "orders").to_pyarrow_table().to_pylist()
    assert [(1, "first")] == [(row["id"], row["note"]) for row in rows]


def test_the_snapshot(spark, database, tmp_path):
    """The snapshot's rows are in the DataFrame and in the Delta table."""

    async def fill() -> None:
        connection = await asyncpg.connect(database)
        await connection.execute(
            "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (7); CREATE PUBLICATION orders FOR TABLE orders"
        )
        await connection.close()

    asyncio.run(fill())
    program = block("docs/reference/snapshots.md", "Snapshot(").replace("/lake", str(tmp_path))
    names = {"spark": spark, "dsn": database}

    exec(program, names)

    assert [7] == DeltaTable(tmp_path / "orders").to_pyarrow_table()["id"].to_pylist()
    assert "/" in names["position"]
