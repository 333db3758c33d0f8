"""Resync: the stream goes on, and changes before it are missing. Pure."""

from __future__ import annotations

from aiorepl.lsn import LSN
from aiorepl.transactions.changes import Change
from aiorepl.transactions.slices import Slice

START = "start"
"""The reason of the ``Resync`` with which a stream begins."""


class Resync(Change):
    """Changes are missing before this item: load everything that you derive from the tables again. It stands between transactions.

    The stream of a temporary slot begins with one, and has another one after each lost connection.

    :param lsn: where the stream goes on: all transactions that commit after it follow.
    :param reason: ``"start"``, or the error after which changes are missing.
    :param after: the end of the stream before; ``None`` at the start.
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
        """Return the slice in which it is delivered."""
        return Slice(None, (self,), True, self.lsn, 0)


def is_resync(part: Slice) -> bool:
    """Whether a slice is that of a ``Resync``. It voids a transaction whose end was not received before."""
    return part.transaction is None and len(part.changes) > 0 and isinstance(part.changes[0], Resync)
