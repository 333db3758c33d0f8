"""Reads chunks of a table under an exported snapshot, and writes them as the files of a new Delta table. Does not use Spark.

Executors read and write. Every partition is one chunk, so a task that Spark runs again reads the same rows under the same identities. The
files belong to the table only once the driver has committed them, in one commit. So the files of a task that failed, or that Spark ran
twice, are never read; upkeep and VACUUM delete them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema

from aiorepl.epoch import since_1970
from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.binary_columns import Column
from aiorepl.formats.arrow.column_filler import ColumnFiller
from aiorepl.formats.arrow.copied import CopiedColumns, metadata_arrays
from aiorepl.formats.arrow.header import Header
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Relation
from aiorepl.snapshot.chunk_query import copy_statement
from aiorepl.snapshot.chunk_reader import ChunkReader
from aiorepl.snapshot.chunks import Range
from aiorepl.snapshot.described import DescribedTable, require_same_types
from aiorepl.snapshot.reading_transaction import TableLocked, translating
from aiorepl.snapshot.tables import PublishedTable
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import DataFile
from aiorepl.spark.lake.delta_log import Snapshot as Version
from aiorepl.spark.lake.delta_transaction import DeltaTransaction
from aiorepl.spark.lake.delta_writer import DeltaWriter
from aiorepl.spark.lake.table import DEFAULT_LAYOUT
from aiorepl.spark.reading.columns import unfit
from aiorepl.spark.session.programs import spare_modules
from aiorepl.transactions.rows import Layout
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo
from aiorepl.wire.opening import connect_sql

LOCKED_REMEDY: Final = (
    "take the snapshot again once that session has ended its transaction, or set a longer lock_timeout"
)
"""What to do after another session has waited too long for a lock of the snapshot."""

# The ordinals of a chunk begin at the chunk's number, shifted by this many bits.
ROW_BITS: Final = 32
# Larger than a pipeline's parts, in which each row becomes an object.
_PART_BYTES: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A table under an exported snapshot; pickled to executors.

    :param dsn: the database; it may contain a password.
    :param snapshot: the name of the exported snapshot.
    :param kinds: the kind of each column's values: text or binary.
    :param types: the types that are not built in.
    :param key: the columns by which key ranges divide the table.
    :param schema: the columns of the table and any metadata columns, in Spark's order.
    :param commit_lsn: the LSN in the identities of all rows.
    :param time: when the snapshot was taken, in microseconds since 2000-01-01 00:00 UTC.
    :param null: as in ``columns.column``.
    :param timeout: the most seconds that reading a chunk may take; ``None``: no limit.
    """

    dsn: str = field(repr=False)
    snapshot: str
    table: PublishedTable
    kinds: bytes
    types: tuple[TypeInfo, ...]
    key: tuple[str, ...]
    schema: pa.Schema
    commit_lsn: LSN
    time: int
    null: bool
    timeout: float | None

    def batches(self, number: int, rows: Range) -> Iterator[pa.RecordBatch]:
        """Read a chunk.

        :param number: the chunk's number within the table, from 0.
        :raises SnapshotGone: the snapshot was closed, or has to end for another session.
        :raises DataError: a value does not fit into the column's type.
        :raises SlotError: a type was altered since the snapshot was taken.
        :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
        """
        layout = self._layout()
        reader = ChunkReader(self._connect, self.snapshot, self.timeout)
        statement = copy_statement(self.table, self.kinds, rows, self.key)
        conversion = _Conversion(layout, self, null=self.null)
        filler = ColumnFiller(len(self.kinds), conversion.make)
        ordinal = number << ROW_BITS
        with asyncio.Runner() as runner:
            # Not Runner.run: for its signal handler, CPython makes the repr of the task, whose result is the rows.
            run = runner.get_loop().run_until_complete
            parts = reader.read_by(filler, statement, _PART_BYTES)
            try:
                while part := run(anext(parts, None)):
                    (columns, data), count = part
                    yield conversion.batch(columns, count, data, ordinal)
                    ordinal += count
                if self.types:
                    run(self._require_same_types(layout))
            except TableLocked as error:
                raise TableLocked(f"{error}: {LOCKED_REMEDY}") from None
            finally:
                run(parts.aclose())
                reader.abort()

    def _layout(self) -> Layout:
        relation = Decoder().decode(self.table.relation)
        assert isinstance(relation, Relation)
        return Layout(relation, Types(self.types), binary=True)

    async def _connect(self) -> Any:
        return await connect_sql(self.dsn)

    async def _require_same_types(self, layout: Layout) -> None:
        connection = await self._connect()
        try:
            with translating():
                await require_same_types(
                    connection, DescribedTable(self.table, layout, self.kinds, self.types)
                )
        finally:
            connection.terminate()


class _Conversion:
    """Makes record batches of the schema: the columns of the table, and the metadata."""

    def __init__(self, layout: Layout, table: SnapshotTable, *, null: bool) -> None:
        relation, self._schema, self._kinds = layout.relation, table.schema, table.kinds
        fields = [self._schema.field(name) for name in relation.names]
        self._copied = CopiedColumns(layout, fields, null=null)
        self._metadata = list(self._schema)[len(fields) :]
        self._header = Header(0, table.commit_lsn, since_1970(table.time))
        self._unfit = {
            each.name: unfit(f"{relation}.{each.name}", each.type_oid, layout.types, field.type)
            for each, field in zip(relation.columns, fields, strict=True)
        }

    def make(self, rows: int) -> list[Column]:
        return self._copied.make(self._kinds, rows)

    def batch(self, columns: list[Column], count: int, data: bytes, ordinal: int) -> pa.RecordBatch:
        """Make a batch of the columns.

        :param data: the bytes with the values that the columns refused.
        :param ordinal: the first row's ordinal.
        """
        arrays = list(self._copied.filled(columns, self._kinds, count, data, self._refuse))
        names = [field.name for field in self._metadata]
        metadata = metadata_arrays("read", ordinal, count, self._header, names)
        arrays += [array.cast(field.type) for array, field in zip(metadata, self._metadata, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _refuse(self, name: str, row: int, text: str) -> None:
        raise self._unfit[name]


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
