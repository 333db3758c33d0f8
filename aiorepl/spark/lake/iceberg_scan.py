"""Reads the rows of a version of an Iceberg table, and of its data files. Runs on the driver or on executors, without a catalog."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _to_requested_schema, pyarrow_to_schema
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField
from pyroaring import BitMap64

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.iceberg_files import IcebergFile, IcebergFiles, bounds
from aiorepl.spark.lake.iceberg_metadata import columns_of
from aiorepl.spark.lake.scan import FileScan, batches
from aiorepl.spark.lake.sources import SourceName, columns_for
from aiorepl.spark.lake.statistics import Bounds
from aiorepl.spark.lake.table import ColumnRange


class IcebergReader:
    """Reads the files of a table.

    :ivar schema: the table's columns.
    """

    def __init__(self, io: FileIO, metadata: TableMetadata) -> None:
        self.io = io
        self.metadata = metadata
        self.schema = columns_of(metadata)
        self.names = metadata.name_mapping()
        self.fields: dict[str, NestedField] = {field.name: field for field in metadata.schema().fields}


class IcebergScan(FileScan):
    """Reads one data file of an Iceberg table.

    :param dead: returns the positions of the rows that are deleted.
    """

    def __init__(self, reader: IcebergReader, file: IcebergFile, dead: Callable[[], BitMap64]) -> None:
        self.path = file.path
        self.schema = reader.schema
        self.dead = dead
        self._reader = reader
        self._data = file.data
        self._stored: Mapping[int, NestedField] | None = None

    def identity(self, columns: Sequence[str]) -> Hashable:
        # A name may have been another field's.
        fields = [self._reader.fields[name] for name in columns]
        kinds = tuple((field.name, field.field_id, str(field.field_type)) for field in fields)
        return self.path, self._data.file_size_in_bytes, kinds

    def bounds(self, name: str) -> Bounds | None:
        return bounds(self._data, self._reader.fields[name])

    def nulls(self, name: str) -> int | None:
        return (self._data.null_value_counts or {}).get(self._reader.fields[name].field_id)

    def rows(self) -> int:
        return self._data.record_count

    def open(self) -> Any:
        return self._reader.io.new_input(self.path).open()

    def stored(self, file: pq.ParquetFile) -> Mapping[str, str]:
        if self._stored is None:
            schema = pyarrow_to_schema(file.schema_arrow, self._reader.names, True)
            self._stored = {field.field_id: field for field in schema.fields}
        there = self._stored
        return {
            name: there[field.field_id].name
            for name, field in self._reader.fields.items()
            if field.field_id in there
        }

    def whole(self, group: pa.Table | None, count: int, columns: Sequence[str]) -> pa.Table:
        """Return columns in the table's types. A column that the file lacks is null; a partition column is constant."""
        assert self._stored is not None
        arrays: dict[str, Any] = {}
        others = []
        for name in columns:
            field, kind = self._reader.fields[name], self.schema.field(name).type
            there = self._stored.get(field.field_id)
            if there is None or group is None:
                arrays[name] = pa.repeat(self._constant(field, kind), count)
            elif group[there.name].type == kind and not pa.types.is_nested(kind):
                arrays[name] = group[there.name]
            else:
                others.append(there)
        if others and group is not None:
            arrays |= self._projected(group, others)
        schema = pa.schema([self.schema.field(name) for name in columns])
        return pa.table([arrays[name] for name in columns], schema=schema)

    def _projected(self, group: pa.Table, stored: Sequence[NestedField]) -> dict[str, Any]:
        """Return the file's columns, converted to the table's types and nested fields."""
        there = {field.field_id for field in stored}
        fields = [field for field in self._reader.fields.values() if field.field_id in there]
        rows = [
            _to_requested_schema(
                Schema(*fields), Schema(*stored), batch, True, allow_timestamp_tz_mismatch=True
            )
            for batch in group.select([field.name for field in stored]).to_batches()
        ]
        kinds = {field.name: self.schema.field(field.name).type for field in fields}
        return {
            name: pa.chunked_array([batch[name].cast(kind) for batch in rows], kind)
            for name, kind in kinds.items()
        }

    def _constant(self, field: NestedField, kind: pa.DataType) -> pa.Scalar:
        return pa.scalar(partition_value(self._reader.metadata, self._data, field.field_id), kind)


def partition_value(metadata: TableMetadata, file: DataFile, field_id: int) -> Any:
    """Return the value that a column has in all rows of a file, by which the table is partitioned; ``None`` for another column."""
    for number, each in enumerate(metadata.specs()[file.spec_id].fields):
        if each.source_id == field_id and isinstance(each.transform, IdentityTransform):
            return file.partition[number]
    return None


def is_of(metadata: TableMetadata, file: DataFile, source: SourceName | None) -> bool:
    """Whether a file has rows of a source."""
    return (
        source is None
        or partition_value(metadata, file, metadata.schema().find_field(source.column).field_id)
        == source.name
    )


@contextmanager
def reading(name: str, location: str = "") -> Iterator[None]:
    """Translate the errors for a table's missing and damaged files.

    :param location: the table's folder, if the block does more than read the table. Only a missing file in this folder
        is translated then.
    :raises ConfigurationError: a file is missing, or the metadata file is damaged.
    """
    try:
        yield
    except FileNotFoundError as error:
        text = str(error.strerror or error).partition(". Detail")[0]
        if urlsplit(location).path not in text:
            raise
        raise _lost(name, f"a file is missing ({text})") from error
    except ValidationError as error:
        if location:
            raise
        raise _lost(name, "its metadata file is damaged") from error


def _lost(name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the Iceberg table {name} cannot be read: {problem}. If another program has expired its snapshots, start again; else restore "
        "the file, or move the table away and begin it again with a snapshot"
    )


@dataclass(frozen=True, slots=True)
class IcebergRows:
    """A version of an Iceberg table.

    :param location: the version's metadata file.
    :param properties: the configuration of the file store.
    """

    location: str
    properties: Mapping[str, str] = field(repr=False)
    source: SourceName | None = None

    def schema(self) -> pa.Schema:
        metadata = self._open().metadata
        found = columns_for(columns_of(metadata), metadata.properties, self.source)
        assert found is not None
        return found

    def batches(
        self, columns: Sequence[str], within: ColumnRange | None = None, files: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        with reading(self.location):
            table = self._open()
            reader, found = IcebergReader(table.io, table.metadata), IcebergFiles(table.io, table.metadata)
            own = (each for each in found.files if is_of(table.metadata, each.data, self.source))
            scans = (IcebergScan(reader, each, partial(found.dead, each)) for each in own)
            yield from batches(scans, columns, within, files)

    def files(self) -> tuple[list[str], int]:
        with reading(self.location):
            table = self._open()
            files = IcebergFiles(table.io, table.metadata).files
            found = [each for each in files if is_of(table.metadata, each.data, self.source)]
        return [each.path for each in found], sum(each.size for each in found)

    def _open(self) -> StaticTable:
        with reading(self.location):
            return StaticTable.from_metadata(self.location, dict(self.properties))
