"""The data source ``aiorepl``: a journal as a streaming and as a batch DataFrame. Runs on the driver, and is pickled.

    spark.readStream.format("aiorepl").option("journal", url).option("table", "public.orders").load()

    journal             the folder, as every executor sees it
    table               schema.table: that table's columns, typed; without it every table's changes as text
    startingPosition    where a new query begins: earliest (what is kept), latest (the journal's end; streams alone), or
                        behind an LSN like 0/171B2A8. Unless given, at the journal's beginning; a query is refused if that
                        was pruned, or is missing
    consumer            a name: registers a cursor, so that what this query has not read is not pruned
    maxBytesPerTrigger  at most so much in a micro-batch (k, m and g may follow), but at least one segment
    partitionBytes      how much one task reads; 32m
    unrepresentable     error or null, for values that a column's type cannot hold (infinity, NaN in a decimal)
    keys                columns with commas between, quoted as in SQL where a name has one in it: what identifies a row under
                        replica identity FULL

An offset is a position at the end of a segment, so of a transaction. Where a checkpoint has one, it counts, and not
startingPosition. The journal is verified before anything is read of it: a missing segment, a damaged file, or a
checkpoint that the journal does not reach ends the query with an error that names it. Segments never change, so that reading between
two offsets gives the same however often it is done. Spark's commit moves only the consumer's cursor: it lags by a
batch, never comes for the last, and the slot does not wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal

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

from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.journal.chain import Chain, Segment
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.sizes import parse_size
from aiorepl.spark.blocks import Span, TableName, newest_description, plan
from aiorepl.spark.generic import Generic
from aiorepl.spark.schema import GENERIC, require_readable, table_schema
from aiorepl.spark.typed import Typed
from aiorepl.wire.commands import split_names

NAME: Final = "aiorepl"

_log = logging.getLogger("aiorepl.spark")

_CHECKPOINT: Final = "the query's checkpoint"
_ANEW: Final = "Begin with an empty target and a new checkpoint"
_CHOOSE: Final = "Take the option startingPosition: earliest begins with what is kept, latest at the end, and an LSN behind that"
_OPTIONS: Final = (
    "journal",
    "table",
    "startingPosition",
    "consumer",
    "maxBytesPerTrigger",
    "partitionBytes",
    "unrepresentable",
    "keys",
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options, checked."""

    journal: str
    table: TableName | None
    starting: Literal["earliest", "latest"] | LSN | None
    consumer: str | None
    max_bytes: int | None
    partition_bytes: int
    null: bool
    keys: tuple[str, ...]

    @classmethod
    def read(cls, given: MutableMapping[str, str]) -> Options:
        """Check what the user gave.

        :raises ConfigurationError: naming the option, and what it takes.
        """
        known = {name.lower() for name in _OPTIONS}
        # Spark adds ``path`` for load(path).
        unknown = sorted(name for name in given if name.lower() not in known)
        if unknown:
            raise ConfigurationError(f"option {unknown[0]!r} does not exist: there are {', '.join(_OPTIONS)}")
        journal = given.get("journal")
        if not journal:
            raise ConfigurationError("option journal is missing: the folder of the pipeline's journal")
        table, size = given.get("table"), given.get("maxBytesPerTrigger")
        unrepresentable = given.get("unrepresentable", "error")
        if unrepresentable not in ("error", "null"):
            raise ConfigurationError(f"option unrepresentable is error or null, not {unrepresentable!r}")
        return cls(
            journal=journal,
            table=None if table is None else TableName.parse(table),
            starting=_starting(given.get("startingPosition")),
            consumer=given.get("consumer"),
            max_bytes=None if size is None else _bytes("maxBytesPerTrigger", size),
            partition_bytes=_bytes("partitionBytes", given.get("partitionBytes", "32m")),
            null=unrepresentable == "null",
            keys=tuple(split_names(given.get("keys", ""))),
        )


def _starting(text: str | None) -> Literal["earliest", "latest"] | LSN | None:
    match text:
        case None | "earliest" | "latest":
            return text
    try:
        return LSN.parse(text)
    except ValueError:
        raise ConfigurationError(
            f"option startingPosition is earliest, latest or an LSN like 0/171B2A8, not {text!r}"
        ) from None


def _bytes(name: str, text: str) -> int:
    size = parse_size(text.strip())
    if not size:
        raise ConfigurationError(f"option {name} is a number of bytes like 1048576 or 64m, not {text!r}")
    return size


class AioreplDataSource(DataSource):
    """``format("aiorepl")``; the module's text has the options."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return NAME

    def schema(self) -> StructType:
        """The schema, when the user gives none.

        :raises ConfigurationError: when the table has not been in the journal yet.
        """
        options = Options.read(self.options)
        if options.table is None:
            return GENERIC
        reader = JournalReader(options.journal)
        reader.source()
        described = newest_description(reader, options.table)
        if described is None:
            raise ConfigurationError(
                f"table {options.table} is not in the journal {reader.url}: it is there from its first change on; "
                "check the name and the publication, wait for a change, or give the columns with .schema(...)"
            )
        return table_schema(*described)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return _BatchReader(Options.read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - pyspark's name
        """For ``spark.readStream``."""
        return _StreamReader(Options.read(self.options), schema)


class BlocksPartition(InputPartition):
    """The blocks that one task reads."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(None)
        self.spans = spans


