"""Writes the chunks of a snapshot as the files of a new Delta table, and commits them at once. Uses deltalake; does not use Spark.

Executors write the files. They belong to the table only once the driver has committed them, so the files of a task that failed,
or that Spark ran twice, are never read; VACUUM deletes them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import PyFileSystem

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.delta_encoding import parquet_options


class WrittenFile(NamedTuple):
    """A file that an executor has written.

    :param path: the file's path, relative to the table.
    :param size: the file's size in bytes.
    """

    path: str
    size: int
    rows: int


_ROW_GROUP_ROWS: Final = 256 * 1024
_ROW_GROUP_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """The files of a new Delta table; pickled to executors.

    :param target: the table's path or URI.
    :param schema: the table's columns.
    :param storage: deltalake's options; may contain credentials.
    """

    target: str
    schema: pa.Schema
    storage: Mapping[str, str] | None

    def __repr__(self) -> str:
        return f"<files of {self.target}>"

    def create(self) -> None:
        """Create the table, unless it exists and is empty.

        :raises ConfigurationError: it has rows already, or other columns.
        """
        schema = Schema.from_arrow(self.schema)
        table = DeltaTable.create(self.target, schema=schema, mode="ignore", storage_options=self._options)
        if table.file_uris():
            raise ConfigurationError(
                f"the Delta table {self.target} has rows already, and a snapshot would not replace them: choose another target, or "
                "delete it"
            )
        # deltalake drops columns that the table lacks, without an error.
        if _types(table.schema()) != _types(schema) or table.metadata().partition_columns:
            raise ConfigurationError(
                f"the Delta table {self.target} has no rows, but other columns than the snapshot, or partitions: delete it"
            )

    def write(self, batches: Iterable[pa.RecordBatch]) -> WrittenFile | None:
        """Write rows to a new file; ``None`` if there are no rows.

        :param batches: the rows, in the columns of ``schema``.
        """
        folder = PyFileSystem(DeltaStorageHandler(self.target, self._options))
        name = f"part-{uuid4().hex}.snappy.parquet"
        rows = size = 0
        waiting: list[pa.RecordBatch] = []
        with (
            folder.open_output_stream(name) as out,
            pq.ParquetWriter(out, self.schema, **parquet_options(self.schema)) as writer,
        ):
            for batch in batches:
                waiting.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if sum(each.num_rows for each in waiting) >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(waiting))
                    waiting, size = [], 0
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting))
        return WrittenFile(name, folder.get_file_info(name).size, rows) if rows else None

    def commit(self, written: Iterable[WrittenFile]) -> None:
        """Add the files to the table, in one commit.

        :raises ConfigurationError: another writer has added rows in the meantime.
        """
        now = round(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {}, now, True, json.dumps({"numRecords": file.rows}))
            for file in written
        ]
        self.create()
        if actions:
            self._table().create_write_transaction(actions, "append", Schema.from_arrow(self.schema), [])

    def _table(self) -> DeltaTable:
        return DeltaTable(self.target, storage_options=self._options)

    @property
    def _options(self) -> dict[str, str] | None:
        return None if self.storage is None else dict(self.storage)


def _types(schema: Schema) -> dict[str, Any]:
    return {field.name: field.type for field in schema.fields}
