"""Limits the snapshot after a lost slot to the rows of the gap, for tables to which the stream only appends. Pure.

The limit is ``catalog_xmin`` of the slot that the server has invalidated. Every transaction with an earlier xid had ended before an LSN
that the slot was confirmed with (``LogicalIncreaseXminForSlot`` and ``LogicalConfirmReceivedLocation`` in PostgreSQL's logical.c). So the
consumers have all rows with an earlier ``xmin``, and lack at most the other rows. Deletes and truncates leave no trace in ``xmin``. So the
other rows are enough only if the stream has neither updates nor deletes of the table, and the table's files and publications are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from aiorepl.lsn import LSN
from aiorepl.snapshot.chunks import SnapshotPlan, TablePlan
from aiorepl.snapshot.ledger.ledger import ChunkLedger

_MOST_XIDS: Final = 2**30
"""The largest allowed distance of a plan from the gap. The server compares xids of 32 bits, which is correct up to 2^31 transactions;
the other half is for transactions that begin while the tables are read."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What the consumers had when the slot was lost.

    :param xid: every transaction before this xid (64 bits, with its epoch) had ended at ``lsn``. It may be lower than the slot's
        ``catalog_xmin``.
    :param lsn: the slot's ``confirmed_flush_lsn``.
    :param histories: the history of each table, by oid, as in ``TablePlan``, from the last start that read all tables.
    :param started: when the server was started that sent what the consumers have; ``None`` if that was not recorded.
    """

    xid: int
    lsn: LSN
    histories: Mapping[int, str]
    started: str | None = None

    def covers(self, lsn: LSN, started: str | None) -> bool:
        """Whether a consumer at ``lsn`` has the rows from before the gap, and none that the server does not have.

        A lost slot cannot prove a position after its own. A server that was restored from a copy has other transactions there, on the same
        timeline. But a restored server was restarted.

        :param started: when the server was started.
        """
        return lsn == self.lsn or (lsn > self.lsn and started is not None and started == self.started)

    def narrowed(self, plan: SnapshotPlan, ledger: ChunkLedger, append_only: Collection[int]) -> SnapshotPlan:
        """Return a plan that reads only the rows of the gap from each table for which they are enough.

        :param plan: a plan of all tables.
        :param ledger: the ledger from before the gap.
        :param append_only: the oids of tables whose updates and deletes are not published.
        """
        # Until the tables are read, the slot's confirmed position is its consistent point.
        if ledger.plan and (ledger.initial is None or self.lsn <= ledger.initial.consistent_point):
            return plan
        # Compared by name, because a requested table has no oid in the ledger until its turn comes.
        unread = {(table.schema, table.name) for table in ledger.tables}

        def narrowed(table: TablePlan) -> TablePlan:
            enough = (
                table.oid in append_only
                and (table.schema, table.name) not in unread
                and table.oid not in ledger.cancelled
                and self.histories.get(table.oid) == table.history
                and 0 <= table.xmin - self.xid < _MOST_XIDS
            )
            return replace(table, since=self.xid) if enough else table

        return SnapshotPlan(tuple(map(narrowed, plan.tables)))
