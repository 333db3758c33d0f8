"""Waits until every new snapshot of the database sees a transaction.

A walsender sends a transaction as soon as its commit record is flushed. Other sessions see it only once its process has left the
list of running transactions: a moment later, and with synchronous replication only after the standbys have answered, however long
that takes. Until then, a consumer that reads a row again because it has changed could read the old row. PostgreSQL 19's ``WAIT FOR
LSN`` waits until WAL is replayed, written or flushed, and does not help here.

Source: ``CommitTransaction`` and ``RecordTransactionCommit`` in xact.c, ``SyncRepWaitForLSN`` in syncrep.c, ``GetSnapshotData``
in procarray.c.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aiorepl.errors import ConnectionLost, SlotError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction
from aiorepl.wire.kept_connection import KeptConnection
from aiorepl.wire.opening import translated

_log = logger("aiorepl.visibility")

# The query reads the LSN before the age. So every commit before the LSN has a lower xid than the next xid, which the age gives. A
# snapshot of a standby lists no running transactions; there, a transaction is visible before the replay position passes it.
_LOOK: Final = """
SELECT pg_catalog.pg_postmaster_start_time()::pg_catalog.text AS started,
       pg_catalog.txid_current_snapshot()::pg_catalog.text AS snapshot,
       (CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_current_wal_insert_lsn() END)::pg_catalog.text AS inserted,
       pg_catalog.pg_last_wal_replay_lsn()::pg_catalog.text AS replayed,
       pg_catalog.age('3'::pg_catalog.xid) AS age
"""
_AGE_OF: Final = 3
_XIDS: Final = 1 << 32
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.25
_WARNING_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Look:
    """The transactions that a snapshot of the server sees. All xids have their epoch.

    :param started: when the server was started; it changes with every restart.
    :param xmin: every transaction before this xid had ended.
    :param xmax: no transaction with this xid or a later one had ended.
    :param in_progress: the transactions between ``xmin`` and ``xmax`` that had not ended; subtransactions are not listed.
    :param next_xid: the first xid that was not assigned.
    :param end: every transaction that committed before this LSN has an xid before ``next_xid``; on a standby, such a transaction
        is visible.
    :param in_recovery: whether the server is a standby.
    """

    started: str
    xmin: int
    xmax: int
    in_progress: frozenset[int]
    next_xid: int
    end: LSN
    in_recovery: bool = False

    @classmethod
    def parse(cls, started: str, snapshot: str, inserted: str | None, replayed: str | None, age: int) -> Look:
        """Parse the result of the query.

        :param snapshot: ``xmin:xmax:xip,xip…``.
        :param inserted: the end of WAL; ``None`` on a standby.
        :param age: the age of xid 3.
        """
        xmin, xmax, listed = snapshot.split(":")
        # The age gives only the lower half of the next xid, which is at most two billion transactions after xmax.
        next_xid = int(xmax) + (_AGE_OF + age - int(xmax)) % _XIDS
        end = LSN.parse(inserted or replayed or "0/0")
        running = frozenset(int(xid) for xid in listed.split(",") if xid)
        return cls(started, int(xmin), int(xmax), running, next_xid, end, inserted is None)

    def sees(self, xid: int, commit_lsn: LSN) -> bool:
        """Whether a committed transaction is visible; also false for a transaction that is later than this look.

        :param xid: the top-level xid without its epoch, as in the stream.
        """
        if commit_lsn >= self.end:
            return False
        if self.in_recovery:
            return True
        last = self.next_xid - 1
        full = last - (last - xid) % _XIDS
        return full < self.xmin or (full < self.xmax and full not in self.in_progress)


def _no_one(_: str | None) -> None:
    """Ignore the description of an awaited transaction."""


class Visibility:
    """Asks the server on a separate connection, once for all transactions that have arrived together.

    The last look is kept: a stream that is far behind asks again only once it has caught up.

    :param connection: the connection on which to ask; ``close`` drops it.
    :param timeout: how long to wait for a transaction, in seconds.
    :param waits: called with a description of the awaited transaction if the wait takes long, and with ``None`` after the wait.
    """

    def __init__(
        self, connection: KeptConnection, timeout: float, waits: Callable[[str | None], None] = _no_one
    ) -> None:
        self._waits = waits
        self._seconds = timeout
        self._connection = connection
        self._look: Look | None = None

    async def visible(self, slices: Sequence[Slice], started: str | None) -> int:
        """Wait until the first slice is visible. Return the number of visible slices at the beginning.

        :param started: when the server of the stream was started.
        :raises SlotError: the first transaction is not visible after ``visible_timeout``.
        :raises ConnectionLost: the server is another one, or was restarted.
        :raises ConnectionFailed, ServerError: the server cannot be asked.
        """
        for count, part in enumerate(slices):
            header = part.transaction
            if header is None or not commits(part, header) or self._sees(header):
                continue
            if count:
                return count
            await self.wait(header, started)
        return len(slices)

    async def wait(self, transaction: Transaction, started: str | None) -> None:
        """Wait until a transaction is visible. Parameters and errors as ``visible``."""
        clock = asyncio.get_running_loop().time
        begun, pause, warned = clock(), _FIRST_PAUSE, False
        try:
            while not self._sees(transaction):
                waited = clock() - begun
                if self._look is not None and waited >= self._seconds:
                    raise self._expired(transaction)
                if waited >= _WARNING_SECONDS and not warned:
                    warned = True
                    self._waits(f"{_name(transaction)} to become visible to new snapshots")
                    _log.warning(
                        "%s is not visible to new snapshots yet: check in pg_stat_replication that the synchronous standbys answer",
                        _name(transaction),
                    )
                if self._look is not None and pause > _FIRST_PAUSE:
                    await asyncio.sleep(min(pause, max(self._seconds - waited, 0)))
                await self._look_again(started)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            if warned:
                self._waits(None)

    def close(self) -> None:
        """Drop the connection and the last look."""
        self._connection.drop()
        self._look = None

    def _sees(self, transaction: Transaction) -> bool:
        return self._look is not None and self._look.sees(transaction.xid, transaction.commit_lsn)

    async def _look_again(self, started: str | None) -> None:
        try:
            row = await self._connection.fetchrow(_LOOK)
        except Exception as error:  # noqa: BLE001 - translated or raised as it is
            raise translated(error) from None
        look = Look.parse(row["started"], row["snapshot"], row["inserted"], row["replayed"], row["age"])
        if started is not None and look.started != started:
            # This server may lack transactions that the stream has sent. The reconnect compares the positions.
            self.close()
            raise ConnectionLost("the server was restarted, or the DSN leads to another server")
        self._look = look

    def _expired(self, transaction: Transaction) -> SlotError:
        return SlotError(
            f"{_name(transaction)} is not visible to new snapshots after {self._seconds:g} s, so it is not delivered "
            "(visible = true, or reselect = true): check in pg_stat_replication that the synchronous standbys answer, and that this consumer is not one of "
            "them; then start again, or raise visible_timeout"
        )


def commits(part: Slice, header: Transaction) -> bool:
    """Whether the slice belongs to a commit. Rows of a snapshot, a PREPARE and a rollback need no wait."""
    if header.snapshot is not None:
        return False
    return not header.prepared or isinstance(part.two_phase, m.CommitPrepared)


def _name(transaction: Transaction) -> str:
    return f"transaction {transaction.xid}, which committed at {transaction.commit_lsn},"
