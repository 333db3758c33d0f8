"""Divides the changes of a large batch among executors. Each gets a range of keys, or the keys of rows that have moved.

The ranges are of the first key column, so that the merge of a part rewrites few of the target's files. They have about equal numbers of
changes; a value with more changes than one range holds is divided among several ranges by a hash of the whole key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from aiorepl.spark.lake.columns import COMMIT_LSN, ORDINAL
from aiorepl.spark.lake.rows import zeros
from aiorepl.spark.reading.schema import quoted

Key = tuple[Any, ...]


class Routes:
    """Groups of keys, joined by moves; pickled to executors."""

    def __init__(self) -> None:
        self._parents: dict[Key, Key] = {}

    @classmethod
    def of(cls, links: Iterable[pa.Table], keys: Sequence[str]) -> Routes:
        """Join keys that ``reduction.linked_keys`` found at the same position."""
        routes = cls()
        first: dict[Key, Key] = {}
        for table in links:
            places = zip(table[COMMIT_LSN].to_pylist(), table[ORDINAL].to_pylist(), strict=True)
            for place, key in zip(places, _keys(table, keys), strict=True):
                routes._join(first.setdefault(place, key), key)
        return routes

    def column(self, rows: pa.RecordBatch, keys: Sequence[str]) -> pa.Array:
        """Return for each row a text that all keys of its group share; null for a key without a group."""
        found = (repr(self._root(key)) if key in self._parents else None for key in _keys(rows, keys))
        return pa.array(found, pa.string())

    def __bool__(self) -> bool:
        return bool(self._parents)

    def _join(self, one: Key, other: Key) -> None:
        self._parents[self._root(other)] = self._root(one)

    def _root(self, key: Key) -> Key:
        self._parents.setdefault(key, key)
        while (parent := self._parents[key]) != key:
            self._parents[key] = self._parents[parent]
            key = parent
        return key


def _keys(rows: Any, keys: Sequence[str]) -> Iterable[Key]:
    rows = zeros(rows, keys)
    return zip(*(_values(rows.column(name)) for name in keys), strict=True)


def _values(column: Any) -> list[Any]:
    # Python has no dates and times before year 1 or after year 9999.
    if pa.types.is_temporal(column.type) and column.type.bit_width <= 64:
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    values: list[Any] = column.to_pylist()
    return values


_STRIDE: Final = 500
"""Of this many values, a sample has one."""


def sample(values: pa.Array) -> pa.Array:
    """Return evenly spaced values of a column, sorted.

    The result is empty only if ``values`` is, or if its type has no order. It is a copy: it shares no memory with ``values``.
    """
    if pa.types.is_nested(values.type) or pa.types.is_interval(values.type):
        return pa.array([], values.type)
    present = values.drop_null()
    ordered = present.take(pc.sort_indices(present))
    return ordered.take(pa.array(range(min(len(ordered), _STRIDE) // 2, len(ordered), _STRIDE), pa.int64()))


class Ranges:
    """Ranges of the values of a column, numbered from 0.

    :param bounds: ascending; a range ends before a bound.
    """

    def __init__(self, bounds: pa.Array) -> None:
        self._bounds = bounds

    @classmethod
    def of(cls, samples: Iterable[pa.Array], count: int) -> Ranges:
        """Make ``count`` ranges with about equal numbers of values.

        :param samples: results of ``sample``, at least one.
        """
        values = pa.concat_arrays(samples)
        if not len(values):
            return cls(values)
        ordered = values.take(pc.sort_indices(values))
        places = [number * len(ordered) // count for number in range(1, count)]
        return cls(ordered.take(pa.array(places, pa.int64())))

    def places(self, values: Any) -> tuple[pa.Array, pa.Array]:
        """Return for each value the number of its first range, and how many ranges have the value."""
        first = pa.repeat(pa.scalar(0, pa.int32()), len(values))
        count = pa.repeat(pa.scalar(1, pa.int32()), len(values))
        for bound in self._bounds:
            first = pc.add(first, _counted(pc.greater(values, bound)))
            count = pc.add(count, _counted(pc.equal(values, bound)))
        return first, count


def _counted(mask: Any) -> Any:
    return pc.fill_null(mask, False).cast(pa.int32())


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
