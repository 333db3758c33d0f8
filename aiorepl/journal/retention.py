"""Which segments can go: those that every registered consumer has passed."""

from __future__ import annotations

import os

from aiorepl.journal.cursors import Cursors
from aiorepl.journal.manifest import INDEX, SEGMENT, segment_names, segment_range
from aiorepl.journal.store import Store, open_store
from aiorepl.lsn import LSN


def prune(url: str | os.PathLike[str], *, store: Store | None = None, until: LSN | None = None) -> list[str]:
    """Delete the segments that all cursors have passed. Safe beside a writer and readers.

    The newest segment stays, for it tells where the journal ends. Without any cursor nothing is deleted: nobody has
    said that he has read it.

    :param until: keep what ends behind this, too.
    :returns: the names of the segments that are gone, oldest first.
    :raises OSError: when a file cannot be deleted; those before it are gone.
    :raises JournalError: when a cursor is damaged.
    """
    store = open_store(url) if store is None else store
    cursors = Cursors(url, store=store)
    held = [position.lsn for name in cursors.names() if (position := cursors.get(name)) is not None]
    if not held:
        return []
    passed = min(held) if until is None else min(*held, until)
    gone = []
    for name in segment_names(store)[:-1]:
        if segment_range(name)[1] > passed:
            break
        # The index first: from then on the segment does not exist, whatever happens to the rest.
        store.delete(name + INDEX)
        store.delete(name + SEGMENT)
        gone.append(name)
    return gone
