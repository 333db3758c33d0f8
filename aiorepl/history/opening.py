"""Opens the parts of a journal that compaction uses."""

from __future__ import annotations

import os

from aiorepl.history.compaction import Compaction, Pace
from aiorepl.history.planning import Limits
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.store import Store, open_store

FOLDER = "history"


def open_history(url: str | os.PathLike[str]) -> Store:
    """Open the store of a journal's history.

    :param url: the journal's folder.
    :raises ConfigurationError: the URL has another scheme.
    """
    text = os.fspath(url)
    return open_store(f"{text.rstrip('/')}/{FOLDER}")


def open_compaction(
    url: str | os.PathLike[str], *, limits: Limits | None = None, pace: Pace | None = None
) -> Compaction:
    """Open a journal to compact it.

    :raises ConfigurationError: the URL has another scheme.
    """
    return Compaction(JournalReader(url), open_history(url), Cursors(url), limits=limits, pace=pace)
