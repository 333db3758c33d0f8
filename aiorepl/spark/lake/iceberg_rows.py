"""Reads the rows of a version of an Iceberg table with pyiceberg, in this process or in a task. Needs no catalog."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import StaticTable

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.iceberg_columns import columns_of
from aiorepl.spark.lake.table import ColumnRange

# Its type annotations reject valid arguments of the constructors.
_is: Any = expressions


@contextmanager
def reading(name: str, location: str = "") -> Iterator[None]:
    """Translate the errors for a table's missing and damaged files.

    :param location: the table's folder, if the block does more than read this table. Then other errors stay as they are.
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

    def schema(self) -> pa.Schema:
        return columns_of(self._open().metadata)

    def batches(
        self, columns: Sequence[str], within: ColumnRange | None = None, files: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        with reading(self.location):
            yield from self._batches(columns, within, files)

    def _batches(
        self, columns: Sequence[str], within: ColumnRange | None, files: Collection[str] | None
    ) -> Iterator[pa.RecordBatch]:
        table = self._open()
        condition = _is.AlwaysTrue()
        if within is not None:
            if within.least is not None:
                condition = _is.GreaterThanOrEqual(within.column, within.least)
            if within.below is not None:
                condition = _is.And(condition, _is.LessThan(within.column, within.below))
        scan = table.scan(condition, tuple(columns))
        tasks = [each for each in scan.plan_files() if files is None or each.file.file_path in files]
        reading = ArrowScan(table.metadata, table.io, scan.projection(), condition)
        for batch in reading.to_record_batches(tasks):
            yield batch.select(list(columns))

    def files(self) -> tuple[list[str], int]:
        with reading(self.location):
            found = [each.file for each in self._open().scan().plan_files()]
        return [each.file_path for each in found], sum(each.file_size_in_bytes for each in found)

    def _open(self) -> StaticTable:
        with reading(self.location):
            return StaticTable.from_metadata(self.location, dict(self.properties))
