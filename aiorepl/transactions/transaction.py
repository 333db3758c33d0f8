"""The header of a transaction, and PostgreSQL's timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from aiorepl.lsn import LSN
from aiorepl.transactions.trace import TraceContext

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def to_datetime(microseconds: int) -> datetime:
    """Convert PostgreSQL's TimestampTz, microseconds since 2000-01-01 00:00 UTC, to an aware datetime.

    :raises OverflowError: outside of the years 1 to 9999.
    """
    return _EPOCH + timedelta(microseconds=microseconds)


def from_datetime(moment: datetime) -> int:
    """Convert an aware datetime to PostgreSQL's TimestampTz."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def with_epoch(xid: int, near: int) -> int:
    """Return an xid with its epoch. If ``xid`` is 2^31 or more transactions after ``near``, the result is too low, never too high.

    :param xid: an xid of 32 bits, less than 2^31 transactions before ``near``, or after it.
    :param near: another xid, with its epoch.
    """
    return near + (xid - near + 2**31) % 2**32 - 2**31


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A part of a snapshot: some rows of one table.

    A chunk is delivered as a transaction with xid 0, whose commit LSN is the chunk's alone, so that order, replays,
    positions and the journal treat it as any other transaction. Its rows are changes of the kind ``read``.

    :param snapshot_lsn: the position of the stream at which the rows were read: every transaction that committed before it
        is contained in the rows, or delivered after them.
    :param oid: the table's oid.
    :param schema: the table's schema.
    :param table: the table's name; a table without rows has one chunk without changes.
    :param number: the chunk's number within the table, from 1. If a table is altered while it is read, the table is read again from
        chunk 1, with the same ``reading``: an append-only consumer must discard the rows of the earlier chunks.
    :param last_of_table: whether the table is complete with this chunk.
    :param last: whether the whole snapshot is complete with this chunk.
    :param partial: whether only rows that a condition selects were read. Such rows do not complete the table.
    :param reading: identifies the reading of the table to which the chunk belongs. Empty in an initial snapshot, whose chunks have
        LSNs of their own, and in journals of earlier versions.
    """

    snapshot_lsn: LSN
    oid: int
    schema: str
    table: str
    number: int
    last_of_table: bool = False
    last: bool = False
    partial: bool = False
    reading: str = ""


# No slots: the compiled class has them anyway, and Cython does not know the option.
@dataclass(frozen=True, eq=False)
class Transaction:
    """The header of a committed or prepared transaction; compared by identity.

    :param xid: the top-level xid; 0 for rows of a snapshot, which no transaction of the server's has.
    :param commit_lsn: where the commit record starts. Together with an ordinal it identifies a change.
    :param commit_timestamp: microseconds since 2000-01-01 00:00 UTC; ``commit_time`` converts it.
    :param origin: the name of the replication origin, or ``None``.
    :param gid: the global identifier of a transaction that was prepared, else ``None``.
    :param prepared: whether the changes are delivered at the PREPARE, with its LSN and time. The outcome is delivered
        later, as a slice without changes, with the outcome's own LSN and time.
    :param snapshot: the chunk of a snapshot; ``None`` for a transaction of the server.
    :param trace: the trace context from the writer's logical message, or ``None``. If the transaction is not streamed, slices
        that were delivered before this message have another header, without the trace context.
    """

    xid: int
    commit_lsn: LSN
    commit_timestamp: int
    origin: str | None = None
    gid: str | None = None
    prepared: bool = False
    snapshot: SnapshotChunk | None = None
    trace: TraceContext | None = None

    @property
    def commit_time(self) -> datetime:
        """The commit time, aware, in UTC; limited to the years 1 to 9999, which datetime can hold."""
        try:
            return to_datetime(self.commit_timestamp)
        except OverflowError:
            return _LAST if self.commit_timestamp > 0 else _FIRST
