"""Whether a slot continues the stream that a position was taken from. Pure.

Neither the LSN of a position nor its timeline proves that: a server that was restored from a backup counts on from the
same LSNs on the same timeline, and two standbys of one primary become the same timeline, perhaps from the same LSN on.
But what a position has and the slot was not confirmed with, the server still has. So the last transaction before the
position is asked for again, and has to come as it was; and where the slot was confirmed past that one, nothing may come
between the slot and the position.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aiorepl.lsn import LSN
from aiorepl.pgoutput.messages import CommitPrepared
from aiorepl.position import Commit, Position
from aiorepl.transactions.transaction import Slice, Transaction


@dataclass(frozen=True, slots=True)
class Claim:
    """What ``holder`` says that it has of the stream."""

    holder: str
    position: Position


class Continuity:
    """Told what a server sends, finds the claims that this refutes.

    :param begins: where the server begins to send; what a claim has before it cannot be compared.
    """

    def __init__(self, claims: Iterable[Claim], begins: LSN) -> None:
        self.begins = begins
        self._open = sorted(
            (claim for claim in claims if claim.position.last is not None and claim.position.lsn > begins),
            key=lambda claim: claim.position.lsn,
        )
        self._found: Commit | None = None

    @property
    def open(self) -> list[Claim]:
        """The claims that are neither proven nor refuted yet, by their LSN."""
        return self._open

    def since(self, after: LSN) -> LSN:
        """From where the server has to send again, for a consumer that needs what is behind ``after``."""
        lasts = (claim.position.last for claim in self._open)
        return min([after, *(last.commit_lsn for last in lasts if last is not None)])

    def take(self, part: Slice) -> list[Claim]:
        """The server sends ``part``; returns the claims that it refutes."""
        header = part.transaction
        at = part.end_lsn if header is None else header.commit_lsn
        refuted = []
        while self._open and at is not None and self._open[0].position.lsn <= at:
            claim = self._open.pop(0)
            if not self._holds(claim.position):
                refuted.append(claim)
        if header is not None and commits(part, header):
            self._found = Commit.of(header)
        return refuted

    def _holds(self, position: Position) -> bool:
        assert position.last is not None
        return self._found == (position.last if position.last.commit_lsn >= self.begins else None)


def commits(part: Slice, header: Transaction) -> bool:
    """Whether the slice is of a transaction at its commit, and not at its PREPARE or ROLLBACK PREPARED."""
    return not header.prepared or isinstance(part.two_phase, CommitPrepared)
