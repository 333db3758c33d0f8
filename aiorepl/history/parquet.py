"""Writes and merges Parquet files as uploads to the store, with one row group in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from aiorepl.errors import DamagedJournal
from aiorepl.formats.arrow.parts_file import PartsFile
from aiorepl.history.manifest import AGAIN, File
from aiorepl.storage.store import Store

REMEDY: Final = f"Put back a copy of the file. {AGAIN}, if there is none"
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""The size of a row group in memory. A reader reads or skips a whole row group, compressed a few MiB."""
_BUFFER_BYTES: Final = 256 * 1024
# The largest dictionary of a column. Larger dictionaries cost time, and hardly ever save space.
_DICTIONARY_BYTES: Final = 64 * 1024
_ORDER: Final = ("_commit_lsn", "_ordinal")


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written.

    :param size: the file's size in bytes.
    :param digest: as in ``File``.
    """

    rows: int
    size: int
    digest: str


def write(store: Store, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write record batches to a file of the store. Their rows are in the order of positions.

    :raises OSError: the file cannot be written.
    """
    sink = PartsFile()
    out = pa.BufferedOutputStream(pa.PythonFile(sink, "w"), _BUFFER_BYTES)
    rows = size = 0
    digest = _digest()
    upload = store.create(name)
    try:
        with pq.ParquetWriter(
            out,
            schema,
            compression="zstd",
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            sorting_columns=[pq.SortingColumn(schema.get_field_index(each)) for each in _ORDER],
            write_page_index=True,
            store_decimal_as_integer=True,  # Spark reads integers without an object each
            write_page_checksum=True,
        ) as writer:
            for table in _row_groups(batches):
                writer.write_table(table, row_group_size=max(table.num_rows, 1))
                rows += table.num_rows
                if parts := sink.take():
                    size += _count(parts, digest)
                    upload.write(parts)
        out.flush()
        parts = sink.take()
        size += _count(parts, digest)
        upload.write(parts)
        upload.publish(name)
    finally:
        upload.discard()
    return Written(rows, size, digest.hexdigest())


def read(store: Store, file: File) -> bytes:
    """Read and verify a file.

    :raises DamagedJournal: the file is missing, or has other contents than were written.
    :raises OSError: the file cannot be read.
    """
    try:
        data = store.read(file.name)
    except FileNotFoundError as error:
        raise DamagedJournal(f"{file.name} in {store.url} is missing", REMEDY) from error
    if len(data) != file.size:
        problem = f"it has {len(data)} bytes instead of {file.size}"
        raise DamagedJournal(f"{file.name} in {store.url} is damaged: {problem}", REMEDY)
    if _digest(data).hexdigest() != file.digest:
        raise DamagedJournal(f"{file.name} in {store.url} is damaged: its checksum does not match", REMEDY)
    return data


def merge(store: Store, sources: Sequence[File], name: str) -> Written:
    """Write the rows of files with one schema to a new file; the same rows give the same file.

    :raises DamagedJournal: a file differs from the file that was written.
    :raises OSError: a file cannot be read or written.
    """
    if len(sources) == 1:
        data = read(store, sources[0])
        upload = store.create(name)
        try:
            upload.write([data])
            upload.publish(name)
        finally:
            upload.discard()
        return Written(sources[0].rows, sources[0].size, sources[0].digest)

    def batches() -> Iterator[pa.RecordBatch]:
        for source in sources:
            yield from _open(read(store, source)).iter_batches(batch_size=65_536)

    schema = _open(read(store, sources[0])).schema_arrow
    return write(store, name, schema, batches())


def digest_of(data: bytes) -> str:
    """Return the digest of a whole file, as in ``File``."""
    return str(_digest(data).hexdigest())


def _digest(data: bytes = b"") -> Any:
    return hashlib.blake2b(data, digest_size=16)


def _count(parts: list[bytes], digest: Any) -> int:
    for part in parts:
        digest.update(part)
    return sum(map(len, parts))


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
