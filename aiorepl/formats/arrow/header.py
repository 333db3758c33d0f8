"""The transaction of a row, as metadata columns contain it. Pure; does not import Arrow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """The metadata of one transaction; ``time`` is in microseconds since 1970. Compared by identity."""

    xid: int | None
    commit_lsn: int
    time: int | None

    @property
    def new_row(self) -> str:
        """The operation of a new row: ``read`` in a snapshot, whose xid is 0; otherwise ``insert``."""
        return "insert" if self.xid else "read"
