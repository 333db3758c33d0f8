"""Chooses files of the journal's history for a batch, if they are cheaper to read than its segments. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiorepl.history.catalog import read_history, read_sealed, read_tables
from aiorepl.history.manifest import File
from aiorepl.history.opening import open_history
from aiorepl.journal.chain import Chain
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN
from aiorepl.spark.mirroring.staging import StagedFile
from aiorepl.spark.reading.compacted import reaches
from aiorepl.storage.opening import Location
from aiorepl.table_name import TableName

# A smaller range is not read from the history, because that takes reading lists, and files with rows outside the range.
_LEAST_BYTES: Final = 16 * 1024 * 1024
# An estimate of the ratio of the size of rows in memory to their size in Parquet.
_EXPANDED: Final = 8


@dataclass(frozen=True, slots=True)
class Compacted:
    """Files of the history.

    :param end: the files have the transactions that ended up to this LSN.
    """

    files: tuple[StagedFile, ...]
    end: LSN


def compacted_files(
    journal: Location,
    chain: Chain,
    start: BlockPosition,
    end: BlockPosition,
    wanted: Callable[[TableName], bool],
) -> Compacted | None:
    """Return the history's files with the changes of a range, or of its beginning; ``None`` to read the segments.

    :param wanted: the tables whose files are returned.
    :raises JournalError: the history is damaged, or cannot be read.
    """
    if start.part or start.block or end.lsn <= start.lsn:
        return None
    pruned = start.lsn < chain.start_lsn
    segments = chain.size_after(start.lsn) - chain.size_after(end.lsn)
    if not pruned and segments < _LEAST_BYTES:
        return None
    store = open_history(journal)
    found = read_history(store)
    if found is None or not reaches(found[0].start, found[0].end.lsn, chain, start.lsn):
        return None
    listed = read_tables(store, None)
    assert listed is not None
    history, tables = listed
    until = min(history.end.lsn, end.lsn)
    files: list[StagedFile] = []
    for each in tables.values():
        if not wanted(each.table):
            continue
        chosen: list[File] = []
        for sealed in each.sealed:
            if sealed.last[0] >= start.lsn and sealed.first[0] < until:
                chosen += read_sealed(store, sealed.name)
        files += [
            StagedFile(
                each.table,
                each.versions[file.version],
                file,
                compacted=True,
                memory=file.size * _EXPANDED,
                first=start.lsn,
                until=until,
            )
            for file in (*chosen, *each.published, *each.pending)
            if file.last[0] >= start.lsn and file.first[0] < until
        ]
    if not pruned and sum(file.file.size for file in files) > segments:
        return None
    return Compacted(tuple(files), until)
