"""Writes and merges Parquet files as uploads to the store, with one row group in memory."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from aiorepl.journal.store import Store

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""The size of a row group in memory. Compressed, it is a few MiB: what a reader skips or reads at once."""
_BUFFER_BYTES: Final = 256 * 1024
# Columns whose dictionary would be larger get none: it costs time, and hardly ever saves space.
_DICTIONARY_BYTES: Final = 64 * 1024
_ORDER: Final = ("_commit_lsn", "_ordinal")


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written.

    :param size: in bytes.
    """

    rows: int
    size: int


def write(store: Store, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write record batches, which are in the order of positions, to a file of the store.

    :raises OSError: the file cannot be written.
    """
    sink = _Parts()
    out = pa.BufferedOutputStream(pa.PythonFile(sink, "w"), _BUFFER_BYTES)
    rows = size = 0
    upload = store.create(name)
    try:
        with pq.ParquetWriter(
            out,
            schema,
            compression="zstd",
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            sorting_columns=[pq.SortingColumn(schema.get_field_index(each)) for each in _ORDER],
            write_page_index=True,
            store_decimal_as_integer=True,  # Spark makes no object of each
            write_page_checksum=True,
        ) as writer:
            for table in _row_groups(batches):
                writer.write_table(table, row_group_size=max(table.num_rows, 1))
                rows += table.num_rows
                if parts := sink.take():
                    size += sum(map(len, parts))
                    upload.write(parts)
        out.flush()
        parts = sink.take()
        size += sum(map(len, parts))
        upload.write(parts)
        upload.publish(name)
    finally:
        upload.discard()
    return Written(rows, size)


def merge(store: Store, sources: list[str], name: str) -> int:
    """Write the rows of files with one schema to a new file; the same rows give the same file. Returns its size.

    :raises OSError: a file cannot be read or written.
    """
    if len(sources) == 1:
        data = store.read(sources[0])
        upload = store.create(name)
        try:
            upload.write([data])
            upload.publish(name)
        finally:
            upload.discard()
        return len(data)

    def batches() -> Iterator[pa.RecordBatch]:
        for source in sources:
            yield from _open(store.read(source)).iter_batches(batch_size=65_536)

    schema = _open(store.read(sources[0])).schema_arrow
    return write(store, name, schema, batches()).size


def _open(data: bytes) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(data))


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if held and size + batch.nbytes > ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield pa.Table.from_batches(held)


class _Parts(io.RawIOBase):
    """A file in memory; ``take`` removes what was written."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> list[bytes]:
        """Return what was written since the previous call."""
        parts, self._parts = self._parts, []
        return parts
