"""A consistent view of a journal: its segments in commit order, its gaps and incomplete tables, and its start. Pure.

All readers start here: the asyncio reader, pruning, the command line, and Spark. ``position.json`` has the last segments. The
manifests that list the older ones are loaded on demand, so the cost of a reader near the end depends only on the new segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from aiorepl.journal.completeness import Completeness, Gap, Incomplete, TableSnapshot
from aiorepl.journal.manifest import Manifest, ManifestRef
from aiorepl.journal.metadata import Identity, JournalState, Start
from aiorepl.journal.segments import Segment
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.table_name import TableName


class Files(Protocol):
    """Loads the files that ``position.json`` names. Every call may raise JournalError."""

    def manifest(self, ref: ManifestRef) -> Manifest:
        """Load the manifest ``ref``. If it was merged meanwhile, load the merged manifest, which has more segments."""

    def completeness(self, state: JournalState) -> Completeness:
        """Load the gaps and snapshots of this state, or of a later one."""

    def start(self, state: JournalState) -> Start:
        """Load the journal's start, which retention moves."""


@dataclass(frozen=True)
class Chain:
    """A journal at one moment."""

    identity: Identity
    state: JournalState
    files: Files

    @property
    def end(self) -> Position:
        """The end of the last segment; LSN 0 if there is none."""
        return self.state.end

    @property
    def position(self) -> Position:
        """The journal's end, including WAL without transactions; LSN 0 if it is empty."""
        return self.state.position

    @property
    def last_segment_end(self) -> LSN:
        """The end LSN of the last segment; 0 if there is none."""
        return self.state.end.lsn

    @property
    def end_lsn(self) -> LSN:
        """The LSN up to which the journal is complete; the journal's start while it is empty."""
        return max(self.identity.start_lsn, self.state.position.lsn)

    @cached_property
    def start_lsn(self) -> LSN:
        """The LSN after which the first segment starts; 0 if nothing was pruned."""
        return max(self.state.first_lsn, self.files.start(self.state).lsn)

    @property
    def first_readable(self) -> LSN:
        """The lowest LSN from which the journal can be read; 0 if it starts with an initial snapshot."""
        if self.start_lsn or self.state.begins is None:
            return self.start_lsn or self.identity.start_lsn
        return self.state.begins

    @cached_property
    def completeness(self) -> Completeness:
        """The accepted gaps, and the snapshots of tables."""
        return self.files.completeness(self.state)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """All accepted gaps."""
        return self.completeness.gaps

    @property
    def tables(self) -> tuple[TableSnapshot, ...]:
        """The snapshots of tables."""
        return self.completeness.tables

    def segments(
        self, after: LSN = ZERO, until: LSN | None = None, table: TableName | None = None
    ) -> list[Segment]:
        """The segments that end after ``after``, in commit order, parts one by one.

        :param until: only segments that end at or before this LSN.
        :param table: only segments with rows of this table.
        """
        return list(self.walk(after, until, table))

    def walk(
        self, after: LSN = ZERO, until: LSN | None = None, table: TableName | None = None
    ) -> Iterator[Segment]:
        """Iterate as ``segments`` does, but load manifests one by one."""
        end = self.last_segment_end if until is None else min(until, self.last_segment_end)
        if after < end:
            yield from self.named(max(after, self.start_lsn), end, table)

    def named(self, after: LSN, until: LSN, table: TableName | None = None) -> Iterator[Segment]:
        """Iterate as ``walk`` does, but include segments before the start, whose files may be deleted."""
        for ref in self.state.manifests:
            if ref.end > after and ref.after < until:
                yield from self._of(ref, max(after, ref.after), min(until, ref.end), table)
        for segment, tables in self.state.tail:
            if after < segment.last_end_lsn <= until and (table is None or table in tables):
                yield segment

    def backwards(self, table: TableName) -> Iterator[Segment]:
        """The segments with rows of ``table``, the last one first."""
        for segment, tables in reversed(self.state.tail):
            if table in tables and segment.after >= self.start_lsn:
                yield segment
        for ref in reversed(self.state.manifests):
            if ref.end > self.start_lsn:
                yield from self._of(ref, max(ref.after, self.start_lsn), ref.end, table, backwards=True)

    def _of(
        self, ref: ManifestRef, after: LSN, until: LSN, table: TableName | None, *, backwards: bool = False
    ) -> Iterator[Segment]:
        manifest = self.files.manifest(ref)
        within = manifest.within(after, until)
        numbers = within if table is None else manifest.having(table, within)
        yield from map(manifest.segment, reversed(numbers) if backwards else numbers)

    def contents(self) -> Iterator[tuple[Manifest, range]]:
        """All segments, in commit order: manifests, each with the numbers of its segments that are not pruned."""
        for ref in self.state.manifests:
            if ref.end > self.start_lsn:
                manifest = self.files.manifest(ref)
                yield manifest, manifest.within(max(ref.after, self.start_lsn), ref.end)
        tail = Manifest.of(self.state.tail)
        yield tail, tail.within(self.start_lsn, self.last_segment_end)

    def size_after(self, lsn: LSN) -> int:
        """The bytes of the segments that end after ``lsn``. Loads at most one manifest."""
        after = max(lsn, self.start_lsn)
        size = sum(entry.segment.size for entry in self.state.tail if entry.segment.last_end_lsn > after)
        for ref in self.state.manifests:
            if ref.after >= after:
                size += ref.size
            elif ref.end > after:
                manifest = self.files.manifest(ref)
                size += manifest.size(manifest.within(after, ref.end))
        return size

    def ends_at(self, lsn: LSN) -> bool:
        """Whether a segment ends at ``lsn``, or the first one begins there."""
        if lsn == self.last_segment_end:
            return True
        following = next(self.walk(lsn), None)
        return following is not None and following.after == lsn

    def incomplete(self, after: LSN, table: TableName | None = None) -> list[Incomplete]:
        """The tables that are not whole for a reader that begins after ``after``; of all tables, or only of ``table``."""
        return self.completeness.incomplete(max(after, self.start_lsn), table)

    def hole(self, lsn: LSN) -> Gap | None:
        """The accepted gap around ``lsn``; no reader can have a position inside a gap."""
        return next((gap for gap in self.gaps if gap.start_lsn < lsn < gap.until), None)

    def gaps_between(self, after: LSN, until: LSN) -> list[Gap]:
        """The accepted gaps that a reader crosses between two positions."""
        return [gap for gap in self.gaps if after < gap.until <= until]
