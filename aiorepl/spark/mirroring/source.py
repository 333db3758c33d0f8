"""The data source of a mirror: the changes of many tables as descriptions of staged files. Internal.

Every task decodes its blocks once, whatever the number of tables. The settings are in the class, not in options, because plans
show options and settings may have credentials.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.journal.chain import Chain
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.journal.times import Times
from aiorepl.lsn import LSN, ZERO
from aiorepl.spark.mirroring.executors import PICKLED_DDL, pickled
from aiorepl.spark.mirroring.planning import compacted_files
from aiorepl.spark.mirroring.selected import Judge, descriptions, hidden_files, hidden_of, require_matched
from aiorepl.spark.mirroring.settings import Settings
from aiorepl.spark.mirroring.staging import Head, StagedFile, stage
from aiorepl.spark.mirroring.state import StateFile
from aiorepl.spark.reading.blocks import Span, plan
from aiorepl.spark.reading.compacted import latest_compacted
from aiorepl.spark.reading.offsets import Offset
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.spark.reading.planner import Planner, require_kept
from aiorepl.spark.reading.schema import GENERIC
from aiorepl.spark.reading.stream_reader import StreamReader
from aiorepl.spark.session.programs import spare_modules
from aiorepl.storage.objects.location import ObjectStore
from aiorepl.storage.opening import Location, open_store
from aiorepl.table_name import TableName
from aiorepl.transforms.selection import Selection


@dataclass(frozen=True)
class Staging:
    """The parameters of a task that stages.

    :param options: the options for reading the journal.
    :param staging: the folder of staged files.
    :param target: the mirror's target, which has its state.
    :param name: the query's name; ``None`` if it has none.
    """

    options: ReadOptions
    staging: Location
    target: Location
    settings: Settings
    whole_transactions: bool
    name: str | None = None


def described(staging: Staging) -> str:
    """Return the names of a mirror's query and target, for whoever sees its cursors."""
    name = "" if staging.name is None else f" {staging.name}"
    return f"mirror{name} to {url_of(staging.target)}"


def url_of(target: Location) -> str:
    """Return the path or URL of a target, without a slash at its end."""
    return (target.url if isinstance(target, ObjectStore) else os.fspath(target)).rstrip("/")


@dataclass(frozen=True)
class Catching:
    """The range of changes that a table lacks after it was set aside or added."""

    table: TableName
    start: BlockPosition
    end: BlockPosition

    def wanted(self, table: TableName) -> bool:
        """Whether ``table`` is the table that lacks the changes."""
        return table == self.table


class RowsPartition(InputPartition):
    """A partition of rows that the driver has made already."""

    def __init__(self, rows: Sequence[Head | StagedFile]) -> None:
        super().__init__(None)
        self.rows = rows


