"""Reduces a batch's staged changes of one table, on the driver or, if the changes are large, on executors.

Executors work in two steps. The first step looks in the staged files for truncates and moved rows, and samples the keys;
``apply_changes`` does this while it stages the rows. The second step reads the files, and shuffles the rows by ranges of keys. Then each
partition has all changes of some keys; its executor reduces them, and writes the parts for the table's merge to the staging folder.
If a row moved and lacks a value, the changes of its old key and of its new key go to the same partition. If the delete
and the insert of such a move are in different files or row groups, executors read the files once more, to find the delete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from aiorepl.spark.lake.table import Mode, Part, Place, Run, Truncate
from aiorepl.spark.mirroring import staged_store
from aiorepl.spark.mirroring.executors import PICKLED_DDL, collected, map_rows, pickled, spread, unpickled
from aiorepl.spark.mirroring.reduction import keys_at, linked_keys, places, reduce_changes, truncates_of
from aiorepl.spark.mirroring.shuffle import COLUMNS, Ranges, Routes, columns, divide, sample
from aiorepl.storage.opening import Location

_MIB: Final = 1024 * 1024
DRIVER_BYTES: Final = 64 * _MIB
"""If the changes of one table in a batch need more bytes than this, executors reduce them."""
PART_BYTES: Final = 32 * _MIB
"""The target size of a part, and of a shuffled partition. Many changes of one key make a larger part."""


@dataclass(frozen=True)
class StagedChanges(ABC):
    """A batch's changes of one table in staged files; pickled for the executors.

    :param staging: the staging folder, to which executors write the parts.
    :param schema: the columns of the rows.
    :param keys: the columns that identify a row.
    """

    staging: Location
    schema: pa.Schema
    keys: tuple[str, ...]
    mode: Mode

    @abstractmethod
    def rows(self, file: Any) -> Iterator[pa.RecordBatch]:
        """Read the changes of a file."""


class Staged(Protocol):
    """The description of a staged file; is pickled for the executors."""

    @property
    def memory(self) -> int:
        """The size of the file's rows in memory, in bytes; may be an estimate."""


class Found(NamedTuple):
    """The result of the first step for some changes: their truncates, and the data that divides all changes among executors.

    :param linked: the old and the new keys of moved rows, from ``linked_keys``.
    :param sample: a sample of the first key column; ``None`` without keys.
    """

    truncates: tuple[Truncate, ...]
    linked: pa.Table
    sample: pa.Array | None

    @classmethod
    def of(cls, rows: pa.Table, keys: Sequence[str]) -> Found:
        """Look for truncates and moved rows in some changes, and sample their keys."""
        samples = [sample(rows[name].combine_chunks()) for name in keys[:1]]
        return cls(tuple(truncates_of(rows)), linked_keys(rows, keys), samples[0] if samples else None)


ReduceLarge = Callable[
    [StagedChanges, Sequence[Any], Sequence[Truncate]], tuple[Sequence[Part], Sequence[Truncate]]
]
"""Reduces changes on executors. Returns the parts, and all truncates in ascending order."""


def reduce_staged(
    changes: StagedChanges, files: Sequence[Staged], truncates: Sequence[Truncate], large: ReduceLarge
) -> Run:
    """Reduce the changes in some files.

    :param truncates: truncates that are not in the files.
    :param large: reduces the changes if they need more than ``DRIVER_BYTES``.
    :raises ConfigurationError: a key is null or NaN.
    """
    if sum(file.memory for file in files) > DRIVER_BYTES:
        if changes.mode == "changelog":
            # A changelog keeps every change, so no shuffle is needed.
            return Run(
                changes.keys, [Part(each.memory, partial(_unreduced, changes, each)) for each in files]
            )
        return Run(changes.keys, *large(changes, files, truncates))
    rows = pa.Table.from_batches(
        (batch for file in files for batch in changes.rows(file)), schema=changes.schema
    )
    reduced = reduce_changes(rows, changes.keys, changes.mode, truncates)
    return Run(changes.keys, reduced.parts(PART_BYTES), reduced.truncates)


def reduce_on_executors(
    spark: SparkSession,
    changes: StagedChanges,
    files: Sequence[Staged],
    truncates: Sequence[Truncate],
    found: Sequence[Found] = (),
) -> tuple[list[Part], list[Truncate]]:
    """Reduce changes on executors; a ``ReduceLarge`` with the session bound.

    :param found: the result of the first step for each file; if empty, executors do the first step.
    """
    found = found or collected(spread(spark, files).mapInArrow(partial(_look, changes), PICKLED_DDL))
    ascending = sorted({*truncates, *(truncate for each in found for truncate in each.truncates)})
    if not found:
        # The files have no changes that are new to the table.
        return [], ascending
    linked = [each.linked for each in found if each.linked.num_rows]
    halves = _halves(linked)
    if halves:
        linked += collected(spread(spark, files).mapInArrow(partial(_find, changes, halves), PICKLED_DDL))
    routes = Routes.of(linked, changes.keys)
    count = max(1, -(-sum(file.memory for file in files) // PART_BYTES))
    ranges = Ranges.of([each.sample for each in found], count)
    schema = from_arrow_schema(pa.schema([*changes.schema, *COLUMNS]))
    rows = spread(spark, files).mapInArrow(partial(_routed, changes, routes, ranges), schema)
    divided = divide(rows, changes.keys, count)
    reduced = map_rows(divided, partial(_reduced, changes, ascending), PICKLED_DDL)
    return [staged_store.part(changes.staging, *each) for each in collected(reduced)], ascending


def _look(changes: StagedChanges, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for file in unpickled(batches):
        for batch in changes.rows(file):
            yield pickled([Found.of(pa.Table.from_batches([batch]), changes.keys)])


def _halves(linked: Iterable[pa.Table]) -> set[Place]:
    """Return the positions of moves of which only one key was found."""
    counted = Counter(chain.from_iterable(map(places, linked)))
    return {place for place, count in counted.items() if count == 1}


def _find(
    changes: StagedChanges, wanted: set[Place], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Return the keys and the positions of the changes at these positions."""
    for file in unpickled(batches):
        for batch in changes.rows(file):
            found = keys_at(pa.Table.from_batches([batch]), changes.keys, wanted)
            if found.num_rows:
                yield pickled([found])


def _routed(
    changes: StagedChanges, routes: Routes, ranges: Ranges, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read files, and append ``shuffle.COLUMNS``, by which ``divide`` partitions the rows."""
    schema = pa.schema([*changes.schema, *COLUMNS])
    for file in unpickled(batches):
        for batch in changes.rows(file):
            rows = batch.filter(pc.not_equal(batch["_op"], "truncate"))
            added = columns(rows, changes.keys, routes, ranges)
            yield pa.RecordBatch.from_arrays([*rows.columns, *added], schema=schema)


def _reduced(
    changes: StagedChanges, truncates: Sequence[Truncate], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Reduce the changes of some keys, and write each part to a file of its own."""
    waiting = [batch for batch in batches if batch.num_rows]
    if not waiting:
        return
    rows = pa.Table.from_batches(waiting).cast(changes.schema)
    waiting.clear()
    for part in reduce_changes(rows, changes.keys, changes.mode, truncates).parts(PART_BYTES):
        yield pickled([(staged_store.write(changes.staging, part.read()), part.size)])


def _unreduced(changes: StagedChanges, file: Staged) -> pa.Table:
    table = pa.Table.from_batches(changes.rows(file), schema=changes.schema)
    return reduce_changes(table, changes.keys, changes.mode).table
