"""Writes rows to new data files of a Delta table, and chooses the encodings. Runs on the driver or on executors; does not use Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import ColumnProperties, WriterProperties

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import DataFile
from aiorepl.spark.lake.delta_statistics import exact, has_bounds, json_of
from aiorepl.spark.lake.rows import codes
from aiorepl.spark.lake.statistics import Collector
from aiorepl.spark.lake.writer import FileWriter, OpenFile

# Encoding is most of the work of a snapshot. zstd would make files a third smaller, and take a third more CPU. Statistics of
# texts would take a seventh more, and rarely help to skip a row group. Decimals are stored as integers, as Spark does. A column
# whose dictionary would be larger has none.
_OPTIONS: Final[dict[str, Any]] = {"dictionary_pagesize_limit": 16 * 1024, "store_decimal_as_integer": True}
# Encoding differences takes less CPU and less space than a dictionary and Snappy.
_DIFFERENCES: Final = "DELTA_BINARY_PACKED"
_INT64_DIGITS: Final = 18


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of ``ParquetWriter``: integers are encoded by their differences."""
    out = pa.BufferOutputStream()
    pq.ParquetWriter(out, schema, **_OPTIONS).close()
    leaves = pq.read_metadata(pa.BufferReader(out.getvalue())).schema
    kinds = {leaf.path: leaf.physical_type for leaf in map(leaves.column, range(len(leaves)))}
    integers = {path for path, kind in kinds.items() if kind in ("INT32", "INT64")}
    return {
        **_OPTIONS,
        "column_encoding": dict.fromkeys(integers, _DIFFERENCES),
        "use_dictionary": [path for path in kinds if path not in integers],
        "compression": {path: "none" if path in integers else "snappy" for path in kinds},
        "write_statistics": [path for path, kind in kinds.items() if kind != "BYTE_ARRAY"],
    }


def writer_properties(schema: pa.Schema) -> WriterProperties:
    """Return deltalake's options for the encodings of ``parquet_options``. Statistics that deltalake would round are off."""
    rounded = any(not exact(field.type) for field in schema)
    columns = {}
    for field in schema:
        statistics: Literal["PAGE"] | None = "PAGE" if rounded and exact(field.type) else None
        if _is_integer(field.type):
            columns[field.name] = ColumnProperties(
                dictionary_enabled=False, encoding=_DIFFERENCES, statistics_enabled=statistics
            )
        elif statistics is not None:
            columns[field.name] = ColumnProperties(statistics_enabled=statistics)
    # The default applies to the attributes of composites, too: column properties cannot name these.
    default = ColumnProperties(statistics_enabled="NONE") if rounded else None
    return WriterProperties(
        compression="SNAPPY", default_column_properties=default, column_properties=columns
    )


def _is_integer(kind: pa.DataType) -> bool:
    """Whether Parquet stores a type as INT32 or INT64."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _INT64_DIGITS)
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))


PartitionValues = tuple[str | None, ...]
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_FOLDER_BYTES: Final = 255


class DeltaWriter(FileWriter[DataFile, PartitionValues]):
    """Writes rows to files of a Delta table.

    :param schema: the table's columns.
    :param partitions: the columns by which the table is partitioned.
    :param keys: columns that have statistics.
    """

    def __init__(
        self, folder: DeltaFolder, schema: pa.Schema, partitions: Sequence[str], keys: Iterable[str] = ()
    ) -> None:
        super().__init__()
        self._folder = folder
        self._partitions = list(partitions)
        self._stored = pa.schema([field for field in schema if field.name not in partitions])
        self._keys = tuple(keys)
        self._options: dict[str, Any] = {}

    def _created(self, values: PartitionValues) -> OpenFile:
        self._options = self._options or parquet_options(self._stored)
        name = "/".join((*self._folders(values), f"part-{uuid4()}.snappy.parquet"))
        statistics = Collector(self._stored, self._keys, has_bounds)
        return OpenFile(name, self._folder.creating(name), self._stored, self._options, statistics)

    def _folders(self, values: PartitionValues) -> list[str]:
        """Return the folders of a partition, because some readers, such as polars, take its values from them. None if a name is too long."""
        found = [
            f"{quote(name, safe='')}={_NULL if value is None else quote(value, safe='')}"
            for name, value in zip(self._partitions, values, strict=True)
        ]
        return found if all(len(each) <= _FOLDER_BYTES for each in found) else []

    def _completed(self, values: PartitionValues, file: OpenFile) -> DataFile:
        return DataFile(
            {
                "path": quote(file.path, safe="/="),
                "size": file.size,
                "modificationTime": round(time.time() * 1000),
                "dataChange": True,
                "stats": json_of(file.statistics),
                "partitionValues": dict(zip(self._partitions, values, strict=True)),
            }
        )

    def _divided(self, rows: pa.Table) -> Iterator[tuple[PartitionValues, pa.Table]]:
        if not self._partitions:
            yield (), rows
            return
        _require_partitions(rows, self._partitions)
        numbers = codes(rows, self._partitions)
        for number in pc.unique(numbers):
            some = rows.filter(pc.equal(numbers, number))
            values = tuple(partition_text(some[name][0]) for name in self._partitions)
            yield values, some.select(self._stored.names)


def partition_text(value: pa.Scalar) -> str | None:
    """Return a partition's value as Delta stores it."""
    found = value.as_py()
    if isinstance(found, datetime):
        text = found.replace(tzinfo=None).isoformat(" ", timespec="microseconds")
        return text if found.tzinfo is None else f"{text.replace(' ', 'T')}Z"
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, Decimal):
        return format(found, "f")
    return None if found is None else str(found)


def _require_partitions(rows: pa.Table, names: Sequence[str]) -> None:
    """Check the values of the partition columns.

    :raises ConfigurationError: Delta would store a value as null.
    """
    for name in names:
        if pa.types.is_string(rows.schema.field(name).type):
            lost = pc.is_in(rows[name], value_set=pa.array(["", _NULL]))
            if pc.any(lost).as_py():
                raise ConfigurationError(
                    f"the partition column {name!r} has an empty text, which Delta stores as null: partition by another column"
                )
