"""The notebook and the medallion lake in examples/ run, and their results are those of the source."""

from __future__ import annotations

import runpy
from pathlib import Path

import asyncpg
import pytest
from deltalake import DeltaTable
from matplotlib.image import imread

from aiorepl.testing.messages import column

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("spark")]

EXAMPLES = Path(__file__).parents[2] / "examples"


async def test_the_notebook(spark, database, tmp_path, monkeypatch) -> None:
    """Its table has the source's sums, and its chart is a picture with three coloured areas."""
    monkeypatch.setenv("DATABASE_URL", database)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    names = runpy.run_path(str(EXAMPLES / "spark_notebook.py"))
    connection = await asyncpg.connect(database)
    query = (
        "SELECT date_trunc('week', ordered_on)::date, region, sum(amount) "
        "FROM orders WHERE status = 'paid' GROUP BY 1, 2"
    )
    expected = {tuple(row) for row in await connection.fetch(query)}
    await connection.close()
    revenue = names["revenue"].to_pylist()
    assert expected == {(row["week"].date(), row["region"], row["revenue"]) for row in revenue}
    pixels = imread(tmp_path / "revenue.png")[..., :3].reshape(-1, 3)
    for color in ("4c72b0", "dd8452", "55a868"):
        wanted = [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        assert (abs(pixels - wanted) < 0.01).all(axis=1).mean() > 0.05, color


def test_the_medallion(spark, journal, tmp_path, capsys) -> None:
    """The aggregates have the paid amounts, and the amounts that were cancelled after payment, at one LSN."""
    main = runpy.run_path(str(EXAMPLES / "spark_medallion.py"))["main"]
    customers = journal.stream.table("customers", column("id", 23, key=True), column("name"))
    orders = journal.stream.table(
        "orders", column("id", 23, key=True), column("customer", 23), column("status"), column("amount", 701)
    )
    journal.stream.transaction(
        customers.insert("1", "Ada"),
        customers.insert("2", "Bob"),
        *(orders.insert(str(key), str(1 + key % 2), "new", "2.5") for key in range(6)),
    )
    journal.stream.transaction(
        *(orders.update(str(key), str(1 + key % 2), "paid", "2.5") for key in range(5))
    )
    journal.stream.transaction(
        orders.update("0", "1", "cancelled", "2.5"),  # had been paid
        orders.update("5", "2", "cancelled", "2.5"),  # had not
        orders.delete("1", None, None, None),
    )
    journal.write()
    main(str(journal.folder), str(tmp_path))
    assert {("Ada", 2, 5.0), ("Bob", 1, 2.5)} == revenue(tmp_path)
    cancellations = DeltaTable(tmp_path / "aggregates" / "cancellations")
    assert [1] == cancellations.to_pyarrow_table()["cancelled"].to_pylist()
    assert str(journal.stream.ends[-1]) == cancellations.history(1)[0]["lsn"]


def revenue(lake: Path) -> set[tuple[str, int, float]]:
    """The customers' orders and revenue."""
    rows = DeltaTable(lake / "aggregates" / "revenue").to_pyarrow_table().to_pylist()
    return {(row["name"], row["orders"], row["revenue"]) for row in rows}
