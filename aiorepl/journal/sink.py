"""The journal as a sink: the one that the slot waits for when a pipeline has a journal.

Only hands over: ``writer`` works in threads, a batch at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

from anyio import to_thread

from aiorepl.durable import storage_error
from aiorepl.journal.store import Store, open_store
from aiorepl.journal.writer import JournalWriter
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.sink import Batch, Sink, SinkContext


class JournalSink(Sink):
    """Keeps everything it is given, durable at every flush, and tells ``follow`` of this process when it grows.

    It must be given everything: a transaction of which changes were filtered out is refused. Marks (slices that are
    empty) move its position, so that it stays up with what the slot is told.

    :param url: the folder, as a path or ``file://`` URL; made at the first start.
    :param segment_bytes: a segment is closed at the first transaction end past this size, and at every flush.
    :param block_bytes: a block, the unit that a reader holds in memory, is closed past this size.
    """

    supports_prepared = True

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        segment_bytes: int = 64 * 1024 * 1024,
        block_bytes: int = 1024 * 1024,
        store: Store | None = None,
    ) -> None:
        self._store = open_store(url) if store is None else store
        self._writer = JournalWriter(self._store, segment_bytes=segment_bytes, block_bytes=block_bytes)

    @property
    def url(self) -> str:
        """Where the journal is."""
        return self._store.url

    @property
    def end(self) -> LSN:
        """The end of the last segment: as far as anybody can read."""
        return self._writer.end

    async def skip(self, after: LSN, until: Position) -> None:
        """Note that what committed behind ``after`` and up to ``until`` is missing, and go on from there. Between
        ``open`` and ``write``.
        """
        with self._errors("note a gap"):
            await to_thread.run_sync(self._writer.skip, after, until)

    async def void_prepared(self) -> None:
        """Forget all prepared transactions, because a new slot sends them again when they commit. Call it between
        ``open`` and ``write``.
        """
        with self._errors("forget prepared transactions"):
            await to_thread.run_sync(self._writer.void_prepared)

    async def open(self, context: SinkContext) -> Position | None:
        """Take the journal over.

        :returns: how far it goes; ``None`` when nothing is in it yet.
        :raises JournalError: when it is damaged, or another process writes it.
        :raises SlotError: when it is the journal of another source.
        """
        with self._errors("open"):
            return await to_thread.run_sync(self._writer.open, context.position)

    async def write(self, batch: Batch) -> None:
        """Append the batch; the segment may be closed with it."""
        with self._errors("write"):
            await to_thread.run_sync(self._writer.write, batch.slices)

    async def flush(self) -> None:
        """Close the segment: every whole transaction is durable, and readers see it."""
        with self._errors("flush"):
            await to_thread.run_sync(self._writer.flush)

    async def close(self) -> None:
        """Release the journal. What was not flushed is thrown away: it comes again."""
        # Releases the lock even if this is cancelled before the thread begins.
        with self._errors("close"):
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._writer.close))

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(error, f"journal {self.url}: cannot {doing}") from error
