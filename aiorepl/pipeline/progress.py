"""Records the progress of a sink: in the ledger, which confirms the slot, or in a cursor of the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiorepl.durable import storage_error, transient
from aiorepl.errors import JournalError, SlotError, TransientError
from aiorepl.journal.cursors import Cursors
from aiorepl.lsn import LSN
from aiorepl.pipeline.initial_snapshot import InitialPhase
from aiorepl.position import Position
from aiorepl.retry import RetryPolicy
from aiorepl.source.continuity import GAP_ADVICE
from aiorepl.source.ledger import Ledger

_T = TypeVar("_T")


class LedgerProgress:
    """The progress of a sink for which the slot waits."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._name = name

    async def accepted(self, end_lsn: LSN) -> None:
        """Record the position as accepted in the ledger."""
        self._ledger.accept(self._name, end_lsn)

    async def durable(self, end_lsn: LSN) -> None:
        """Record the position as durable in the ledger, which may confirm the slot up to it."""
        self._ledger.durable(self._name, end_lsn)

    async def rewound(self, lsn: LSN) -> None:
        """Reset the sink's positions in the ledger.

        :raises SlotError: the slot is confirmed past ``lsn``.
        """
        if not self._ledger.reset(self._name, lsn):
            raise SlotError(
                f"sink {self._name} had everything up to {self._ledger.flushed}, and now only up to {lsn}: its target has "
                f"lost changes that the slot cannot deliver again, because it is confirmed past them; {GAP_ADVICE}"
            )


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


class CursorProgress:
    """The progress of a sink that reads the journal: only its own next start depends on it.

    :param start: a position of the journal's source.
    """

    def __init__(self, cursors: Cursors, name: str, start: Position, retry: RetryPolicy) -> None:
        self._cursors = cursors
        self._name = name
        self._start = start
        self._retry = retry

    async def accepted(self, end_lsn: LSN) -> None:
        """Do nothing: a cursor has only the durable position."""

    async def durable(self, end_lsn: LSN) -> None:
        """Move the cursor forward.

        :raises SinkError: the journal's folder cannot be written, and retries are spent or pointless.
        """
        async for attempt in self._retry.sink(f"sink {self._name}: moving its cursor"):
            with attempt:
                await asyncio.to_thread(self._move, self._cursors.advance, self._start.at(end_lsn))

    async def rewound(self, lsn: LSN) -> None:
        """Move the cursor back, so that the journal keeps everything after ``lsn`` for the sink.

        :raises SinkError: as for ``durable``.
        """
        async for attempt in self._retry.sink(f"sink {self._name}: moving its cursor back"):
            with attempt:
                await asyncio.to_thread(self._move, self._cursors.reset, self._start.at(lsn))

    def _move(self, move: Callable[[str, Position], object], position: Position) -> None:
        try:
            move(self._name, position)
        except OSError as error:
            raise storage_error(error, f"cursor {self._name!r} of journal {self._cursors.url}") from error
        except JournalError as error:
            if transient(error):
                raise TransientError(str(error)) from error
            raise


async def read_with_retries(retry: RetryPolicy, call: str, read: Callable[[], _T]) -> _T:
    """Read from the journal in a thread; retry while its folder or its store is unavailable.

    :param call: the name of the reader, for the log.
    :raises JournalError: the journal is damaged, or retries are pointless.
    :raises TransientError: the last retry failed, too.
    """
    async for attempt in retry.sink(call):
        with attempt:
            try:
                return await asyncio.to_thread(read)
            except JournalError as error:
                if transient(error):
                    raise TransientError(str(error)) from error
                raise
    raise AssertionError("the last attempt returns or raises")
