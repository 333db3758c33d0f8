"""Writes rows to new data files of a Delta table. Runs on the driver or on executors; does not use Spark."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.delta_encoding import parquet_options
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import DataFile
from aiorepl.spark.lake.delta_statistics import Collector
from aiorepl.spark.lake.rows import codes

_ROW_GROUP_ROWS: Final = 256 * 1024
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
FILE_BYTES: Final = 128 * 1024 * 1024
"""The size at which a file ends."""
_OPEN_FILES: Final = 32

PartitionValues = tuple[str | None, ...]


class DeltaWriter:
    """Writes rows to files: one after the other, or one for each partition at a time.

    :param schema: the table's columns.
    :param partitions: the columns by which it is partitioned.
    :param keys: columns that have statistics.
    """

    def __init__(
        self, folder: DeltaFolder, schema: pa.Schema, partitions: Sequence[str], keys: Iterable[str] = ()
    ) -> None:
        self._folder = folder
        self._partitions = list(partitions)
        self._stored = pa.schema([field for field in schema if field.name not in partitions])
        self._keys = tuple(keys)
        self._open: dict[PartitionValues, _File] = {}
        self._done: list[DataFile] = []
        self._options: dict[str, Any] = {}

    def write(self, rows: pa.Table) -> None:
        """Write rows, which have the table's columns."""
        for values, some in self._divided(rows):
            if values not in self._open and len(self._open) >= _OPEN_FILES:
                self._close_all()
            if values not in self._open:
                self._options = self._options or parquet_options(self._stored)
                self._open[values] = _File(self._folder, self._stored, self._options, self._keys)
            file = self._open[values]
            file.write(some.select(self._stored.names))
            if file.size >= FILE_BYTES:
                self._close(values)

    def finish(self) -> list[DataFile]:
        """Complete the files, and return them."""
        self._close_all()
        return self._done

    def discard(self) -> None:
        """Delete the files."""
        self._close_all()
        self._folder.delete(file.path for file in self._done)

    def _close_all(self) -> None:
        for values in list(self._open):
            self._close(values)

    def _close(self, values: PartitionValues) -> None:
        file = self._open.pop(values)
        add = file.close()
        self._done.append(
            DataFile({**add, "partitionValues": dict(zip(self._partitions, values, strict=True))})
        )

    def _divided(self, rows: pa.Table) -> Iterable[tuple[PartitionValues, pa.Table]]:
        if not rows.num_rows:
            return []
        if not self._partitions:
            return [((), rows)]
        _require_partitions(rows, self._partitions)
        numbers = codes(rows, self._partitions)
        found = []
        for number in pc.unique(numbers):
            some = rows.filter(pc.equal(numbers, number))
            found.append((tuple(partition_text(some[name][0]) for name in self._partitions), some))
        return found


class _File:
    """One file that is being written."""

    def __init__(
        self, folder: DeltaFolder, schema: pa.Schema, options: Mapping[str, Any], keys: Iterable[str]
    ) -> None:
        self._folder = folder
        self._name = f"part-{uuid4()}.snappy.parquet"
        self._statistics = Collector(schema, keys)
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._stack = ExitStack()
        self._out = self._stack.enter_context(folder.creating(self._name))
        self._writer = pq.ParquetWriter(self._out, schema, store_schema=False, **options)

    @property
    def size(self) -> int:
        """The bytes that were written so far."""
        return int(self._out.tell())

    def write(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= _ROW_GROUP_ROWS or self._bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> dict[str, Any]:
        """Complete the file, and return its add action."""
        with self._stack:
            self._flush()
            self._writer.close()
        return {
            "path": self._name,
            "size": self._folder.size(self._name),
            "modificationTime": round(time.time() * 1000),
            "dataChange": True,
            "stats": self._statistics.json(),
        }

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._statistics.add(rows)
            self._writer.write_table(rows, row_group_size=_ROW_GROUP_ROWS)
            self._waiting, self._rows, self._bytes = [], 0, 0


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

    :raises ConfigurationError: Delta would store one of them as null.
    """
    for name in names:
        if pa.types.is_string(rows.schema.field(name).type):
            lost = pc.is_in(rows[name], value_set=pa.array(["", "__HIVE_DEFAULT_PARTITION__"]))
            if pc.any(lost).as_py():
                raise ConfigurationError(
                    f"the partition column {name!r} has an empty text, which Delta stores as null: partition by another column"
                )
