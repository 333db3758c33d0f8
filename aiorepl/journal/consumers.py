"""Reports the segments that each cursor of a journal keeps from being deleted. Blocking."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from aiorepl.errors import AioreplError
from aiorepl.journal.chain import Chain
from aiorepl.journal.cursors import Cursor, Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.lsn import LSN
from aiorepl.sizes import format_size
from aiorepl.storage.store import Store

STALLED_SECONDS: Final = 86_400
"""A cursor that has not moved for so long, although segments wait for it, may have lost its reader."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A registered consumer.

    :param cursor: ``None`` if it cannot be read.
    :param problem: why the cursor cannot be read, or the journal does not continue from it.
    :param held: the bytes of the segments that the cursor has not passed.
    :param held_since: when the oldest of these segments was published, in seconds since 1970; ``None`` if there is none.
    """

    name: str
    cursor: Cursor | None
    problem: AioreplError | None
    held: int = 0
    held_since: int | None = None

    def stalled(self, now: float) -> bool:
        """Whether the cursor has not moved for a day, although there was something to read.

        :param now: in seconds since 1970.
        """
        if self.cursor is None or self.held_since is None:
            return False
        return now - max(self.cursor.moved, self.held_since) >= STALLED_SECONDS

    def remedy(self, url: str) -> str:
        """What to do about a stalled cursor.

        :param url: of the journal.
        """
        return (
            "start its consumer again; or, if it will not come back, drop the cursor (aiorepl journal drop "
            f"{url} {self.name!r})"
        )

    def warning(self, url: str, now: float) -> str | None:
        """Return the warning about a stalled cursor; ``None`` if the cursor moves. Parameters as in ``stalled`` and ``remedy``."""
        if self.cursor is None or not self.stalled(now):
            return None
        days = int(now - self.cursor.moved) // STALLED_SECONDS
        return (
            f"cursor {self.name!r}{f' ({self.cursor.label})' if self.cursor.label else ''} of the journal {url} keeps {format_size(self.held)}, and has not moved for {days} d (last by "
            f"{self.cursor.reader}): {self.remedy(url)}"
        )


def consumers(chain: Chain, cursors: Cursors) -> list[Consumer]:
    """List the registered consumers of a journal.

    :raises JournalError: the journal is damaged, or cannot be read.
    """
    found = (consumer(chain, cursors, name) for name in cursors.names())
    return [each for each in found if each is not None]


def consumer(chain: Chain, cursors: Cursors, name: str) -> Consumer | None:
    """Look at one consumer; ``None`` if it is not registered.

    :raises JournalError: the journal is damaged, or cannot be read.
    """
    cursor: Cursor | None = None
    problem: AioreplError | None = None
    try:
        cursor = cursors.read(name)
        if cursor is None:
            return None
        cursors.get(name)
    except AioreplError as error:
        problem = error
    held, since = (0, None) if cursor is None else _held(chain, cursor.position.lsn)
    return Consumer(name, cursor, problem, held, since)


def _held(chain: Chain, lsn: LSN) -> tuple[int, int | None]:
    oldest = next(chain.walk(lsn), None)
    return (0, None) if oldest is None else (chain.size_after(lsn), oldest.published)


def stalled_cursors(store: Store) -> dict[str, str]:
    """Return a warning for each cursor that has stalled, by name.

    :raises JournalError: the journal is damaged, or cannot be read.
    """
    now, found = time.time(), consumers(JournalReader(store).chain(), Cursors(store))
    warnings = ((each.name, each.warning(store.url, now)) for each in found)
    return {name: warning for name, warning in warnings if warning is not None}
