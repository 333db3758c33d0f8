"""The Spark data source ``aiorepl``: a journal as a streaming or batch DataFrame. Runs on the driver.

    spark.readStream.format("aiorepl").option("journal", url).option("table", "public.orders").load()

    journal             the journal's folder, which every executor can read, or the URL of its object store; also as load(path)
    config.…            the object store's configuration, such as config.endpoint; without it, every executor's environment
    table               schema.table: the changes of that table in its columns; without it, the changes of all tables as text
    startingPosition    where a new query starts: earliest (the oldest changes that are kept), latest (the journal's end; not
                        for a batch), or after an LSN like 0/171B2A8. The default is the journal's beginning, and an error if
                        that was pruned. What is compacted counts as kept for the changes of a table
    endingPosition      where a batch ends: latest (the default), or after the transactions that ended up to an LSN
    onSchemaChange      a stream ends before the first block in which a column was added or renamed, or has another type.
                        evolve (the default): its restart continues with the new columns; fail: only if .schema(...) is given
    consumer            the name of the stream's cursor, so that segments that it has not read are not pruned; each query needs a
                        name of its own. The default is made from the query's id; the empty name registers none
    maxBytesPerTrigger  the size of a micro-batch, like 64MiB; it ends with a segment, or, if the first one is larger, within it,
                        perhaps within a transaction. It always has at least one block, of about 1 MB
    partitionBytes      how much one task reads at most, about; the default is 16MiB
    unrepresentable     error (the default) or null, for values that a column's type cannot hold, such as an infinite date
    keys                the columns that identify a row under replica identity FULL, separated by commas, and quoted as in SQL
                        if a name has a comma in it
    drop, mask, keep    columns that are left out, columns that are masked, and columns that are neither, as in a sink's selection.
                        drop and mask have exact names schema.table.column, separated by commas. They need the option table
    secret              file: and the path of a file on the driver that contains the key of the methods hash and format. The key
                        itself is refused, because Spark may show options
    encryptionKey       likewise, the key of the method encrypt

An offset is a position at the end of a segment, or at a block within one; in the history, it may be after any transaction. A
query with a checkpoint continues there and ignores startingPosition. Every read verifies the journal first: a missing segment, a
damaged file, or a checkpoint that the journal does not cover ends the query with an error that names it. Segments never change,
so a repeated read of two offsets returns the same.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from aiorepl.errors import ConfigurationError
from aiorepl.journal.reader import JournalReader
from aiorepl.spark.reading.artifacts import InArtifact
from aiorepl.spark.reading.batch_reader import BatchReader, FilteringReader
from aiorepl.spark.reading.described import Inferred, describe
from aiorepl.spark.reading.options import ReadOptions, with_options, without_options
from aiorepl.spark.reading.schema import GENERIC, described_schema
from aiorepl.spark.reading.stream_reader import StreamReader
from aiorepl.spark.session.programs import spare_modules

NAME: Final = "aiorepl"


class AioreplDataSource(InArtifact, DataSource):
    """``format("aiorepl")``; the module's docstring lists the options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._inferred: Inferred | None = None

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema for a query that gives none: the schema of the table's last description.

        :raises ConfigurationError: the table is not in the journal yet.
        """
        spare_modules()
        options = ReadOptions.parse(self.options)
        if options.table is None:
            return with_options(GENERIC, self.options)
        reader = JournalReader(options.journal)
        # Read the end first, so that a description that arrives in between counts as a change.
        end = reader.chain().last_segment_end
        described = describe(reader, options.journal, options.table)
        if described is None:
            raise ConfigurationError(
                f"table {options.table} is not in the journal {reader.url}, which has a table from its first change on: check "
                "the name and the publication, wait for a change, or give the columns with .schema(...)"
            )
        self._inferred = Inferred(described.columns, end)
        schema = described_schema(described.relation, described.kinds, options.selected)
        return with_options(schema, self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader for ``spark.read``."""
        schema, options = without_options(schema, self.options)
        return BatchReader(ReadOptions.parse(options), schema, self._inferred)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - pyspark's name
        """Make the reader for ``spark.readStream``."""
        schema, options = without_options(schema, self.options)
        return StreamReader(ReadOptions.parse(options), schema, self._inferred)


class FilteringDataSource(AioreplDataSource):
    """``AioreplDataSource`` for sessions with filter pushdown."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader for ``spark.read``."""
        schema, options = without_options(schema, self.options)
        return FilteringReader(ReadOptions.parse(options), schema, self._inferred)
