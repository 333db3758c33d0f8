"""The demo on Spark: a local session, and a streaming query that keeps a Delta mirror of each table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiorepl.cli.demo.compare import Rows, mirror_rows
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN


class Mirror:
    """Delta mirrors of the shop's tables.

    Calls block: make them in threads, one at a time; ``position`` may run beside another call.

    :param journal: the pipeline's journal.
    :param folder: the folder of the Delta tables.
    """

    def __init__(self, journal: Path, folder: Path) -> None:
        self._journal = journal
        self._folder = folder
        self._spark: Any = None
        self._query: Any = None

    def start_spark(self) -> None:
        """Start the Spark session; takes several seconds."""
        from aiorepl.spark import local_session

        self._spark = local_session()

    def start_query(self) -> None:
        """Start mirroring every table from the beginning of the journal, which must contain the initial snapshot."""
        from aiorepl.spark import mirror

        self._query = mirror(self._spark, str(self._journal), ["public.*"], str(self._folder))

    def position(self) -> LSN | None:
        """Return the LSN up to which the tables have every transaction; ``None`` before the first batch."""
        from aiorepl.spark.mirroring.mirrored import MirroredTables

        if self._query is None:
            return None
        try:
            return MirroredTables(str(self._folder)).lsn
        except ConfigurationError:  # nothing is mirrored yet
            return None

    def finish(self) -> None:
        """Process the rest of the journal, then stop the query."""
        self._query.processAllAvailable()
        self._query.stop()

    def read(self, table: str) -> Rows:
        """Return the rows of a table's mirror."""
        from deltalake import DeltaTable

        path = self._folder / "public" / table
        return mirror_rows(DeltaTable(str(path)).to_pyarrow_table().to_pylist())

    def stop(self) -> None:
        """Stop the session and its JVM."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
