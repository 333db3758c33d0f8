"""Opens the parts of a journal that compaction uses."""

from __future__ import annotations

from collections.abc import Mapping

from aiorepl.history.compaction import Compaction, Pace
from aiorepl.history.names import FOLDER
from aiorepl.history.planning import Limits
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store


def open_history(url: Location | Store, config: Mapping[str, str] | None = None) -> Store:
    """Open the store of a journal's history.

    :param url: the journal.
    :param config: as in ``open_store``.
    :raises ConfigurationError: the URL has another scheme, or the configuration is wrong.
    """
    return open_store(url, config).within(FOLDER)


def open_compaction(
    url: Location | Store,
    config: Mapping[str, str] | None = None,
    *,
    limits: Limits | None = None,
    pace: Pace | None = None,
) -> Compaction:
    """Open a journal to compact it; parameters and errors as ``open_history``."""
    store = open_store(url, config)
    reader = JournalReader(store)
    return Compaction(reader, store.within(FOLDER), Cursors(store), limits=limits, pace=pace)
