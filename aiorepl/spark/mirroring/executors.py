"""Passes Python objects and rows between the driver and Spark's executors.

Objects are pickled into a binary column. Unpickling is safe: the driver and the executors belong to one Spark application, and Spark
pickles its functions in the same way.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from aiorepl.formats.arrow.constants import binaries

_COLUMN: Final = "pickled"
PICKLED_DDL: Final = f"{_COLUMN} binary"
"""The columns of a DataFrame of pickled objects."""

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def pickled(objects: Iterable[Any]) -> pa.RecordBatch:
    """Return objects as rows of ``PICKLED_DDL``."""
    return pa.RecordBatch.from_arrays([binaries(map(pickle.dumps, objects))], [_COLUMN])


def unpickled(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """Yield the objects in batches from ``pickled``."""
    for batch in batches:
        yield from map(pickle.loads, batch[_COLUMN].to_pylist())


def collected(frame: DataFrame) -> list[Any]:
    """Collect the objects of a DataFrame with the columns ``PICKLED_DDL``."""
    return [pickle.loads(bytes(row[0])) for row in frame.collect()]  # noqa: S301 - from this Spark application


def iterated(frame: DataFrame) -> Iterator[Any]:
    """Yield the objects that ``collected`` returns, with one partition of them in memory at a time."""
    for row in frame.toLocalIterator():
        yield pickle.loads(bytes(row[0]))  # noqa: S301 - from this Spark application


def spread(spark: SparkSession, objects: Sequence[Any]) -> DataFrame:
    """Return a DataFrame of pickled objects, with about one object in each partition."""
    rows = [(pickle.dumps(each),) for each in objects]
    return spark.createDataFrame(rows, PICKLED_DDL).repartition(max(1, len(rows)))


def map_rows(frame: DataFrame, function: Function, schema: StructType | str) -> DataFrame:
    """Call ``mapInArrow`` on columns whose names may have dots or backticks.

    ``mapInArrow`` reads a dot or a backtick in a name as a path, so it gets numbered columns.

    :param function: gets batches with the original column names.
    """
    names = frame.columns
    numbered = frame.toDF(*(f"_{number}" for number in range(len(names))))
    return numbered.mapInArrow(partial(_named, names, function), schema)


def _named(
    names: Sequence[str], function: Function, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return function(batch.rename_columns(list(names)) for batch in batches)
