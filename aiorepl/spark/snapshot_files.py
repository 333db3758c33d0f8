"""Writes the chunks of a snapshot as the files of a new Delta table, and commits them at once. Uses deltalake; does not use Spark.

Executors write the files. They belong to the table only once the driver has committed them, so the files of a task that failed,
or that Spark ran twice, are never read; VACUUM deletes them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.fs import PyFileSystem

from aiorepl.errors import ConfigurationError

WRITTEN: Final = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("rows", pa.int64()),
    ]
)
"""The columns of the result of an executor, which has one row per file."""

_ROW_GROUP_ROWS: Final = 256 * 1024
# Columns with a larger dictionary get none: with Arrow's limit of 1 MiB, writing takes a third more CPU.
_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 1,
    "dictionary_pagesize_limit": 16 * 1024,
}


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """The files of a new Delta table; pickled to executors.

    :param target: the table's path or URI.
    :param schema: the table's columns.
    :param storage: for deltalake; it may contain credentials.
    """

    target: str
    schema: pa.Schema
    storage: Mapping[str, str] | None

    def __repr__(self) -> str:
        return f"<files of {self.target}>"

    def create(self) -> None:
        """Create the table.

        :raises ConfigurationError: it has rows already.
        """
        table = DeltaTable.create(
            self.target, schema=Schema.from_arrow(self.schema), mode="ignore", storage_options=self._options
        )
        if table.file_uris():
            raise ConfigurationError(
                f"the Delta table {self.target} has rows already, and a snapshot would not replace them: choose another target, or "
                "delete it"
            )

    def write(self, number: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a file, and return what ``commit`` needs to know; nothing if there are no rows.

        :param number: of the table, which is returned as well.
        """
        folder = PyFileSystem(DeltaStorageHandler(self.target, self._options))
        name = f"part-{uuid4().hex}.zstd.parquet"
        rows = 0
        waiting: list[pa.RecordBatch] = []
        with (
            folder.open_output_stream(name) as out,
            pq.ParquetWriter(out, self.schema, **_OPTIONS) as writer,
        ):
            for batch in batches:
                waiting.append(batch.select(self.schema.names).cast(self.schema))
                rows += batch.num_rows
                if sum(each.num_rows for each in waiting) >= _ROW_GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(waiting))
                    waiting = []
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting))
        if rows:
            size = folder.get_file_info(name).size
            yield pa.RecordBatch.from_pylist(
                [{"number": number, "path": name, "size": size, "rows": rows}], schema=WRITTEN
            )

    def commit(self, written: Iterable[Mapping[str, Any]]) -> None:
        """Add the files to the table, in one commit.

        :raises ConfigurationError: another writer has added rows in the meantime.
        """
        now = round(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file["path"], file["size"], {}, now, True, json.dumps({"numRecords": file["rows"]}))
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
