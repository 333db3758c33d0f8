"""The names and descriptions of segments. Pure.

A segment is one file. A transaction that is larger than a segment has several *parts*: files that are uploaded as they
become full, and published together after its commit. They have the same ``after`` and the same end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiorepl.lsn import LSN
from aiorepl.table_name import TableName

FOLDER: Final = "segments"
SUFFIX: Final = ".segment"


class BlockPosition(NamedTuple):
    """A reader's position, which may be within a transaction: up to the first block that it has not read.

    :param lsn: the reader has everything that ended at or before this LSN.
    :param part: the number of the part, in the segment after ``lsn``.
    :param block: the number of the block in that part.
    """

    lsn: LSN
    part: int = 0
    block: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A published segment, or a part of one.

    :param after: the end LSN of the previous segment; 0 for the first.
    :param last_end_lsn: the position of a consumer that has read all parts.
    :param epoch: the writer's epoch.
    :param part: the number of this part.
    :param parts: the number of parts of the segment.
    :param size: the size of the file, in bytes.
    :param index_offset: where the index begins, in bytes.
    :param blocks: the number of blocks in the file.
    :param published: when the segment was published, in seconds since 1970.
    """

    after: LSN
    last_end_lsn: LSN
    epoch: int
    part: int
    parts: int
    size: int
    index_offset: int
    blocks: int
    published: int

    @property
    def name(self) -> str:
        """The name without folder and suffix. Names sort in commit order."""
        return segment_name(self.after, self.epoch, self.part)

    @property
    def file(self) -> str:
        """The path of the file in the journal."""
        return segment_file(self.name)

    @property
    def last_part(self) -> bool:
        """Whether a reader has reached ``last_end_lsn`` after this part."""
        return self.part == self.parts - 1

    def follows(self, previous: Segment) -> bool:
        """Whether this is the next part or segment after ``previous``."""
        if previous.last_part:
            return self.part == 0 and self.after == previous.last_end_lsn
        return (
            self.part == previous.part + 1
            and self.parts == previous.parts
            and (self.after, self.last_end_lsn) == (previous.after, previous.last_end_lsn)
        )


class Entry(NamedTuple):
    """A segment, and the tables that have rows in it."""

    segment: Segment
    tables: tuple[TableName, ...]


def segment_name(after: LSN, epoch: int, part: int) -> str:
    """Make the name of a segment. No other writer makes the same name."""
    return f"{after:016X}-{epoch:08X}-{part:06X}"


def segment_file(name: str) -> str:
    """Return the file of the segment ``name``."""
    return f"{FOLDER}/{name}{SUFFIX}"


def parse_name(file: str) -> tuple[LSN, int, int]:
    """Parse a file's name, without its folder, into the segment's ``after``, epoch and part.

    :raises ValueError: ``segment_name`` cannot have made this name.
    """
    after, epoch, part = (int(number, 16) for number in file.removesuffix(SUFFIX).split("-"))
    if segment_name(LSN(after), epoch, part) + SUFFIX != file:
        raise ValueError(f"{file!r} is not the name of a segment")
    return LSN(after), epoch, part


def groups(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Gather the parts of each segment."""
    parts: list[Segment] = []
    for segment in segments:
        parts.append(segment)
        if segment.last_part:
            yield parts
            parts = []
