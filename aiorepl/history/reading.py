"""Lists the files of a table in a history, for engines that read Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from aiorepl.formats.arrow.collected import attribute_of
from aiorepl.history import parquet
from aiorepl.history.catalog import accessing, read_history, read_sealed, read_tables
from aiorepl.history.manifest import MESSAGES_TABLE, File, TableFiles, TableVersion
from aiorepl.history.names import FOLDER, MESSAGES, folder_of
from aiorepl.history.opening import open_history
from aiorepl.journal.reader import JournalReader
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Relation
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store
from aiorepl.table_name import TableName


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """A Parquet file of a table.

    :param path: the file's name in the history.
    :param schema: the file's Arrow schema.
    :param rows: the number of rows.
    :param size: the file's size in bytes.
    :param first: commit LSN and ordinal of its first row.
    :param last: commit LSN and ordinal of its last row.
    :param oid: the oid that the table had.
    :param description: the Relation message and its Type messages.
    :param published: whether the file is published, and so stays. A pending file is replaced by another file, and is then kept for a day.
    :param digest: BLAKE2b of its bytes, in hexadecimal digits.
    """

    path: str
    schema: pa.Schema
    rows: int
    size: int
    first: tuple[int, int]
    last: tuple[int, int]
    oid: int
    description: tuple[bytes, ...]
    published: bool
    digest: str

    def relation(self) -> Relation | None:
        """Decode the table's description; ``None`` for logical decoding messages."""
        decoder = Decoder()
        found = None
        for payload in (*self.description[1:], *self.description[:1]):
            found = decoder.decode(payload)
        if not isinstance(found, Relation):
            return None
        # The table's columns come first, in the order of the description.
        for column, field in zip(found.columns, self.schema, strict=False):
            if (attribute := attribute_of(field)) is not None:
                found.attributes[column.name] = attribute
        return found


@dataclass(frozen=True, slots=True)
class HistoryFiles:
    """The files of a table.

    :param url: the folder of the history.
    :param start: the history has every transaction that ended after this LSN and up to ``end``, unless a gap was accepted.
    :param end: where the history ends. The journal's segments have all later transactions.
    :param gaps: the accepted gaps between ``start`` and ``end``.
    :param files: the files, in the order of their rows.
    :param incomplete: why the files and the segments after them do not have all rows of the table; ``None`` if they do.
    """

    url: str
    start: LSN
    end: LSN
    gaps: tuple[tuple[LSN, LSN], ...]
    files: tuple[HistoryFile, ...]
    incomplete: str | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(file.rows for file in self.files)


def end(url: Location | Store, config: Mapping[str, str] | None = None) -> LSN | None:
    """Return the LSN up to which a journal is compacted; ``None`` if it has no history.

    :param url: the journal; with ``config`` for an object store, as in ``open_store``.
    :raises JournalError: the history is damaged, or cannot be read.
    """
    found = read_history(open_history(url, config))
    return None if found is None else found[0].end.lsn


def tables(url: Location | Store, config: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """List the tables of a history by schema and name.

    :param url: the journal; with ``config`` for an object store, as in ``open_store``.
    :raises JournalError: the history is damaged, or cannot be read.
    """
    found = read_history(open_history(url, config))
    entries = () if found is None else found[0].tables.values()
    return sorted((entry.table.schema, entry.table.name) for entry in entries if not entry.table.messages)


def files(
    url: Location | Store,
    schema: str,
    table: str,
    *,
    after: LSN = ZERO,
    until: LSN | None = None,
    config: Mapping[str, str] | None = None,
) -> HistoryFiles | None:
    """List the files with a table's changes; ``None`` if the journal has no history.

    Files are chosen by the positions of their rows, so the first and the last file may have rows outside of the range: filter
    by ``_commit_lsn >= after``, and ``_commit_lsn < until``.

    :param url: the journal; with ``config`` for an object store, as in ``open_store``.
    :param after: leave out the transactions that ended at or before this LSN.
    :param until: leave out the transactions that ended after this LSN.
    :raises JournalError: the history or the journal is damaged, or cannot be read.
    """
    journal = open_store(url, config)
    name = TableName(schema, table)
    found = _files(journal.within(FOLDER), name, folder_of(schema, table), after, until)
    if found is None:
        return None
    # From the history's start, not the journal's: retention may have deleted segments whose rows the history has.
    completeness = JournalReader(journal).chain().completeness
    lacking = completeness.incomplete(found.start, name)
    return replace(found, incomplete=lacking[0].reason if lacking else None)


def read_file(url: Location | Store, file: HistoryFile) -> bytes:
    """Read a file of the history and verify its checksum.

    :param url: the journal.
    :raises DamagedJournal: the file is missing, or has other contents than were written.
    :raises JournalError: the file cannot be read.
    """
    store = open_history(url)
    with accessing(store):
        return parquet.read(
            store, File(file.path, 0, file.rows, file.size, file.first, file.last, 0, file.digest)
        )


def messages(
    url: Location | Store,
    *,
    after: LSN = ZERO,
    until: LSN | None = None,
    config: Mapping[str, str] | None = None,
) -> HistoryFiles | None:
    """List the files with logical decoding messages; parameters and errors as ``files``."""
    return _files(open_history(url, config), MESSAGES_TABLE, MESSAGES, after, until)


def _files(store: Store, table: TableName, folder: str, after: LSN, until: LSN | None) -> HistoryFiles | None:
    found = read_tables(store, folder)
    if found is None:
        return None
    history, listed = found
    chosen = listed.get(folder, TableFiles(table))
    most = history.end.lsn if until is None else until
    wanted: list[tuple[File, bool]] = []
    for sealed in chosen.sealed:
        if sealed.last[0] >= after and sealed.first[0] <= most:
            wanted += [(file, True) for file in read_sealed(store, sealed.name)]
    wanted += [(file, True) for file in chosen.published]
    wanted += [(file, False) for file in chosen.pending]
    return HistoryFiles(
        store.url,
        history.start,
        history.end.lsn,
        history.gaps,
        tuple(
            _file(file, chosen.versions[file.version], published=published)
            for file, published in wanted
            if file.last[0] >= after and file.first[0] <= most
        ),
    )


def _file(file: File, version: TableVersion, *, published: bool) -> HistoryFile:
    return HistoryFile(
        file.name,
        version.schema,
        file.rows,
        file.size,
        file.first,
        file.last,
        version.oid,
        version.description,
        published,
        file.digest,
    )
