"""Reads the rows of a version of a Delta table, and of its data files. Runs on the driver or on executors; does not use Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from aiorepl.errors import ConfigurationError, DataError
from aiorepl.spark.lake import delta_vectors
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import DataFile, Snapshot
from aiorepl.spark.lake.delta_statistics import bounds
from aiorepl.spark.lake.rows import in_type
from aiorepl.spark.lake.scan import FileScan, batches
from aiorepl.spark.lake.sources import SourceName, columns_for
from aiorepl.spark.lake.statistics import Bounds
from aiorepl.spark.lake.table import ColumnRange


@dataclass(frozen=True)
class DeltaScan(FileScan):
    """Reads one data file of a Delta table."""

    folder: DeltaFolder
    schema: pa.Schema
    file: DataFile
    dead: Callable[[], BitMap64]

    @property
    def path(self) -> str:  # type: ignore[override]
        return self.file.path

    def identity(self, columns: Sequence[str]) -> Hashable:
        kinds = tuple((name, str(self.schema.field(name).type)) for name in columns)
        return self.folder.target, self.file.path, self.file.size, kinds

    def bounds(self, name: str) -> Bounds | None:
        return bounds(self.file.statistics, name, self.schema.field(name).type)

    def nulls(self, name: str) -> int | None:
        found: int | None = self.file.statistics.get("nullCount", {}).get(name)
        return found

    def rows(self) -> int:
        known = self.file.statistics.get("numRecords")
        return super().rows() if known is None else int(known)

    def open(self) -> Any:
        return self.folder.open(self.file.path)

    def stored(self, file: pq.ParquetFile) -> Mapping[str, str]:
        return {name: name for name in file.schema_arrow.names if name not in self._partitions}

    def whole(self, group: pa.Table | None, count: int, columns: Sequence[str]) -> pa.Table:
        """Return columns in the table's types: null if the file lacks the column, constant for a partition."""
        arrays = []
        for name in columns:
            kind = self.schema.field(name).type
            if name in self._partitions:
                value = _partition(self._partitions[name], kind)
                arrays.append(pa.chunked_array([pa.repeat(value, count)]))
            elif group is not None and name in group.column_names:
                column = group[name]
                arrays.append(column if column.type == kind else in_type(column, kind))
            else:
                arrays.append(pa.chunked_array([pa.nulls(count, kind)]))
        return pa.table(arrays, schema=pa.schema([self.schema.field(name) for name in columns]))

    @property
    def _partitions(self) -> Mapping[str, str | None]:
        return self.file.add.get("partitionValues") or {}


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


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """A version of a Delta table."""

    path: str
    version: int
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    source: SourceName | None = None

    def schema(self) -> pa.Schema:
        snapshot = self._snapshot()
        found = columns_for(snapshot.schema, snapshot.configuration, self.source)
        assert found is not None
        return found

    def batches(
        self, columns: Sequence[str], within: ColumnRange | None = None, files: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        yield from batches(self._scans(), columns, within, files)

    def files(self) -> tuple[list[str], int]:
        found = self._files(self._snapshot())
        return [each.path for each in found], sum(each.size for each in found)

    def _files(self, snapshot: Snapshot) -> list[DataFile]:
        own = self.source
        return [
            file
            for file in snapshot.files.values()
            if own is None or dict(file.partition).get(own.column) == own.name
        ]

    def _scans(self) -> Iterator[DeltaScan]:
        snapshot = self._snapshot()
        for file in self._files(snapshot):
            dead = partial(delta_vectors.read, snapshot.folder, file.vector)
            yield DeltaScan(snapshot.folder, snapshot.schema, file, dead)

    def _snapshot(self) -> Snapshot:
        found = Snapshot.load(DeltaFolder(self.path, self.storage), self.version)
        if found is None:
            raise ConfigurationError(f"there is no Delta table {self.path}")
        return found
