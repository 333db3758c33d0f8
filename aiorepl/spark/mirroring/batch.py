"""A batch of a mirror: its start and its end, and its staged files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from aiorepl.journal.times import Times
from aiorepl.lsn import LSN
from aiorepl.spark.mirroring.staging import StagedFile
from aiorepl.spark.reading.offsets import Offset
from aiorepl.table_name import TableName


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
