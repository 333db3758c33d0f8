"""Passes rows to functions of Arrow batches, whatever the names of their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_rows(frame: DataFrame, function: Function, schema: StructType | str) -> DataFrame:
    """Call ``mapInArrow`` with numbered columns: it reads a name with a dot or a backtick as a path.

    :param function: gets batches with the columns' own names.
    """
    names = frame.columns
    numbered = frame.toDF(*(f"_{number}" for number in range(len(names))))
    return numbered.mapInArrow(partial(_named, names, function), schema)


def _named(
    names: Sequence[str], function: Function, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return function(batch.rename_columns(list(names)) for batch in batches)
