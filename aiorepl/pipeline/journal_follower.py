"""How a sink reads the journal: the reader that fills its buffer, and the cursor that keeps its progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from aiorepl.delivery.buffer import SliceBuffer
from aiorepl.durable import storage_error, transient
from aiorepl.errors import JournalError
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.retry import RetryPolicy, Rewinds
from aiorepl.source.catalog.lookups import TableLookups
from aiorepl.source.continuity import Claim, Continuity

_log = logging.getLogger("aiorepl.sink")

# The writer of this process rings when the journal has grown, and no other process can write it.
_LOOK_AGAIN_SECONDS = 30.0


class JournalFollower:
    """Reads the journal into a sink's buffer until its end is announced.

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
        self._rereads = Rewinds(retry)
        self._reader = reader
        self._tables = tables
        self._continuity = continuity
        self._refuted = refuted
        self._reached = after
        self._end: LSN | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def run(self) -> None:
        """Until ``end_at``'s position is in the buffer."""
        self._task = asyncio.current_task()
        if self._done():
            return None
        try:
            while True:
                try:
                    return await self._read()
                except JournalError as error:
                    pause = self._rereads.pause(self._reached) if _may_pass(error) else None
                    if pause is None:
                        raise
                    _log.warning(
                        "sink %s reads the journal again from %s: %s", self._name, self._reached, error
                    )
                    await asyncio.sleep(pause)
        except asyncio.CancelledError:
            if not self._stopped:
                raise

    async def _read(self) -> None:
        # The sink's worker drops the repeated slices of an unfinished transaction.
        async with aclosing(self._reader.follow(self._reached, poll=_LOOK_AGAIN_SECONDS)) as parts:
            async for part in parts:
                if self._continuity.open:
                    for claim in self._continuity.take(part):
                        await self._refuted(claim, self._continuity.begins)
                if self._tables is not None:
                    await self._tables.ensure(part)
                self.buffer.extend((part,))
                if part.end_lsn is not None:
                    self._reached = part.end_lsn
                    if self._done():
                        return
                await self.buffer.room()

    def end_at(self, end: LSN) -> None:
        """The journal will not grow past ``end``."""
        self._end = end
        if self._done() and self._task is not None:
            # It waits for more, or for room that nothing depends on any longer.
            self._stopped = True
            self._task.cancel()

    async def go_back(self, lsn: LSN) -> None:
        """Have the next ``run`` begin behind ``lsn``."""
        self._reached = lsn
        self._stopped = False
        self._task = None

    def _done(self) -> bool:
        return self._end is not None and self._reached >= self._end


def _may_pass(error: JournalError) -> bool:
    """Whether the failure was transient, such as a lack of file descriptors."""
    return isinstance(error.__cause__, OSError) and transient(error.__cause__)


class CursorProgress:
    """The progress of a sink that reads the journal: nothing waits for it but its own next start."""

    def __init__(self, cursors: Cursors, name: str, at: Position, retry: RetryPolicy) -> None:
        self._cursors = cursors
        self._name = name
        self._at = at
        self._retry = retry

    async def accepted(self, end_lsn: LSN) -> None:
        """Nobody asks."""

    async def rewound(self, lsn: LSN) -> None:
        """The sink holds less than its cursor says, as one does that was restored: keep what lies behind ``lsn``."""
        async for attempt in self._retry.sink(f"sink {self._name}: moving its cursor back"):
            with attempt:
                await asyncio.to_thread(self._moved, self._cursors.begin, self._at.at(lsn))

    async def durable(self, end_lsn: LSN) -> None:
        """Keep the position.

        :raises SinkError: the journal's folder cannot be written, and retries are spent or pointless.
        """
        async for attempt in self._retry.sink(f"sink {self._name}: moving its cursor"):
            with attempt:
                await asyncio.to_thread(self._moved, self._cursors.advance, self._at.at(end_lsn))

    def _moved(self, move: Callable[[str, Position], object], position: Position) -> None:
        try:
            move(self._name, position)
        except OSError as error:
            raise storage_error(error, f"cursor {self._name!r} of journal {self._cursors.url}") from error