class StagingPartition(InputPartition):
    """The blocks that one task stages."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(None)
        self.spans = spans


def mirror_source(staging: Staging, catching: Catching | None = None) -> type[DataSource]:
    """Return a data source class for one mirror, with a unique name.

    :param catching: the changes that a batch read returns; ``None`` for the mirror's stream.
    """
    name = f"aiorepl_mirror_{uuid4().hex}"

    class MirrorSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return PICKLED_DDL

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - pyspark's name
            return MirrorReader(staging)

        def reader(self, schema: StructType) -> DataSourceReader:
            assert catching is not None
            return _CatchingReader(staging, catching)

    return MirrorSource


class MirrorPlanner(Planner):
    """Plans the batches of a mirror; executors stage them."""

    def __init__(self, staging: Staging, wanted: Callable[[TableName], bool] | None = None) -> None:
        super().__init__(staging.options, GENERIC)
        self.planned = BlockPosition(ZERO)
        """The end of the last batch that began to be applied. Some tables may have its changes."""
        self.remembered: tuple[Any, ...] | None = None
        """The memory of the selection after the last planned batch; ``None`` without a selection."""
        self._staging = staging
        self._wanted = staging.settings.wanted if wanted is None else wanted
        self._matched = False

    @property
    def selects(self) -> bool:
        """Whether the mirror has a selection."""
        return self._staging.settings.selection is not None

    @property
    def _reads_history(self) -> bool:
        return True

    def latest(
        self, reader: JournalReader, chain: Chain, start: BlockPosition, max_bytes: int, until: LSN
    ) -> BlockPosition:
        planned, kept = self.planned, chain.start_lsn
        if start < planned and (planned.lsn >= kept or not (planned.part or planned.block)):
            # A repeated batch keeps its end, even if Spark's checkpoint has lost the batch's plan.
            return planned
        if start.lsn < kept:
            found = compacted_files(self.options.journal, chain, start, BlockPosition(until), self._wanted)
            if found is not None:
                files = [each.file for each in found.files]
                return BlockPosition(latest_compacted(files, start.lsn, max_bytes, found.end))
        reached = super().latest(reader, chain, start, max_bytes, until)
        if self._staging.whole_transactions and (reached.part or reached.block):
            return BlockPosition(next(chain.walk(reached.lsn)).last_end_lsn)
        return reached

    def times(self, reader: JournalReader, end: BlockPosition) -> Times | None:
        """Return the commit times at the end of a batch; ``None`` for a batch that ends within a segment, or in the history."""
        chain = reader.chain()
        within = end.part or end.block or end.lsn <= chain.start_lsn or not chain.ends_at(end.lsn)
        return None if within else reader.times_at(chain, end.lsn)

    def partitions(
        self, reader: JournalReader, chain: Chain, start: BlockPosition, end: BlockPosition
    ) -> list[InputPartition]:
        """Divide the changes between two positions into files of the history and blocks to stage.

        :raises JournalError: the journal is damaged, or segments were deleted that the history does not have.
        :raises ConfigurationError: a pattern of the selection matches no column, or a visible column may have to be hidden.
        :raises PermanentError: a hidden column was renamed, or may have been renamed.
        """
        require_kept(reader, chain, start, end)
        parts: list[InputPartition] = []
        found = compacted_files(self.options.journal, chain, start, end, self._wanted)
        selection, types = self._staging.settings.selection, self._staging.settings.types
        if not self._matched and (selection is not None or types):
            options = [patterns for patterns, _ in types]
            if selection is not None:
                options += (selection.rules.drop, selection.rules.mask, selection.rules.keep)
            tables = [TableName(*name) for name in chain.completeness.names]
            require_matched(options, reader, self.options.journal, tables)
            self._matched = True
        if selection is not None:
            self._judge(selection, reader, chain, start, end)
        files: Sequence[StagedFile] | None = None if found is None else found.files
        if selection is not None and files is not None:
            try:
                files = hidden_files(selection, files)
            except ConfigurationError:
                if start.lsn < chain.start_lsn:
                    raise
                # The segments have the texts that the history lacks.
                files = None
        if found is not None and files is not None:
            parts.append(RowsPartition(files))
            start = BlockPosition(found.end)
        if start < end:
            blocks = plan(reader, chain, None, self.options.partition_bytes, start, end)
            parts += map(StagingPartition, blocks)
        return parts

    def _judge(
        self,
        selection: Selection,
        reader: JournalReader,
        chain: Chain,
        start: BlockPosition,
        end: BlockPosition,
    ) -> None:
        """Compare the descriptions of a batch with earlier descriptions, before a row of the batch is staged."""
        journal, settings = self.options.journal, self._staging.settings
        state = StateFile(open_store(self._staging.target)).load()
        judge = Judge(selection, () if state is None else state.selection)
        ranges = [(start, end, self._wanted)]
        if state is not None and state.patterns != settings.patterns:
            # The changes of an added table from before this batch are staged with this batch.
            former = state.patterns
            ranges.insert(0, (BlockPosition(ZERO), start, lambda table: settings.added(table, former)))
        for first, last, wanted in ranges:
            for relation in descriptions(journal, reader, chain, first, last, wanted):
                mode = settings.mode_of(TableName(relation.schema, relation.name))
                judge.judge(relation, keyed=mode != "changelog")
        judge.require_decided()
        self.remembered = tuple(judge.remembered)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition. Every attempt writes new files."""
        spare_modules()
        rows: Sequence[Head | StagedFile] = ()
        if isinstance(partition, RowsPartition):
            rows = partition.rows
        elif isinstance(partition, StagingPartition):
            store = open_store(self._staging.staging)
            reader = JournalReader(self.options.journal)
            hide = partial(hidden_of, self._staging.settings.selection)
            rows = stage(reader, partition.spans, store, self._wanted, hide=hide)
        if rows:
            yield pickled(rows)


