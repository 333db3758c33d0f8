"""A batch of a mirror, described by the rows of its source. Pure.

The first row has the batch's start and end, and the query's id. Every other row describes a staged file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from aiorepl.history.manifest import Table
from aiorepl.lsn import LSN
from aiorepl.spark.mirroring.staging import StagedFile
from aiorepl.spark.reading.offsets import Offset

HEAD: Final = "batch"
FILE: Final = "file"

Row = tuple[str, bytes]
"""The kind of the row, and its contents as JSON."""


@dataclass(frozen=True, slots=True)
class Head:
    """The start and the end of a batch in the journal.

    :param start: the offset where the batch begins.
    :param end: the offset where it ends.
    :param lsn: the end of the segment in which the batch ends. If the batch ends within the segment, the tables reach this
        LSN only with the rest of the segment.
    """

    start: Offset
    end: Offset
    lsn: LSN

    def row(self) -> Row:
        """Return the row that ``Batch.of`` parses."""
        return HEAD, orjson.dumps([self.start.to_json(), self.end.to_json(), str(self.lsn)])


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch and its files."""

    head: Head
    files: Sequence[StagedFile]

    @classmethod
    def of(cls, rows: Iterable[Any]) -> Self:
        """Parse the rows that the source returned, in any order."""
        head: Head | None = None
        files = []
        for kind, content in rows:
            if kind == HEAD:
                start, end, lsn = orjson.loads(bytes(content))
                head = Head(Offset.from_json(start), Offset.from_json(end), LSN.parse(lsn))
            else:
                files.append(StagedFile.from_json(bytes(content)))
        assert head is not None
        return cls(head, files)

    def by_table(self) -> dict[Table, list[StagedFile]]:
        """Return the files of each table, in the order of their rows."""
        found: dict[Table, list[StagedFile]] = {}
        for file in sorted(self.files, key=lambda each: (each.table, each.file.first)):
            found.setdefault(file.table, []).append(file)
        return found


def file_row(file: StagedFile) -> Row:
    """Return the row of a file."""
    return FILE, file.to_json()
