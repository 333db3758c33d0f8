"""Transaction ids: their order, and which of them a look-up in the catalog sees. Pure. Xids have 32 bits, as in the stream."""

from __future__ import annotations

from typing import Final

SEEN: Final = """
pg_catalog.txid_current_snapshot()::pg_catalog.text,
(CASE WHEN pg_catalog.pg_is_in_recovery()
      THEN GREATEST(pg_catalog.pg_last_wal_replay_lsn(), pg_catalog.pg_last_wal_receive_lsn())
      ELSE pg_catalog.pg_current_wal_insert_lsn() END)::pg_catalog.text"""
"""Two columns of a query: the snapshot that the query sees, and an LSN after every commit that it sees."""
FIRST_NORMAL_XID: Final = 3
XID_MASK: Final = 0xFFFF_FFFF


class Snapshot:
    """The transactions that are visible to a look-up.

    :param text: ``xmin:xmax:xip_list``, as ``txid_current_snapshot`` prints it.
    """

    def __init__(self, text: str) -> None:
        _, xmax, in_progress = text.split(":")
        self.xmax = int(xmax)
        self._in_progress = {int(xid) & XID_MASK for xid in in_progress.split(",") if xid}

    def sees(self, xid: int) -> bool:
        """Whether the look-up sees a committed transaction."""
        return precedes(xid, self.xmax) and xid not in self._in_progress


def precedes(xid: int, other: int) -> bool:
    """Whether ``xid`` was assigned before ``other``. Xids wrap around, as in ``TransactionIdPrecedes``."""
    return 0 < (other - xid & XID_MASK) < 1 << 31
