"""Counts the events of a transaction, in total and by table, for Debezium's transaction metadata. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from aiorepl.lsn import LSN
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction


@dataclass(slots=True)
class _Counted:
    # Identifies the transaction. Its object does not: after a reconnect the same transaction has a new object.
    commit_lsn: LSN | None = None
    ordinal: int = -1
    total: int = 0
    tables: dict[str, int] = field(default_factory=dict)


class Counts:
    """Counts of the transaction that is being written.

    A retried batch may begin in the middle of a transaction. So the counts at a batch's beginning are kept as well.
    """

    def __init__(self) -> None:
        self._now = _Counted()
        self._before = _Counted()

    def resume(self, part: Slice) -> None:
        """Begin a batch, new or retried, with this slice."""
        if part.first or part.transaction is None:
            return
        ordinal = next((change.ordinal for change in part.changes), self._now.ordinal + 1)
        commit_lsn = part.transaction.commit_lsn
        retried = commit_lsn != self._now.commit_lsn or ordinal <= self._now.ordinal
        if retried and commit_lsn == self._before.commit_lsn:
            self._now = _copy(self._before)
        else:
            self._before = _copy(self._now)

    def reset(self, transaction: Transaction) -> None:
        """Begin a transaction."""
        self._now = _Counted(transaction.commit_lsn)

    def count(self, transaction: Transaction, ordinal: int, table: str) -> tuple[int, int]:
        """Count an event; return its number within the transaction and within its table, from 1."""
        if transaction.commit_lsn != self._now.commit_lsn:
            self.reset(transaction)
        now = self._now
        now.ordinal = ordinal
        now.total += 1
        now.tables[table] = now.tables.get(table, 0) + 1
        return now.total, now.tables[table]

    def of(self, transaction: Transaction) -> tuple[int, dict[str, int]]:
        """Return a transaction's number of events, in total and by table."""
        now = self._now if transaction.commit_lsn == self._now.commit_lsn else _Counted()
        return now.total, now.tables


def _copy(counted: _Counted) -> _Counted:
    return replace(counted, tables=dict(counted.tables))