class MirrorReader(StreamReader):
    """Plans one run of a mirror's query."""

    def __init__(self, staging: Staging) -> None:
        super().__init__(staging.options, GENERIC)
        self._planner: MirrorPlanner = MirrorPlanner(staging)
        self._target = staging.target
        self._label = described(staging)
        self._claimed = False
        self._times = Times()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset of ``StreamReader.latestOffset``; but if the target has a part of a batch, return the batch's end.

        :raises ConfigurationError: another query writes this target.
        """
        if not self._claimed:
            first, file = self._offset(start), StateFile(open_store(self._target))
            state = file.load()
            if state is not None:
                # Check this before anything is staged.
                file.require_own(state, first.position, first.query)
                self._planner.planned = state.planned
            self._claimed = True
        latest = super().latestOffset(start, limit)
        if latest == start:
            self._record_times(self._offset(start))
        return latest

    def _record_times(self, start: Offset) -> None:
        """Record the journal's commit times, if the target has everything that the journal has."""
        chain = self._journal.chain()
        times = chain.state.times
        if times == self._times or start.place != BlockPosition(chain.last_segment_end):
            return
        if any(gap.until > chain.last_segment_end for gap in chain.completeness.gaps):
            # Transactions are lost. The next batch holds the tables at their present times.
            return
        file = StateFile(open_store(self._target))
        state = file.load()
        if state is None or state.batch < 0 or not state.end == state.planned == start.place:
            return
        if file.publish(state, times):
            self._times = times

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last = self._offset(end)
        after = last.follows(self._offset(start))
        first = last.at(last.position.at(after.lsn), None, after.part, after.block)
        if self._planner.selects:
            self._require_memory(first)
        planned = super().partitions(start, end)
        lsn = last.position.lsn
        if last.part or last.block:
            lsn = next(self._journal.chain().walk(lsn)).last_end_lsn
        times = self._planner.times(self._journal, last.place)
        return [RowsPartition((Head(first, last, lsn, self._planner.remembered, times),)), *planned]

    def _require_memory(self, start: Offset) -> None:
        """Before any row is staged, check that the state has the names of all earlier batches.

        :param start: the start of the batch.
        :raises JournalError: the state was restored from an older copy, or deleted.
        """
        file = StateFile(open_store(self._target))
        state, begun = file.load(), BlockPosition(start.start_lsn)
        if start.place > (begun if state is None else max(begun, state.end)):
            raise JournalError(
                f"{file.location}, which has the names of the hidden columns, is older than the query's checkpoint, or was deleted: restore "
                "both from the same copy, without the tables, or begin again with an empty target and a new checkpoint"
            )


class _CatchingReader(DataSourceReader):
    """Stages the missing changes of one table."""

    def __init__(self, staging: Staging, catching: Catching) -> None:
        self._catching = catching
        self._planner = MirrorPlanner(staging, catching.wanted)

    def partitions(self) -> Sequence[InputPartition]:
        catching, reader = self._catching, JournalReader(self._planner.options.journal)
        chain = self._planner.readable(reader, catching.start.lsn, f"the mirror of {catching.table}", "")
        return self._planner.partitions(reader, chain, catching.start, catching.end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._planner.read(partition)
