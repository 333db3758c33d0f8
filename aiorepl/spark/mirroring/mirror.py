"""``mirror``: one streaming query that mirrors many tables into a lake, with exactly-once effect.

Executors decode each block of the journal once, and stage the changes of each table as typed files (``source``, ``staging``).
The driver gets a few rows that describe the files, and applies them table by table (``applying``). So a hundred tables need no
more processes than one, and after each batch all tables are at the same position of the journal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, Literal, TypedDict, Unpack
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.util import inheritable_thread_target

from aiorepl.checked import checked
from aiorepl.errors import AioreplError, SinkError
from aiorepl.journal.completeness import Completeness
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.option_fields import Bytes
from aiorepl.sizes import Size
from aiorepl.spark.lake.delta import DeltaLake
from aiorepl.spark.lake.table import DeletionVectors, Lake, Layout, Mode, Upkeep
from aiorepl.spark.mirroring import staged_store
from aiorepl.spark.mirroring.applying import Applying, Write, error_text
from aiorepl.spark.mirroring.causes import known_cause
from aiorepl.spark.mirroring.executors import collected
from aiorepl.spark.mirroring.reducing import reduce_on_executors
from aiorepl.spark.mirroring.settings import OnError, Settings
from aiorepl.spark.mirroring.source import (
    Catching,
    MirrorPlanner,
    MirrorReader,
    Staging,
    described,
    mirror_source,
    url_of,
)
from aiorepl.spark.mirroring.staging import StagedBatch, StagedFile
from aiorepl.spark.mirroring.state import SavedState, StateFile, Written
from aiorepl.spark.mirroring.statistics import counted
from aiorepl.spark.mirroring.table_batch import TableWriter
from aiorepl.spark.mirroring.up_to_date import up_to_date
from aiorepl.spark.reading.options import ReadOptions, journal_options, positions
from aiorepl.storage.objects.location import SCHEMES, ObjectStore
from aiorepl.storage.opening import Location, open_store
from aiorepl.suggestions import require_options
from aiorepl.table_name import TableName
from aiorepl.transforms.selection import Selection

_log = logger("aiorepl.spark")

_MIB: Final = 1024 * 1024
_UPKEEP: Final = Upkeep()
CHECKPOINT: Final = "_checkpoint"
STAGING: Final = "_staging"
Unrepresentable = Literal["error", "null"]


class Stopped(Exception):
    """Raised instead of applying a batch, once the mirror was asked to stop."""


class Batches:
    """Applies the micro-batches of a query; Spark calls it in this process.

    :ivar stopping: set it to end the query instead of applying another batch.
    :ivar busy: whether a batch is being applied.
    :ivar done: the number of the last batch that was applied; -1 if none was.
    :ivar changes: the number of changes in all applied batches; of a history's file, all rows are counted.
    :ivar tables: the tables that these batches changed.
    :ivar error: the error of the last batch that failed, with its causes. Spark gets only a text without rows.

    :param recorded: the target's state before the first batch; ``None`` if the target is new.
    """

    def __init__(self, applying: Applying, recorded: SavedState | None = None) -> None:
        self.stopping = False
        self.busy = False
        self.done = -1
        self.changes = 0
        self.tables: set[TableName] = set()
        self.error: Exception | None = None
        self._applying = applying
        self._recorded = recorded

    @property
    def state(self) -> SavedState | None:
        """The target's state after the last batch."""
        return self._applying.state or self._recorded

    def __call__(self, rows: DataFrame, number: int) -> None:
        self.busy = True
        try:
            if self.stopping:
                raise Stopped
            began = time.monotonic()
            batch = StagedBatch.of(collected(rows))
            self._applying.apply(batch, number)
            self._count(batch, number, time.monotonic() - began)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - it becomes another one
            self.error = known_cause(error) or error
            # Without a cause: Spark writes causes to its log, UI and event log, and other libraries' texts quote rows.
            raise SinkError(error_text(self.error)) from None
        finally:
            self.busy = False
        self.done = number

    def _count(self, batch: StagedBatch, number: int, seconds: float) -> None:
        changes, tables = sum(file.file.rows for file in batch.files), {file.table for file in batch.files}
        self.changes += changes
        self.tables |= tables
        found = counted(changes, "change"), counted(len(tables), "table")
        _log.info("batch %d: %s of %s in %.1f s, up to %s", number, *found, seconds, batch.head.lsn)


