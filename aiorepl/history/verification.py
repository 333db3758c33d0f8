"""Verifies every file of a history, for ``aiorepl journal verify``. Read-only; blocking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aiorepl.errors import AioreplError, DamagedJournal
from aiorepl.history.catalog import accessing, read_history, read_sealed, read_table
from aiorepl.history.manifest import AGAIN, File, History, TableEntry, TableFiles, TableVersion
from aiorepl.history.names import FOLDER, HISTORY, PENDING, TABLES, position_text
from aiorepl.history.parquet import REMEDY, read
from aiorepl.journal.reader import JournalReader
from aiorepl.storage.store import Store

_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class _Listed:
    """A history, and the files of its tables by folder."""

    history: History
    files: dict[str, list[tuple[File, TableVersion]]]

    @property
    def names(self) -> set[str]:
        """The names of the files that a list has, or that a recorded merge writes."""
        listed = {file.name for files in self.files.values() for file, _ in files}
        return listed | {rewrite.name for rewrite in self.history.rewrites}


def problems(store: Store, *, read: Callable[[int], None] = lambda _: None) -> Iterator[AioreplError]:
    """Find the damaged and missing files of the history of a journal. Yields an error for each.

    :param store: the journal.
    :param read: called with the size of each file that was read.
    """
    within = store.within(FOLDER)
    try:
        listed = _list(within)
        if listed is None:
            with accessing(within):
                lost = within.names(TABLES) or within.names(PENDING)
            if lost:
                yield DamagedJournal(f"{HISTORY} in {within.url} is missing", REMEDY)
            return
        if listed.history.end.lsn > JournalReader(store).chain().end_lsn:
            yield DamagedJournal(
                f"the history in {within.url} ends at {listed.history.end.lsn}, after its journal: it is of another journal, or "
                "the journal is an older copy",
                AGAIN,
            )
    except AioreplError as error:
        yield error
        return
    for files in listed.files.values():
        end = (0, -1)
        for file, version in files:
            try:
                if file.first <= end:
                    raise _damaged(
                        within, file, f"it begins before the previous file ends, at {position_text(end)}"
                    )
                _verify(within, file, version)
                read(file.size)
            except AioreplError as error:
                # No error if the file is no longer listed: it was merged into another file meanwhile.
                now = _list(within)
                if now is None or file.name in now.names:
                    yield error
            end = file.last
    yield from _unlisted(within, listed)


def _list(store: Store) -> _Listed | None:
    """Read all lists. If a list was replaced meanwhile, read all of them again."""
    for last in (*[False] * _TRIES, True):
        found = read_history(store)
        if found is None:
            return None
        try:
            return _Listed(
                found[0], {folder: _files(store, each) for folder, each in found[0].tables.items()}
            )
        except AioreplError as error:
            if last or not isinstance(error.__cause__, FileNotFoundError):
                raise
    raise AssertionError  # the last attempt returns or raises


def _files(store: Store, entry: TableEntry) -> list[tuple[File, TableVersion]]:
    with accessing(store):
        listed: TableFiles = read_table(store, entry)
    files: list[File] = []
    for sealed in listed.sealed:
        files += read_sealed(store, sealed.name)
    files += [*listed.published, *listed.pending]
    if not all(file.version < len(listed.versions) for file in files):
        raise DamagedJournal(
            f"{entry.name} in {store.url} is damaged: a file has a version that is not described", REMEDY
        )
    return [(file, listed.versions[file.version]) for file in files]


def _verify(store: Store, file: File, version: TableVersion) -> None:
    """Read a whole file.

    :raises JournalError: the file is damaged or missing.
    """
    with accessing(store):
        data = read(store, file)
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        if not parquet.schema_arrow.equals(version.schema):
            raise _damaged(store, file, "it has other columns than its description")
        rows, end = 0, (0, -1)
        for batch in parquet.iter_batches():
            batch.validate(full=True)
            first, last = _ends(batch)
            if rows == 0 and first != file.first:
                raise _damaged(store, file, f"it begins at {position_text(first)}")
            if first < end or not _sorted(batch):
                raise _damaged(store, file, "its rows are not in the order of their positions")
            rows, end = rows + batch.num_rows, last
    except (ArithmeticError, LookupError, MemoryError, OSError, TypeError, ValueError, pa.ArrowException):
        # Damaged metadata can cause any of these. Arrow's texts may quote values, so they are not passed on.
        raise _damaged(store, file, "it cannot be read as Parquet, or a checksum does not match") from None
    if (rows, end) != (file.rows, file.last):
        raise _damaged(store, file, f"it has {rows} rows up to {position_text(end)}")


def _ends(batch: pa.RecordBatch) -> tuple[tuple[int, int], tuple[int, int]]:
    lsn, ordinal = batch.column("_commit_lsn"), batch.column("_ordinal")
    return (lsn[0].as_py(), ordinal[0].as_py()), (lsn[-1].as_py(), ordinal[-1].as_py())


def _sorted(batch: pa.RecordBatch) -> bool:
    lsn, ordinal = batch.column("_commit_lsn"), batch.column("_ordinal")
    before, after = lsn[:-1], lsn[1:]
    later = pc.and_(pc.equal(before, after), pc.less_equal(ordinal[:-1], ordinal[1:]))
    return bool(pc.all(pc.or_(pc.less(before, after), later), min_count=0).as_py())


def _unlisted(store: Store, listed: _Listed) -> Iterator[AioreplError]:
    """Find unlisted files that an engine would read."""
    names = listed.names
    for folder in listed.files:
        with accessing(store):
            found = {f"{folder}/{name}" for name in store.names(folder) if name.endswith(".parquet")}
        if not found <= names and (now := _list(store)) is not None:
            # The file was published after the lists were read: a file is written before it is listed.
            names = now.names
        for name in sorted(found - names):
            yield DamagedJournal(
                f"{name} in {store.url} is not part of the history: engines that read the folder read it as well",
                "Delete it",
            )


def _damaged(store: Store, file: File, problem: str) -> DamagedJournal:
    return DamagedJournal(f"{file.name} in {store.url} is damaged: {problem}", REMEDY)
