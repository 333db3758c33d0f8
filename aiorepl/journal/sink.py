"""The journal as a sink. In a pipeline with a journal, it is the only sink that the slot waits for.

The blocking work is in ``writer``, which runs in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator

from anyio import to_thread

from aiorepl.durable import storage_error, transient
from aiorepl.errors import JournalError, TransientError
from aiorepl.journal.times import Proofs
from aiorepl.journal.writer import JournalWriter
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.sink import Batch, Sink, SinkContext
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store


class JournalSink(Sink):
    """Appends slices to a journal, durable at every flush, and notifies the readers of this process.

    It needs every change: a transaction with changes filtered out is rejected. Empty slices advance its position, so that it
    keeps up with what the slot confirms.

    :param url: a path or URL, or an ``ObjectStore``; created at the first start.
    :param segment_bytes: a segment is closed at the first transaction end past this size, and at every flush.
    :param block_bytes: a block is closed past this size. A reader has one block in memory at a time.
    """

    supports_prepared = True

    def __init__(
        self,
        url: Location | Store,
        *,
        segment_bytes: int = 64 * 1024 * 1024,
        block_bytes: int = 1024 * 1024,
        store: Store | None = None,
    ) -> None:
        self._store = open_store(url) if store is None else store
        self.proofs = Proofs()
        """The commit times that heartbeats prove. The segments and the position record them once the journal has reached them."""
        self._writer = JournalWriter(
            self._store, segment_bytes=segment_bytes, block_bytes=block_bytes, proofs=self.proofs
        )

    @property
    def url(self) -> str:
        """The journal's absolute path."""
        return self._store.url

    @property
    def end(self) -> LSN:
        """The end of the last segment, which is the limit for readers."""
        return self._writer.end

    async def skip(self, after: LSN, until: Position) -> None:
        """Record a gap from ``after`` to ``until``, and continue after it. Call it between ``open`` and ``write``."""
        with self._errors("record a gap"):
            await to_thread.run_sync(self._writer.skip, after, until)

    async def void_prepared(self) -> None:
        """Forget all prepared transactions: a new slot sends them when they commit. Call it between ``open`` and ``write``."""
        with self._errors("forget prepared transactions"):
            await to_thread.run_sync(self._writer.void_prepared)

    @property
    def open_snapshots(self) -> frozenset[int]:
        """The oids of the tables whose snapshots are not complete."""
        return self._writer.open_snapshots

    @property
    def readings(self) -> frozenset[str]:
        """The readings of tables that are complete in the journal."""
        return self._writer.readings

    async def abandon_snapshots(self, besides: Collection[int]) -> None:
        """Record which snapshots will not be completed, so that retention may delete their chunks, and readers are told.

        :param besides: the oids of the tables whose snapshots continue.
        """
        with self._errors("abandon a snapshot"):
            await to_thread.run_sync(self._writer.abandon_snapshots, besides)

    async def open(self, context: SinkContext) -> Position | None:
        """Lock and verify the journal.

        :returns: the journal's end; ``None`` if the journal is empty.
        :raises JournalError: the journal is damaged, or another process writes it.
        :raises SlotError: the journal belongs to another source.
        """
        with self._errors("open"):
            return await to_thread.run_sync(self._writer.open, context.position)

    async def write(self, batch: Batch) -> None:
        """Append the batch, and close the segment if it has become large."""
        with self._errors("write"):
            await to_thread.run_sync(self._writer.write, batch.slices)

    async def flush(self) -> None:
        """Close the segment, which makes every whole transaction durable and visible to readers."""
        with self._errors("flush"):
            await to_thread.run_sync(self._writer.flush)

    async def close(self) -> None:
        """Release the journal, and discard the changes that were not flushed; the server sends them again."""
        # Release the lock even if the call is cancelled before the thread begins.
        with self._errors("close"):
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._writer.close))

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(error, f"journal {self.url}: cannot {doing}") from error
        except JournalError as error:
            if transient(error):  # a failed read that may succeed later
                raise TransientError(f"journal {self.url}: cannot {doing}: {error}") from error
            raise
