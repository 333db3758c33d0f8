"""The reader of a batch query: reads the journal up to its end at planning. Planned on the driver, pickled to executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from aiorepl.errors import ConfigurationError
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.spark.reading.filters import Pushed, pushed
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.spark.reading.planner import CHOOSE_START, Planner, log_gaps
from aiorepl.spark.reading.schema_changes import Inferred
from aiorepl.spark.session.programs import spare_modules


class BatchReader(DataSourceReader):
    """Plans and reads a batch.

    :param inferred: as in ``Planner``.
    :raises ConfigurationError: an option is not for a batch, or the schema cannot be read.
    """

    def __init__(self, options: ReadOptions, schema: StructType, inferred: Inferred | None = None) -> None:
        self._planner = Planner(options, schema, inferred)
        self._pushed = Pushed()
        if options.start == "latest":
            raise ConfigurationError("option startingPosition cannot be latest for a batch, which ends there")

    def partitions(self) -> Sequence[InputPartition]:
        """Plan everything between the options' positions.

        :raises ConfigurationError: the journal does not reach the ending position.
        :raises SchemaChanged: the table's columns have changed since its schema was read.
        :raises JournalError: the journal is damaged, or does not continue from the start.
        """
        spare_modules()
        planner = self._planner
        reader = JournalReader(planner.options.journal)
        after = planner.start(reader).lsn
        chain = planner.readable(reader, after, "a new query", CHOOSE_START)
        last = planner.last(reader, chain)
        # The filters bound commit LSNs. A transaction ends after its commit LSN, so the bounds keep all wanted transactions.
        after, last = max(after, self._pushed.after), min(last, self._pushed.until)
        if last <= after:
            return []
        log_gaps(chain, after, last)
        start, stop = BlockPosition(after), BlockPosition(last)
        watch = planner.watch(reader)
        if watch is not None and (changed := watch.first_change(reader, chain, start, stop)):
            raise watch.outdated(*changed)
        return planner.partitions(reader, chain, start, stop)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition on an executor, perhaps more than once."""
        wanted = self._pushed.wanted
        for batch in self._planner.read(partition):
            chosen = batch if wanted is None else batch.filter(wanted)
            if chosen.num_rows:
                yield chosen


class FilteringReader(BatchReader):
    """A reader that applies filters on metadata columns itself.

    Spark refuses a reader with ``pushFilters`` unless ``spark.sql.python.filterPushdown.enabled`` is set; ``register`` sets it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - pyspark's name
        """Take filters. Return the filters that Spark still has to apply."""
        table = self._planner.options.table is not None
        self._pushed = pushed(filters, self._planner.columns, table=table)
        return self._pushed.rest
