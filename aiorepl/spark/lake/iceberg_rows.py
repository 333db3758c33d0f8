"""Reads the rows of a version of an Iceberg table, in this process or in a task. Needs no catalog."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.table import StaticTable

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.iceberg_columns import columns_of
from aiorepl.spark.lake.iceberg_files import IcebergFiles
from aiorepl.spark.lake.iceberg_scan import IcebergReader
from aiorepl.spark.lake.scan import batches
from aiorepl.spark.lake.table import ColumnRange


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

    def schema(self) -> pa.Schema:
        return columns_of(self._open().metadata)

    def batches(
        self, columns: Sequence[str], within: ColumnRange | None = None, files: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        with reading(self.location):
            table = self._open()
            reader, found = IcebergReader(table.io, table.metadata), IcebergFiles(table.io, table.metadata)
            scans = (reader.scan(each, partial(found.dead, each)) for each in found.files)
            yield from batches(scans, columns, within, files)

    def files(self) -> tuple[list[str], int]:
        with reading(self.location):
            table = self._open()
            found = IcebergFiles(table.io, table.metadata).files
        return [each.path for each in found], sum(each.size for each in found)

    def _open(self) -> StaticTable:
        with reading(self.location):
            return StaticTable.from_metadata(self.location, dict(self.properties))
