"""Plans the micro-batches of one run of a query, in a separate Python process on the driver. Executors read them.

Spark's ``commit`` only advances the consumer's cursor. Spark calls it one batch late, and never for the last batch. The
replication slot does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from aiorepl.durable import reason, transient
from aiorepl.errors import AioreplError, ConfigurationError, JournalError, SchemaChanged
from aiorepl.journal.chain import Chain
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.loggers import logger
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.spark.reading.artifacts import InArtifact
from aiorepl.spark.reading.described import Inferred, SchemaWatch
from aiorepl.spark.reading.metrics import lag
from aiorepl.spark.reading.offsets import Offset
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.spark.reading.planner import Planner, log_appeared, log_gaps

_log = logger("aiorepl.spark")

_CHECKPOINT: Final = "the query's checkpoint"
_START_OVER: Final = "Start over with an empty target and a new checkpoint"


class StreamReader(InArtifact, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans one run of a query.

    :param inferred: as in ``Planner``.
    :raises ConfigurationError: an option is not for a stream, or the schema cannot be read.
    """

    def __init__(self, options: ReadOptions, schema: StructType, inferred: Inferred | None = None) -> None:
        if options.end is not None:
            raise ConfigurationError("option endingPosition is for batches: a stream has no end")
        self._options = options
        # Spark does not tell the query's name.
        self._label = f"stream of {options.table or 'all tables'}"
        self._planner = Planner(options, schema, inferred)
        self._journal = JournalReader(options.journal)
        self._until: Position | None = None
        self._initial: Offset | None = None
        self._registered = False
        self._reached: LSN | None = None
        self._first_lsn = ZERO
        self._watch: SchemaWatch | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_watch": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset where a new query starts.

        :raises JournalError: the journal does not continue from there.
        """
        # Spark asks twice for the first batch, and must get the same answer although the journal's end moves.
        if self._initial is None:
            start = self._planner.start(self._journal)
            self._initial = self._hiding(Offset.initial(start, self._planner.digest))
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        limit = self._options.max_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the last segment within the limit, or a block within the first segment.

        :raises ConfigurationError: another consumer owns the cursor.
        :raises SchemaChanged: the table's columns change at ``start``.
        :raises SlotError: the query's checkpoint has a position of another source than the journal's.
        :raises JournalError: the journal is damaged, or does not continue from ``start``.
        """
        first = self._hiding(self._offset(start))
        self._require_columns(first)
        before = first.place
        if self._initial is None and not self._registered:
            self._register(first)
        chain = self._readable(before.lsn)
        end = chain.end if self._until is None else self._until
        if isinstance(limit, ReadMaxBytes):
            reached = self._planner.latest(self._journal, chain, before, limit.max_bytes, end.lsn)
        else:
            reached = BlockPosition(end.lsn) if end.lsn > before.lsn else before
        self._reached = reached.lsn
        if reached == before:
            return start
        reached = self._before_change(chain, before, reached)
        position = first.position if reached.lsn == before.lsn else self._position_at(chain, reached.lsn)
        return first.at(position, self._planner.digest, reached.part, reached.block).to_json()

    def _before_change(self, chain: Chain, start: BlockPosition, end: BlockPosition) -> BlockPosition:
        """Return ``end``, or the position of an earlier block at which the table's columns change."""
        if self._watch is None:
            self._watch = self._planner.watch(self._journal)
        if self._watch is None:
            return end
        changed = self._watch.first_change(self._journal, chain, start, end)
        if changed is None:
            return end
        if changed[0] <= start:
            raise self._watch.ended(*changed, evolve=self._options.evolve)
        return changed[0]

    def _position_at(self, chain: Chain, lsn: LSN) -> Position:
        # The journal knows the position of a segment's end. A batch that is read from the history may end elsewhere.
        if lsn > chain.start_lsn and chain.ends_at(lsn):
            return self._journal.position_at(chain, lsn)
        return chain.position.at(lsn)

    def _require_columns(self, offset: Offset) -> None:
        """Check that the columns are still those in the checkpoint, unless ``evolve`` is set."""
        own = self._planner.digest
        if self._options.evolve or None in (own, offset.columns) or own == offset.columns:
            return
        raise SchemaChanged(
            f"the columns of {self._options.table} are not those that {_CHECKPOINT} has: give the columns with .schema(...), or "
            "set the option onSchemaChange to evolve, and start the query again"
        )

    def _hiding(self, offset: Offset) -> Offset:
        """Return an offset that contains all columns that the query has hidden so far.

        :raises ConfigurationError: a column that the query has hidden is visible under another name.
        """
        if self._options.selected is None:
            return offset
        return replace(offset, hidden=self._planner.hidden(self._journal, offset.hidden))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the journal's present end."""
        self._until = self._journal.end()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the journal's end and the query's lag, for the progress report."""
        chain = self._journal.chain()
        reached = chain.last_segment_end if self._reached is None else self._reached
        return dict(chain.end.to_json()) | lag(chain, reached, time.time())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide the changes between two offsets into partitions.

        :raises ConfigurationError: another consumer owns the cursor.
        :raises SlotError: the query's checkpoint has a position of another source than the journal's.
        :raises JournalError: the journal is damaged, or does not have all of the changes.
        """
        last = self._hiding(self._offset(end))
        after, until = last.follows(self._offset(start)), last.place
        # Register the cursor now. Earlier, a restart might not get ``end``, and with it the same query id. Later, segments
        # could be pruned after the journal is verified.
        self._register(last.at(last.position.at(after.lsn), None))
        chain = self._readable(after.lsn)
        if not (
            until.lsn == after.lsn or chain.ends_at(until.lsn) or self._planner.compacted(chain, until.lsn)
        ):
            raise JournalError(
                f"{_CHECKPOINT} has a batch up to {until.lsn}, where no segment of the journal {self._journal.url} ends: it is "
                f"of another journal, or segments were put back from an older copy. {_START_OVER}"
            )
        log_gaps(chain, after.lsn, until.lsn)
        log_appeared(chain, max(after.lsn, self._planner.told), until.lsn, self._options.table)
        return self._planner.partitions(self._journal, chain, after, until)

    def commit(self, end: dict[str, Any]) -> None:
        """Advance the consumer's cursor: Spark has processed everything up to ``end``.

        A transient error only delays the cursor until the next commit, so that segments are kept longer.

        :raises ConfigurationError: another consumer owns the cursor.
        :raises JournalError: the cursor is damaged, or cannot be written for a permanent reason.
        """
        offset = self._offset(end)
        try:
            self._advance(offset)
        except JournalError as error:
            if not transient(error):
                raise
            _log.warning("consumer %s keeps its earlier cursor for now: %s", self._consumer(offset), error)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition on an executor, perhaps more than once."""
        return self._planner.read(partition)

    def _readable(self, lsn: LSN) -> Chain:
        return self._planner.readable(self._journal, lsn, _CHECKPOINT, _START_OVER)

    def _register(self, offset: Offset) -> None:
        if not self._registered:
            # Check first: the cursor of a refused query would keep the journal from being pruned.
            self._readable(offset.position.lsn)
        self._advance(offset)
        self._registered = True

    def _advance(self, offset: Offset) -> None:
        consumer = self._consumer(offset)
        if not consumer:
            return
        # A cursor cannot be before the first segment. The query reads older changes from the history.
        position = offset.position.at(max(offset.position.lsn, self._first_lsn))
        cursors = Cursors(self._options.journal, label=self._label)
        try:
            cursors.advance(consumer, position, query=offset.query)
        except OSError as error:
            raise JournalError(
                f"cannot write cursor {consumer!r} of the journal {cursors.url}: {reason(error)}"
            ) from error

    def _consumer(self, offset: Offset) -> str:
        if self._options.consumer is not None:
            return self._options.consumer
        return f"spark-{offset.query[:16]}"

    def _offset(self, fields: dict[str, Any]) -> Offset:
        try:
            offset = Offset.from_json(fields)
        except (AioreplError, TypeError, ValueError) as error:
            raise JournalError(
                f"{_CHECKPOINT} holds no offset of a journal: {error}. {_START_OVER}"
            ) from None
        chain = self._journal.chain()
        self._first_lsn = chain.start_lsn
        offset.position.require_same_source(chain.position, _CHECKPOINT)
        return offset
