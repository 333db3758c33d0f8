"""Finds the rows of a table that have given keys: their files and positions. Runs on the driver or on executors.

Only the key columns are read, and only of files and row groups whose statistics may contain one of the keys. Few keys are looked
up in memory, as far as ``keys`` has the columns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from aiorepl.spark.lake.keys import CACHE, KeyColumns
from aiorepl.spark.lake.rows import codes, zeros
from aiorepl.spark.lake.scan import FileScan
from aiorepl.spark.lake.statistics import Bounds, comparable

_BITS: Final = 1 << 16
_FEW: Final = 1 << 16
"""The most keys that are looked up in columns in memory. For more, whole columns are compared."""
_ROWS: Final = 1024 * 1024
"""The number of rows that are compared at a time. Each comparison prepares the wanted keys again."""


class Wanted:
    """The keys of rows that are to be found.

    :param rows: the key columns, in the table's types. The keys are distinct, and none is null.
    """

    def __init__(self, rows: pa.Table) -> None:
        self.keys: list[str] = rows.column_names
        self.rows: pa.Table = rows.combine_chunks()
        self._ordered: dict[str, pa.Array] = {}
        for name in self.keys:
            kind = rows.schema.field(name).type
            if not (pa.types.is_nested(kind) or pa.types.is_boolean(kind)):
                values = comparable(self.rows[name].combine_chunks())
                self._ordered[name] = values.take(pc.sort_indices(values))

    def in_file(self, scan: FileScan) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the positions of rows with a wanted key, ascending, and for each row the key's number in ``rows``."""
        if self._excluded(scan):
            return
        if self.rows.num_rows <= _FEW:
            columns = CACHE.columns(scan.identity(self.keys), lambda: scan.all(self.keys))
            if columns is not None:
                yield self._among_all(columns, scan.dead())
                return
        waiting: list[tuple[np.ndarray, pa.Table]] = []
        count, most = 0, max(_ROWS, 2 * self.rows.num_rows)
        for found in scan.live(self.keys, self._excludes):
            waiting.append(found)
            count += len(found[0])
            if count >= most:
                yield self._among(waiting)
                waiting, count = [], 0
        if waiting:
            yield self._among(waiting)

    def _among_all(self, columns: KeyColumns, dead: BitMap64) -> tuple[np.ndarray, np.ndarray]:
        positions, rows = columns.candidates(self.rows), columns.rows
        if positions is not None:
            rows = rows.take(pa.array(positions))
        found, numbers = matches(rows, self.rows, self.keys)
        positions = found if positions is None else positions[found]
        live = np.fromiter((each not in dead for each in positions.tolist()), bool, len(positions))
        return positions[live], numbers[live]

    def _among(self, waiting: list[tuple[np.ndarray, pa.Table]]) -> tuple[np.ndarray, np.ndarray]:
        positions = np.concatenate([positions for positions, _ in waiting])
        rows, numbers = matches(pa.concat_tables([rows for _, rows in waiting]), self.rows, self.keys)
        return positions[rows], numbers

    def _excluded(self, scan: FileScan) -> bool:
        """Whether a file's statistics exclude all keys."""
        return any(
            found is not None and not self._may_have(name, *found)
            for name, found in ((name, scan.bounds(name)) for name in self._ordered)
        )

    def _excludes(self, ranges: Mapping[str, Bounds]) -> bool:
        """Whether a row group's statistics exclude all keys."""
        return any(
            name in self._ordered and not self._may_have(name, *found) for name, found in ranges.items()
        )

    def _may_have(self, name: str, least: Any, greatest: Any) -> bool:
        values = self._ordered[name]
        at = bisect_left(range(len(values)), least, key=lambda number: values[number].as_py())
        return at < len(values) and bool(values[at].as_py() <= greatest)


def matches(rows: pa.Table, wanted: pa.Table, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the rows whose key is wanted, ascending, and for each row the key's number in ``wanted``.

    :param wanted: distinct keys.
    """
    rows, wanted = zeros(rows, keys), zeros(wanted, keys)
    candidates: np.ndarray | None = None
    for name in keys:
        column = rows[name] if candidates is None else rows[name].take(pa.array(candidates))
        some = np.flatnonzero(_may_be_in(column, wanted[name].combine_chunks()))
        candidates = some if candidates is None else candidates[some]
        if not len(candidates):
            return candidates, candidates
    assert candidates is not None
    both = pa.concat_tables([wanted.select(keys), rows.select(keys).take(pa.array(candidates))])
    coded = codes(both, keys)
    count = wanted.num_rows
    found = pc.index_in(coded.slice(count), value_set=coded.slice(0, count))
    return candidates[pc.is_valid(found).to_numpy(zero_copy_only=False)], found.drop_null().to_numpy().astype(
        np.int64
    )


def _may_be_in(column: Any, wanted: pa.Array) -> np.ndarray:
    """Return for each value whether it may be wanted. An integer may be if a wanted one has the same last bits."""
    kind = column.type
    if not pa.types.is_integer(kind) or column.null_count or len(wanted) > _BITS // 16:
        return pc.is_in(column, value_set=wanted).to_numpy()  # type: ignore[no-any-return]
    # This takes a fifth of the time of a comparison by hashes, and rules out most rows.
    found = np.zeros(_BITS, bool)
    found[_last_bits(wanted)] = True
    some: np.ndarray = found[_last_bits(column)]
    return some


def _last_bits(values: Any) -> np.ndarray:
    numbers = values.to_numpy()
    # The mask does not fit into a signed 16-bit integer.
    return (numbers if numbers.itemsize >= 4 else numbers.astype(np.int32)) & (_BITS - 1)  # type: ignore[no-any-return]
