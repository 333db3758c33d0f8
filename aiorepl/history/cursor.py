"""The cursor of compaction protects segments that are not compacted yet. It is never ahead of ``history.json``."""

from __future__ import annotations

from typing import Final

from aiorepl.errors import DamagedJournal
from aiorepl.history.catalog import accessing, read_history
from aiorepl.history.manifest import AGAIN
from aiorepl.history.names import HISTORY, PENDING, TABLES
from aiorepl.journal.cursors import Cursors
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.storage.store import Store

CURSOR: Final = "history"
"""The name of the cursor."""
_QUERY: Final = "compaction"


def protect(store: Store, cursors: Cursors, source: Position) -> None:
    """Register the cursor, so that no segment is pruned before it is compacted.

    A history that was deleted begins anew, and its cursor with it.

    :param store: the history's store.
    :param source: the journal's source.
    :raises JournalError: a file is damaged or cannot be read, or only ``history.json`` was deleted.
    """
    found = read_history(store)
    with accessing(store):
        cursor = cursors.read(CURSOR)
        if found is not None:
            if cursor is None:
                moved(store, cursors, found[0].end)
            return
        # Read the history again: another compaction may have begun it in the meantime.
        if (store.names(TABLES) or store.names(PENDING)) and read_history(store) is None:
            raise DamagedJournal(
                f"{HISTORY} in {store.url} is missing",
                f"Put back a copy of the file. {AGAIN}, if there is none",
            )
        # Replace the cursor. If it were deleted first, segments could be pruned before the new cursor exists.
        cursors.reset(CURSOR, source.at(ZERO), query=_QUERY)


def compacted(store: Store, cursors: Cursors) -> LSN:
    """Return the position of the cursor; 0 if there is none.

    :raises JournalError: the cursor is damaged, or cannot be read.
    """
    with accessing(store):
        cursor = cursors.read(CURSOR)
    return ZERO if cursor is None else cursor.position.lsn


def require_newest(store: Store, end: LSN, cursor: LSN) -> None:
    """Check that ``history.json`` is not an older copy.

    :param end: where the history ends.
    :param cursor: the position of the cursor, read before ``history.json``: a compaction moves it afterwards.
    :raises DamagedJournal: the cursor is ahead of the history.
    """
    if cursor > end:
        raise DamagedJournal(
            f"{HISTORY} in {store.url} is an older copy: it ends at {end}, and the cursor {CURSOR!r} is at {cursor}",
            f"Put back the newest copy. {AGAIN}, if there is none",
        )


def moved(store: Store, cursors: Cursors, end: Position) -> None:
    """Move the cursor to the end of the history.

    :raises JournalError: the cursor is damaged, or cannot be written.
    """
    with accessing(store):
        cursors.advance(CURSOR, end, query=_QUERY)
