"""Reads the rows of a version of a Delta table, in this process or in a task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake import delta_vectors
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import Snapshot
from aiorepl.spark.lake.delta_scan import FileScan
from aiorepl.spark.lake.delta_statistics import bounds
from aiorepl.spark.lake.table import ColumnRange


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """A version of a Delta table."""

    path: str
    version: int
    storage: Mapping[str, str] | None = field(default=None, repr=False)

    @classmethod
    def newest(cls, path: str, storage: Mapping[str, str] | None) -> Self | None:
        """Return the newest version of a table; ``None`` if there is no table."""
        found = Snapshot.load(DeltaFolder(path, storage))
        return None if found is None else cls(path, found.version, storage)

    def schema(self) -> pa.Schema:
        return self._snapshot().schema

    def batches(
        self, columns: Sequence[str], within: ColumnRange | None = None, files: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        for scan in self._scans():
            if (files is not None and scan.file.path not in files) or _outside(scan, within):
                continue
            needed = [*columns] if within is None else list(dict.fromkeys([*columns, within.column]))
            for _, rows in scan.live(needed):
                yield from _within(rows, within).select(columns).to_batches()

    def files(self) -> tuple[list[str], int]:
        found = self._snapshot().files.values()
        return [each.path for each in found], sum(each.size for each in found)

    def _scans(self) -> Iterator[FileScan]:
        snapshot = self._snapshot()
        for file in snapshot.files.values():
            dead = partial(delta_vectors.read, snapshot.folder, file.vector)
            yield FileScan(snapshot.folder, snapshot.schema, file, dead)

    def _snapshot(self) -> Snapshot:
        found = Snapshot.load(DeltaFolder(self.path, self.storage), self.version)
        if found is None:
            raise ConfigurationError(f"there is no Delta table {self.path}")
        return found


def _outside(scan: FileScan, within: ColumnRange | None) -> bool:
    """Whether a file's statistics exclude a range."""
    if within is None:
        return False
    found = bounds(scan.file.statistics, within.column, scan.schema.field(within.column).type)
    if found is None:
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
