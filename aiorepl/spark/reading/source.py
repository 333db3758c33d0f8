"""The Spark data source ``aiorepl``: a journal as a streaming or batch DataFrame. Runs on the driver; readers are pickled.

    spark.readStream.format("aiorepl").option("journal", url).option("table", "public.orders").load()

    journal             the journal's folder, as every executor sees it, or the URL of its object store
    config.…            the object store's configuration, such as config.endpoint; without it, every executor's environment
    table               schema.table: the changes of that table in its columns; without it, the changes of all tables as text
    startingPosition    where a new query starts: earliest (the oldest segment that is kept), latest (the journal's end; not
                        for a batch), or after an LSN like 0/171B2A8. The default is the journal's beginning, and an error if
                        that was pruned
    consumer            the name of a cursor to register, so that segments that this query has not read are not pruned; each
                        query needs a name of its own
    maxBytesPerTrigger  the size of a micro-batch, like 64m; it ends with a segment, or, if the first one is larger, within it,
                        perhaps within a transaction. It always has at least one block, of about 1 MB
    partitionBytes      how much one task reads; the default is 32m
    unrepresentable     error (the default) or null, for values that a column's type cannot hold, such as an infinite date
    keys                the columns that identify a row under replica identity FULL, separated by commas, and quoted as in SQL
                        if a name has a comma in it

An offset is a position at the end of a segment, or at a block within one. A query with a checkpoint continues there and ignores startingPosition.
Every read verifies the journal first: a missing segment, a damaged file, or a checkpoint that the journal does not cover ends
the query with an error that names it. Segments never change, so a repeated read of two offsets returns the same.

Spark's commit only advances the consumer's cursor. It comes one batch late, and never for the last batch. The replication
slot does not wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from aiorepl.durable import reason, transient
from aiorepl.errors import AioreplError, ConfigurationError, JournalError
from aiorepl.journal.chain import Chain
from aiorepl.journal.completeness import Gap
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader, listed
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.spark.reading.blocks import Span, TableName, latest, newest_description, plan
from aiorepl.spark.reading.generic import Generic
from aiorepl.spark.reading.offsets import Offset
from aiorepl.spark.reading.options import Options
from aiorepl.spark.reading.schema import GENERIC, require_readable, table_schema
from aiorepl.spark.reading.typed import Newest, Typed

NAME: Final = "aiorepl"

_log = logging.getLogger("aiorepl.spark")

_CHECKPOINT: Final = "the query's checkpoint"
_START_OVER: Final = "Start over with an empty target and a new checkpoint"
_CHOOSE_START: Final = "Set the option startingPosition: earliest starts with the oldest segment that is kept, latest at the end, an LSN after it"


class AioreplDataSource(DataSource):
    """``format("aiorepl")``; the module's docstring lists the options."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema for a query without one of its own: that of the table's last change.

        :raises ConfigurationError: the table is not in the journal yet.
        """
        options = Options.parse(self.options)
        if options.table is None:
            return GENERIC
        reader = JournalReader(options.journal)
        reader.source()
        described = newest_description(reader, options.table)
        if described is None:
            raise ConfigurationError(
                f"table {options.table} is not in the journal {reader.url}, which has a table from its first change on: check "
                "the name and the publication, wait for a change, or give the columns with .schema(...)"
            )
        return table_schema(*described)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader for ``spark.read``."""
        return _BatchReader(Options.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - pyspark's name
        """Make the reader for ``spark.readStream``."""
        return _StreamReader(Options.parse(self.options), schema)


class BlocksPartition(InputPartition):
    """The blocks that one task reads."""

    def __init__(self, spans: tuple[Span, ...], newest: Newest) -> None:
        super().__init__(None)
        self.spans = spans
        self.newest = newest


class _Reader:
    """The common part of both readers: plans on the driver, reads on executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        arrow = to_arrow_schema(schema, timezone="UTC")
        self._shape: Typed | Generic
        self._arrow = arrow
        self._newest: Newest | None = None
        if options.table is None:
            if schema != GENERIC:
                raise ConfigurationError(
                    ".schema(...) needs the option table: without it the schema is fixed"
                )
            self._shape = Generic(arrow)
        else:
            require_readable(schema)
            self._shape = Typed(options.table, arrow, options.keys, options.null)

    def _start(self, reader: JournalReader) -> Position:
        """The position where a new query starts.

        :raises JournalError: the journal does not continue from there.
        """
        start = self._options.start
        if start == "latest":
            chain = reader.chain()
            return chain.position.at(chain.end_lsn)
        lsn = reader.chain().start_lsn if start == "earliest" else start or ZERO
        chain = reader.readable(lsn, "a new query", _CHOOSE_START)
        table = self._options.table
        if text := reader.incomplete(chain, lsn, None if table is None else table.key):
            _log.warning("%s", text)
        following = next(chain.walk(lsn), None)
        return (chain.position if following is None else reader.index(following).end).at(lsn)

    def _plan(
        self, reader: JournalReader, chain: Chain, start: BlockPosition, end: BlockPosition
    ) -> list[BlocksPartition]:
        options = self._options
        return [
            BlocksPartition(spans, self._newest_of(reader))
            for spans in plan(reader, chain, options.table, options.partition_bytes, start, end)
        ]

    def _newest_of(self, reader: JournalReader) -> Newest:
        """How to read earlier rows by the table's last description; looked up once, because the schema is fixed."""
        if self._newest is None:
            table, self._newest = self._options.table, Newest()
            described = None if table is None else newest_description(reader, table)
            if described is not None:
                self._newest = Newest.of(*described, self._arrow, null=self._options.null)
        return self._newest

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition on an executor, perhaps more than once."""
        # If there are no partitions, Spark passes an InputPartition of its own.
        if isinstance(partition, BlocksPartition):
            shape = self._shape
            if isinstance(shape, Typed):
                shape = replace(shape, newest=partition.newest)
            yield from shape.batches(JournalReader(self._options.journal), partition.spans)


class _BatchReader(_Reader, DataSourceReader):
    """Reads what is in the journal when the query runs."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.start == "latest":
            raise ConfigurationError("option startingPosition cannot be latest for a batch, which ends there")

    def partitions(self) -> list[InputPartition]:
        reader = JournalReader(self._options.journal)
        after = self._start(reader).lsn
        chain = reader.readable(after, "a new query", _CHOOSE_START)
        for gap in chain.gaps_between(after, chain.last_segment_end):
            _log_gap(gap)
        start, end = BlockPosition(after), BlockPosition(chain.last_segment_end)
        return list(self._plan(reader, chain, start, end))


class _StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of one run of a query, in a Python process of its own on the driver."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._journal = JournalReader(options.journal)
        self._until: Position | None = None
        self._initial: Offset | None = None
        self._registered = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset where a new query starts.

        :raises JournalError: the journal does not continue from there.
        """
        # Spark asks twice for the first batch, and the journal's end moves.
        if self._initial is None:
            self._initial = Offset.initial(self._start(self._journal))
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        limit = self._options.max_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the last segment within the limit, or a block within the first one.

        :raises ConfigurationError: another consumer owns the cursor.
        :raises SlotError: the query's checkpoint is of another source than the journal.
        :raises JournalError: the journal is damaged, or does not continue from ``start``.
        """
        first = self._offset(start)
        if self._initial is None and not self._registered:
            self._register(first)
        before = first.place
        chain = self._journal.readable(before.lsn, _CHECKPOINT, _START_OVER)
        end = chain.end if self._until is None else self._until
        if isinstance(limit, ReadMaxBytes):
            reached = latest(self._journal, chain, before, limit.max_bytes, end.lsn)
        else:
            reached = BlockPosition(end.lsn) if end.lsn > before.lsn else before
        if reached == before:
            return start
        if reached.lsn == before.lsn:
            return first.at(first.position, reached.part, reached.block).to_json()
        return first.at(self._journal.position_at(chain, reached.lsn)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the journal's present end."""
        self._until = self._journal.end()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the journal's end, for the query's progress report."""
        return dict(self._journal.end().to_json())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Divide the blocks between two offsets into partitions.

        :raises ConfigurationError: another consumer owns the cursor.
        :raises SlotError: the query's checkpoint is of another source than the journal.
        :raises JournalError: the journal is damaged, or does not have all of the segments.
        """
        last = self._offset(end)
        after, until = last.follows(self._offset(start)), last.place
        # Not earlier: from here on a restart brings ``end``, and with it the same query id. And before the journal is verified:
        # from then on nothing may be pruned.
        self._register(last.at(last.position.at(after.lsn)))
        chain = self._journal.readable(after.lsn, _CHECKPOINT, _START_OVER)
        if until.lsn != after.lsn and not chain.ends_at(until.lsn):
            raise JournalError(
                f"{_CHECKPOINT} has a batch up to {until.lsn}, where no segment of the journal {self._journal.url} ends: it is "
                f"of another journal, or segments were put back from an older copy. {_START_OVER}"
            )
        _log_missing(chain, after.lsn, until.lsn, self._options.table)
        return list(self._plan(self._journal, chain, after, until))

    def commit(self, end: dict[str, Any]) -> None:
        """Advance the consumer's cursor: Spark has processed everything up to ``end``.

        A transient error only delays the cursor until the next commit, so that segments are kept longer.

        :raises ConfigurationError: another consumer owns the cursor.
        :raises JournalError: the cursor is damaged, or cannot be written for a permanent reason.
        """
        try:
            self._advance(self._offset(end))
        except JournalError as error:
            if not transient(error):
                raise
            _log.warning("consumer %s keeps its earlier cursor for now: %s", self._options.consumer, error)

    def _register(self, offset: Offset) -> None:
        self._advance(offset)
        self._registered = True

    def _advance(self, offset: Offset) -> None:
        consumer = self._options.consumer
        if consumer is None:
            return
        cursors = Cursors(self._options.journal)
        try:
            cursors.advance(consumer, offset.position, query=offset.query)
        except OSError as error:
            raise JournalError(
                f"cannot write cursor {consumer!r} of the journal {cursors.url}: {reason(error)}"
            ) from error

    def _offset(self, fields: dict[str, Any]) -> Offset:
        try:
            offset = Offset.from_json(fields)
        except (AioreplError, TypeError, ValueError) as error:
            raise JournalError(
                f"{_CHECKPOINT} holds no offset of a journal: {error}. {_START_OVER}"
            ) from None
        offset.position.require_same_source(self._journal.chain().position, _CHECKPOINT)
        return offset


def _log_missing(chain: Chain, after: LSN, until: LSN, table: TableName | None) -> None:
    for gap in chain.gaps_between(after, until):
        _log_gap(gap)
    came = [
        each
        for each in chain.completeness.appeared_between(after, until)
        if table is None or table.key == (each.schema, each.table)
    ]
    if came:
        _log.warning("the journal does not have all rows of %s", listed(came))


def _log_gap(gap: Gap) -> None:
    _log.warning("the journal has an accepted gap between %s and %s", gap.after, gap.until)
