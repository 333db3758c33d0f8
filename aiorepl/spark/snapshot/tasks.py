"""The function that tasks of ``Snapshot.mirror`` run. Executors import this module, so it needs nothing of the driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aiorepl.snapshot.chunks import Range
from aiorepl.spark.session.programs import spare_modules
from aiorepl.spark.snapshot.files import DeltaFiles, WrittenFile
from aiorepl.spark.snapshot.reader import SnapshotTable

Chunk = tuple[int, int, Range]
"""The number of a table, the number of a chunk within the table, and the chunk."""


@dataclass(frozen=True, slots=True)
class MirroredTable:
    """A table, its chunks, and the files that its rows become; pickled to executors."""

    table: SnapshotTable
    ranges: tuple[Range, ...]
    files: DeltaFiles


def write_chunks(tables: tuple[MirroredTable, ...], chunks: Iterable[Chunk]) -> list[tuple[int, WrittenFile]]:
    """Write each chunk into a file. Return the file with the number of its table, unless the chunk has no rows."""
    spare_modules()
    written = []
    for number, chunk, rows in chunks:
        part = tables[number]
        file = part.files.write(part.table.batches(chunk, rows))
        if file is not None:
            written.append((number, file))
    return written
