"""Reads and writes ``history.json`` and the lists of tables' files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
from aiorepl.journal.store import Store, Superseded

_TRIES: Final = 5


def read_history(store: Store) -> tuple[History, str] | None:
    """Read ``history.json`` and its version; ``None`` if there is no history.

    :raises JournalError: it is damaged, or cannot be read.
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
        raise fenced(store) from None


def fenced(store: Store) -> Fenced:
    """Make the error for a compaction whose history has another owner."""
    current = read_history(store)
    owner = "somebody has deleted the history" if current is None else f"its owner is {current[0].owner}"
    return Fenced(
        f"another compaction has taken over the history in {store.url}: {owner}. This one stops; what it has written since "
        "is not part of the history"
    )


class Fenced(JournalError):
    """Another compaction owns the history now."""


def read_table(store: Store, entry: TableEntry) -> TableFiles:
    """Read the current list of a table's files.

    :raises FileNotFoundError: a newer list has replaced it: read ``history.json`` again.
    :raises JournalError: it is damaged.
    """
    found = load_table(store.read(entry.name), f"{entry.name} in {store.url}")
    if found.table != entry.table:
        raise DamagedJournal(f"{entry.name} in {store.url} is damaged: it belongs to {found.table}")
    return found


def read_tables(store: Store, wanted: str | None) -> tuple[History, dict[str, TableFiles]] | None:
    """Read the history and its lists, of all tables or of the one in the folder ``wanted``; ``None`` if there is no history.

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
                return history, {folder: read_table(store, entry) for folder, entry in chosen.items()}
        except JournalError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            missing = error
    raise missing


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

    :raises JournalError: it is damaged, or cannot be read.
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
