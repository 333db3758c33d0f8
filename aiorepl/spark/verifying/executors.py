"""Reads checksums and hashes of a large table on Spark's executors; each task reads some of its files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from aiorepl.lsn import LSN
from aiorepl.spark.verifying.checksums import (
    ALL,
    Comparison,
    LakeRows,
    LakeSums,
    Row,
    Share,
    Sum,
)
from aiorepl.spark.verifying.lake import LakeTable

LARGE: Final = 256 * 1024 * 1024
"""If the files of a table have more bytes, executors read the table."""
_TASK_BYTES: Final = 128 * 1024 * 1024
_ROWS: Final = 10_000

# Sums of hashes are texts, because a sum may have more than 64 bits.
_SUMS: Final = pa.schema(
    [
        pa.field("place", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("hashes", pa.string()),
        pa.field("changed", pa.bool_()),
    ]
)
_HASHES: Final = pa.schema(
    [
        pa.field("place", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("hash", pa.int64()),
        pa.field("since", pa.bool_()),
    ]
)
_SUMS_DDL: Final = "place long, rows long, hashes string, changed boolean"
_HASHES_DDL: Final = "place long, key string, hash long, since boolean"


@dataclass(frozen=True)
class DistributedTable:
    """A ``LakeTable`` that executors read.

    :param files: the table's files.
    :param tasks: the number of tasks that read them.
    """

    spark: SparkSession
    table: LakeTable
    files: Sequence[str]
    tasks: int

    def schema(self) -> pa.Schema:
        """Return the columns, as ``LakeTable.schema``."""
        return self.table.schema()

    def sums(self, compared: Comparison, lsn: LSN) -> LakeSums:
        """Return the checksums that ``LakeTable.sums`` returns."""
        found = LakeSums()
        for row in self._files().mapInArrow(_summing(self.table, compared, lsn), _SUMS_DDL).collect():
            before = found.sums[row.place]
            if row.rows:
                found.sums[row.place] = Sum(before.rows + row.rows, before.hashes + int(row.hashes))
            if row.changed:
                found.changed.add(row.place)
        return found

    def rows(
        self, compared: Comparison, lsn: LSN, places: Collection[int], share: Share = ALL
    ) -> dict[int, LakeRows]:
        """Return the rows that ``LakeTable.rows`` returns."""
        found = {place: LakeRows() for place in places}
        reading = _hashing(self.table, compared, lsn, frozenset(places), share)
        for row in self._files().mapInArrow(reading, _HASHES_DDL).toLocalIterator():
            found[row.place].add(Row(row.key, row.hash, None, None), since=row.since)
        return found

    def _files(self) -> DataFrame:
        groups = [self.files[number :: self.tasks] for number in range(self.tasks)]
        rows = [(orjson.dumps(each),) for each in groups]
        return self.spark.createDataFrame(rows, "files binary").repartition(self.tasks)


def distributed(table: LakeTable, session: Callable[[], SparkSession] | None) -> LakeTable | DistributedTable:
    """Return a table's reader, which uses executors if the table is large.

    :param session: returns the Spark session; ``None`` if there is none.
    """
    if session is None:
        return table
    files, size = table.files()
    if not files or size <= LARGE:
        return table
    return DistributedTable(session(), table, files, min(len(files), -(-size // _TASK_BYTES)))


def _summing(table: LakeTable, compared: Comparison, lsn: LSN) -> Any:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for files in _groups(batches):
            found = table.sums(compared, lsn, files)
            # Not ``found.sums[place]`` alone: looking up a missing range would add it.
            rows = [
                (place, *(found.sums[place] if place in found.sums else Sum()), place in found.changed)
                for place in sorted({*found.sums, *found.changed})
            ]
            yield _batch(
                [(place, rows, str(hashes), changed) for place, rows, hashes, changed in rows], _SUMS
            )

    return read


def _hashing(table: LakeTable, compared: Comparison, lsn: LSN, places: Collection[int], share: Share) -> Any:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for files in _groups(batches):
            waiting: list[tuple[Any, ...]] = []
            for place, row, since in table.rows_of(compared, lsn, places, share, files):
                waiting.append((place, row.key, row.hash, since))
                if len(waiting) == _ROWS:
                    yield _batch(waiting, _HASHES)
                    waiting = []
            yield _batch(waiting, _HASHES)

    return read


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[set[str]]:
    for batch in batches:
        for files in batch["files"].to_pylist():
            yield set(orjson.loads(files))


def _batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
