"""Reads the rows of a version of a Delta table with deltalake, in this process or in a task."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from aiorepl.spark.lake.scanning import files_of, scan
from aiorepl.spark.lake.table import ColumnRange


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """A version of a Delta table."""

    path: str
    version: int
    storage: Mapping[str, str] | None = field(repr=False)

    @classmethod
    def newest(cls, path: str, storage: Mapping[str, str] | None) -> Self:
        """Return the newest version of a table."""
        options = None if storage is None else dict(storage)
        return cls(path, DeltaTable(path, storage_options=options).version(), storage)

    def schema(self) -> pa.Schema:
        return pa.schema(self._open().schema())

    def batches(
        self, columns: Sequence[str], within: ColumnRange | None = None, files: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        condition = None
        if within is not None:
            key = pc.field(within.column)
            bounds = [] if within.least is None else [key >= within.least]
            bounds += [] if within.below is None else [key < within.below]
            condition = reduce(operator.and_, bounds)
        yield from scan(self._open(), columns, condition, files).to_batches()

    def files(self) -> tuple[list[str], int]:
        table = self._open()
        sizes = pa.table(table.get_add_actions(flatten=True))["size_bytes"]
        return files_of(table), pc.sum(sizes).as_py() or 0

    def _open(self) -> DeltaTable:
        options = None if self.storage is None else dict(self.storage)
        return DeltaTable(self.path, version=self.version, storage_options=options)
