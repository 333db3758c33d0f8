"""Groups keys whose changes must be reduced together, because a row moved from one key to another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from aiorepl.spark.lake.columns import COMMIT_LSN, ORDINAL

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
    return zip(*(_values(rows.column(name)) for name in keys), strict=True)


def _values(column: Any) -> list[Any]:
    # Python has no dates and times before year 1 or after year 9999.
    if pa.types.is_temporal(column.type) and column.type.bit_width <= 64:
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    values: list[Any] = column.to_pylist()
    return values
