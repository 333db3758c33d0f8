"""Resync: an item of the stream before which changes are missing. Pure."""

from __future__ import annotations

from aiorepl.lsn import LSN
from aiorepl.transactions.changes import Change
from aiorepl.transactions.slices import Slice

START = "start"
"""The reason of a stream's first ``Resync``."""


class Resync(Change):
    """Changes before this item are missing: load all state that you derive from the tables again.

    The stream of a temporary slot begins with a ``Resync``, and has another ``Resync`` after each lost connection.

    :param lsn: the LSN from which the stream continues: all transactions that commit after this LSN follow.
    :param reason: ``"start"``, or the error that ended the former stream.
    :param after: the LSN at which the former stream ended; ``None`` at the start.
    """

    __slots__ = ("after", "lsn", "reason")
    kind = "resync"

    def __init__(self, lsn: LSN, reason: str = START, after: LSN | None = None) -> None:
        super().__init__(None, 0)
        self.lsn = lsn
        self.reason = reason
        self.after = after

    def __repr__(self) -> str:
        return f"<Resync at {self.lsn}: {self.reason}>"

    def slice(self) -> Slice:
        """Return a slice with this item alone."""
        return Slice(None, (self,), True, self.lsn, 0)


def is_resync(part: Slice) -> bool:
    """Whether the slice is a ``Resync``. An unfinished transaction before a ``Resync`` is void."""
    return part.transaction is None and len(part.changes) > 0 and isinstance(part.changes[0], Resync)
