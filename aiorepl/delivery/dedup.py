"""What of a stream a reader has been given, where the stream may come again for the sake of another reader. Pure.

A stream that is read again begins with a whole transaction, at or before where it broke off, and is cut into other
slices. What is known of it is dropped: whole transactions by their end, and of the one that was under way the changes
that had come, by their number.
"""

from __future__ import annotations

from dataclasses import replace

from aiorepl.lsn import LSN
from aiorepl.transactions.transaction import Slice


class Deduplicator:
    """Told every slice, gives back what is new of it.

    :param after: what ended at or before it is known.
    """

    def __init__(self, after: LSN) -> None:
        self._after = after
        # Of the transaction under way: how many changes are known, and how many of them have come in this reading.
        self._commit_lsn: LSN | None = None
        self._known = 0
        self._come = 0

    def new(self, part: Slice) -> Slice | None:
        """The slice, what is new of it, or ``None``."""
        header, end = part.transaction, part.end_lsn
        if end is None:
            if header is not None and header.commit_lsn < self._after:
                return None
        elif end <= self._after:
            return None
        else:
            self._after = end
        if header is None or (part.first and end is not None and header.commit_lsn != self._commit_lsn):
            return part
        return self._of_several(part, header.commit_lsn)

    def _of_several(self, part: Slice, commit_lsn: LSN) -> Slice | None:
        if commit_lsn != self._commit_lsn:
            self._commit_lsn, self._known = commit_lsn, 0
        before = 0 if part.first else self._come
        self._come = before + len(part.changes)
        known, self._known = self._known - before, max(self._known, self._come)
        if known <= 0:
            return part
        if known >= len(part.changes) and not part.last:
            return None
        return replace(part, changes=part.changes[known:], first=False)
