"""A medallion lake: raw changes, current rows, and aggregates, all from one journal.

    pip install '.[spark]'
    aiorepl run pipeline.toml                                         # writes the journal, beside this
    python spark_medallion.py /var/lib/aiorepl/journal /var/lib/aiorepl/lake

| layer | |
|---|---|
| ``raw/public/orders`` | every change, appended once |
| ``current/public/orders`` | a row for each row of the source |
| ``aggregates/revenue`` | what customers have paid, from the current rows |
| ``aggregates/cancellations`` | how many orders were cancelled after they had been paid, from the raw changes |

A run brings all layers up to date and ends; let a scheduler repeat it. Both aggregates are of one LSN, which each of their versions
has in its metadata.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from aiorepl.spark import MirroredTables, local_session, mirror
from aiorepl.spark.mirroring.mirrored import TableVersion

REVENUE = """
SELECT c.id AS customer, c.name, count(o.id) AS orders, sum(o.amount) AS revenue
FROM customers AS c JOIN orders AS o ON o.customer = c.id AND o.status = 'paid'
GROUP BY c.id, c.name
"""
# A change has the row after it, so the change before it has the row before it.
CANCELLATIONS = """
SELECT to_date(_commit_ts) AS day, count(*) AS cancelled
FROM (
  SELECT *, lag(status) OVER (PARTITION BY id ORDER BY _commit_lsn, _ordinal) AS former FROM changes
)
WHERE status = 'cancelled' AND former = 'paid'
GROUP BY day
"""


def main(journal: str, lake: str) -> None:
    """Bring all layers up to date."""
    spark = local_session()
    # The raw changes first: then the current rows are never older.
    for layer, mode in (("raw", "changelog"), ("current", "current")):
        query = mirror(
            spark,
            journal,
            ["public.*"],
            Path(lake, layer),
            mode=mode,
            trigger={"availableNow": True},
            name=layer,
        )
        query.awaitTermination()
    raw, current = MirroredTables(Path(lake, "raw")), MirroredTables(Path(lake, "current"))
    lsn = min(raw.lsn, current.lsn)
    view(spark, "changes", raw.as_of(lsn)["public.orders"])
    rows = current.as_of(lsn)
    for table in ("orders", "customers"):
        view(spark, table, rows[f"public.{table}"])
    for name, query in (("revenue", REVENUE), ("cancellations", CANCELLATIONS)):
        # One commit replaces the rows: a reader sees the former aggregate or this one.
        write_deltalake(
            Path(lake, "aggregates", name),
            spark.sql(query).toArrow(),
            mode="overwrite",
            commit_properties=CommitProperties(custom_metadata={"lsn": str(lsn)}),
        )
        print(f"{name} as of {lsn}")


def view(spark: SparkSession, name: str, table: TableVersion) -> None:
    """Let Spark read a version of a table without Delta's jars."""
    files = DeltaTable(table.path, version=table.version).file_uris()
    spark.read.parquet(*files).createOrReplaceTempView(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
