"""Drops the changes that a replay of the stream repeats. Pure.

A replay begins with a whole transaction, at or before the point where the stream broke off, and cuts transactions into
other slices. A transaction that was received whole is recognised by its end LSN, and its earlier slices by its commit
LSN. The transaction that was received in part is recognised by its commit LSN, and its changes by their ordinals. This
also holds for prepared transactions, whose header has the LSN of the PREPARE, and for their outcome.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from aiorepl.lsn import LSN, ZERO
from aiorepl.transactions.changes import Change
from aiorepl.transactions.lazy_changes import LazyChanges
from aiorepl.transactions.slices import Slice

_ordinal = attrgetter("ordinal")


class ReplayFilter:
    """How far a consumer has received the stream.

    Call ``new`` for every slice. Call ``add`` for each slice that ``new`` returned, once the consumer has the slice. A slice may be
    added twice.

    :param after: an end LSN; everything that ended at or before it was received.
    :param commit_lsn: the transaction that was received in part; ``None`` without one.
    :param ordinal: the ordinal of that transaction's next change.
    """

    __slots__ = ("after", "commit_lsn", "ordinal")

    def __init__(self, after: LSN = ZERO, commit_lsn: LSN | None = None, ordinal: int = 0) -> None:
        self.after = after
        self.commit_lsn = commit_lsn
        self.ordinal = ordinal

    def known(self, commit_lsn: int) -> int | None:
        """Return the number of received changes of a transaction; ``None`` if the whole transaction was received."""
        if commit_lsn == self.commit_lsn:
            return self.ordinal
        # A commit record that begins before ``after`` also ends by then, because ``after`` is the end of a record.
        return None if commit_lsn < self.after else 0

    def new(self, part: Slice) -> Slice | None:
        """Return the slice without the changes that were received; ``None`` if nothing of it is new."""
        header, end_lsn = part.transaction, part.end_lsn
        if header is not None and header.commit_lsn == self.commit_lsn:
            return self._rest(part)
        if end_lsn is not None and end_lsn <= self.after:
            return None
        return None if header is not None and header.commit_lsn < self.after else part

    def take(self, part: Slice) -> Slice | None:
        """Call ``new`` and ``add``, for a consumer that has a slice as soon as ``new`` returns it."""
        header, end_lsn = part.transaction, part.end_lsn
        # Most transactions are one slice.
        if end_lsn is not None and header is not None and part.first and self.commit_lsn is None:
            if end_lsn <= self.after or header.commit_lsn < self.after:
                return None
            self.after = end_lsn
            return part
        new = self.new(part)
        if new is not None:
            self.add(new)
        return new

    def add(self, part: Slice) -> None:
        """Record a slice that was received."""
        header, end_lsn = part.transaction, part.end_lsn
        if end_lsn is not None:
            self.after = max(self.after, end_lsn)
            if header is not None and self.commit_lsn is not None and self.commit_lsn < end_lsn:
                self.commit_lsn, self.ordinal = None, 0
        elif header is not None and (known := self.known(header.commit_lsn)) is not None:
            self.commit_lsn, self.ordinal = header.commit_lsn, max(known, _next_ordinal(part.changes))

    def _rest(self, part: Slice) -> Slice | None:
        known = _count_before(part.changes, self.ordinal)
        if known == len(part.changes) and not part.last:
            return None
        if not self.ordinal or (not known and not part.first):
            return part
        return replace(part, changes=part.changes[known:] if known else part.changes, first=False)


def _count_before(changes: Sequence[Change], ordinal: int) -> int:
    """Return the number of changes with a lower ordinal, without making lazy changes."""
    if isinstance(changes, LazyChanges):
        return min(max(0, ordinal - changes.first_ordinal), len(changes))
    return bisect_left(changes, ordinal, key=_ordinal)


def _next_ordinal(changes: Sequence[Change]) -> int:
    if isinstance(changes, LazyChanges):
        return changes.first_ordinal + len(changes)
    return changes[-1].ordinal + 1 if changes else 0
