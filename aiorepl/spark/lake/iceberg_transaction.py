"""A transaction of pyiceberg that applies each staged update once.

pyiceberg's own applies all updates to a copy of the table's metadata, which lists every snapshot, each time its state is read. That
is sixty times for one batch, and takes a second of CPU with some hundred snapshots.

After a conflict, pyiceberg's own appends its rows to the other process's version of the table, which may have the same batch.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, TableUpdate, update_table_metadata


class IncrementalTransaction(Transaction):
    """A ``Transaction`` that keeps its metadata until another update is staged, and fails if rows were committed meanwhile."""

    _known: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        present = table.current_snapshot()
        number = None if present is None else present.snapshot_id
        self._requirements += (AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=number),)  # type: ignore[call-arg]

    def _register_snapshot_producer(self, producer: Any) -> None:
        """Do nothing: pyiceberg retries only registered producers."""

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates = self._table.metadata, self._updates
        known = self._known
        if known is not None and known[0] is base and _begins_with(updates, known[1]):
            rest = updates[len(known[1]) :]
            metadata = update_table_metadata(known[2], rest) if rest else known[2]
        else:
            metadata = update_table_metadata(base, updates)
        self._known = base, updates, metadata
        return metadata


def _begins_with(updates: tuple[TableUpdate, ...], known: tuple[TableUpdate, ...]) -> bool:
    # A retry after a conflict replaces some of the updates.
    return len(updates) >= len(known) and all(
        one is other for one, other in zip(updates, known, strict=False)
    )
