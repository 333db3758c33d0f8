"""The chain of a journal's segments, verified before any file is used. Pure.

A segment's name contains the end of the previous segment, so a listing shows a missing one; ``position.json`` names the
last one. All readers begin here: the asyncio reader, the writer at its start, pruning, the command line, and Spark.

A directory listing is not atomic: it may miss files that are created or deleted meanwhile. ``files.read_chain`` therefore
lists again when segments do not join.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from aiorepl.journal.metadata import Gap, Manifest, State, TableSnapshot, segment_name, segment_range
from aiorepl.lsn import LSN, ZERO

_DIGITS: Final = 16
_LAST: Final = _DIGITS + 1


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A segment, parsed from its name.

    :param after: the end LSN of the previous segment; 0 for the first.
    :param last_end_lsn: the position of a consumer that has read the whole segment.
    """

    name: str
    after: LSN
    last_end_lsn: LSN

    @classmethod
    def named(cls, name: str) -> Segment:
        """Parse a segment's name.

        :raises ValueError: it is not a segment's name.
        """
        return cls(name, *segment_range(name))


@dataclass(frozen=True, slots=True)
class Chain:
    """A journal in which every segment follows the previous one.

    :param names: the segments' names in commit order.
    """

    manifest: Manifest
    state: State
    names: tuple[str, ...]

    @property
    def last_segment_end(self) -> LSN:
        """The end of the last segment; 0 if there is none."""
        return segment_range(self.names[-1])[1] if self.names else ZERO

    @property
    def end_lsn(self) -> LSN:
        """The LSN up to which the journal is complete; its start while it is empty."""
        return max(self.manifest.start_lsn, self.state.position.lsn, self.last_segment_end)

    @property
    def start_lsn(self) -> LSN:
        """The LSN after which the first segment starts; 0 if nothing was pruned."""
        return segment_range(self.names[0])[0] if self.names else ZERO

    @property
    def last(self) -> Segment | None:
        """The last segment."""
        return Segment.named(self.names[-1]) if self.names else None

    def segments(self, after: LSN = ZERO, until: LSN | None = None) -> list[Segment]:
        """The segments that end after ``after``, in commit order; with ``until``, only those that end by then."""
        # Called every few milliseconds with thousands of segments. Names sort like the numbers in them.
        digits = segment_name(ZERO, after)[_LAST:]
        chosen = [Segment.named(name) for name in self.names if name[_LAST:] > digits]
        return [segment for segment in chosen if until is None or segment.last_end_lsn <= until]

    def incomplete(self, after: LSN) -> list[TableSnapshot]:
        """The tables that a reader that begins after ``after`` does not get whole."""
        begins = max(after, self.start_lsn)
        whole = {
            table.oid for table in self.state.tables if begins <= table.start_lsn and not table.abandoned
        }
        lacking = {table.oid: table for table in self.state.tables if table.oid not in whole}
        return list(lacking.values())

    def hole(self, lsn: LSN) -> Gap | None:
        """The accepted gap around ``lsn``; no reader can have a position inside a gap."""
        return next((gap for gap in self.state.gaps if gap.start_lsn < lsn < gap.until), None)

    def gaps(self, after: LSN, until: LSN) -> list[Gap]:
        """The accepted gaps that a reader crosses between two positions."""
        return [gap for gap in self.state.gaps if after < gap.until <= until]


@dataclass(frozen=True, slots=True)
class Break:
    """A missing or misplaced file, its problem, and the remedy unless it is the default one."""

    file: str
    problem: str
    remedy: str | None = None


def find_break(names: list[str], manifest: Manifest | None, state: State | None) -> Break | None:
    """Find the first break of the chain; ``None`` if all segments join.

    :param names: the sorted names of the segments that have an index.
    """
    if manifest is None:
        return Break("journal.json", "is missing") if names or state is not None else None
    for name in names:
        try:
            segment_range(name)
        except ValueError:
            return Break(f"{name}.index", "does not have the name of a segment", "Move it out of the folder")
    for earlier, later in pairwise(names):
        end, after = earlier[_LAST:], later[:_DIGITS]
        if end < after:
            missing = f"{LSN(int(end, 16))} and {LSN(int(after, 16))}"
            return Break(f"{end}-*.index", f"is missing: there is nothing between {missing}")
        if end > after:
            return Break(
                f"{later}.index",
                f"does not follow {earlier}.index",
                "Move the file that does not belong to this journal out of the folder",
            )
    if state is None:
        return Break("position.json", "is missing") if names else None
    if names and (last_after := segment_range(names[-1])[0]) > state.last_segment_end:
        # After a crash one segment is newer than position.json, and never more: gaps would be forgotten.
        return Break(
            "position.json",
            f"is an older copy: it ends at {state.last_segment_end}, and a segment starts at {last_after}",
        )
    if names and state.segment not in names:
        # Not missing if it was pruned, or if position.json is older than the first segment.
        first = segment_range(names[0])[0]
        if first < state.last_segment_end or (state.segment is None and first):
            missing = state.segment or f"{ZERO:016X}-*"
            return Break(f"{missing}.index", "is missing, although position.json names it")
    elif not names and state.segment is not None:
        return Break(f"{state.segment}.index", "is missing, although position.json names it")
    return None
