"""Reads the rows of a table's data files, with their positions. Runs on the driver or on executors; does not use Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from aiorepl.spark.lake.columns import COMMIT_LSN
from aiorepl.spark.lake.statistics import Bounds
from aiorepl.spark.lake.table import ColumnRange

Excludes = Callable[[Mapping[str, Bounds]], bool]
"""Takes the bounds of a row group's columns; returns whether to skip the row group."""


class FileScan(ABC):
    """Reads one data file.

    :ivar schema: the table's columns.
    :ivar dead: returns the positions of the rows that are deleted.
    """

    path: str
    schema: pa.Schema
    dead: Callable[[], BitMap64]

    @abstractmethod
    def identity(self, columns: Sequence[str]) -> Hashable:
        """Return the identity of the file and of the table's columns of these names: equal for equal values only."""

    @abstractmethod
    def bounds(self, name: str) -> Bounds | None:
        """Return the least and the greatest value of a column; ``None`` if they are unknown, or cannot be trusted."""

    @abstractmethod
    def nulls(self, name: str) -> int | None:
        """Return how many nulls a column has; ``None`` if it is unknown."""

    @abstractmethod
    def open(self) -> Any:
        """Open the file."""

    @abstractmethod
    def stored(self, file: pq.ParquetFile) -> Mapping[str, str]:
        """Return, by column of the table, the column's name in the file. Columns that the file lacks are left out."""

    @abstractmethod
    def whole(self, group: pa.Table | None, count: int, columns: Sequence[str]) -> pa.Table:
        """Return columns of a row group with the table's names and types.

        :param group: the file's columns; ``None`` if the file has none of ``columns``.
        :param count: the number of rows.
        """

    def rows(self) -> int:
        """Return the number of rows, including deleted rows."""
        with self.open() as opened:
            return int(pq.ParquetFile(opened).metadata.num_rows)

    def newest(self) -> int | None:
        """Return the LSN of the file's last change; ``None`` if it is unknown, or if some row has no LSN."""
        found = self.bounds(COMMIT_LSN)
        return None if found is None or self.nulls(COMMIT_LSN) != 0 else int(found[1])

    def live(
        self, columns: Sequence[str], excludes: Excludes | None = None
    ) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Yield rows that are not deleted, a row group at a time, with their positions.

        :param columns: names of the table's columns.
        """
        gone = _positions(self.dead())
        for first, group in self._groups(columns, None, excludes):
            start, end = np.searchsorted(gone, [first, first + group.num_rows])
            if start == end:
                yield np.arange(first, first + group.num_rows), group
                continue
            kept = np.ones(group.num_rows, bool)
            kept[(gone[start:end] - first).astype(np.int64)] = False
            yield first + np.flatnonzero(kept), group.filter(pa.array(kept))

    def all(self, columns: Sequence[str]) -> pa.Table:
        """Return all rows, including deleted ones.

        :param columns: names of the table's columns.
        """
        nothing = pa.schema([self.schema.field(name) for name in columns]).empty_table()
        return pa.concat_tables([nothing, *(group for _, group in self._groups(columns, None, None))])

    def at(self, positions: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return the rows at these positions, which are in ascending order."""

        def skip(first: int, count: int) -> bool:
            start, end = np.searchsorted(positions, [first, first + count])
            return bool(start == end)

        found = [pa.schema([self.schema.field(name) for name in columns]).empty_table()]
        for first, group in self._groups(columns, skip, None):
            start, end = np.searchsorted(positions, [first, first + group.num_rows])
            found.append(group.take(pa.array(positions[start:end] - first)))
        return pa.concat_tables(found)

    def _groups(
        self, columns: Sequence[str], skip: Callable[[int, int], bool] | None, excludes: Excludes | None
    ) -> Iterator[tuple[int, pa.Table]]:
        with self.open() as opened:
            file = pq.ParquetFile(opened)
            stored = {name: there for name, there in self.stored(file).items() if name in columns}
            first = 0
            for number in range(file.num_row_groups):
                metadata = file.metadata.row_group(number)
                count = metadata.num_rows
                wanted = not (skip is not None and skip(first, count))
                if wanted and excludes is not None:
                    numbers = {
                        there: name
                        for name, there in stored.items()
                        if _is_number(self.schema.field(name).type)
                    }
                    wanted = not excludes(_ranges(metadata, numbers))
                if wanted:
                    group = file.read_row_group(number, columns=list(stored.values())) if stored else None
                    yield first, self.whole(group, count, columns)
                first += count


def _ranges(metadata: Any, names: Mapping[str, str]) -> dict[str, Bounds]:
    """Return the bounds of a row group's columns. The file may have narrower types; their values compare with the table's.

    :param names: by column of the file, the column's name in the table.
    """
    found = {}
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        name = names.get(column.path_in_schema)
        if name is not None and (known := column.statistics) is not None and known.has_min_max:
            found[name] = known.min, known.max
    return found


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _positions(bitmap: BitMap64) -> np.ndarray:
    return np.frombuffer(bitmap.to_array(), np.uint64) if bitmap else np.empty(0, np.uint64)


def batches(
    scans: Iterable[FileScan],
    columns: Sequence[str],
    within: ColumnRange | None = None,
    files: Collection[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of files, as ``Rows.batches`` does."""
    for scan in scans:
        if (files is not None and scan.path not in files) or _outside(scan, within):
            continue
        needed = [*columns] if within is None else list(dict.fromkeys([*columns, within.column]))
        for _, rows in scan.live(needed):
            yield from _within(rows, within).select(columns).to_batches()


def _outside(scan: FileScan, within: ColumnRange | None) -> bool:
    """Whether a file's statistics exclude a range."""
    if within is None or (found := scan.bounds(within.column)) is None:
        return False
    return bool(
        (within.least is not None and found[1] < within.least)
        or (within.below is not None and found[0] >= within.below)
    )


def _within(rows: pa.Table, within: ColumnRange | None) -> pa.Table:
    if within is None:
        return rows
    if within.least is not None:
        rows = rows.filter(pc.greater_equal(rows[within.column], within.least))
    if within.below is not None:
        rows = rows.filter(pc.less(rows[within.column], within.below))
    return rows
