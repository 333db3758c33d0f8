"""The changes of a table, as they are, and the last one of each row.

    pip install '.[spark]' 'pyspark[pipelines]'

AUTO CDC (``dp.create_auto_cdc_flow``) would keep the rows in a target table, but Spark 4.2.1 accepts no table of a released connector
as its target: docs/spark/reading.md lists what was tried. ``aiorepl.spark.mirror`` and ``apply_changes`` keep such tables.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def orders_changes() -> DataFrame:
    """Every change, appended once."""
    changes = spark.readStream.format("aiorepl").option("table", spark.conf.get("shop.table"))
    return changes.load(spark.conf.get("shop.journal"))


@dp.materialized_view
def orders() -> DataFrame:
    """The last change of each row that was not deleted."""
    return spark.sql(
        """
        SELECT last.* FROM (
          SELECT id, max_by(struct(c.*), (_commit_lsn, _ordinal, _op <> 'delete')) AS last FROM orders_changes AS c GROUP BY id
        ) WHERE last._op <> 'delete'
        """
    )
