"""The state of reading one table while the stream runs, for ``window_reader`` and ``at_one_point``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiorepl.errors import ConnectionLost
from aiorepl.lsn import LSN
from aiorepl.snapshot.chunks import TablePlan
from aiorepl.snapshot.incremental.fresh_chunks import FreshChunks
from aiorepl.snapshot.incremental.stream_source import SnapshotSource
from aiorepl.snapshot.ledger.ledger import TableChange, TableProgress
from aiorepl.snapshot.merging.merge import Arrival
from aiorepl.snapshot.merging.watermarks import Watermark, emit_watermark
from aiorepl.snapshot.tables import PublishedTable
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import SnapshotChunk

Record = Callable[[TableChange], Awaitable[bool]]
"""Makes a change once, without a retry. Returns whether it succeeded."""


class TableReading:
    """One table: its source and connections, its progress in the ledger, and its watermarks.

    :param control: an asyncpg connection without a snapshot.
    :param progress: the ledger's entry of the table.
    :param update: changes the progress in the ledger, and retries until that succeeds.
    :param record: tries once to change the progress, because the stream waits for the change.
    :param ends_snapshot: whether no other table is left to be read; called when this table is complete.
    :param identity: identifies this reading of the table.
    """

    def __init__(
        self,
        source: SnapshotSource,
        control: Any,
        chunks: FreshChunks,
        progress: TableProgress,
        update: Callable[[TableChange], Awaitable[TableProgress]],
        record: Record,
        ends_snapshot: Callable[[], bool],
        identity: str,
    ) -> None:
        self.source = source
        self.control = control
        self.chunks = chunks
        self.progress = progress
        self._update = update
        self._record = record
        self._ends_snapshot = ends_snapshot
        self._identity = identity

    @property
    def plan(self) -> TablePlan:
        """The plan of the table. Valid only once the table is planned."""
        assert self.progress.plan is not None
        return self.progress.plan

    async def update(self, change: TableChange) -> None:
        """Change the progress.

        :raises PermanentError: the ledger cannot be written.
        """
        self.progress = await self._update(change)

    async def record(self, change: TableChange) -> bool:
        """Try once to change the progress. Return whether that succeeded."""
        recorded = await self._record(change)
        if recorded:
            self.progress = change(self.progress)
        return recorded

    def header(self, table: PublishedTable, lsn: LSN, number: int, *, last: bool) -> SnapshotChunk:
        """Describe a chunk, for the header of its transaction.

        :param lsn: the low watermark of the window, or the point at which the table was read.
        :param last: whether this chunk completes the table.
        """
        return SnapshotChunk(
            lsn,
            table.oid,
            table.schema,
            table.name,
            number,
            last_of_table=last,
            last=last and self._ends_snapshot(),
            partial=self.progress.where is not None,
            reading=self._identity,
        )

    async def mark(self, arrive: Arrival) -> asyncio.Future[LSN]:
        """Write a watermark.

        :param arrive: called when the watermark comes through the stream; returns the slices to insert there.
        :returns: a future with the LSN where the watermark ends, or with the error that ``arrive`` raised.
        """
        arrived: asyncio.Future[LSN] = asyncio.get_running_loop().create_future()

        def take(end: LSN) -> Sequence[Slice]:
            if arrived.done():
                return ()
            try:
                slices = arrive(end)
            except Exception as error:  # noqa: BLE001 - raised by the reader, and not by the stream
                arrived.set_exception(error)
                return ()
            arrived.set_result(end)
            return slices

        def lost() -> None:
            if not arrived.done():
                arrived.set_exception(
                    ConnectionLost(
                        "the stream does not contain a watermark that was written: check that the DSN leads to the server of the slot"
                    )
                )

        watermark = Watermark(self.source.slot)
        written = self.source.merge.expect(watermark, take, lost)
        written(await emit_watermark(self.control, watermark))
        return arrived


def delivered(part: int, commit_lsn: LSN, *, complete: bool) -> TableChange:
    """Return how the ledger changes when a chunk is delivered.

    :param part: the chunk's number in the plan.
    :param complete: for the last chunk: whether no row is owed after it.
    """

    def change(table: TableProgress) -> TableProgress:
        assert table.plan is not None
        last = part == len(table.plan.ranges)
        if complete or not last:
            return table.with_chunk(part, commit_lsn)
        # A sweep is done once the owed rows are delivered.
        return table if table.plan.swept else table.with_chunk(part, commit_lsn).with_sweep()

    return change
