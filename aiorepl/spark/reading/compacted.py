"""Reads one table's changes from files of the history, as ``typed`` reads them from blocks. Runs on executors; does not use pyspark.

Files and blocks give the same rows. A file's columns have the names and types of its description; ``FileColumns`` converts
them. Every file is read as a whole, because its checksum covers all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aiorepl.errors import DamagedJournal
from aiorepl.history import HistoryFile, files, read_file
from aiorepl.lsn import LSN
from aiorepl.spark.reading.file_columns import FileColumns
from aiorepl.spark.reading.moved_keys import split_moves
from aiorepl.spark.reading.typed import BATCH_BYTES, BATCH_ROWS, Typed
from aiorepl.storage.opening import Location
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
