"""Completeness by time: the position of the WAL by which every transaction with an earlier commit time has come. Pure.

PostgreSQL takes a transaction's commit time before it writes the commit record, so commit times do not ascend with the LSNs. They
alone prove nothing: a transaction may have an earlier commit time than one that came before it. So heartbeats prove the times.
A transaction whose commit time is before the time of a heartbeat had its xid at that time. Once all transactions that were running then
have ended, their commit records are in the WAL, before the message that the next heartbeat writes.

The proof needs a clock that does not go back. If the server's clock is ahead of this process's clock, the earlier time counts, so one
clock that jumps forward proves nothing about the future. If the server's clock goes back, transactions may come with commit times that
were proven complete. They are counted as late; no proof can foresee them. So are transactions that another server's changes made
(replication origins): PostgreSQL sends the commit time of the other server.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from aiorepl.lsn import LSN, ZERO
from aiorepl.storage.checked_json import integer, lsn
from aiorepl.transactions.transaction import with_epoch

_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class Times:
    """The commit times of a journal up to a position. Times are in microseconds since 2000-01-01 00:00 UTC.

    :param until: every transaction with an earlier commit time is in the journal, except the late ones; ``None`` if unknown.
    :param late: the number of transactions that came with a commit time before ``until``, because the server's clock had gone back,
        or because the commit time is that of a replication origin.
    :param late_since: the earliest commit time of a late transaction.
    :param late_lsn: the commit LSN of the last late transaction.
    """

    until: int | None = None
    late: int = 0
    late_since: int | None = None
    late_lsn: LSN = ZERO

    def proven(self, until: int | None) -> Times:
        """Return the times after a proof; ``until`` never goes back."""
        if until is None or (self.until is not None and until <= self.until):
            return self
        return replace(self, until=until)

    def after(self, commit_time: int, commit_lsn: LSN) -> Times:
        """Return the times after a transaction."""
        if self.until is None or commit_time >= self.until:
            return self
        since = commit_time if self.late_since is None else min(commit_time, self.late_since)
        return replace(self, late=self.late + 1, late_since=since, late_lsn=commit_lsn)

    def to_json(self) -> list[Any]:
        """Convert to a list for JSON, for ``from_json``."""
        return [self.until, self.late, self.late_since, str(self.late_lsn)]

    @classmethod
    def from_json(cls, found: Any) -> Times:
        """Parse the output of ``to_json``.

        :param found: also ``None``, from files of earlier versions.
        :raises Exception: a field is wrong.
        """
        if found is None:
            return cls()
        until, late, since, at = found
        fields: Mapping[str, Any] = {"late": late, "late LSN": at}
        return cls(_time(until), integer(fields, "late"), _time(since), lsn(fields, "late LSN"))


NO_TIMES: Final = Times()
"""The times of a journal whose heartbeats have proven nothing."""


class Proofs:
    """The proven times of positions that the journal has not reached yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead: list[tuple[LSN, int]] = []

    def add(self, position: LSN, until: int) -> None:
        """Record that every transaction with a commit time before ``until`` ends at or before a position."""
        with self._lock:
            if len(self._ahead) >= _KEPT:
                del self._ahead[::2]
            self._ahead.append((position, until))

    def reached(self, position: LSN) -> int | None:
        """Return the latest time that the journal has proven with this position, and forget it; ``None`` if there is no new one."""
        with self._lock:
            proven = [until for at, until in self._ahead if at <= position]
            self._ahead = [each for each in self._ahead if each[0] > position]
        return max(proven, default=None)


class HeartbeatSnapshots:
    """The snapshots of heartbeats whose transactions have not all ended yet."""

    def __init__(self) -> None:
        self._open: list[tuple[int, int]] = []

    def forget(self) -> None:
        """Forget the snapshots: the next one may be of another server."""
        self._open = []

    def proven(self, time: int, xmin: int, after: int) -> int | None:
        """Return the latest time before which every transaction has ended; ``None`` if there is no new one.

        :param time: the server's time before it took the snapshot.
        :param xmin: the first xid that had not ended in the snapshot.
        :param after: an xid after all that were running; the result of ``after_all``.
        """
        # If a clock has gone back, transactions can again have the later commit times.
        known = [each for each in self._open if each[0] <= time]
        if len(known) >= _KEPT:
            del known[::2]
        known.append((time, after))
        self._open = [each for each in known if each[1] > xmin]
        return max((at for at, xid in known if xid <= xmin), default=None)


def after_all(xmax: int, running: Sequence[int]) -> int:
    """Return the xid after all transactions that were running.

    :param xmax: the xid after the last one that had ended in the snapshot, of 64 bits.
    :param running: the running xids, of 32 bits.
    """
    return max([xmax, *(with_epoch(xid, xmax) + 1 for xid in running)])


def _time(found: Any) -> int | None:
    if found is not None and type(found) is not int:
        raise TypeError("a time is not a number")
    return found
