"""Stages the rows of a micro-batch of ``apply_changes``, and reduces them.

The micro-batch is read once: executors write its rows to files, and return a description of each file to the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from aiorepl.history.manifest import File
from aiorepl.spark.lake.table import Mode, Place, Run
from aiorepl.spark.mirroring import staged_store
from aiorepl.spark.mirroring.executors import PICKLED_DDL, collected, map_rows, pickled
from aiorepl.spark.mirroring.reducing import (
    PART_BYTES,
    Found,
    StagedChanges,
    reduce_on_executors,
    reduce_staged,
)
from aiorepl.storage.opening import Location, open_store


class _File(NamedTuple):
    file: File
    memory: int


class _Staged(NamedTuple):
    """The description of a file, which the executor returns to the driver.

    :param schema: the columns of the file's rows.
    :param last: the position of the file's last change.
    :param found: see ``Found``.
    """

    file: _File
    schema: pa.Schema
    last: Place
    found: Found


class _Changes(StagedChanges):
    """The staged changes of a batch."""

    def rows(self, file: _File) -> Iterator[pa.RecordBatch]:
        return staged_store.batches(staged_store.read(open_store(self.staging), file.file))


def reduce_batch(
    batch: DataFrame, staging: Location, keys: tuple[str, ...], mode: Mode
) -> tuple[Run, Place | None]:
    """Stage a batch, and reduce its changes.

    :returns: the reduced changes, and the position of the last change, or ``None`` without changes.
    :raises ConfigurationError: a key is null or NaN.
    """
    staged: list[_Staged] = collected(map_rows(batch, partial(_stage, staging, keys), PICKLED_DDL))
    if not staged:
        return Run(keys), None
    found = [each.found for each in staged]
    changes = _Changes(staging, staged[0].schema, keys, mode)
    large = partial(reduce_on_executors, batch.sparkSession, found=found)
    run = reduce_staged(changes, [each.file for each in staged], (), large)
    return run, max(each.last for each in staged)


def _stage(
    staging: Location, keys: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition to files. Runs on executors."""
    for rows in _tables(batches):
        file = staged_store.write(staging, rows)
        yield pickled([_Staged(_File(file, rows.nbytes), rows.schema, _last(rows), Found.of(rows, keys))])


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into tables of at least the size of a part, except for the last table."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting += [batch] if batch.num_rows else []
        if sum(each.nbytes for each in waiting) >= PART_BYTES:
            yield _nullable(waiting)
            waiting = []
    if waiting:
        yield _nullable(waiting)


def _nullable(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return a table whose columns may be null, like those of a target, even if Spark knows that they are not."""
    table = pa.Table.from_batches(batches)
    return table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))


def _last(rows: pa.Table) -> Place:
    lsn = pc.max(rows["_commit_lsn"])
    newest = rows.filter(pc.equal(rows["_commit_lsn"], lsn))
    return lsn.as_py(), pc.max(newest["_ordinal"]).as_py()
