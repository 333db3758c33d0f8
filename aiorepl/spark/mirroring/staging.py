"""Writes the changes of some blocks to typed Parquet files, one or more for each table and description. Runs on executors.

The files have the format of the journal's history. Each attempt at a task uses new file names, so files of failed attempts are
never read. For blocks that the history has, its published files are used instead.

A task returns only a ``StagedFile`` for each file, so a batch of any size is a few rows for the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.durable import reason
from aiorepl.errors import JournalError
from aiorepl.formats.arrow.hidden import Hidden
from aiorepl.history import parquet
from aiorepl.history.buffers import Bounds, Buffers, TableBuffer
from aiorepl.history.change_collector import ChangeCollector
from aiorepl.history.manifest import File, TableVersion
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.times import Times
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.relations import Relation
from aiorepl.spark.lake.table import Place, Truncate
from aiorepl.spark.mirroring import staged_store
from aiorepl.spark.mirroring.reduction import truncates_of
from aiorepl.spark.reading.blocks import Span
from aiorepl.spark.reading.offsets import Offset
from aiorepl.storage.store import Store
from aiorepl.table_name import TableName

_MIB: Final = 1024 * 1024
BOUNDS: Final = Bounds(memory_bytes=48 * _MIB, file_bytes=16 * _MIB, most_bytes=128 * _MIB)
"""The memory of one task. An executor may run several tasks at a time."""
_NEVER: Final = LSN(2**63 - 1)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file with changes of one table under one description, ordered by position.

    :param file: the Parquet file, with a name relative to the staging folder, or to the history if ``compacted``.
    :param compacted: whether it is a file of the journal's history.
    :param truncates: the file's truncates; unknown if ``compacted``.
    :param only_truncates: whether the file has only truncates. They come without types of columns, so the schema may be wrong.
    :param memory: the bytes of the file's rows in memory; an estimate if ``compacted``.
    :param first: the batch has only rows with this commit LSN or a later one.
    :param until: the batch has only rows with an earlier commit LSN.
    :param source: the file's own version, if the file is ``compacted`` and ``version`` lacks hidden columns.
    """

    table: TableName
    version: TableVersion
    file: File
    compacted: bool = False
    truncates: tuple[Truncate, ...] = ()
    only_truncates: bool = False
    memory: int = 0
    first: LSN = ZERO
    until: LSN = _NEVER
    source: TableVersion | None = None


def stage(
    reader: JournalReader,
    spans: Sequence[Span],
    store: Store,
    wanted: Callable[[TableName], bool],
    bounds: Bounds = BOUNDS,
    hide: Callable[[Relation], Hidden | None] = lambda relation: None,
) -> list[StagedFile]:
    """Write the changes in ``spans`` to files of the staging folder.

    :param spans: the blocks; at least one span.
    :param store: the staging folder.
    :param hide: as in ``ChangeCollector``.
    :raises JournalError: the journal is damaged, or a file cannot be written.
    :raises DataError: a value in binary format does not match its type.
    """
    staged: list[StagedFile] = []
    until = spans[-1].until or _NEVER

    def finish(buffer: TableBuffer, batches: Iterator[pa.RecordBatch]) -> int:
        seen = _Seen(until)
        name = staged_store.new_name()
        written = parquet.write(store, name, buffer.version.schema, seen.watch(batches))
        if not written.rows:
            store.delete(name)
            return written.size
        file = File(name, 0, written.rows, written.size, seen.first, seen.last, 0, written.digest)
        staged.append(
            StagedFile(
                buffer.table,
                buffer.version,
                file,
                truncates=tuple(seen.truncates),
                only_truncates=len(seen.truncates) == written.rows,
                memory=seen.memory,
            )
        )
        return written.size

    with Buffers(bounds, finish) as buffers:
        collecting = ChangeCollector(reader, buffers, lambda table: (), wanted, hide)
        try:
            for span in spans:
                collecting.segment(span.segment, span.blocks, span.after)
            buffers.flush()
        except OSError as error:
            raise JournalError(
                f"the staging folder {store.url} cannot be written: {reason(error)}"
            ) from error
    return staged


class _Seen:
    """Records the first and the last position, and the size, of the rows that pass through ``watch``.

    :param until: leave out the rows from this commit LSN on.
    """

    def __init__(self, until: LSN) -> None:
        self._until = until
        self.first: Place = (0, 0)
        self.last: Place = (0, 0)
        self.truncates: list[Truncate] = []
        self.memory = 0

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are before ``until``."""
        begun = False
        for whole in batches:
            batch = whole
            if self._until != _NEVER:
                batch = whole.filter(pc.less(whole.column("_commit_lsn"), self._until))
            if not batch.num_rows:
                continue
            if not begun:
                begun, self.first = True, _place(batch, 0)
            self.last = _place(batch, batch.num_rows - 1)
            self.memory += batch.nbytes
            self.truncates += truncates_of(batch)
            yield batch


def _place(rows: Any, row: int) -> Place:
    return rows.column("_commit_lsn")[row].as_py(), rows.column("_ordinal")[row].as_py()


@dataclass(frozen=True, slots=True)
class Head:
    """The start and the end of a batch in the journal.

    :param start: the offset where the batch begins.
    :param end: the offset where it ends.
    :param lsn: the end of the segment in which the batch ends. If the batch ends within the segment, the tables reach this
        LSN only with the rest of the segment.
    :param remembered: the memory of the mirror's selection after the batch, as JSON types; ``None`` without a selection.
    :param times: the commit times at the batch's end; ``None`` if they are not known.
    """

    start: Offset
    end: Offset
    lsn: LSN
    remembered: tuple[Any, ...] | None = None
    times: Times | None = None


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch and its files."""

    head: Head
    files: Sequence[StagedFile]

    @classmethod
    def of(cls, rows: Iterable[Head | StagedFile]) -> Self:
        """Make a batch of the source's rows: one ``Head`` and the files, in any order."""
        given = list(rows)
        (head,) = (row for row in given if isinstance(row, Head))
        return cls(head, [row for row in given if isinstance(row, StagedFile)])

    def by_table(self) -> dict[TableName, list[StagedFile]]:
        """Return the files of each table, in the order of their rows."""
        found: dict[TableName, list[StagedFile]] = {}
        for file in sorted(self.files, key=lambda each: (each.table, each.file.first)):
            found.setdefault(file.table, []).append(file)
        return found
