"""Transaction ids: their order, and which of them a look-up in the catalog sees. Pure. Xids have 32 bits, as in the stream."""

from __future__ import annotations

from typing import Final

from aiorepl.lsn import LSN

# The snapshot of a standby does not list the transactions that are in progress.
SNAPSHOT: Final = """
(pg_catalog.txid_current_snapshot()::pg_catalog.text ||
 CASE WHEN pg_catalog.pg_is_in_recovery() THEN '*' ELSE '' END)"""
"""A column of a query: the snapshot that the query sees."""
END: Final = """
(CASE WHEN pg_catalog.pg_is_in_recovery()
      THEN GREATEST(pg_catalog.pg_last_wal_replay_lsn(), pg_catalog.pg_last_wal_receive_lsn())
      ELSE pg_catalog.pg_current_wal_insert_lsn() END)::pg_catalog.text"""
"""A column of a query: an LSN after every commit that the query sees."""
SEEN: Final = f"{SNAPSHOT}, {END}"
"""The two columns."""
FIRST_NORMAL_XID: Final = 3
XID_MASK: Final = 0xFFFF_FFFF
_UNLISTED: Final = "*"
_OLDEST_AGE: Final = 3 << 30


class Snapshot:
    """The transactions that are visible to a look-up.

    :param text: ``xmin:xmax:xip_list``, as ``SNAPSHOT`` returns it.
    :param end: an LSN after every commit that is visible.
    :ivar oldest: the first xid, with its epoch, whose transaction may be in progress.
    """

    def __init__(self, text: str, end: LSN) -> None:
        xmin, xmax, listed = text.split(":")
        self.xmax = int(xmax)
        self.oldest = int(xmin)
        self.end = end
        # From this xid on, a transaction may be in progress without being listed.
        self._unlisted = int(xmin) if listed == _UNLISTED else self.xmax
        self._in_progress = {int(xid) for xid in listed.split(",") if xid not in ("", _UNLISTED)}

    def sees(self, xid: int, commit_lsn: LSN) -> bool:
        """Whether the look-up sees a committed transaction.

        The xid alone would not tell: two billion transactions after the look-up, new xids seem to precede it.

        :param xid: without its epoch, as in the stream.
        :param commit_lsn: where it committed; ``ZERO`` if that is not known, but shortly before or after the look-up.
        """
        age = self.xmax - xid & XID_MASK
        return commit_lsn < self.end and 0 < age < 1 << 31 and self.sees_full(self.xmax - age)

    def precedes(self, xid: int, oldest: int) -> bool:
        """Whether the transaction of a row that the look-up has read ended before another look-up.

        :param xid: without its epoch, as rows have it.
        :param oldest: ``oldest`` of the other look-up.
        """
        age = self.xmax - xid & XID_MASK
        # A row that was read later may be newer than this look-up.
        return xid < FIRST_NORMAL_XID or (age <= _OLDEST_AGE and self.xmax - age < oldest)

    def sees_full(self, xid: int) -> bool:
        """Whether the look-up sees a committed transaction.

        :param xid: with its epoch.
        """
        return xid < self._unlisted and xid not in self._in_progress


def precedes(xid: int, other: int) -> bool:
    """Whether ``xid`` was assigned before ``other``. Xids wrap around, as in ``TransactionIdPrecedes``."""
    return 0 < (other - xid & XID_MASK) < 1 << 31
