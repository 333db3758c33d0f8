"""The rows of a pass by table, until they are written as files. Bounds memory and disk over all tables.

Rows are collected as bytes, converted to record batches once they are many, and spilled to a temporary file, largest table first,
while the batches of all tables exceed the limit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final, Self

import pyarrow as pa

from aiorepl.formats.arrow.collected import CollectedRows
from aiorepl.formats.arrow.row_collector import RowCollector
from aiorepl.history.manifest import TableVersion
from aiorepl.table_name import TableName

_MIB: Final = 1024 * 1024
_MOST_COMBINED: Final = 32 * _MIB
# A guess for a table's first file: the file's size, divided by the size of its rows in memory.
_RATIO: Final = 0.25


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sizes in bytes.

    :param batch_bytes: collected rows of one table that are converted to one record batch.
    :param memory_bytes: the most bytes of rows and batches in memory, over all tables; a single row may exceed it.
    :param spool_bytes: the most bytes of batches in the temporary file, over all tables.
    :param file_bytes: write a Parquet file once its estimated size reaches this.
    :param most_bytes: write it in any case once its rows have this size uncompressed.
    """

    batch_bytes: int = _MIB
    memory_bytes: int = 96 * _MIB
    spool_bytes: int = 2048 * _MIB
    file_bytes: int = 40 * _MIB
    most_bytes: int = 512 * _MIB


class TableBuffer:
    """Rows of one table and one version that are not in a file yet.

    :ivar rows: the rows that were collected since the last record batch; ``None`` before ``use``.
    """

    def __init__(self, table: TableName, version: TableVersion) -> None:
        self.table = table
        self.version = version
        self.rows: RowCollector | None = None
        self._conversion: CollectedRows | None = None
        self.batches: list[pa.RecordBatch] = []
        self.batch_bytes = 0
        self.spilled: list[tuple[int, int]] = []
        self.spilled_bytes = 0

    @property
    def memory(self) -> int:
        """The bytes in memory."""
        return self.batch_bytes + (0 if self.rows is None else self.rows.size)

    @property
    def empty(self) -> bool:
        """Whether there are no rows."""
        return not (self.batches or self.spilled or (self.rows is not None and self.rows.count))

    def use(self, conversion: CollectedRows) -> RowCollector:
        """Return the collector for rows that ``conversion`` will convert to record batches of ``version``."""
        if conversion is not self._conversion or self.rows is None:
            self.settle()
            self._conversion = conversion
            self.rows = self.rows or conversion.collector()
        return self.rows

    def settle(self) -> None:
        """Convert the collected rows to a record batch."""
        if self.rows is not None and self.rows.count:
            assert self._conversion is not None
            self.add(self._conversion.batch(self.rows))
            self.rows.clear()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a record batch."""
        self.batches.append(batch)
        self.batch_bytes += batch.nbytes


class Buffers:
    """The buffers of all tables.

    :param finish: writes a file of a buffer's batches, and returns its size.
    """

    def __init__(
        self, bounds: Bounds, finish: Callable[[TableBuffer, Iterator[pa.RecordBatch]], int]
    ) -> None:
        self._bounds = bounds
        self._finish = finish
        self._buffers: dict[TableName, TableBuffer] = {}
        self._ratios: dict[TableName, float] = {}
        self._spool: IO[bytes] | None = None
        self._spool_size = 0
        self.peak = 0
        """The most bytes that were in memory at the end of a block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._spool is not None:
            self._spool.close()

    def get(self, table: TableName) -> TableBuffer | None:
        """Return the open buffer of a table."""
        return self._buffers.get(table)

    def open(self, table: TableName, version: TableVersion) -> TableBuffer:
        """Write the rows of a table's previous buffer, and begin a new buffer."""
        self._close(table)
        buffer = self._buffers[table] = TableBuffer(table, version)
        return buffer

    def relieve(self) -> None:
        """Convert, spill or write rows until all buffers are within the bounds. Called after every block."""
        bounds, total = self._bounds, 0
        for buffer in list(self._buffers.values()):
            if buffer.rows is not None and buffer.rows.size >= bounds.batch_bytes:
                buffer.settle()
                self._write_large(buffer)
            total += buffer.memory
        self.peak = max(self.peak, total)
        if total > bounds.memory_bytes:
            for buffer in sorted(self._buffers.values(), key=lambda each: each.memory, reverse=True):
                if total <= bounds.memory_bytes // 2:
                    break
                total -= buffer.memory
                self._spill(buffer)
        if self._spool_size > bounds.spool_bytes:
            self.flush()

    def flush(self) -> None:
        """Write all rows."""
        for table in list(self._buffers):
            self._close(table)

    def _write_large(self, buffer: TableBuffer) -> None:
        size = buffer.batch_bytes + buffer.spilled_bytes
        ratio = self._ratios.get(buffer.table, _RATIO)
        if size * ratio >= self._bounds.file_bytes or size >= self._bounds.most_bytes:
            self._write(buffer)

    def _close(self, table: TableName) -> None:
        buffer = self._buffers.pop(table, None)
        if buffer is not None and not buffer.empty:
            buffer.settle()
            self._write(buffer)

    def _write(self, buffer: TableBuffer) -> None:
        size = buffer.batch_bytes + buffer.spilled_bytes
        written = self._finish(buffer, self._take(buffer))
        self._ratios[buffer.table] = written / max(size, 1)
        buffer.spilled, buffer.spilled_bytes = [], 0
        if not any(each.spilled for each in self._buffers.values()):
            self._empty_spool()

    def _take(self, buffer: TableBuffer) -> Iterator[pa.RecordBatch]:
        for offset, length in buffer.spilled:
            assert self._spool is not None
            self._spool.seek(offset)
            yield pa.ipc.read_record_batch(pa.py_buffer(self._spool.read(length)), buffer.version.schema)
        batches, buffer.batches, buffer.batch_bytes = buffer.batches, [], 0
        batches.reverse()
        while batches:
            yield batches.pop()

    def _spill(self, buffer: TableBuffer) -> None:
        buffer.settle()
        if self._spool is None:
            # Unlinked: no name, and no rows are left behind by a kill.
            self._spool = tempfile.TemporaryFile(prefix="aiorepl-")  # noqa: SIM115 - closed by __exit__
        self._spool.seek(0, 2)
        for batch in _combined(buffer.batches):
            message: Any = memoryview(batch.serialize())
            buffer.spilled.append((self._spool_size, len(message)))
            buffer.spilled_bytes += batch.nbytes
            self._spool.write(message)
            self._spool_size += len(message)
        buffer.batches, buffer.batch_bytes = [], 0

    def _empty_spool(self) -> None:
        if self._spool is not None and self._spool_size:
            self._spool.seek(0)
            self._spool.truncate()
            self._spool_size = 0


def _combined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Join many small batches. Large batches stay apart, because a column of texts has at most 2 GiB."""
    small = sum(batch.nbytes for batch in batches) <= _MOST_COMBINED
    return [pa.concat_batches(batches)] if small and len(batches) > 1 else batches
