"""Reads the rows of data files of a Delta table, with their positions. Runs on the driver or on executors; does not use Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from aiorepl.errors import DataError
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import DataFile
from aiorepl.spark.lake.rows import in_type

Skip = Callable[[Any], bool]
"""Whether to skip a row group, by its metadata."""


@dataclass(frozen=True, slots=True)
class FileScan:
    """Reads one data file.

    :param schema: the table's columns.
    :param dead: returns the positions of the rows that are deleted.
    """

    folder: DeltaFolder
    schema: pa.Schema
    file: DataFile
    dead: Callable[[], BitMap64]

    def rows(self) -> int:
        """Return the number of rows, with the deleted ones."""
        known = self.file.statistics.get("numRecords")
        if known is not None:
            return int(known)
        with self.folder.open(self.file.path) as opened:
            return int(pq.ParquetFile(opened).metadata.num_rows)

    def live(self, columns: Sequence[str], skip: Skip | None = None) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Yield rows that are not deleted, a row group at a time, with their positions.

        :param columns: names of the table's columns.
        """
        gone = _positions(self.dead())
        for first, group in self.groups(columns, skip):
            kept = np.ones(group.num_rows, bool)
            start, end = np.searchsorted(gone, [first, first + group.num_rows])
            kept[(gone[start:end] - first).astype(np.int64)] = False
            numbers = np.flatnonzero(kept)
            yield first + numbers, group if len(numbers) == group.num_rows else group.filter(pa.array(kept))

    def at(self, positions: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return the rows at these positions, which ascend."""

        def skip(first: int, count: int) -> bool:
            start, end = np.searchsorted(positions, [first, first + count])
            return bool(start == end)

        found = []
        for first, group in self._groups(columns, skip):
            start, end = np.searchsorted(positions, [first, first + group.num_rows])
            found.append(group.take(pa.array(positions[start:end] - first)))
        return pa.concat_tables(found) if found else self._empty(columns)

    def groups(self, columns: Sequence[str], skip: Skip | None = None) -> Iterator[tuple[int, pa.Table]]:
        """Yield all rows, a row group at a time, with the position of its first row."""
        return self._groups(columns, None, skip)

    def _groups(
        self,
        columns: Sequence[str],
        skip: Callable[[int, int], bool] | None,
        by_metadata: Skip | None = None,
    ) -> Iterator[tuple[int, pa.Table]]:
        partitions = self.file.add.get("partitionValues") or {}
        with self.folder.open(self.file.path) as opened:
            file = pq.ParquetFile(opened)
            stored = [name for name in columns if name not in partitions and name in file.schema_arrow.names]
            first = 0
            for number in range(file.num_row_groups):
                metadata = file.metadata.row_group(number)
                count = metadata.num_rows
                wanted = not (skip is not None and skip(first, count))
                if wanted and by_metadata is not None:
                    wanted = not by_metadata(metadata)
                if wanted:
                    group = file.read_row_group(number, columns=stored) if stored else None
                    yield first, self._whole(group, count, columns, partitions)
                first += count

    def _whole(self, group: pa.Table | None, count: int, columns: Sequence[str], partitions: Any) -> pa.Table:
        """Return columns in the table's types: null if the file lacks them, constant if they are partitions."""
        arrays = []
        for name in columns:
            kind = self.schema.field(name).type
            if name in partitions:
                arrays.append(pa.chunked_array([pa.repeat(_partition(partitions[name], kind), count)]))
            elif group is not None and name in group.column_names:
                column = group[name]
                arrays.append(column if column.type == kind else in_type(column, kind))
            else:
                arrays.append(pa.chunked_array([pa.nulls(count, kind)]))
        return pa.table(arrays, schema=pa.schema([self.schema.field(name) for name in columns]))

    def _empty(self, columns: Sequence[str]) -> pa.Table:
        return pa.schema([self.schema.field(name) for name in columns]).empty_table()


def _positions(bitmap: BitMap64) -> np.ndarray:
    return np.frombuffer(bitmap.to_array(), np.uint64) if bitmap else np.empty(0, np.uint64)


def _partition(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Parse a partition's value."""
    if text is None or (text == "" and not pa.types.is_string(kind)):
        return pa.scalar(None, kind)
    if pa.types.is_string(kind):
        return pa.scalar(text or None, kind)
    try:
        return pa.array([text]).cast(kind)[0]
    except pa.ArrowInvalid:
        raise DataError(f"a partition's value cannot be read as {kind}") from None
