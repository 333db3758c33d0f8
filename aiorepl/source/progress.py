"""Tracks the slices that this process has given out, to resume after a reconnect and to verify the server. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN
from aiorepl.position import Commit, Header, Position
from aiorepl.source.continuity import GAP_ADVICE, Claim, commits
from aiorepl.transactions.assembler import Resume
from aiorepl.transactions.transaction import Slice

HOLDER = "this pipeline"


class CaptureProgress:
    """The progress of this process in the stream.

    :param after: where the stream began.
    :param last: the last transaction before ``after``, if it is known.
    """

    def __init__(self, after: LSN, last: Commit | None = None) -> None:
        self.after = after
        """Where the stream resumes: the end of the last transaction that was received whole, unless it is being read again."""
        # These do not move back when the stream is read again: the end of the last whole transaction, its header, and
        # the largest commit LSN of a transaction of which any part was received.
        self._end = after
        self._last: Header | None = last
        self._last_commit = LSN(0)
        # Commit LSN of the transaction that was received in part, and its number of received changes.
        self._partial: tuple[LSN, int] | None = None

    @property
    def furthest(self) -> LSN:
        """The LSN that a server's WAL must reach to contain everything received, including a partly received commit."""
        return max(self._end, LSN(self._last_commit + 1))

    @property
    def partial(self) -> LSN | None:
        """The commit LSN of a transaction of which only a part was received; ``None`` without one."""
        return self._last_commit if self._last_commit >= self._end else None

    def resume(self, since: LSN) -> Resume:
        """The state for an assembler whose server sends everything after ``since``."""
        commit_lsn, ordinals = self._partial or (None, 0)
        return Resume(since, commit_lsn, ordinals)

    def claim(self, position: Position) -> Claim | None:
        """The claim that a server has to prove after a reconnect; ``position`` is any position of the stream."""
        if self._last is None:
            return None
        return Claim(HOLDER, replace(position.at(self._end), last=Commit.of(self._last)))

    def remember(self, slices: Iterable[Slice]) -> None:
        """Record slices that are given out.

        :raises SlotError: a transaction follows another one that has not ended.
        """
        for part in slices:
            header, end = part.transaction, part.end_lsn
            if header is not None:
                if self._partial is not None and self._partial[0] != header.commit_lsn:
                    raise SlotError(
                        f"the server continues with the transaction that commits at {header.commit_lsn}, but only a part of "
                        f"the one at {self._partial[0]} was received: the server lost it, by a failover or a restore; "
                        f"{GAP_ADVICE}"
                    )
                if end is None or header.commit_lsn < end:
                    # A ROLLBACK PREPARED is identified by the end of its record.
                    self._last_commit = max(self._last_commit, header.commit_lsn)
                if end is None:
                    received = 0 if self._partial is None else self._partial[1]
                    self._partial = (header.commit_lsn, received + len(part.changes))
                else:
                    self._partial = None
                    if end > self._end and commits(part, header):
                        self._last = header
            if end is not None:
                self.after = max(self.after, end)
                self._end = max(self._end, end)

    def rewind(self, lsn: LSN) -> None:
        """Receive everything after ``lsn`` again."""
        # An earlier rewind may not have reached ``lsn`` yet.
        self.after = min(self.after, lsn)
        self._partial = None
