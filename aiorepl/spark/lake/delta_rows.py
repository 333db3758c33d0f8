"""Reads the rows of a version of a Delta table, in this process or in a task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import pyarrow as pa

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake import delta_vectors
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import Snapshot
from aiorepl.spark.lake.delta_scan import DeltaScan
from aiorepl.spark.lake.scan import batches
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
        yield from batches(self._scans(), columns, within, files)

    def files(self) -> tuple[list[str], int]:
        found = self._snapshot().files.values()
        return [each.path for each in found], sum(each.size for each in found)

    def _scans(self) -> Iterator[DeltaScan]:
        snapshot = self._snapshot()
        for file in snapshot.files.values():
            dead = partial(delta_vectors.read, snapshot.folder, file.vector)
            yield DeltaScan(snapshot.folder, snapshot.schema, file, dead)

    def _snapshot(self) -> Snapshot:
        found = Snapshot.load(DeltaFolder(self.path, self.storage), self.version)
        if found is None:
            raise ConfigurationError(f"there is no Delta table {self.path}")
        return found
