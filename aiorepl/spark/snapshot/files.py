"""Writes the chunks of a snapshot as the files of a new Delta table, and commits them at once. Does not use Spark.

Executors write the files. They belong to the table only once the driver has committed them, so the files of a task that failed,
or that Spark ran twice, are never read; upkeep and VACUUM delete them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema

from aiorepl.errors import ConfigurationError
from aiorepl.snapshot.chunks import Range
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import DataFile
from aiorepl.spark.lake.delta_log import Snapshot as Version
from aiorepl.spark.lake.delta_transaction import DeltaTransaction
from aiorepl.spark.lake.delta_writer import DeltaWriter
from aiorepl.spark.lake.table import DEFAULT_LAYOUT
from aiorepl.spark.session.programs import spare_modules
from aiorepl.spark.snapshot.reader import SnapshotTable

Chunk = tuple[int, int, Range]
"""The number of a table, the number of a chunk within the table, and the chunk."""


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """The files of a new Delta table; pickled to executors.

    :param folder: the table's folder.
    :param schema: the table's columns.
    """

    folder: DeltaFolder
    schema: pa.Schema

    def create(self) -> None:
        """Create the table, unless it exists and is empty.

        :raises ConfigurationError: it has rows already, or other columns.
        """
        schema, target = Schema.from_arrow(self.schema), self.folder.target
        table = DeltaTable.create(target, schema=schema, mode="ignore", storage_options=self.folder.options)
        if table.file_uris():
            raise ConfigurationError(
                f"the Delta table {target} has rows already, and a snapshot would not replace them: choose another target, or delete it"
            )
        # A snapshot's rows do not fit into other columns.
        if _types(table.schema()) != _types(schema) or table.metadata().partition_columns:
            raise ConfigurationError(
                f"the Delta table {target} has no rows, but other columns than the snapshot, or partitions: delete it"
            )

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Write rows to new files, and return the files; none if there are no rows.

        :param batches: the rows, in the columns of ``schema``.
        """
        writer = DeltaWriter(self.folder, self.schema, ())
        try:
            for batch in batches:
                writer.write(pa.Table.from_batches([batch]))
            return writer.finish()
        except BaseException:
            self.folder.delete(file.path for file in writer.finish())
            raise

    def commit(self, written: Iterable[DataFile]) -> None:
        """Add the files to the table, in one commit.

        :raises ConfigurationError: another writer has added rows in the meantime.
        """
        files, done = list(written), False
        while not done:
            self.create()
            batch = DeltaTransaction(self.folder, Version.load(self.folder), "current", DEFAULT_LAYOUT)
            batch.add(files)
            done = not files or batch.commit({"operation": "WRITE"}) is not None


def _types(schema: Schema) -> dict[str, Any]:
    return {field.name: field.type for field in schema.fields}


@dataclass(frozen=True, slots=True)
class MirroredTable:
    """A table, its chunks, and the files that its rows become; pickled to executors."""

    table: SnapshotTable
    ranges: tuple[Range, ...]
    files: DeltaFiles


def write_chunks(tables: tuple[MirroredTable, ...], chunks: Iterable[Chunk]) -> list[tuple[int, DataFile]]:
    """Write each chunk into files, and return the files with the numbers of their tables. Tasks run this function."""
    spare_modules()
    written = []
    for number, chunk, rows in chunks:
        part = tables[number]
        written += [(number, file) for file in part.files.write(part.table.batches(chunk, rows))]
    return written
