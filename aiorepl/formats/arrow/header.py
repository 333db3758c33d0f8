"""The transaction that a row belongs to, as columns have it. Pure; knows no Arrow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """Of one transaction; ``time`` is in microseconds since 1970. Compared by identity."""

    xid: int | None
    commit_lsn: int
    time: int | None
