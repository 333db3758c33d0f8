"""Reads and writes ``history.json`` and the lists of tables' files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from aiorepl.durable import reason
from aiorepl.errors import DamagedJournal, JournalError
from aiorepl.history.manifest import (
    File,
    History,
    TableEntry,
    TableFiles,
    dump_history,
    dump_sealed,
    dump_table,
    load_history,
    load_sealed,
    load_table,
)
from aiorepl.history.names import HISTORY, table_name
from aiorepl.storage.store import Store, Superseded

_TRIES: Final = 5
_CONCURRENT_READS: Final = 16


def read_history(store: Store) -> tuple[History, str] | None:
    """Read ``history.json`` and its version; ``None`` if there is no history.

    :raises JournalError: the file is damaged, or cannot be read.
    """
    with accessing(store):
        try:
            data, version = store.load(HISTORY)
        except FileNotFoundError:
            return None
    return load_history(data, f"{HISTORY} in {store.url}"), version


def write_history(store: Store, history: History, version: str | None) -> str:
    """Replace ``history.json``, and return its new version.

    :raises JournalError: another compaction has taken over, or the file cannot be written.
    """
    try:
        with accessing(store):
            return store.replace(HISTORY, dump_history(history), version)
    except Superseded:
        raise superseded(store) from None


def superseded(store: Store) -> Fenced | Deleted:
    """Make the error for a compaction that no longer owns the history."""
    current = read_history(store)
    if current is None:
        return Deleted(
            f"the history in {store.url} was deleted while it was compacted: begin a new one by compacting again"
        )
    return Fenced(
        f"another compaction has taken over the history in {store.url}: its owner is {current[0].owner}. This one stops; "
        "what it has written since is not part of the history"
    )


class Fenced(JournalError):
    """Another compaction owns the history now."""


class Deleted(JournalError):
    """Somebody has deleted the history."""


def read_table(store: Store, entry: TableEntry) -> TableFiles:
    """Read the current list of a table's files.

    :raises FileNotFoundError: a newer list has replaced it: read ``history.json`` again.
    :raises JournalError: the list is damaged.
    """
    found = load_table(store.read(entry.name), f"{entry.name} in {store.url}")
    if found.table != entry.table:
        raise DamagedJournal(f"{entry.name} in {store.url} is damaged: it belongs to {found.table}")
    return found


def read_tables(store: Store, wanted: str | None) -> tuple[History, dict[str, TableFiles]] | None:
    """Read the history and the lists of all tables, or of the table in the folder ``wanted``; ``None``: no history.

    :raises JournalError: a file is damaged, or cannot be read.
    """
    for _ in range(_TRIES):
        found = read_history(store)
        if found is None:
            return None
        history = found[0]
        chosen = {folder: entry for folder, entry in history.tables.items() if wanted in (None, folder)}
        try:
            with accessing(store):
                return history, dict(
                    zip(chosen, _at_once(partial(read_table, store), chosen.values()), strict=True)
                )
        except JournalError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            missing = error
    raise missing


def _at_once(read: Callable[[TableEntry], TableFiles], entries: Collection[TableEntry]) -> list[TableFiles]:
    """Read lists in several threads, because an object store takes its time for each."""
    if len(entries) < 2:
        return [read(entry) for entry in entries]
    with ThreadPoolExecutor(_CONCURRENT_READS) as threads:
        return list(threads.map(read, entries))


def write_table(store: Store, folder: str, files: TableFiles, epoch: int, number: int) -> str:
    """Write a new list, and return its name."""
    name = table_name(folder, epoch, number)
    with accessing(store):
        store.write(name, dump_table(files))
    return name


def write_sealed(store: Store, folder: str, files: tuple[File, ...], epoch: int, number: int) -> str:
    """Write a list of older files, and return its name."""
    name = table_name(f"{folder}-sealed", epoch, number)
    with accessing(store):
        store.write(name, dump_sealed(files))
    return name


def read_sealed(store: Store, name: str) -> tuple[File, ...]:
    """Read a list of older files.

    :raises JournalError: the list is damaged, or cannot be read.
    """
    with accessing(store):
        data = store.read(name)
    return load_sealed(data, f"{name} in {store.url}")


@contextlib.contextmanager
def accessing(store: Store) -> Iterator[None]:
    """Translate an OSError into a JournalError."""
    try:
        yield
    except OSError as error:
        raise JournalError(
            f"the history in {store.url} cannot be read or written: {reason(error)}"
        ) from error
