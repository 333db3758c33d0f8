"""Plans a query: its start, and the partitions of a range. Runs on the driver; ``read`` runs on executors.

The history is read if the segments were deleted or the range is large; everything else is read from segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.history.catalog import read_history
from aiorepl.history.opening import open_history
from aiorepl.journal.chain import Chain
from aiorepl.journal.reader import JournalReader, listed
from aiorepl.journal.segments import BlockPosition
from aiorepl.loggers import logger
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.relations import Relation
from aiorepl.position import Position
from aiorepl.spark.reading.blocks import Span, latest, plan
from aiorepl.spark.reading.compacted import (
    Compacted,
    FileSpan,
    covering,
    from_history,
    latest_compacted,
    reaches,
    spans,
)
from aiorepl.spark.reading.described import Described, Inferred, SchemaWatch, describe
from aiorepl.spark.reading.file_columns import FileColumns
from aiorepl.spark.reading.generic import Generic
from aiorepl.spark.reading.offsets import HiddenColumn
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.spark.reading.schema import GENERIC, NUMBER, require_readable
from aiorepl.spark.reading.typed import Newest, Typed
from aiorepl.spark.session.programs import spare_modules
from aiorepl.table_name import TableName
from aiorepl.values.types import TypeInfo

_log = logger("aiorepl.spark")

CHOOSE_START: Final = "Set the option startingPosition: earliest starts with the oldest changes that are kept, latest at the end, an LSN after it"


class BlocksPartition(InputPartition):
    """The blocks that one task reads."""

    def __init__(self, spans: tuple[Span, ...], newest: Newest) -> None:
        super().__init__(None)
        self.spans = spans
        self.newest = newest


class FilesPartition(InputPartition):
    """The files of the history that one task reads."""

    def __init__(self, spans: tuple[FileSpan, ...], types: tuple[TypeInfo, ...], newest: Newest) -> None:
        super().__init__(None)
        self.spans = spans
        self.types = types
        self.newest = newest


class Planner:
    """Plans a query; pickled to executors, which only call ``read``.

    :param inferred: the columns from which the schema was inferred; ``None`` if the user gave the schema.
    :raises ConfigurationError: the schema cannot be read.
    """

    def __init__(self, options: ReadOptions, schema: StructType, inferred: Inferred | None = None) -> None:
        self.options = options
        self.told = ZERO
        """The LSN up to which ``_tell`` has logged incomplete tables."""
        self._inferred = inferred
        self.columns = to_arrow_schema(schema, timezone="UTC")
        """The query's columns, as Arrow types."""
        self._numbers = {field.name: (field.metadata or {}).get(NUMBER) for field in schema.fields}
        self._shape: Typed | Generic
        self._newest: tuple[Described | None, Newest] | None = None
        if options.table is None:
            if schema != GENERIC:
                raise ConfigurationError(
                    ".schema(...) needs the option table: without it the schema is fixed"
                )
            self._shape = Generic(self.columns)
        else:
            require_readable(schema)
            if options.selected is not None:
                options.selected.require_readable(self.columns)
            self._shape = Typed(
                options.table, self.columns, options.keys, options.null, selected=options.selected
            )

    @property
    def digest(self) -> str | None:
        """The digest of the inferred columns; ``None`` if the user gave the schema."""
        return None if self._inferred is None else self._inferred.digest

    def watch(self, reader: JournalReader) -> SchemaWatch | None:
        """Return a ``SchemaWatch`` for the table's later descriptions; ``None`` if the query reads all tables."""
        table = self.options.table
        if table is None:
            return None
        if self._inferred is not None:
            return SchemaWatch(table, self._inferred, None)
        described = describe(reader, self.options.journal, table)
        # A table that is not in the journal yet has no column that could be renamed.
        columns = () if described is None else described.columns
        return SchemaWatch(table, Inferred(columns, reader.chain().last_segment_end), self.columns.names)

    def start(self, reader: JournalReader) -> Position:
        """Return the position where a new query starts.

        :raises JournalError: the journal does not continue from there.
        """
        options = self.options
        chain = reader.chain()
        if options.start == "latest":
            return chain.position.at(chain.end_lsn)
        lsn = ZERO if options.start is None or options.start == "earliest" else options.start
        if options.start == "earliest":
            lsn = self._earliest(chain)
        chain = self.readable(reader, lsn, "a new query", CHOOSE_START)
        self._tell(reader, chain, lsn)
        self.told = chain.last_segment_end
        following = next(chain.walk(lsn), None)
        return (chain.position if following is None else reader.index(following).end).at(lsn)

    @property
    def _reads_history(self) -> bool:
        return self.options.table is not None

    def _history(self) -> tuple[LSN, LSN] | None:
        """Return the range of the history; ``None`` if there is none, or the query does not read it."""
        found = read_history(open_history(self.options.journal)) if self._reads_history else None
        return None if found is None else (found[0].start, found[0].end.lsn)

    def _earliest(self, chain: Chain) -> LSN:
        start, end = (self._history() if chain.start_lsn else None) or (ZERO, ZERO)
        if not start < chain.start_lsn <= end:
            return chain.start_lsn
        return ZERO if start <= chain.identity.start_lsn else start

    def readable(self, reader: JournalReader, lsn: LSN, holder: str, remedy: str) -> Chain:
        """Verify that the segments, or the history and the segments after it, have everything after ``lsn``.

        Parameters and errors as ``JournalReader.readable``.
        """
        chain = reader.chain()
        found = self._history() if lsn < chain.start_lsn else None
        if found is not None and reaches(*found, chain, lsn) and found[1] >= chain.start_lsn:
            return chain
        return reader.readable(lsn, holder, remedy)

    def compacted(self, chain: Chain, lsn: LSN) -> bool:
        """Whether ``lsn`` is in the history's range. There, a batch may end after any transaction."""
        found = self._history()
        return found is not None and reaches(*found, chain, LSN(lsn - 1))

    def _tell(self, reader: JournalReader, chain: Chain, lsn: LSN) -> None:
        table = self.options.table
        key = table
        if key is None or lsn >= chain.start_lsn:
            text = reader.incomplete(chain, lsn, key)
        elif lacking := chain.completeness.incomplete(lsn, key):
            text = f"the journal {reader.url} does not have all rows of {listed(lacking)}"
        else:
            return
        if text:
            _log.warning("%s", text)

    def latest(
        self, reader: JournalReader, chain: Chain, start: BlockPosition, max_bytes: int, until: LSN
    ) -> BlockPosition:
        """Return the position after about ``max_bytes``: by ``blocks.latest``, or in the history if segments were deleted."""
        table = self.options.table
        require_kept(reader, chain, start)
        if table is not None and start.lsn < chain.start_lsn:
            found = covering(self.options.journal, table, chain, start.lsn)
            if found is not None:
                return BlockPosition(
                    latest_compacted(found.files, start.lsn, max_bytes, min(found.end, until))
                )
        return latest(reader, chain, start, max_bytes, until)

    def partitions(
        self, reader: JournalReader, chain: Chain, start: BlockPosition, end: BlockPosition
    ) -> list[InputPartition]:
        """Divide the changes between two positions into partitions.

        :raises ConfigurationError: segments were deleted, and the history has a column that cannot be read as the wanted type.
        :raises JournalError: the journal is damaged.
        """
        options = self.options
        require_kept(reader, chain, start, end)
        partitions: list[InputPartition] = []
        described, newest = self._newest_of(reader)
        if options.table is not None and described is not None:
            typed, types = self.typed(reader), described.types
            found = from_history(
                options.journal,
                typed.table,
                chain,
                start,
                end,
                lambda file: FileColumns(typed, file, types).require_convertible(),
            )
            if found is not None:
                stop = min(found.end, end.lsn)
                parts = spans(found, start.lsn, stop, options.partition_bytes)
                partitions += (FilesPartition(part, types, newest) for part in parts)
                start = BlockPosition(stop)
        if start < end:
            if described is not None and start.lsn < chain.start_lsn:
                # The history covered ``start`` a moment ago, and no longer does. Segments begin later: rows would be missing.
                raise _gone(reader, chain, start)
            blocks = plan(reader, chain, options.table, options.partition_bytes, start, end)
            partitions += (BlocksPartition(part, newest) for part in blocks)
        return partitions

    def hidden(self, reader: JournalReader, before: frozenset[HiddenColumn]) -> frozenset[HiddenColumn]:
        """Return all columns that a stream has hidden so far.

        :param before: the columns that the stream's last offset contains.
        :raises ConfigurationError: one of these columns is visible under another name.
        """
        selected, (described, _) = self.options.selected, self._newest_of(reader)
        if selected is None or described is None:
            return before
        selected.require_hidden(described.relation, before)
        return before | selected.identities(described.relation)

    def typed(self, reader: JournalReader) -> Typed:
        assert isinstance(self._shape, Typed)
        return replace(self._shape, newest=self._newest_of(reader)[1])

    def last(self, reader: JournalReader, chain: Chain) -> LSN:
        """Return where a batch ends.

        :raises ConfigurationError: the journal does not reach the ending position.
        """
        end = self.options.end
        if end is not None and end > chain.end_lsn:
            raise ConfigurationError(
                f"option endingPosition is {end}, and the journal {reader.url} ends at {chain.end_lsn}: wait until it has "
                "more, or choose an earlier position"
            )
        return chain.last_segment_end if end is None else min(end, chain.last_segment_end)

    def _newest_of(self, reader: JournalReader) -> tuple[Described | None, Newest]:
        """Return the table's last description, and what it says of earlier rows. Looked up once: the schema is fixed."""
        if self._newest is None:
            table = self.options.table
            described = None if table is None else describe(reader, self.options.journal, table)
            selected = self.options.selected
            if selected is not None:
                if described is None:
                    raise ConfigurationError(
                        f"table {table} is not in the journal {reader.url}, so nothing tells whether drop and mask match its columns: start "
                        "the query again once the journal has a change of the table"
                    )
                selected.hidden(described.relation)
            newest = Newest()
            if described is not None:
                if self._inferred is None:
                    self._require_same(described.relation)
                newest = Newest.of(
                    described.relation, described.registry, self.columns, selected, null=self.options.null
                )
            self._newest = described, newest
        return self._newest

    def _require_same(self, relation: Relation) -> None:
        """Check that columns still have the attribute numbers that the metadata of the user's schema has, if any.

        :raises ConfigurationError: a column was dropped or renamed, and another column has its name now.
        """
        for name, found in relation.attributes.items():
            number = self._numbers.get(name)
            if number is not None and number != str(found.number):
                raise ConfigurationError(
                    f"column {name!r} of {relation} is another column now than when the DataFrame, or the schema in .schema(...), was made: make it again"
                )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition on an executor, perhaps more than once."""
        spare_modules()
        shape, journal = self._shape, self.options.journal
        # Spark passes a plain InputPartition if there are no partitions.
        if isinstance(partition, BlocksPartition):
            if isinstance(shape, Typed):
                shape = replace(shape, newest=partition.newest)
            yield from shape.batches(JournalReader(journal), partition.spans)
        elif isinstance(partition, FilesPartition):
            assert isinstance(shape, Typed)
            typed = replace(shape, newest=partition.newest)
            yield from Compacted(journal, typed, partition.types).batches(partition.spans)

    def __getstate__(self) -> dict[str, object]:
        # Executors get the description in their partition.
        return self.__dict__ | {"_newest": None}


def require_kept(
    reader: JournalReader, chain: Chain, start: BlockPosition, end: BlockPosition | None = None
) -> None:
    """Check that positions within a segment can still be read. The history has no blocks, so the segment must still exist.

    :param end: the end of a planned batch.
    :raises JournalError: a segment was deleted.
    """
    if _within_deleted(chain, start):
        raise _gone(reader, chain, start)
    if end is not None and _within_deleted(chain, end):
        raise JournalError(
            f"{_place(reader, chain, end)}, where the planned batch ends. Delete the newest file in the folder offsets of the query's checkpoint, unless "
            "the folder commits has a file of the same name, and start the query again, which plans the batch again"
        )


def _within_deleted(chain: Chain, place: BlockPosition) -> bool:
    return bool(place.part or place.block) and place.lsn < chain.start_lsn


def _gone(reader: JournalReader, chain: Chain, place: BlockPosition) -> JournalError:
    return JournalError(
        f"{_place(reader, chain, place)}, where the query stopped, and the history cannot be read from there. Start over with an empty target "
        "and a new checkpoint; a query with a consumer keeps the segments that it needs"
    )


def _place(reader: JournalReader, chain: Chain, place: BlockPosition) -> str:
    return (
        f"the journal {reader.url} has no segments before {chain.start_lsn} any more, and so lacks part {place.part}, block {place.block} "
        f"after {place.lsn}"
    )


def log_gaps(chain: Chain, after: LSN, until: LSN) -> None:
    """Warn of the accepted gaps that a query crosses."""
    for gap in chain.gaps_between(after, until):
        _log.warning("the journal has an accepted gap between %s and %s", gap.after, gap.until)


def log_appeared(chain: Chain, after: LSN, until: LSN, table: TableName | None) -> None:
    """Warn of tables that came into the journal without a snapshot between two positions."""
    came = [
        each
        for each in chain.completeness.appeared_between(after, until)
        if table is None or table == (each.schema, each.table)
    ]
    if came:
        _log.warning("the journal does not have all rows of %s", listed(came))