class _Reading:
    """What both readers do: plan on the driver, read on executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        arrow = to_arrow_schema(schema, timezone="UTC")
        self._shape: Typed | Generic
        if options.table is None:
            if schema != GENERIC:
                raise ConfigurationError(
                    ".schema(...) goes with the option table: without it the schema is fixed"
                )
            self._shape = Generic(arrow)
        else:
            require_readable(schema)
            self._shape = Typed(options.table, arrow, options.keys, options.null)

    def _begin(self, reader: JournalReader) -> Position:
        """The position where a new query begins.

        :raises JournalError: the journal does not continue from there.
        """
        starting = self._options.starting
        if starting == "latest":
            chain = reader.chain()
            return reader.end_of(chain).at(chain.end_lsn)
        lsn = reader.chain().start_lsn if starting == "earliest" else starting or LSN(0)
        chain = reader.readable(lsn, "a new query", _CHOOSE)
        for segment in chain.segments(lsn)[:1]:
            return reader.index(segment).end.at(lsn)
        return reader.end_of(chain).at(lsn)

    def _plan(self, reader: JournalReader, segments: list[Segment], after: LSN) -> list[BlocksPartition]:
        options = self._options
        return [
            BlocksPartition(part)
            for part in plan(reader, segments, options.table, options.partition_bytes, after)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called on an executor, perhaps again; Spark makes an empty partition of its own when there is none."""
        if isinstance(partition, BlocksPartition):
            yield from self._shape.batches(JournalReader(self._options.journal), partition.spans)


class _BatchReader(_Reading, DataSourceReader):
    """All that is in the journal when the query runs."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.starting == "latest":
            raise ConfigurationError("option startingPosition cannot be latest for a batch, which ends there")

    def partitions(self) -> list[InputPartition]:
        reader = JournalReader(self._options.journal)
        after = self._begin(reader).lsn
        chain = reader.readable(after, "a new query", _CHOOSE)
        _tell_gaps(chain, after, chain.last_segment_end)
        return list(self._plan(reader, chain.segments(after), after))


class _StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One object for the life of a query, in a process of its own."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._journal = JournalReader(options.journal)
        self._until: LSN | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The position that the options name. The cursor is registered before any read, so nothing behind it is pruned.

        :raises JournalError: the journal does not continue from there.
        """
        begin = self._begin(self._journal)
        if self._options.consumer is not None:
            Cursors(self._options.journal).begin(self._options.consumer, begin)
            # Segments may have been pruned before the cursor was registered.
            self._journal.readable(begin.lsn, "a new query", _CHOOSE)
        return dict(begin.to_json())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options say."""
        limit = self._options.max_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the last segment that the limit lets in; the first one always is.

        :raises SlotError: when the query's checkpoint is of another source than the journal.
        :raises JournalError: the journal is damaged, or does not continue from ``start``.
        """
        after = self._position(start).lsn
        segments = self._journal.readable(after, _CHECKPOINT, _ANEW).segments(after, self._until)
        if isinstance(limit, ReadMaxBytes):
            size, taken = 0, 0
            for segment in segments:
                size += self._journal.index(segment).size
                if taken and size > limit.max_bytes:
                    break
                taken += 1
            segments = segments[:taken]
        return dict(self._journal.index(segments[-1]).end.to_json()) if segments else start

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on the journal ends where it ends now."""
        self._until = self._journal.end().lsn

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the journal ends, for the query's progress."""
        return dict(self._journal.end().to_json())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The blocks between two offsets.

        :raises JournalError: the journal is damaged, or does not have all of the segments.
        """
        after, until = self._position(start).lsn, self._position(end).lsn
        chain = self._journal.readable(after, _CHECKPOINT, _ANEW)
        segments = chain.segments(after, until)
        reached = segments[-1].last_end_lsn if segments else after
        if reached != until:
            raise JournalError(
                f"{_CHECKPOINT} has a batch up to {until}, where no segment of the journal {self._journal.url} ends: it is "
                f"of another journal, or segments were put back from an older copy. {_ANEW}"
            )
        _tell_gaps(chain, after, until)
        return list(self._plan(self._journal, segments, after))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with what is before ``end``: it may be pruned, as far as this query is concerned."""
        if self._options.consumer is not None:
            Cursors(self._options.journal).advance(self._options.consumer, self._position(end))

    def _position(self, offset: dict[str, Any]) -> Position:
        try:
            position = Position.from_json(offset)
        except (TypeError, ValueError) as error:
            raise JournalError(f"{_CHECKPOINT} holds no position of a journal: {error}. {_ANEW}") from None
        position.require_same_source(self._journal.end_of(self._journal.chain()), _CHECKPOINT)
        return position


def _tell_gaps(chain: Chain, after: LSN, until: LSN) -> None:
    for gap in chain.gaps(after, until):
        _log.warning("the journal has nothing between %s and %s, as accepted", gap.after, gap.until)
