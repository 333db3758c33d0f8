"""Slices: the parts in which transactions are delivered.

A plain transaction has committed before its first row is sent, so it is not gathered: each read of the socket gives a
slice. A small transaction is one slice, a huge one is many, and no stage has to hold a whole transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.transactions.changes import Change
from aiorepl.transactions.transaction import Transaction

TwoPhase = m.Prepare | m.StreamPrepare | m.CommitPrepared | m.RollbackPrepared


# No slots: the compiled class has them anyway, and Cython does not know the option.
@dataclass(frozen=True, eq=False)
class Slice:
    """Some changes of one transaction, in order, or an item between transactions: a message that is not transactional,
    or a position in the WAL, which is a slice without changes.

    :param transaction: the header; ``None`` for an item between transactions.
    :param first: whether the transaction begins with this slice.
    :param end_lsn: on the last slice, the transaction's end LSN, which an acknowledgement names; else ``None``.
    :param size: bytes of the messages as the budgets count them, plus the bytes by which the values' text is longer than
        their binary form.
    :param two_phase: the message of two-phase commit that ends this slice; else ``None``.
    :param kept: an object that the slice keeps alive, such as the block of the journal that it was read from.
    """

    transaction: Transaction | None
    changes: Sequence[Change] = field(repr=False)
    first: bool
    end_lsn: LSN | None
    size: int
    two_phase: TwoPhase | None = None
    kept: object = field(default=None, repr=False)

    @property
    def last(self) -> bool:
        """Whether the transaction is complete with this slice."""
        return self.end_lsn is not None

    def keeping(self, kept: object) -> Slice:
        """Return a copy of this slice that keeps an object alive."""
        return Slice(
            self.transaction, self.changes, self.first, self.end_lsn, self.size, self.two_phase, kept
        )
