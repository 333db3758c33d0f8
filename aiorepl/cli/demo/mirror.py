"""The demo's Spark lane: a local session, and a mirror of each table kept by a streaming query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiorepl.cli.demo.compare import Rows, mirror_rows
from aiorepl.cli.demo.shop import TABLES


class Mirror:
    """Blocking: call it in threads, one call at a time; ``rows`` also beside another.

    :param journal: the pipeline's journal.
    :param folder: where the Delta tables go, one a table.
    """

    def __init__(self, journal: Path, folder: Path) -> None:
        self._journal = journal
        self._folder = folder
        self._spark: Any = None
        self._queries: dict[str, Any] = {}
        self._taken: dict[tuple[str, int], int] = {}

    def start_spark(self) -> None:
        """Start the session: some seconds, most of them Java's."""
        from aiorepl.spark import local_session

        self._spark = local_session()

    def start_queries(self) -> None:
        """Mirror every table, from the beginning of the journal on. The initial load has to be in it."""
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
        """How many changes the queries have taken so far."""
        for table, query in list(self._queries.items()):
            # Spark remembers the last hundred batches.
            for progress in query.recentProgress:
                self._taken[table, progress["batchId"]] = int(progress["numInputRows"])
        return sum(self._taken.values())

    def finish(self) -> None:
        """Take what is in the journal and end the queries."""
        for query in self._queries.values():
            query.processAllAvailable()
            query.stop()

    def read(self, table: str) -> Rows:
        """The mirror of a table."""
        from deltalake import DeltaTable

        return mirror_rows(DeltaTable(str(self._folder / table)).to_pyarrow_table().to_pylist())

    def stop(self) -> None:
        """End the session, and Java with it."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
