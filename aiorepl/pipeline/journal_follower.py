"""Reads the journal into the buffer of one sink."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from aiorepl.delivery.buffer import SliceBuffer
from aiorepl.durable import transient
from aiorepl.errors import JournalError
from aiorepl.journal.reader import JournalReader
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.retry import Backoff, RetryPolicy
from aiorepl.source.catalog.table_lookups import TableLookups
from aiorepl.source.continuity import Claim, Continuity

_log = logger("aiorepl.sink")

# Only a fallback: the journal's writer is in this process, and notifies readers when the journal has grown.
_POLL_SECONDS = 30.0


class JournalFollower:
    """Reads the journal into a sink's buffer, until it reaches the end that ``end_at`` sets.

    :param after: the LSN after which to start.
    :param retry: the policy for transient file system errors.
    :param tables: look-ups of tables in the catalog; ``None`` if the sink needs none.
    :param continuity: the sink's claim on the journal's stream.
    :param refuted: called with a claim that the journal refutes, and where the comparison began. Unless it raises, the sink
        continues.
    """

    def __init__(
        self,
        name: str,
        reader: JournalReader,
        buffer: SliceBuffer,
        after: LSN,
        retry: RetryPolicy,
        tables: TableLookups | None,
        continuity: Continuity,
        refuted: Callable[[Claim, LSN], Awaitable[None]],
    ) -> None:
        self.buffer = buffer
        self._name = name
        self._backoff = Backoff(retry)
        self._reader = reader
        self._tables = tables
        self._continuity = continuity
        self._refuted = refuted
        # The end of the last whole transaction that was put into the buffer.
        self._reached = after
        self._end: LSN | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def run(self) -> None:
        """Read until everything up to the end is in the buffer.

        :raises JournalError: the journal cannot be read, and retries are spent or pointless.
        """
        self._task = asyncio.current_task()
        if self._is_done():
            return None
        try:
            while True:
                try:
                    return await self._read()
                except JournalError as error:
                    pause = self._backoff.pause(self._reached) if transient(error) else None
                    if pause is None:
                        raise
                    _log.warning(
                        "sink %s: reading the journal failed and is retried from %s: %s",
                        self._name,
                        self._reached,
                        error,
                    )
                    await asyncio.sleep(pause)
        except asyncio.CancelledError:
            if not self._stopped:
                raise

    async def _read(self) -> None:
        # The sink's worker drops the repeated slices of an unfinished transaction.
        async with aclosing(self._reader.follow(self._reached, poll=_POLL_SECONDS)) as parts:
            async for part in parts:
                if self._continuity.open:
                    for claim in self._continuity.take(part):
                        await self._refuted(claim, self._continuity.begins)
                if self._tables is not None:
                    await self._tables.settle((part,))
                self.buffer.extend((part,))
                end_lsn = part.end_lsn
                del part  # a large row must not stay in memory until the next slice arrives
                if end_lsn is not None:
                    self._reached = end_lsn
                    if self._is_done():
                        return
                await self.buffer.wait_for_room()

    def end_at(self, end: LSN) -> None:
        """Set the journal's end, after which nothing more is appended."""
        self._end = end
        if self._is_done() and self._task is not None:
            # The task waits for more slices, or for room that it no longer needs.
            self._stopped = True
            self._task.cancel()

    async def rewind(self, lsn: LSN) -> None:
        """Make the next ``run`` start after ``lsn``."""
        self._reached = lsn
        self._stopped = False
        self._task = None

    def _is_done(self) -> bool:
        return self._end is not None and self._reached >= self._end
