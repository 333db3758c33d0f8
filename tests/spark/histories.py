"""Compacts and prunes the journals of tests."""

from __future__ import annotations

from typing import Any

from aiorepl.history.compaction import Compaction
from aiorepl.history.planning import Limits
from aiorepl.journal import Cursors, JournalReader, prune
from aiorepl.storage.local import LocalStore


def compact(journal: Any, publish_after: float = 86_400.0, keep: float = 86_400.0) -> None:
    """Compact the journal into its history.

    :param publish_after: seconds, as in ``Limits``.
    :param keep: seconds for which replaced files are kept.
    """
    store = LocalStore(journal.folder)
    limits = Limits(publish_after=publish_after, keep_replaced=keep)
    Compaction(JournalReader(store), store.within("history"), Cursors(store), limits=limits).run()


def pruned(journal: Any, segments: int) -> None:
    """Delete the first segments of the journal.

    :param segments: the number of transactions, each in a segment of its own.
    """
    Cursors(journal.folder).advance("all", journal.stream.position.at(journal.stream.ends[segments - 1]))
    prune(journal.folder)
    Cursors(journal.folder).remove("all")
