"""Reads checksums and hashes of a version of a table, in this process or on Spark's executors; each task reads some of its files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from aiorepl.lsn import LSN
from aiorepl.spark.lake.columns import COMMIT_LSN
from aiorepl.spark.lake.table import DELETED, IS_CURRENT, VALID_TO_LSN, ColumnRange, Rows
from aiorepl.spark.mirroring.executors import PICKLED_DDL, iterated, pickled, spread, unpickled
from aiorepl.spark.verifying.canonical import joined
from aiorepl.spark.verifying.checksums import ALL, Comparison, LakeRows, LakeSums, Row, Share, Sum

MODES: Final = (DELETED, IS_CURRENT, VALID_TO_LSN)
"""The columns that tell which rows exist, in the modes soft_delete and history."""
_LAST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A version of a table in the mode current, soft_delete or history.

    :param end: the journal's end: no change has this LSN or a later one, so a row with such a position counts as different. ``None``
        if the end is not known.
    """

    version: Rows
    end: LSN | None = None

    def schema(self) -> pa.Schema:
        """Return the version's columns."""
        return self.version.schema()

    def sums(self, compared: Comparison, lsn: LSN, files: Collection[str] | None = None) -> LakeSums:
        """Return the checksums of the rows at an LSN.

        :param lsn: an LSN that the version has reached.
        :param files: only the rows of these files.
        """
        found = LakeSums()
        for place, row, since in self._rows(compared, lsn, None, files):
            found.add(place, row, since=since)
        return found

    def rows(
        self, compared: Comparison, lsn: LSN, places: Collection[int], share: Share = ALL
    ) -> dict[int, LakeRows]:
        """Return the rows of ranges at an LSN."""
        found = {place: LakeRows() for place in places}
        for place, row, since in self.rows_of(compared, lsn, places, share):
            found[place].add(row, since=since)
        return found

    def rows_of(
        self,
        compared: Comparison,
        lsn: LSN,
        places: Collection[int],
        share: Share,
        files: Collection[str] | None = None,
    ) -> Iterator[tuple[int, Row, bool]]:
        """Yield the rows of ranges at an LSN: for each row its range, the row, and whether it has changed since the LSN."""
        for place, row, since in self._rows(compared, lsn, self._within(compared, places), files):
            if place in places and share.has(row.key):
                yield place, row, since

    def keys(self, compared: Comparison, places: Collection[int], wanted: Collection[str]) -> pa.Table:
        """Return the values of the key's columns in the rows of ranges.

        :param wanted: the texts of the keys.
        """
        fields = [self.schema().field(name) for name in compared.keys]
        texts = pa.array(wanted, pa.string())
        found = []
        for batch in self.version.batches(compared.keys, self._within(compared, places)):
            joint = joined(
                [compared.columns[name].texts(batch[name]) for name in compared.keys], batch.num_rows
            )
            found.append(batch.select(compared.keys).filter(pc.is_in(joint, value_set=texts)))
        return pa.Table.from_batches(found, pa.schema(fields)) if found else pa.schema(fields).empty_table()

    def _within(self, compared: Comparison, places: Collection[int]) -> ColumnRange | None:
        """Return one range of the key's first column that spans these ranges."""
        name, bounds = compared.keys[0], compared.bounds
        if not pa.types.is_integer(self.schema().field(name).type):
            return None
        first, last = min(places), max(places)
        least = int(bounds[first - 1]) if first else None
        below = int(bounds[last]) if last < len(bounds) else None
        return None if least is None and below is None else ColumnRange(name, least, below)

    def _rows(
        self, compared: Comparison, lsn: LSN, within: ColumnRange | None, files: Collection[str] | None
    ) -> Iterator[tuple[int, Row, bool]]:
        columns = [*compared.columns, COMMIT_LSN, *compared.modes]
        for batch in self.version.batches(columns, within, files):
            yield from _compared(compared, lsn, self.end, batch)


def _compared(
    compared: Comparison, lsn: LSN, end: LSN | None, batch: pa.RecordBatch
) -> Iterator[tuple[int, Row, bool]]:
    modes, changed = compared.modes, batch[COMMIT_LSN]
    if IS_CURRENT in modes:
        changed = pc.max_element_wise(changed, batch[VALID_TO_LSN])
    since = pc.fill_null(pc.greater_equal(changed, int(lsn)), False)
    there = pa.repeat(pa.scalar(True), batch.num_rows)
    if DELETED in modes:
        there = pc.invert(pc.fill_null(batch[DELETED], False))
    elif IS_CURRENT in modes:
        there = pc.fill_null(batch[IS_CURRENT], False)
    wanted = pc.or_(there, since)
    # If the journal's end is unknown, no position counts as impossible.
    impossible = pc.fill_null(pc.greater(changed, _LAST if end is None else int(end) - 1), False)
    known = zip(since.filter(wanted).to_pylist(), impossible.filter(wanted).to_pylist(), strict=True)
    for (place, row), (late, wrong) in zip(compared.rows(batch.filter(wanted)), known, strict=True):
        if wrong:
            yield place, row._replace(hash=~row.hash), False
        else:
            yield place, row, late


LARGE: Final = 256 * 1024 * 1024
"""If the files of a table have more bytes, executors read the table."""
_TASK_BYTES: Final = 128 * 1024 * 1024
_ROWS: Final = 10_000


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

    def sums(self, compared: Comparison, lsn: LSN) -> LakeSums:
        """Return the checksums that ``LakeTable.sums`` returns."""
        found = LakeSums()
        for sums in self._read(partial(_sums, self.table, compared, lsn)):
            found.changed |= sums.changed
            for place, each in sums.sums.items():
                before = found.sums[place]
                found.sums[place] = Sum(before.rows + each.rows, before.hashes + each.hashes)
        return found

    def rows(
        self, compared: Comparison, lsn: LSN, places: Collection[int], share: Share = ALL
    ) -> dict[int, LakeRows]:
        """Return the rows that ``LakeTable.rows`` returns."""
        found = {place: LakeRows() for place in places}
        for rows in self._read(partial(_rows, self.table, compared, lsn, frozenset(places), share)):
            for place, row, since in rows:
                found[place].add(row, since=since)
        return found

    def _read(self, read: Callable[[set[str]], Iterator[Any]]) -> Iterator[Any]:
        """Yield what tasks read from the files."""
        groups = [{*self.files[number :: self.tasks]} for number in range(self.tasks)]
        frame = spread(self.spark, groups).mapInArrow(partial(_of_files, read), PICKLED_DDL)
        return iterated(frame)


def distributed(table: LakeTable, session: Callable[[], SparkSession] | None) -> LakeTable | DistributedTable:
    """Return a table's reader, which uses executors if the table is large.

    :param session: returns the Spark session; ``None`` if there is none.
    """
    if session is None:
        return table
    files, size = table.version.files()
    if not files or size <= LARGE:
        return table
    return DistributedTable(session(), table, files, min(len(files), -(-size // _TASK_BYTES)))


def _of_files(
    read: Callable[[set[str]], Iterator[Any]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for files in unpickled(batches):
        for found in read(files):
            yield pickled([found])


def _sums(table: LakeTable, compared: Comparison, lsn: LSN, files: set[str]) -> Iterator[LakeSums]:
    yield table.sums(compared, lsn, files)


def _rows(
    table: LakeTable, compared: Comparison, lsn: LSN, places: Collection[int], share: Share, files: set[str]
) -> Iterator[list[tuple[int, Row, bool]]]:
    rows = table.rows_of(compared, lsn, places, share, files)
    while some := list(islice(rows, _ROWS)):
        yield some
