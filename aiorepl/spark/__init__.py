"""Reads a pipeline's journal in Spark, and mirrors tables into Delta and Iceberg tables.

    spark = aiorepl.spark.local_session()                       # or any session, and register(spark)
    orders = spark.readStream.format("aiorepl").option("journal", url).option("table", "public.orders").load()
    aiorepl.spark.apply_changes(orders, target="/lake/orders", keys=["id"])

The packages, in the order in which data flows:

- ``session`` starts sessions, and registers the data source.
- ``reading`` is the data source: the driver plans, executors read the journal.
- ``snapshot`` takes a consistent snapshot of the tables, which executors read; a query on the journal continues from there.
- ``lake`` has the target tables, ``mirroring`` the queries that write them.
- ``verifying`` compares these tables with the source.

Spark does not use the replication slot. It reads what a pipeline has made durable. pyspark and the libraries of the table formats are
imported when a function that needs them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorepl.lazy import importer

if TYPE_CHECKING:
    from aiorepl.spark.lake.delta import DeltaLake, DeltaTarget
    from aiorepl.spark.lake.iceberg import IcebergLake, IcebergTarget
    from aiorepl.spark.lake.table import Layout, Upkeep
    from aiorepl.spark.mirroring.apply_changes import apply_changes
    from aiorepl.spark.mirroring.mirror import Mirror, mirror
    from aiorepl.spark.mirroring.mirrored import MirroredTables
    from aiorepl.spark.reading.changes import changes
    from aiorepl.spark.reading.listener import QueryListener
    from aiorepl.spark.session.sessions import local_session, register
    from aiorepl.spark.snapshot.snapshot import Snapshot
    from aiorepl.spark.verifying.verify import verify

_HOME_OF = {
    "DeltaLake": "aiorepl.spark.lake.delta",
    "DeltaTarget": "aiorepl.spark.lake.delta",
    "IcebergLake": "aiorepl.spark.lake.iceberg",
    "IcebergTarget": "aiorepl.spark.lake.iceberg",
    "Layout": "aiorepl.spark.lake.table",
    "Upkeep": "aiorepl.spark.lake.table",
    "Mirror": "aiorepl.spark.mirroring.mirror",
    "MirroredTables": "aiorepl.spark.mirroring.mirrored",
    "mirror": "aiorepl.spark.mirroring.mirror",
    "apply_changes": "aiorepl.spark.mirroring.apply_changes",
    "changes": "aiorepl.spark.reading.changes",
    "local_session": "aiorepl.spark.session.sessions",
    "register": "aiorepl.spark.session.sessions",
    "QueryListener": "aiorepl.spark.reading.listener",
    "Snapshot": "aiorepl.spark.snapshot.snapshot",
    "verify": "aiorepl.spark.verifying.verify",
}
_EXTRA_OF = dict.fromkeys(("pyspark", "pyarrow", "deltalake", "py4j"), "spark") | {"pyiceberg": "iceberg"}

__all__ = [
    "DeltaLake",
    "DeltaTarget",
    "IcebergLake",
    "IcebergTarget",
    "Layout",
    "Mirror",
    "MirroredTables",
    "QueryListener",
    "Snapshot",
    "Upkeep",
    "apply_changes",
    "changes",
    "local_session",
    "mirror",
    "register",
    "verify",
]

if not TYPE_CHECKING:  # with __getattr__, type checkers would accept every name
    __getattr__ = importer(__name__, _HOME_OF, _EXTRA_OF)


def __dir__() -> list[str]:
    return sorted(__all__)
