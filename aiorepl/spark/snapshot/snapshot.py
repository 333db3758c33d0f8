"""``Snapshot``: reads the rows that tables have now on executors, so that a query on the journal continues from there.

    with aiorepl.spark.Snapshot(spark, dsn, slot="orders", publication="orders") as snapshot:
        snapshot.mirror({"public.orders": "/lake/orders"})        # or snapshot.read("public.orders"), a DataFrame
        position = snapshot.position
    changes = spark.readStream.format("aiorepl").option("journal", url).option("table", "public.orders")
    apply_changes(changes.option("startingPosition", position).load(), "/lake/orders", keys=["id"])

A connection on the driver keeps the snapshot. Executors import it, and read ranges of the table's blocks by COPY.

Spark shows the options and the plan of a query. So the DSN is in neither. It is in the class of a data source, which is made
for one table, registered under a name of its own, and pickled to executors.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from aiorepl.cancellation import cancel_and_wait
from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.secret import Secret
from aiorepl.snapshot.chunks import Range, SnapshotPlan
from aiorepl.snapshot.described import DescribedTable
from aiorepl.snapshot.initial.exported import ExportedSnapshot
from aiorepl.snapshot.lock_watch import watch_waiters
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.reading_transaction import TableLocked
from aiorepl.source.capture import Capture
from aiorepl.source.preflight import SlotRequest
from aiorepl.source.source import Source
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import DataFile
from aiorepl.spark.reading.schema import COMMIT_TS, OP, UNCHANGED, XID, table_schema
from aiorepl.spark.snapshot.chunks import (
    LOCKED_REMEDY,
    DeltaFiles,
    MirroredTable,
    SnapshotTable,
    write_chunks,
)
from aiorepl.table_name import TableName
from aiorepl.values.registry import Types

_log = logger("aiorepl.spark")

T = TypeVar("T")

# Larger than a pipeline's chunks, because a task costs Spark about 50 ms.
_CHUNK_BYTES: Final = 64 * 1024 * 1024
_NOT_KEPT: Final = (OP, XID, COMMIT_TS, UNCHANGED)


@checked("Snapshot", empty=("dsn",), own=("spark", "slot"))
class Snapshot:
    """A consistent snapshot of all tables of a publication; use it as a context manager.

    If the slot is missing, it is created, and the snapshot is of the slot's first position; the journal of a pipeline with this
    slot begins there. The slot is dropped again if the snapshot cannot be taken, and kept otherwise. It makes the server keep WAL,
    so start the pipeline soon. If the slot exists, a temporary slot takes the snapshot, and the pipeline may be running.

    :param dsn: the database, as ``Source`` takes it. Executors connect to it as well. Spark's plans do not contain it.
    :param slot: the slot of the pipeline that writes the journal.
    :param publication: one name or several.
    :param options: ``chunk_bytes`` is what one task reads, 64 MiB by default; ``statement_timeout`` and ``lock_timeout``. If
        another session waits longer than ``lock_timeout`` to alter or truncate a table, the snapshot ends, and jobs that read it fail.
    :param unrepresentable: ``"error"``, or ``"null"`` for values that a column's type cannot hold, such as an infinite date.
    :raises ConfigurationError: an option is malformed.
    """

    def __init__(
        self,
        spark: SparkSession,
        dsn: str | Secret[str],
        *,
        slot: str,
        publication: str | tuple[str, ...] | list[str],
        options: SnapshotOptions | None = None,
        unrepresentable: Literal["error", "null"] = "error",
    ) -> None:
        self._spark = spark
        self._dsn = Secret.of(dsn)
        self._source = Source(self._dsn, slot=slot, publication=publication, create_slot=True)
        self._options = options or SnapshotOptions(chunk_bytes=_CHUNK_BYTES)
        self._null = unrepresentable == "null"
        self._thread: _LoopThread | None = None
        self._exported: ExportedSnapshot | None = None
        self._watching: asyncio.Task[None] | None = None
        self._plan = SnapshotPlan(())
        self._tables: dict[int, DescribedTable] = {}
        self._position = LSN(0)

    def __repr__(self) -> str:
        return f"<Snapshot of {self._source.slot} at {self._position}>"

    @property
    def position(self) -> LSN:
        """The position of the snapshot: a query on the journal continues with the option ``startingPosition`` set to it."""
        self._begun()
        return self._position

    @property
    def tables(self) -> list[str]:
        """The names of the published tables."""
        return [str(each.table) for each in self._tables.values()]

    def __enter__(self) -> Self:
        """Take the snapshot, and lock the tables against alterations.

        :raises ConfigurationError: the role cannot read all rows of some tables; the message names each.
        :raises SlotError: the slot cannot be created or used, or a table was altered meanwhile, or another session waits for its lock.
        :raises ConnectionFailed, ConnectionLost, ServerError: the server failed.
        """
        self._thread = thread = _LoopThread()
        try:
            thread.run(self._begin())
        except BaseException:
            self._thread = None
            thread.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the snapshot.

        :raises SnapshotGone: the snapshot was lost or ended before, so a table may have been altered while it was read.
        :raises AlteredWhileRead: a partition was attached to a table.
        """
        thread, exported = self._thread, self._exported
        self._thread = self._exported = None
        if thread is None or exported is None:
            return
        try:
            if error is None:
                thread.run(exported.verify(each.table for each in self._tables.values()))
        finally:
            thread.run(self._end(exported))
            thread.close()

    def read(self, table: str) -> DataFrame:
        """Return the rows of a table, as changes whose ``_op`` is ``read``.

        The DataFrame has the columns of ``format("aiorepl")`` with the option ``table``. Use it before the snapshot is closed.

        :param table: ``schema.table``.
        :raises ConfigurationError: the table is not published.
        """
        described = self._find(table)
        schema = self._schema(described)
        reading = self._reading(described, to_arrow_schema(schema, timezone="UTC"))
        return self._load(schema, _RowsReader(reading, self._ranges(described)))

    @checked("Snapshot.mirror")
    def mirror(
        self,
        targets: Mapping[str, str | os.PathLike[str]],
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> dict[str, int]:
        """Write the rows of tables into new Delta tables, which ``apply_changes`` then updates; return the numbers of rows.

        One job reads all tables. Executors write the files of each Delta table, and one commit adds them. Needs the session's
        ``SparkContext``, which Spark Connect does not have.

        :param targets: by table, ``schema.table``, the Delta table's path or URI, as every executor sees it.
        :param storage_options: options for deltalake, if the targets are in an object store.
        :raises ConfigurationError: a table is not published, or a Delta table has rows or other columns, or is the target of two.
        :raises SnapshotGone: the snapshot was lost.
        :raises AlteredWhileRead: a partition was attached to a table.
        """
        parts = []
        if len({os.fspath(target).rstrip("/") for target in targets.values()}) < len(targets):
            raise ConfigurationError("two tables have the same target: give each a Delta table of its own")
        for table, target in targets.items():
            described = self._find(table)
            arrow = to_arrow_schema(self._schema(described), timezone="UTC")
            kept = pa.schema([field.with_nullable(True) for field in arrow if field.name not in _NOT_KEPT])
            files = DeltaFiles(DeltaFolder(os.fspath(target), storage_options), kept)
            parts.append(MirroredTable(self._reading(described, kept), self._ranges(described), files))
        for part in parts:
            part.files.create()
        thread, exported = self._begun()
        try:
            written = self._write(parts)
        except Exception:
            # If the error's cause is that the snapshot has ended, ``verify`` raises the reason instead.
            thread.run(exported.verify(()))
            raise
        # Raises if a table was not locked all the time: the rows may then differ from the snapshot's.
        thread.run(exported.verify(self._find(table).table for table in targets))
        for part, found in zip(parts, written, strict=True):
            part.files.commit(found)
        return {
            table: sum(file.rows for file in found) for table, found in zip(targets, written, strict=True)
        }

    def _write(self, parts: Sequence[MirroredTable]) -> list[list[DataFile]]:
        """Write the rows of tables by executors; return the files of each."""
        written: list[list[DataFile]] = [[] for _ in parts]
        chunks = [
            (number, chunk, rows)
            for number, part in enumerate(parts)
            for chunk, rows in enumerate(part.ranges)
        ]
        if not chunks:
            return written
        # Each table's last chunk comes last. It is small, and at the end not all executors have work.
        chunks.sort(key=lambda chunk: chunk[1] == len(parts[chunk[0]].ranges) - 1)
        # An RDD, not a query: Java would take seconds of CPU to plan and compile the first query.
        tasks = self._spark.sparkContext.parallelize(chunks, len(chunks))
        for number, file in tasks.mapPartitions(partial(write_chunks, tuple(parts))).collect():
            written[number].append(file)
        return written

    async def _begin(self) -> None:
        source = self._source
        capture = Capture(source, retry=None)
        result = await capture.connect(SlotRequest(snapshot="export"))
        if result.created is None:
            await capture.stop()
            name = f"{source.slot[:50]}_{secrets.token_hex(4)}"
            capture = Capture(replace(source, slot=name, temporary=True), retry=None)
            result = await capture.connect(SlotRequest(snapshot="export"))
        exported: ExportedSnapshot | None = None
        try:
            assert result.created is not None
            assert result.created.snapshot_name is not None
            names = source.options().publications
            exported = ExportedSnapshot(await source.connect_sql(), names, self._options)
            await exported.begin(result.created.snapshot_name, capture)
            self._watch(exported)
            self._plan = await exported.plan()
            self._tables = await exported.describe(Types())
        except BaseException:
            if exported is not None:
                await self._end(exported)
            await capture.roll_back()
            raise
        self._exported, self._position = exported, result.created.consistent_point
        await capture.stop()

    def _watch(self, exported: ExportedSnapshot) -> None:
        async def give_way(error: TableLocked) -> bool:
            _log.warning("the snapshot has ended, and jobs that read it fail: %s", error)
            await exported.end(error)
            return True

        watching = watch_waiters(
            self._source.connect_sql,
            lambda: [exported.pid],
            self._options.lock_timeout,
            give_way,
            remedy=LOCKED_REMEDY,
        )
        self._watching = asyncio.create_task(watching, name="aiorepl locks of the snapshot")

    async def _end(self, exported: ExportedSnapshot) -> None:
        if self._watching is not None:
            await cancel_and_wait(self._watching)
        await exported.close()

    def _begun(self) -> tuple[_LoopThread, ExportedSnapshot]:
        if self._thread is None or self._exported is None:
            raise ConfigurationError("the snapshot is closed: use it within its with statement")
        return self._thread, self._exported

    def _find(self, table: str) -> DescribedTable:
        self._begun()
        name = TableName.parse(table)
        for described in self._tables.values():
            if name.is_of(described.layout.relation):
                return described
        raise ConfigurationError(
            f"table {name} is not published: check the name and the publication; names are case-sensitive"
        )

    def _schema(self, described: DescribedTable) -> StructType:
        return table_schema(described.layout.relation, described.layout.types)

    def _ranges(self, described: DescribedTable) -> tuple[Range, ...]:
        return next(plan.ranges for plan in self._plan.tables if plan.oid == described.table.oid)

    def _reading(self, described: DescribedTable, schema: pa.Schema) -> SnapshotTable:
        _, exported = self._begun()
        return SnapshotTable(
            self._dsn.reveal(),
            exported.name,
            described.table,
            described.kinds,
            described.types,
            next(plan.key for plan in self._plan.tables if plan.oid == described.table.oid),
            schema,
            # The rows' commit LSN. No transaction commits here, directly before the first one that is not in the snapshot.
            LSN(self._position - 1),
            exported.time,
            self._null,
            self._options.statement_timeout,
        )

    def _load(self, columns: StructType, reader: DataSourceReader) -> DataFrame:
        name = f"aiorepl_snapshot_{secrets.token_hex(8)}"

        # A class that is defined in a function is pickled by value, with what it refers to.
        class TableSource(DataSource):
            @classmethod
            def name(cls) -> str:
                return name

            def schema(self) -> StructType:
                return columns

            def reader(self, schema: StructType) -> DataSourceReader:
                return reader

        self._spark.dataSource.register(TableSource)
        return self._spark.read.format(name).load()


class _RowsReader(DataSourceReader):
    """Reads the rows of a table."""

    def __init__(self, table: SnapshotTable, ranges: tuple[Range, ...]) -> None:
        self._table = table
        self._ranges = ranges

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(chunk) for chunk in enumerate(self._ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._table.batches(*partition.value)


class _LoopThread:
    """An event loop in a thread, because a notebook has a running loop in the thread of its cells."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiorepl-snapshot", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. Tasks that the coroutine created continue to run."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
