"""The chain that a journal's files form, verified before any of them is believed. Pure.

A segment's name has the end of the segment before it, so a listing shows a missing one; ``position.json`` names the last
one. Every reader begins here: the asyncio reader, the writer at its start, pruning, the command line, and Spark.

A listing is no snapshot of a folder: it may miss files that appear or go while it is made. ``files.read_chain`` therefore
lists again when links do not join; nothing else depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from aiorepl.journal.records import Gap, Manifest, State, segment_name, segment_range
from aiorepl.lsn import LSN, ZERO

_DIGITS: Final = 16
_LAST: Final = _DIGITS + 1


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A segment, as its name tells.

    :param after: the end LSN of the segment before it; 0 of the first.
    :param last_end_lsn: what a consumer of the whole segment has.
    """

    name: str
    after: LSN
    last_end_lsn: LSN

    @classmethod
    def named(cls, name: str) -> Segment:
        """The segment of this name.

        :raises ValueError: when it is no segment's name.
        """
        return cls(name, *segment_range(name))


@dataclass(frozen=True, slots=True)
class Chain:
    """A journal whose links join.

    :param names: of the segments, in commit order.
    """

    manifest: Manifest
    state: State
    names: tuple[str, ...]

    @property
    def end(self) -> LSN:
        """Where the last segment ends; 0 without one."""
        return segment_range(self.names[-1])[1] if self.names else ZERO

    @property
    def reaches(self) -> LSN:
        """Up to where the journal has everything; at the beginning while it is empty."""
        return max(self.manifest.begins, self.state.position.lsn, self.end)

    @property
    def begins(self) -> LSN:
        """What a reader of all that is kept must have had; 0 when the beginning is kept."""
        return segment_range(self.names[0])[0] if self.names else ZERO

    @property
    def last(self) -> Segment | None:
        """The last segment."""
        return Segment.named(self.names[-1]) if self.names else None

    def segments(self, after: LSN = ZERO, until: LSN | None = None) -> list[Segment]:
        """The segments with anything behind ``after``, in commit order; with ``until`` those that end by then."""
        # Queries ask every few milliseconds, of thousands of segments: names compare as the numbers in them do.
        behind = segment_name(ZERO, after)[_LAST:]
        chosen = [Segment.named(name) for name in self.names if name[_LAST:] > behind]
        return [segment for segment in chosen if until is None or segment.last_end_lsn <= until]

    def hole(self, lsn: LSN) -> Gap | None:
        """The accepted gap that ``lsn`` lies inside of, where no reader can stand."""
        return next((gap for gap in self.state.gaps if gap.begins < lsn < gap.until), None)

    def gaps(self, after: LSN, until: LSN) -> list[Gap]:
        """The accepted gaps that a reader crosses between two positions."""
        return [gap for gap in self.state.gaps if after < gap.until <= until]


@dataclass(frozen=True, slots=True)
class Break:
    """A file that is missing or does not fit: what is wrong with it, and what to do, unless the usual."""

    file: str
    problem: str
    remedy: str | None = None


def broken(names: list[str], manifest: Manifest | None, state: State | None) -> Break | None:
    """Where the chain is broken; ``None`` when all its links join.

    :param names: of the segments that have an index, sorted.
    """
    if manifest is None:
        return Break("journal.json", "is missing") if names or state is not None else None
    for name in names:
        try:
            segment_range(name)
        except ValueError:
            return Break(f"{name}.index", "is not a name that a journal gives", "Move it out of the folder")
    for earlier, later in pairwise(names):
        end, after = earlier[_LAST:], later[:_DIGITS]
        if end < after:
            stretch = f"{LSN(int(end, 16))} and {LSN(int(after, 16))}"
            return Break(f"{end}-*.index", f"is missing: there is nothing between {stretch}")
        if end > after:
            return Break(
                f"{later}.index",
                f"does not follow {earlier}.index",
                "Move the one that is not of this journal out of the folder",
            )
    if state is None:
        return Break("position.json", "is missing") if names else None
    if names and state.segment not in names:
        # It was pruned, or position.json is older than the first segment; else it is missing.
        first = segment_range(names[0])[0]
        if first < state.end or (state.segment is None and first):
            missing = state.segment or f"{ZERO:016X}-*"
            return Break(f"{missing}.index", "is missing, and position.json says that it is there")
    elif not names and state.segment is not None:
        return Break(f"{state.segment}.index", "is missing, and position.json says that it is there")
    return None
