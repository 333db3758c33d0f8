"""Maintains a journal while its pipeline runs: deletes and compacts segments, and records abandoned snapshots."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from aiorepl.cancellation import run_beside
from aiorepl.errors import AioreplError
from aiorepl.journal.retention import Retention, keep_pruned
from aiorepl.journal.sink import JournalSink
from aiorepl.pipeline.options import PipelineOptions
from aiorepl.position import Position
from aiorepl.storage.store import Store

_WATCH_SECONDS: Final = 5.0


class JournalUpkeep:
    """Maintains the journal of one pipeline.

    :param pending: returns the oids of the tables whose snapshots continue.
    :ivar pruning: held while segments are deleted. The caller holds it while it creates a cursor.
    :ivar all_opened: the caller sets it once every sink has returned its position or failed, so that no cursor moves back.
    """

    def __init__(
        self, options: PipelineOptions, store: Store, sink: JournalSink, pending: Callable[[], frozenset[int]]
    ) -> None:
        self.pruning = asyncio.Lock()
        self.all_opened = asyncio.Event()
        self._store = store
        self._sink = sink
        self._pending = pending
        self._compact = options.compact
        kept = options.retention
        self._retention = Retention.parse(kept) if isinstance(kept, str) else kept

    async def start(self, begin: Position, cleanup: contextlib.AsyncExitStack) -> None:
        """Start the tasks; ``cleanup`` ends them.

        :param begin: the journal's source.
        """
        if self._compact:
            # Imported here, because it imports pyarrow.
            from aiorepl.history.beside import compact_beside, keep_uncompacted

            await asyncio.to_thread(keep_uncompacted, self._store, begin)
            run_beside(cleanup, compact_beside(self._store), "compaction")
        if self._retention is not None:
            run_beside(cleanup, self._keep_pruned(self._retention), "retention")
        run_beside(cleanup, self._watch_snapshots(), "abandoned snapshots")

    async def _keep_pruned(self, retention: Retention) -> None:
        # A sink that was restored from a backup needs segments from before its cursor.
        await self.all_opened.wait()
        await keep_pruned(self._store, retention, self.pruning)

    async def _watch_snapshots(self) -> None:
        while True:
            with contextlib.suppress(AioreplError):  # the next round tries again
                await self.abandon_snapshots()
            await asyncio.sleep(_WATCH_SECONDS)

    async def abandon_snapshots(self) -> None:
        """Record the snapshots that were cancelled or cannot continue, so that their chunks need not be kept.

        :raises AioreplError: the journal cannot be written.
        """
        pending = self._pending()
        if self._sink.open_snapshots - pending:
            await self._sink.abandon_snapshots(besides=pending)
