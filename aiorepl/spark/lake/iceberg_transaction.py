"""A transaction of pyiceberg that applies each staged update once.

pyiceberg's own applies all updates to a copy of the table's metadata, which lists every snapshot, each time its state is read. That
is sixty times for one batch, and takes a second of CPU with some hundred snapshots.
"""

from __future__ import annotations

from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate, update_table_metadata


class IncrementalTransaction(Transaction):
    """A ``Transaction`` that keeps its metadata until another update is staged."""

    _known: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

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
