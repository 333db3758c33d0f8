"""A gap after which rows that were written since are enough, for tables that the stream only appends to. Pure.

``catalog_xmin`` of a slot that the server has invalidated is such a limit: every transaction before it had ended before an LSN that
the slot was confirmed with (``LogicalIncreaseXminForSlot`` and ``LogicalConfirmReceivedLocation`` in PostgreSQL's logical.c). So the
consumers have all rows with an earlier ``xmin``. Deleted rows and truncates leave no trace in ``xmin``. So the rest of the rows is
enough only if the stream has neither updates nor deletes, and if the files and publications of the table are still the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from aiorepl.lsn import LSN
from aiorepl.snapshot.chunks import SnapshotPlan, TablePlan
from aiorepl.snapshot.ledger.ledger import ChunkLedger

_MOST_XIDS: Final = 2**30
"""The server compares xids of 32 bits, which is right up to two billion transactions. Half of them may come during the reading."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What the consumers had when the slot was lost.

    :param xid: every transaction before this one, with its epoch, had ended at the LSN. It may be lower than the slot's.
    :param lsn: the position that the slot was confirmed with.
    :param states: the state of each table, by oid, as in ``TablePlan``, when all tables were last read.
    """

    xid: int
    lsn: LSN
    states: Mapping[int, str]

    def narrowed(self, plan: SnapshotPlan, ledger: ChunkLedger, appended: Collection[int]) -> SnapshotPlan:
        """Return the plan in which only rows written since are read, of each table for which they are enough.

        :param plan: a plan of all tables.
        :param ledger: the ledger from before the gap.
        :param appended: the oids of tables whose updates and deletes are not published.
        """
        # A slot whose tables are not read yet is confirmed where its stream begins.
        if ledger.plan and (ledger.initial is None or self.lsn <= ledger.initial.consistent_point):
            return plan
        # A requested table has no oid until its turn comes.
        unread = {(table.schema, table.name) for table in ledger.tables}

        def narrowed(table: TablePlan) -> TablePlan:
            enough = (
                table.oid in appended
                and (table.schema, table.name) not in unread
                and self.states.get(table.oid) == table.state
                and 0 <= table.xmin - self.xid < _MOST_XIDS
            )
            return replace(table, since=self.xid) if enough else table

        return SnapshotPlan(tuple(map(narrowed, plan.tables)))


def with_epoch(xid: int, near: int) -> int:
    """Return an xid with its epoch. If the true difference is larger than allowed, the result is too low and never too high.

    :param xid: an xid of 32 bits, from less than two billion transactions before ``near``, or later.
    :param near: another xid, with its epoch.
    """
    return near + (xid - near + 2**31) % 2**32 - 2**31
