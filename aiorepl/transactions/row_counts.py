"""Counts received rows by table and kind, and the changes of each transaction. A row costs a few nanoseconds in the
compiled form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from aiorepl.histogram import Histogram
from aiorepl.lsn import LSN
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.rows import RowMessage

# The number of tables that are counted separately. All further tables are counted together, so that metrics have a
# bounded number of series.
MOST_TABLES: Final = 200
OTHER: Final = "other"
MOST_KEPT: Final = 1000
"""The largest number of truncates, and of transactions, that are kept for the watch on publications."""
_TRANSACTION_ROWS: Final = tuple(10**exponent for exponent in range(8))


class TableCount:
    """The received rows of one table, and the bytes of their messages.

    :ivar table: ``schema.table``, or ``other``.
    """

    __slots__ = (
        "delete_bytes",
        "deletes",
        "insert_bytes",
        "inserts",
        "relation",
        "table",
        "update_bytes",
        "updates",
    )

    def __init__(self, relation: Relation | None, table: str) -> None:
        self.relation = relation
        self.table = table
        self.inserts = self.updates = self.deletes = 0
        self.insert_bytes = self.update_bytes = self.delete_bytes = 0

    def add(self, row: RowMessage) -> None:
        """Count a row."""
        payload = row.payload
        kind, size = payload[0], len(payload)
        if kind == 0x49:  # I
            self.inserts += 1
            self.insert_bytes += size
        elif kind == 0x55:  # U
            self.updates += 1
            self.update_bytes += size
        else:
            self.deletes += 1
            self.delete_bytes += size

    def kinds(self) -> Iterator[tuple[str, int, int]]:
        """Yield each kind of row that was received, with the number of rows and of bytes."""
        counted = (
            ("insert", self.inserts, self.insert_bytes),
            ("update", self.updates, self.update_bytes),
            ("delete", self.deletes, self.delete_bytes),
        )
        return (each for each in counted if each[1])


class RowCounts:
    """The received rows of all tables. A renamed table goes on under its new name.

    :param most: the number of tables that are counted separately, in the order in which their first rows arrive.
    :ivar transactions: a histogram of the number of changes in a received transaction.
    :ivar truncates: the last committed truncates, as table, subtransaction, transaction and commit LSN. The reader removes them.
    :ivar commits: xid and commit LSN of the last transactions with a message of the event trigger, which their reader removes.
    :ivar altered: called when a table was described, and when a transaction with a truncate or such a message has committed.
    """

    __slots__ = ("_by_oid", "_most", "_other", "altered", "commits", "transactions", "truncates")

    def __init__(self, most: int = MOST_TABLES) -> None:
        self._most = most
        self._by_oid: dict[int, TableCount] = {}
        self._other = TableCount(None, OTHER)
        self.transactions = Histogram(_TRANSACTION_ROWS)
        self.truncates: deque[tuple[int, int, int, LSN]] = deque(maxlen=MOST_KEPT)
        self.commits: deque[tuple[int, LSN]] = deque(maxlen=MOST_KEPT)
        self.altered: Callable[[], None] | None = None

    def of(self, relation: Relation) -> TableCount:
        """Return the counts of a table."""
        count = self._by_oid.get(relation.oid)
        if count is None:
            if len(self._by_oid) >= self._most:
                return self._other
            count = self._by_oid[relation.oid] = TableCount(relation, str(relation))
        elif count.relation is not relation:
            count.relation, count.table = relation, str(relation)
        return count

    def truncated(self, truncated: Iterable[tuple[int, int]], xid: int, commit_lsn: LSN) -> None:
        """Keep the truncates of a committed transaction: table and subtransaction of each."""
        self.truncates.extend((oid, subxid, xid, commit_lsn) for oid, subxid in truncated)
        self.described()

    def committed(self, xid: int, commit_lsn: LSN) -> None:
        """Remember a committed transaction with a message of the event trigger."""
        self.commits.append((xid, commit_lsn))
        self.described()

    def described(self) -> None:
        """Call ``altered``."""
        if self.altered is not None:
            self.altered()

    def tables(self) -> list[TableCount]:
        """Return the counts of all tables with rows, in the order of their first rows; the sum of further tables is
        last.
        """
        counted = list(self._by_oid.values())
        return [*counted, self._other] if any(self._other.kinds()) else counted
