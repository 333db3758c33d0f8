"""Records, for a pipeline without a journal, which chunks of an initial snapshot are durable in its sinks."""

from __future__ import annotations

from aiorepl.lsn import LSN
from aiorepl.pipeline.initial_snapshot import InitialPhase
from aiorepl.pipeline.progress import LedgerProgress
from aiorepl.source.ledger import Ledger


class SnapshotProgress(LedgerProgress):
    """The progress of a sink without a journal, while an initial snapshot is delivered.

    :param record: whether a sink keeps no position, so that the chunk ledger has to record the durable
        position.
    """

    def __init__(self, ledger: Ledger, name: str, snapshot: InitialPhase, *, record: bool) -> None:
        super().__init__(ledger, name)
        self._snapshot = snapshot
        self._record = record

    async def durable(self, end_lsn: LSN) -> None:
        """Record the position as durable in the ledger, and in the chunk ledger if a sink keeps no position."""
        await super().durable(end_lsn)
        await self._snapshot.durable(self._ledger.flushed, record=self._record)
