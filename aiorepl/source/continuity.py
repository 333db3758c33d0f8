"""Whether a slot continues the stream that a position was taken from. Pure.

Neither the LSN of a position nor its timeline proves that. A server that was restored from a backup reuses the same LSNs on
the same timeline, and two promoted standbys of one primary get the same timeline number, perhaps at the same LSN. But the
server still has every transaction that the slot has not confirmed. So the last transaction before the position is requested
again and must be identical. If the slot has confirmed that transaction, no transaction may come between the slot's
position and the claimed one.
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
    """The position up to which ``holder`` says that it has the stream."""

    holder: str
    position: Position


class Continuity:
    """Compares the received slices with the claims.

    :param begins: where the server begins to send; earlier transactions cannot be compared.
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
        """The claims that are neither proven nor refuted yet, sorted by LSN."""
        return self._open

    def since(self, after: LSN) -> LSN:
        """Where the server has to start sending for a consumer at ``after``, so that open claims can be compared."""
        lasts = (claim.position.last for claim in self._open)
        return min([after, *(last.commit_lsn for last in lasts if last is not None)])

    def take(self, part: Slice) -> list[Claim]:
        """Take the next received slice and return the claims that it refutes."""
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
    """Whether the slice belongs to a committed transaction, not to a PREPARE or ROLLBACK PREPARED."""
    return not header.prepared or isinstance(part.two_phase, CommitPrepared)
