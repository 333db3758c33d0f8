"""The interface through which readers of tables update the chunk ledger, and retries for its
writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from aiorepl.errors import TransientError
from aiorepl.loggers import logger
from aiorepl.snapshot.ledger.ledger import ChunkLedger

_log = logger("aiorepl.snapshot")

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0

T = TypeVar("T")


class LedgerStore(Protocol):
    """``LedgerFile``, or ``MemoryLedger``."""

    ledger: ChunkLedger | None

    async def update(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger:
        """Change the ledger, durably."""
        ...

    async def defer(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger:
        """Change the ledger. A restart may find it as it was before the change."""
        ...


class MemoryLedger:
    """A chunk ledger that a restart forgets."""

    def __init__(self, ledger: ChunkLedger) -> None:
        self.ledger: ChunkLedger | None = ledger

    async def update(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger:
        """Change the ledger."""
        assert self.ledger is not None
        self.ledger = change(self.ledger)
        return self.ledger

    async def defer(self, change: Callable[[ChunkLedger], ChunkLedger]) -> ChunkLedger:
        """Change the ledger."""
        return await self.update(change)


async def persisted(write: Callable[[], Awaitable[T]]) -> T:
    """Write the ledger, and try again while the disk is full or does not answer.

    :raises PermanentError: the ledger cannot be written.
    """
    pause = _FIRST_PAUSE
    while True:
        try:
            return await write()
        except TransientError as error:
            _log.warning("the chunk ledger cannot be written, retrying: %s", error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
