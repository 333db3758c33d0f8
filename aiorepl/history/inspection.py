"""Summarizes a history, for ``aiorepl journal inspect``. Opens no Parquet file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aiorepl.history.catalog import read_sealed, read_tables
from aiorepl.history.manifest import File, History, TableFiles
from aiorepl.history.names import FOLDER
from aiorepl.storage.store import Store
from aiorepl.table_name import TableName


@dataclass(frozen=True, slots=True)
class Files:
    """The number, rows and bytes of some files of a table.

    :param size: the size of the files in bytes.
    :param since: when the oldest row was compacted, in seconds since 1970; ``None`` without files.
    """

    count: int
    rows: int
    size: int
    since: int | None

    @classmethod
    def of(cls, files: Iterable[File]) -> Files:
        """Add up the number, rows and bytes of files."""
        listed = list(files)
        return cls(
            len(listed),
            sum(file.rows for file in listed),
            sum(file.size for file in listed),
            min((file.since for file in listed), default=None),
        )


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The files of one table.

    :param pending: the files that wait to be merged and published.
    """

    table: TableName
    published: Files
    pending: Files


@dataclass(frozen=True, slots=True)
class HistoryInspection:
    """The state of a history at one moment."""

    history: History
    tables: list[TableHistory]


def inspect(store: Store) -> HistoryInspection | None:
    """Summarize the history of a journal; ``None`` if there is none.

    :param store: the journal.
    :raises JournalError: the history is damaged, or cannot be read.
    """
    within = store.within(FOLDER)
    found = read_tables(within, None)
    if found is None:
        return None
    history, listed = found
    tables = [_table(within, files) for files in listed.values()]
    return HistoryInspection(history, sorted(tables, key=lambda each: each.table))


def _table(store: Store, files: TableFiles) -> TableHistory:
    older = (file for sealed in files.sealed for file in read_sealed(store, sealed.name))
    return TableHistory(files.table, Files.of((*older, *files.published)), Files.of(files.pending))
