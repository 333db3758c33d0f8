"""Writes new data files and position deletes of an Iceberg table. Runs on the driver or on executors; does not use Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _determine_partitions, _get_parquet_writer_kwargs, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table.delete_file_index import PATH_FIELD_ID
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.iceberg_files import PATH, POSITION, IcebergFile, has_bounds, statistics_of
from aiorepl.spark.lake.iceberg_metadata import columns_of
from aiorepl.spark.lake.statistics import Collector
from aiorepl.spark.lake.writer import FileWriter, OpenFile

_OPTIONS: Final = {"store_decimal_as_integer": True}
# pyiceberg's own schema has 32-bit positions, but DuckDB can only read 64-bit ones.
_DELETES: Final = Schema(
    NestedField(PATH_FIELD_ID, PATH, StringType(), required=True),
    NestedField(PATH_FIELD_ID - 1, POSITION, LongType(), required=True),
)


class IcebergWriter(FileWriter[IcebergFile, Record]):
    """Writes rows to files of an Iceberg table.

    :param keys: columns that have statistics.
    """

    def __init__(self, io: FileIO, metadata: TableMetadata, keys: Iterable[str] = ()) -> None:
        super().__init__()
        self._io = io
        self._metadata = metadata
        self._columns = columns_of(metadata)
        self._stored = schema_to_pyarrow(sanitize_column_names(metadata.schema()))
        self._options = _OPTIONS | _get_parquet_writer_kwargs(metadata.properties)
        self._keys = tuple(keys)
        self._partitions: dict[Record, PartitionKey | None] = {Record(): None}

    def _divided(self, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
        spec, schema = self._metadata.spec(), self._metadata.schema()
        if not spec.fields:
            yield Record(), rows
            return
        try:
            for each in _determine_partitions(spec, schema, rows):
                values = each.partition_key.partition
                self._partitions[values] = each.partition_key
                yield values, each.arrow_table_partition
        except OverflowError as error:
            names = ", ".join(repr(schema.find_column_name(field.source_id)) for field in spec.fields)
            raise ConfigurationError(
                f"the partition column {names} has a date outside the years 1 to 9999, which pyiceberg cannot write: partition by another "
                "column"
            ) from error

    def _created(self, values: Record) -> OpenFile:
        path = _location(self._metadata, f"{uuid4()}.parquet", self._partitions[values])
        statistics = Collector(self._columns, self._keys, has_bounds)
        out = self._io.new_output(path).create()
        return OpenFile(path, out, self._stored, self._options, statistics)

    def _completed(self, values: Record, file: OpenFile) -> IcebergFile:
        fields = {field.name: field for field in self._metadata.schema().fields}
        found = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=values,
            file_size_in_bytes=file.size,
            **statistics_of(file.statistics, fields),
        )
        found.spec_id = self._metadata.default_spec_id
        return IcebergFile(found)


def write_deletes(
    io: FileIO, metadata: TableMetadata, partition: tuple[int, Record], marked: Sequence[tuple[str, BitMap64]]
) -> DataFile:
    """Write the positions of deleted rows of one partition.

    :param partition: the partition spec and its values.
    :param marked: the data files' paths, and the positions.
    """
    marked = sorted(marked, key=lambda each: each[0].encode())
    paths = pa.concat_arrays([pa.repeat(path, len(positions)) for path, positions in marked])
    positions = pa.concat_arrays([pa.array(list(positions), pa.int64()) for _, positions in marked])
    rows = pa.table([paths, positions], names=[PATH, POSITION])
    path = _location(metadata, f"{uuid4()}-deletes.parquet")
    with io.new_output(path).create() as out:
        pq.write_table(
            rows.cast(schema_to_pyarrow(_DELETES)),
            out,
            store_schema=False,
            **_get_parquet_writer_kwargs(metadata.properties),
        )
        size = out.tell()
    # Bounds of the whole path, because readers use them to find the data files that the deletes are for.
    found = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition[1],
        record_count=rows.num_rows,
        file_size_in_bytes=size,
        lower_bounds={PATH_FIELD_ID: marked[0][0].encode()},
        upper_bounds={PATH_FIELD_ID: marked[-1][0].encode()},
    )
    found.spec_id = partition[0]
    return found


def _location(metadata: TableMetadata, name: str, partition: PartitionKey | None = None) -> str:
    locations = load_location_provider(metadata.location, metadata.properties)
    # Upkeep knows the table's own files by the table's id in their names.
    return locations.new_data_location(f"{metadata.table_uuid}-{name}", partition)
