"""The demo on Spark: a local session, and a streaming query per table that keeps a Delta mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiorepl.cli.demo.compare import Rows, mirror_rows
from aiorepl.cli.demo.shop import TABLES


class Mirror:
    """Delta mirrors of the shop's tables.

    Calls block: make them in threads, one at a time; ``rows`` may run beside another call.

    :param journal: the pipeline's journal.
    :param folder: the folder of the Delta tables.
    """

    def __init__(self, journal: Path, folder: Path) -> None:
        self._journal = journal
        self._folder = folder
        self._spark: Any = None
        self._queries: dict[str, Any] = {}
        self._counted: dict[tuple[str, int], int] = {}

    def start_spark(self) -> None:
        """Start the Spark session; takes several seconds."""
        from aiorepl.spark import local_session

        self._spark = local_session()

    def start_queries(self) -> None:
        """Start mirroring every table from the beginning of the journal, which must contain the initial snapshot."""
        from aiorepl.spark import apply_changes

        for table in TABLES:
            changes = (
                self._spark.readStream.format("aiorepl")
                .option("journal", str(self._journal))
                .option("table", f"public.{table}")
                .load()
            )
            self._queries[table] = apply_changes(changes, target=str(self._folder / table), keys=["id"])

    def rows(self) -> int:
        """Return how many changes the queries have read so far."""
        for table, query in list(self._queries.items()):
            # Spark keeps the last hundred batches.
            for progress in query.recentProgress:
                self._counted[table, progress["batchId"]] = int(progress["numInputRows"])
        return sum(self._counted.values())

    def finish(self) -> None:
        """Process the rest of the journal, then stop the queries."""
        for query in self._queries.values():
            query.processAllAvailable()
            query.stop()

    def read(self, table: str) -> Rows:
        """Return the rows of a table's mirror."""
        from deltalake import DeltaTable

        return mirror_rows(DeltaTable(str(self._folder / table)).to_pyarrow_table().to_pylist())

    def stop(self) -> None:
        """Stop the session and its JVM."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
