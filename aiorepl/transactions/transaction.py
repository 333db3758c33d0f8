"""What a transaction is to those downstream: a header, and its changes in slices.

A plain transaction is committed before its first row is sent, so its rows need not be gathered: they pass as
they come, a slice for each read of the socket. A small transaction is one slice, a huge one many, and no stage
ever needs to hold one whole. The slice that has an ``end`` is the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorepl.transactions.changes import Change

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def to_datetime(microseconds: int) -> datetime:
    """PostgreSQL's TimestampTz, microseconds since 2000-01-01 00:00 UTC, as an aware datetime.

    :raises OverflowError: outside of the years 1 to 9999.
    """
    return _EPOCH + timedelta(microseconds=microseconds)


def from_datetime(moment: datetime) -> int:
    """The inverse of ``to_datetime``."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


# No slots, which a class of C has anyway, and Cython knows no word for.
@dataclass(frozen=True, eq=False)
class Transaction:
    """The header of a committed transaction; compared by identity.

    :param commit_lsn: where its commit record starts. With a change's ordinal it is the change's identity.
    :param commit_timestamp: microseconds since 2000-01-01 00:00 UTC; ``commit_time`` reads it.
    :param origin: the name of the replication origin it came from, or ``None``.
    :param gid: of a transaction that was prepared, the name it was prepared under.
    :param prepared: its changes are delivered when it is prepared, LSN and time being the PREPARE's, and how it ends
        comes later as a slice without changes, with the LSN and time of that.
    """

    xid: int
    commit_lsn: LSN
    commit_timestamp: int
    origin: str | None = None
    gid: str | None = None
    prepared: bool = False

    @property
    def commit_time(self) -> datetime:
        """When it committed, aware, UTC; by a clock beyond the year 9999, or before the year 1, the last or first moment
        that a datetime can say.
        """
        try:
            return to_datetime(self.commit_timestamp)
        except OverflowError:
            return _LAST if self.commit_timestamp > 0 else _FIRST


TwoPhase = m.Prepare | m.StreamPrepare | m.CommitPrepared | m.RollbackPrepared


@dataclass(frozen=True, eq=False)
class Slice:
    """Some changes of one transaction, in order, or something that stands between transactions: a message that is
    not transactional, or WAL that holds nothing for us, a slice without changes.

    :param transaction: the header, or ``None`` for what stands between transactions.
    :param first: whether the transaction begins here.
    :param end_lsn: on the last slice the end LSN of the transaction, what an acknowledgement names; else ``None``.
    :param size: the bytes of its messages, as the budgets count them, and those by which text can be longer than values
        in binary.
    :param two_phase: the message of two-phase commit that this slice ends with, if it does.
    """

    transaction: Transaction | None
    changes: Sequence[Change] = field(repr=False)
    first: bool
    end_lsn: LSN | None
    size: int
    two_phase: TwoPhase | None = None

    @property
    def last(self) -> bool:
        """Whether the transaction is complete with this slice."""
        return self.end_lsn is not None
