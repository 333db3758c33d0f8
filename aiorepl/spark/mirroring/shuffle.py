"""Divides the changes of a large batch among executors: each gets a range of keys, or the keys of rows that have moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from aiorepl.spark.mirroring.ranges import Ranges
from aiorepl.spark.mirroring.routes import Routes
from aiorepl.spark.reading.schema import quoted

_ROUTE, _FIRST, _COUNT = "_aiorepl_route", "_aiorepl_first_range", "_aiorepl_ranges"
COLUMNS: Final = pa.schema(
    [pa.field(_ROUTE, pa.string()), pa.field(_FIRST, pa.int32()), pa.field(_COUNT, pa.int32())]
)
"""The columns that ``divide`` reads and removes."""


def columns(rows: pa.RecordBatch, keys: Sequence[str], routes: Routes, ranges: Ranges) -> list[Any]:
    """Return the values of ``COLUMNS`` for rows."""
    route = routes.column(rows, keys) if routes else pa.nulls(rows.num_rows, pa.string())
    return [route, *ranges.places(rows.column(keys[0]))]


def divide(rows: DataFrame, keys: Sequence[str], count: int) -> DataFrame:
    """Divide rows into ``count`` partitions. The rows of one key, and of keys that a move links, stay together."""
    hashed = f.hash(*(f.col(quoted(name)) for name in keys))
    ranged = f.col(_FIRST) + f.pmod(hashed, f.col(_COUNT))
    place = f.when(f.col(_ROUTE).isNull(), ranged).otherwise(f.pmod(f.hash(_ROUTE), f.lit(count)))
    return rows.repartitionById(count, place).drop(*COLUMNS.names)
