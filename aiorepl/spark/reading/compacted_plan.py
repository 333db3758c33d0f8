"""Plans which part of a range a query reads from the history, and which from the segments. Runs on the driver; no pyspark.

The journal is read before the history. If retention has deleted a segment by then, the history has it, because retention waits
for compaction. So no row is missing between the two, and each LSN belongs to exactly one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.history import HistoryFile, HistoryFiles, files
from aiorepl.history.manifest import File
from aiorepl.journal.chain import Chain
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN
from aiorepl.spark.reading.compacted import FileSpan
from aiorepl.storage.opening import Location
from aiorepl.table_name import TableName

# For a smaller range, decoding segments is faster than looking files up in the history.
_NEAR_BYTES: Final = 32 * 1024 * 1024


def covering(
    journal: Location, table: TableName, chain: Chain, lsn: LSN, until: LSN | None = None
) -> HistoryFiles | None:
    """List the files of a table's history after ``lsn``; ``None`` if the history does not have everything after ``lsn``."""
    found = files(journal, table.schema, table.name, after=lsn, until=until)
    return found if found is not None and reaches(found.start, found.end, chain, lsn) else None


def reaches(start: LSN, end: LSN, chain: Chain, lsn: LSN) -> bool:
    """Whether a history from ``start`` to ``end`` has the changes that follow ``lsn``."""
    # LSN 0 stands for the journal's start.
    return start <= max(lsn, chain.identity.start_lsn) < end


def from_history(
    journal: Location,
    table: TableName,
    chain: Chain,
    start: BlockPosition,
    end: BlockPosition,
    check: Callable[[HistoryFile], None],
) -> HistoryFiles | None:
    """Return the files to read between two positions; ``None`` to read segments.

    :param check: raises ConfigurationError for a file whose columns cannot be read as the query wants.
    :raises ConfigurationError: ``check`` raised it, and the segments were deleted.
    """
    if start.part or start.block or start.lsn >= end.lsn:
        return None
    pruned = start.lsn < chain.start_lsn
    if not pruned and chain.size_after(start.lsn) - chain.size_after(end.lsn) < _NEAR_BYTES:
        return None
    found = covering(journal, table, chain, start.lsn, end.lsn)
    if found is None:
        return None
    try:
        for file in {file.description: file for file in found.files}.values():
            check(file)
    except ConfigurationError:
        if pruned:
            raise
        return None
    return found


def spans(found: HistoryFiles, start: LSN, end: LSN, partition_bytes: int) -> Iterator[tuple[FileSpan, ...]]:
    """Divide files into partitions of about ``partition_bytes``, in order."""
    chosen: list[FileSpan] = []
    size = 0
    for file in found.files:
        if file.last[0] >= start and file.first[0] < end:
            chosen.append(FileSpan(file, start, end))
            size += file.size
            if size >= partition_bytes:
                yield tuple(chosen)
                chosen, size = [], 0
    if chosen:
        yield tuple(chosen)


def latest_compacted(files: Iterable[HistoryFile | File], start: LSN, max_bytes: int, end: LSN) -> LSN:
    """Return the LSN after about ``max_bytes`` of files, and after at least one whole transaction.

    :param files: the files with changes after ``start``, in any order.
    :param end: the LSN at which the files' changes end; the result is not later.
    """
    size = 0
    for file in sorted(files, key=lambda each: each.last):
        size += file.size
        # A transaction ends after its commit LSN. If the next file has the transaction's last rows, the next batch reads that file again.
        after = LSN(file.last[0] + 1)
        if size >= max_bytes and start < after < end:
            return after
    return end
