"""Tracks the slices that ``Capture`` has returned, to resume after a reconnect and to verify the server. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN
from aiorepl.pgoutput.received_part import ReceivedPart
from aiorepl.position import Commit, Header, Position
from aiorepl.source.continuity import GAP_ADVICE, Claim, identifies
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction

HOLDER = "this pipeline"


class CaptureProgress:
    """The progress of this process in the stream.

    :param after: where the stream began.
    :param last: the last transaction with changes before ``after``, if it is known.
    """

    def __init__(self, after: LSN, last: Commit | None = None) -> None:
        self._replay = ReplayFilter(after)
        self._part: ReceivedPart | None = None
        # Three values do not move back on a rewind: the end of the last whole transaction, the header of the last
        # transaction with changes, and the largest commit LSN of a transaction that was received whole or in part.
        self._end = after
        self._last: Header | None = last
        self._last_commit = LSN(0)
        # The last transaction that was received, in part or whole.
        self._transaction: Transaction | None = None

    @property
    def after(self) -> LSN:
        """Where the stream resumes: the end of the last transaction that was received whole, or the target of a rewind."""
        return self._replay.after

    @property
    def furthest(self) -> LSN:
        """The LSN that a server's WAL must reach to contain everything received, including a partly received commit."""
        return max(self._end, LSN(self._last_commit + 1))

    @property
    def partial(self) -> LSN | None:
        """The commit LSN of a transaction that was received in part; ``None`` without one."""
        return self._last_commit if self._last_commit >= self._end else None

    def resume(self, since: LSN) -> ReplayFilter:
        """Return the filter for an assembler whose server sends everything after ``since``."""
        return ReplayFilter(since, self._replay.commit_lsn, self._replay.ordinal)

    @property
    def part(self) -> ReceivedPart | None:
        """The received part of the transaction that ``resume`` names; ``None`` without such a transaction."""
        part = self._part
        return part if part is not None and part.commit_lsn == self._replay.commit_lsn else None

    def new(self, part: Slice) -> Slice | None:
        """Return the slice without the changes that were received before; ``None`` if nothing in it is new."""
        return self._replay.new(part)

    def claim(self, position: Position) -> Claim | None:
        """Return the claim to verify after a reconnect; ``position`` is any position of the stream."""
        if self._last is None:
            return None
        return Claim(HOLDER, replace(position.at(self._end), last=Commit.of(self._last)))

    def remember(self, slices: Iterable[Slice], received: ReceivedPart | None = None) -> None:
        """Record slices that ``Capture`` returns.

        :param received: the received part of the plain transaction within which these slices end.
        """
        for part in slices:
            header, end = part.transaction, part.end_lsn
            if header is not None:
                self._transaction = header
                if end is None or header.commit_lsn < end:
                    # A ROLLBACK PREPARED is identified by the end of its record.
                    self._last_commit = max(self._last_commit, header.commit_lsn)
                if end is not None and end > self._end and identifies(part, header):
                    self._last = header
            if end is not None:
                self._end = max(self._end, end)
            self._replay.add(part)
        if received is not None and received.commit_lsn == self._replay.commit_lsn:
            self._part = received

    def reached(self, lsn: LSN) -> bool:
        """Whether everything before ``lsn`` was received, and no transaction only in part."""
        return self.after >= lsn and self._replay.commit_lsn is None

    def before(self, lsn: LSN, slices: Iterable[Slice]) -> int:
        """Count the slices before the first transaction that commits at or after ``lsn``, and the rest of a transaction received in part."""
        count, begun = 0, self._replay.commit_lsn
        for part in slices:
            header = part.transaction
            if header is not None and lsn <= header.commit_lsn != begun:
                break
            count += 1
        return count

    def passed(self, slices: Sequence[Slice]) -> tuple[int, Transaction] | None:
        """Return the transaction that was received in part, if these slices continue after its commit without its rest.

        :returns: the index of the first slice after its commit, and the transaction.
        """
        partial = self._replay.commit_lsn
        if partial is None:
            return None
        for index, part in enumerate(slices):
            header = part.transaction
            lsn = part.end_lsn if header is None else header.commit_lsn
            if header is not None and lsn == partial:
                return None
            if lsn is not None and lsn > partial:
                assert self._transaction is not None
                return index, self._transaction
        return None

    @staticmethod
    def end_of(partial: Transaction) -> Slice:
        """Return a slice that ends a transaction without more changes. The LSN where its commit record ends is unknown."""
        return Slice(partial, (), False, LSN(partial.commit_lsn + 1), 0)

    def lost(self, later: Slice) -> SlotError:
        """Return the error for a transaction that was received in part, and that the server has lost.

        :param later: the first slice after the lost transaction.
        """
        header = later.transaction
        continues = (
            f"after {later.end_lsn}"
            if header is None
            else f"with the transaction that commits at {header.commit_lsn}"
        )
        return SlotError(
            f"the server continues {continues}, but only a part of the one at {self._replay.commit_lsn} was received: the server lost "
            f"it, by a failover or a restore; {GAP_ADVICE}"
        )

    def rewind(self, lsn: LSN) -> None:
        """Receive everything after ``lsn`` again."""
        # An earlier rewind may not have reached ``lsn`` yet.
        self._replay = ReplayFilter(min(self.after, lsn))
