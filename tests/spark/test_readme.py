"""The Spark program of README.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deltalake import DeltaTable

from aiorepl.testing.messages import column

pytestmark = pytest.mark.xdist_group("spark")

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_program(spark, journal, tmp_path):
    """It mirrors a table of a journal into a Delta table."""
    orders = journal.stream.table("orders", column("id", 23, key=True), column("note"))
    journal.stream.transaction(
        orders.insert("1", "first"), orders.insert("2", "second"), orders.delete("2", None)
    )
    journal.write()
    program, _ = re.findall(r"^```python\n([^`]*spark[^`]*)^```", TEXT, re.MULTILINE)
    target = tmp_path / "orders"
    program = program.replace("/var/lib/app/journal", str(journal.folder)).replace(
        "/lake/orders", str(target)
    )
    names: dict = {}

    exec(program.replace("query.awaitTermination()", ""), names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()

    assert [(1, "first")] == [
        (row["id"], row["note"]) for row in DeltaTable(target).to_pyarrow_table().to_pylist()
    ]
