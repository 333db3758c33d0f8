"""Plans which part of a range a query reads from the history, on the driver, and reads its files on executors. Does not use pyspark.

The journal is read before the history. If retention has deleted a segment by then, the history has it, because retention waits
for compaction. So no row is missing between the two, and each LSN belongs to exactly one of them.

Files and blocks give the same rows. A file's columns have the names and types of its description; ``FileColumns`` converts
them. Every file is read as a whole, because its checksum covers all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aiorepl.errors import ConfigurationError, DamagedJournal
from aiorepl.history import HistoryFile, HistoryFiles, files, read_file
from aiorepl.history.manifest import File
from aiorepl.journal.chain import Chain
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN
from aiorepl.spark.reading.columns import split_moves
from aiorepl.spark.reading.file_columns import FileColumns
from aiorepl.spark.reading.typed import BATCH_BYTES, BATCH_ROWS, Typed
from aiorepl.storage.opening import Location
from aiorepl.table_name import TableName
from aiorepl.values.types import TypeInfo

_LSN, _ORDINAL = "_commit_lsn", "_ordinal"


@dataclass(frozen=True, slots=True)
class FileSpan:
    """The rows of a history file with ``after <= _commit_lsn < until``."""

    file: HistoryFile
    after: LSN
    until: LSN


@dataclass(frozen=True, slots=True)
class Compacted:
    """Reads files of the history.

    :param journal: the journal's place.
    :param typed: the reader with the query's columns.
    :param types: the types that are not built in, as the table's last description uses them.
    """

    journal: Location
    typed: Typed
    types: tuple[TypeInfo, ...]

    def batches(self, spans: Iterable[FileSpan]) -> Iterator[pa.RecordBatch]:
        """Read the table's changes in ``spans``, in order.

        :raises DataError: a value does not fit into the wanted type.
        :raises JournalError: a file is damaged or missing.
        """
        for span in spans:
            for file, data in self._contents(span):
                yield from self._rows(span, file, data)

    def _contents(self, span: FileSpan) -> Iterator[tuple[HistoryFile, bytes]]:
        """Read a span's file. If it was merged and deleted since it was listed, read the files that have its rows now."""
        try:
            data = read_file(self.journal, span.file)
        except DamagedJournal as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            table = self.typed.table
            first, last = LSN(span.file.first[0]), LSN(span.file.last[0])
            found = files(self.journal, table.schema, table.name, after=first, until=last)
            now = [] if found is None else _having(found.files, span.file)
            if not now or any(each.path == span.file.path for each in now):
                raise
            for each in now:
                yield each, read_file(self.journal, each)
            return
        yield span.file, data

    def _rows(self, span: FileSpan, file: HistoryFile, data: bytes) -> Iterator[pa.RecordBatch]:
        columns = FileColumns(self.typed, file, self.types)
        wanted = _between(span)
        source = pq.ParquetFile(pa.BufferReader(data))
        groups, size = _row_groups(source, span)
        if not groups:
            return
        rows = sum(source.metadata.row_group(group).num_rows for group in groups)
        most = max(1, min(BATCH_ROWS, rows * BATCH_BYTES // max(size, 1)))
        for batch in source.iter_batches(most, row_groups=groups, columns=columns.read):
            chosen = batch.filter(wanted)
            if chosen.num_rows:
                if columns.keys:
                    chosen = split_moves(chosen, columns.keys)
                yield columns.convert(chosen)


def _having(found: Iterable[HistoryFile], lost: HistoryFile) -> list[HistoryFile]:
    """Choose the files that have the rows of a merged file. A position is in one file of a table only."""
    return [each for each in found if each.last >= lost.first and each.first <= lost.last]


def _between(span: FileSpan) -> Any:
    """Return the filter for a span's rows. It also holds for a file into which the span's file was merged."""
    position, ordinal = pc.field(_LSN), pc.field(_ORDINAL)
    first, last = span.file.first, span.file.last
    return (
        (position >= int(span.after))
        & (position < int(span.until))
        & ((position > first[0]) | ((position == first[0]) & (ordinal >= first[1])))
        & ((position < last[0]) | ((position == last[0]) & (ordinal <= last[1])))
    )


def _row_groups(source: pq.ParquetFile, span: FileSpan) -> tuple[list[int], int]:
    """Return the numbers of the row groups that may have rows of the span, and the row groups' uncompressed size."""
    metadata = source.metadata
    leaf = next(index for index in range(metadata.num_columns) if metadata.schema.column(index).path == _LSN)
    groups, size = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        found = group.column(leaf).statistics
        if found is None or (found.max >= span.after and found.min < span.until):
            groups.append(number)
            size += group.total_byte_size
    return groups, size


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