@checked("mirror", empty=("consumer",))
@dataclass(frozen=True)
class Mirror:
    """A mirror of the journal's tables that match a pattern, into Delta tables ``target/schema/table``.

    A table is mirrored from its first change in the journal, even if it appears later. Its target follows added, renamed and
    widened columns; in an added column, older rows get the value that they have in PostgreSQL. A batch is one commit of each
    table. After each batch, all tables are at the same position of the journal (``MirroredTables.as_of``).

    :param journal: the journal's folder, which every executor can read, or the URL of its object store; an ``ObjectStore`` if the
        store needs a configuration.
    :param tables: patterns, as in a sink's selection: ``["public.*", "!public.sessions"]``.
    :param target: a folder, the URL of an object store, or an ``ObjectStore``.
    :param mode: current, history, soft_delete or changelog, for all tables or by pattern; the first pattern that matches applies.
        A table without a key is a changelog.
    :param keys: by pattern, the columns that identify a row, for tables under REPLICA IDENTITY FULL.
    :param types: by pattern of columns, the type of a column or of an array's elements: string, double, timestamp, or a decimal such as
        ``decimal(20,4)``; the first pattern that matches applies.
    :param layout: partitions and clustering of new tables, for all or by pattern.
    :param upkeep: when tables are compacted and vacuumed.
    :param deletion_vectors: whether rows of a Delta table that change are marked in deletion vectors, or their files are written
        again; ``auto`` marks them from the first commit that would write more than 64 MiB again.
    :param selection: the columns that do not enter the lake. ``drop``, ``mask``, ``keep`` and ``secret`` are as in the selection of a
        sink, and a value has the same mask. A mirror refuses ``tables`` and ``kinds``.
    :param unrepresentable: error, or null for values that no column can hold, such as an infinite date.
    :param on_error: halt or set_aside. If a table cannot be written, halt ends the query after the batch's other tables;
        set_aside continues without the table, and tries again at the next start, from the table's last position.
    :param whole_transactions: never show a part of a transaction in a table: a batch that would end within a segment ends at the
        segment's end. Otherwise a transaction that is larger than ``max_bytes`` may become visible in parts.
    :param starting_position: where a new mirror starts, like the source's option startingPosition.
    :param max_bytes: the bytes of the journal in a batch.
    :param partition_bytes: the bytes of the journal that one task stages.
    :param consumer: the name of the query's cursor in the journal; the default is made from the query's id.
    :param checkpoint: the folder of the query's checkpoint; the default is ``_checkpoint`` in the target.
    :param staging: the folder of staged files, which executors write and the driver reads; the default is ``_staging`` in the
        checkpoint. Each query has a folder of its own in it.
    :param lake: the target tables, if deltalake does not write them; ``target`` then contains only the mirror's state.
    :raises ConfigurationError: an argument cannot work.
    """

    journal: Location
    tables: list[str] | tuple[str, ...]
    target: Location
    mode: Mode | Mapping[str, Mode] = "current"
    keys: Mapping[str, list[str] | tuple[str, ...]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    layout: Layout | Mapping[str, Layout] = field(default_factory=Layout)
    selection: Selection = field(default_factory=Selection)
    upkeep: Upkeep = field(default_factory=Upkeep)
    deletion_vectors: DeletionVectors = "auto"
    unrepresentable: Unrepresentable = "error"
    on_error: OnError = "halt"
    whole_transactions: bool = False
    starting_position: str | LSN | None = None
    max_bytes: Bytes[int] = Bytes(256 * _MIB)
    partition_bytes: Bytes[int] = Bytes(32 * _MIB)
    consumer: str | None = None
    checkpoint: str | os.PathLike[str] | None = None
    staging: Location | None = None
    lake: Lake | None = None

    def __post_init__(self) -> None:
        self.settings  # noqa: B018 - checked
        self._options  # noqa: B018

    @cached_property
    def settings(self) -> Settings:
        """The checked settings of tables."""
        return Settings.of(
            self.tables,
            self.mode,
            self.keys,
            self.layout,
            self.unrepresentable,
            self.on_error,
            self.selection,
            self.types,
        )

    @cached_property
    def _options(self) -> ReadOptions:
        options = journal_options(self.journal) | positions(self.starting_position)
        options |= {"maxBytesPerTrigger": str(self.max_bytes), "partitionBytes": str(self.partition_bytes)}
        if self.consumer is not None:
            options["consumer"] = self.consumer
        return ReadOptions.parse(options)

    @property
    def _checkpoint(self) -> str:
        return (
            f"{url_of(self.target)}/{CHECKPOINT}" if self.checkpoint is None else os.fspath(self.checkpoint)
        )

    def plan(self, name: str | None = None) -> Staging:
        """Return the parameters of staging tasks.

        :param name: the query's name.
        """
        if self.staging is None:
            files = self._beside(f"{self._checkpoint}/{STAGING}")
        else:
            files = staged_store.folder_of(f"{self._checkpoint}\n{url_of(self.target)}", self.staging)
        return Staging(self._options, files, self.target, self.settings, self.whole_transactions, name)

    def up_to_date(self, name: str | None = None) -> LSN | None:
        """Return the LSN up to which the tables have everything, if the journal has nothing after it. Does not start Spark.

        :param name: the query's name.
        :returns: ``None`` if the journal has more, or may have.
        """
        try:
            state = StateFile(open_store(self.target)).load()
            checkpoint = open_store(self._beside(self._checkpoint))
            if state is None or not up_to_date(state, checkpoint, MirrorReader(self.plan(name))):
                return None
        except (AioreplError, OSError, ValueError) as error:
            # The query will meet the same error. The runner tries again if that may help.
            _log.debug("whether there is anything to mirror is not known: %s", type(error).__name__)
            return None
        return state.lsn

    def prepare(self, spark: SparkSession, name: str | None = None) -> tuple[DataStreamWriter, Batches]:
        """Return the query of this name, not started yet, and the object that applies its batches."""
        options, settings, folder = self._options, self.settings, self._checkpoint
        plan = self.plan(name)
        files = plan.staging
        source = mirror_source(plan)
        spark.dataSource.register(source)
        store = open_store(files)
        staged_store.clean(store)
        store.clean()
        state = StateFile(open_store(self.target))
        lake = self.lake or open_lake(self.target, self.upkeep, self.deletion_vectors)
        applying = Applying(
            TableWriter(lake, settings, options.journal, files, partial(reduce_on_executors, spark)),
            state,
            store,
            Cursors(options.journal, label=f"table set aside by {described(plan)}"),
            partial(_catch_up, spark, plan),
            partial(tables_of, options.journal),
            folder,
            partial(_described, spark),
            partial(_completeness, options.journal),
        )
        batches = Batches(applying, applying.resume())
        frame = spark.readStream.format(source.name()).load()
        writer = frame.writeStream.foreachBatch(batches).option("checkpointLocation", folder)
        return writer if name is None else writer.queryName(name), batches

    def _beside(self, place: str) -> Location:
        """Return ``place`` as a location. If it is in an object store, use the configuration of the target's store."""
        target = self.target
        if isinstance(target, ObjectStore) and urlsplit(place).scheme in SCHEMES:
            return ObjectStore(place, target.config)
        return place


class MirrorOptions(TypedDict, total=False):
    """The options of ``Mirror`` that ``mirror`` passes on, for type checkers."""

    mode: Mode | Mapping[str, Mode]
    keys: Mapping[str, list[str] | tuple[str, ...]]
    types: Mapping[str, str]
    layout: Layout | Mapping[str, Layout]
    selection: Selection
    upkeep: Upkeep
    deletion_vectors: DeletionVectors
    unrepresentable: Unrepresentable
    on_error: OnError
    whole_transactions: bool
    starting_position: str | LSN | None
    max_bytes: Size
    partition_bytes: Size
    consumer: str | None
    checkpoint: str | os.PathLike[str] | None
    staging: Location | None
    lake: Lake | None


@checked("mirror", own=("spark",))
def mirror(
    spark: SparkSession,
    journal: Location,
    tables: list[str] | tuple[str, ...],
    target: Location,
    *,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Unpack[MirrorOptions],
) -> StreamingQuery:
    """Mirror the tables of a journal into Delta tables, and return the running query.

    :param journal: with ``tables``, ``target`` and ``options``: as in ``Mirror``.
    :param trigger: arguments for ``DataStreamWriter.trigger``, such as ``{"availableNow": True}``.
    :param name: the query's name in Spark.
    :raises ConfigurationError: an argument cannot work.
    """
    require_options("mirror", options, (*MirrorOptions.__annotations__, "trigger", "name"))
    writer, _ = Mirror(journal, tables, target, **options).prepare(spark, name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start()


def _completeness(journal: Location) -> Completeness:
    return JournalReader(journal).chain().completeness


def tables_of(journal: Location) -> Iterator[TableName]:
    """Return the tables that a journal has, or had."""
    for schema, name in _completeness(journal).names:
        yield TableName(schema, name)


def open_lake(
    target: Location, upkeep: Upkeep = _UPKEEP, deletion_vectors: DeletionVectors = "auto"
) -> DeltaLake:
    # deltalake uses obstore's keys. ``allow_http`` is for an endpoint with http://.
    storage = {**target.config, "allow_http": "true"} if isinstance(target, ObjectStore) else None
    return DeltaLake(url_of(target), storage=storage, upkeep=upkeep, deletion_vectors=deletion_vectors)


def _described(spark: SparkSession, write: Write, text: str) -> Write:
    """Wrap ``write`` for another thread, where its jobs get the query's job group and a description."""

    def described() -> Written | None:
        if is_remote():
            # A Connect client cannot set a description.
            spark.addTag(text)
        else:
            spark.sparkContext.setJobDescription(text)
        return write()

    inherited: Write = inheritable_thread_target(spark)(described)
    return inherited


def _catch_up(
    spark: SparkSession, staging: Staging, table: TableName, start: BlockPosition, end: BlockPosition
) -> Sequence[StagedFile]:
    """Stage the missing changes of a table that was set aside."""
    catching = Catching(table, start, end)
    # Checked here, because Spark passes on only the text of an error.
    planner = MirrorPlanner(staging, catching.wanted)
    planner.readable(JournalReader(planner.options.journal), start.lsn, f"the mirror of {table}", "")
    source = mirror_source(staging, catching)
    spark.dataSource.register(source)
    files: list[StagedFile] = collected(spark.read.format(source.name()).load())
    return sorted(files, key=lambda file: file.file.first)
