"""The staging folder of a query: temporary Parquet files with the rows of a batch, for the driver and the executors.

Each attempt at a task uses new file names, so files of failed attempts are never read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from aiorepl.errors import DamagedJournal, JournalError
from aiorepl.history import parquet
from aiorepl.history.manifest import File
from aiorepl.spark.lake.table import Part
from aiorepl.storage.objects.location import ObjectStore
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store, reading

_SUFFIX: Final = ".parquet"
_AGAIN: Final = "Start the query again: it stages the batch again"


def folder_of(query: str, staging: str | os.PathLike[str] | ObjectStore) -> Location:
    """Return a folder for one query in a staging folder. Queries must not share a folder, because ``clean`` deletes all its files.

    :param query: identifies the query, such as its checkpoint with its target. In two containers, one path can be two checkpoints.
    """
    own = f"aiorepl-{blake2b(query.encode(), digest_size=8).hexdigest()}"
    if isinstance(staging, ObjectStore):
        return replace(staging, url=f"{staging.url.rstrip('/')}/{own}")
    return f"{os.fspath(staging).rstrip('/')}/{own}"


def new_name() -> str:
    return f"{uuid4().hex}{_SUFFIX}"


def write(staging: Location, table: pa.Table) -> File:
    """Write rows to a new file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="lz4")
    data, name = sink.getvalue(), new_name()
    open_store(staging).write(name, data)
    return File(name, 0, table.num_rows, len(data), (0, 0), (0, 0), 0, parquet.digest_of(data))


def read(store: Store, file: File, table: object = "the table") -> bytes:
    """Read and verify a file.

    :param table: the table's name, for errors.
    :raises JournalError: the file is missing or damaged, or cannot be read.
    """
    with reading(store):
        try:
            return parquet.read(store, file)
        except DamagedJournal:
            # DamagedJournal would be wrong: the journal is whole, and the batch can be staged again.
            raise JournalError(
                f"a staged file of {table} was lost: {file.name} in {store.url} is missing or damaged. {_AGAIN}"
            ) from None


def batches(data: bytes) -> Iterator[pa.RecordBatch]:
    """Decode the contents of a file, one row group at a time."""
    opened = pq.ParquetFile(pa.BufferReader(data))
    for group in range(opened.num_row_groups):
        yield from opened.read_row_group(group).combine_chunks().to_batches()


def part(staging: Location, file: File, memory: int) -> Part:
    """Return a part whose rows are read from a file.

    :param memory: the bytes of its rows in memory.
    """
    return Part(memory, partial(_read, staging, file))


def clean(store: Store) -> None:
    """Delete all staged files. Call it when no batch is in progress: later batches write new files.

    :raises OSError: a file cannot be deleted.
    """
    for name in store.names():
        if name.endswith(_SUFFIX):
            store.delete(name)


def _read(staging: Location, file: File) -> pa.Table:
    return pq.read_table(pa.BufferReader(read(open_store(staging), file)))
