"""The progress of snapshots: tables, rows, bytes, rates, and the WAL that the slot keeps meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from aiorepl.sizes import format_size

TableState = Literal["queued", "reading", "delivered", "complete", "cancelled", "failed"]
"""A table is delivered once all of its rows were passed on to the sinks, and complete once they are durable."""


@dataclass(frozen=True, slots=True)
class WalRetention:
    """The WAL that the slot makes the server keep (``pg_replication_slots``).

    :param bytes: from ``restart_lsn`` to the end of WAL.
    :param status: ``wal_status``: ``reserved``, ``extended``, ``unreserved`` or ``lost``; ``None`` if the server has no slot
        of this name, or does not say.
    :param safe_bytes: ``safe_wal_size``: how many bytes can still be written before the slot may be lost; ``None`` if
        ``max_slot_wal_keep_size`` sets no limit.
    """

    bytes: int
    status: str | None
    safe_bytes: int | None


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """The progress of reading one table.

    :param table: ``schema.table``.
    :param rows: the rows that were read in this process, including rows of chunks that had to be read again.
    :param bytes: the size of these rows, as the server sent them.
    :param estimated_rows: the server's estimate of the table's rows; ``None`` if it was never analyzed, or only some are read.
    :param chunks: the number of chunks; ``None`` until they are planned.
    :param chunks_done: the number of chunks that this process and earlier ones have delivered.
    :param rows_per_second: the average rate since this process has begun to read the table.
    :param error: why the table cannot be read, or had to be read again.
    :param planned: the number of chunks that were planned before the table's turn came; ``None`` if its turn plans them.
    :param again: whether delivered chunks are read again, so that ``done`` is smaller than before.
    """

    table: str
    state: TableState
    rows: int = 0
    bytes: int = 0
    estimated_rows: int | None = None
    chunks: int | None = None
    chunks_done: int = 0
    rows_per_second: float = 0.0
    error: str | None = None
    planned: int | None = None
    again: bool = False

    @property
    def done(self) -> float:
        """The delivered fraction of the table, from 0 to 1, by the number of chunks, or else of rows."""
        if self.state in ("delivered", "complete"):
            return 1.0
        by_chunks = self.chunks_done / self.chunks if self.chunks else 0.0
        # Within a large chunk, only the rows show progress.
        by_rows = min(self.rows / self.estimated_rows, 0.99) if self.estimated_rows else 0.0
        return by_chunks if self.chunks is not None and self.chunks > 1 else max(by_chunks, by_rows)


@dataclass(frozen=True, slots=True)
class SnapshotStatistics:
    """The progress of all snapshots.

    :param tables: in the order in which they are read. Complete tables of earlier processes are not among them.
    :param paused: whether the reading of tables beside the stream is paused.
    :param wal: the WAL that the slot keeps; ``None`` before it was first read.
    """

    tables: tuple[TableStatistics, ...]
    paused: bool = False
    wal: WalRetention | None = None

    @property
    def active(self) -> bool:
        """Whether a table is read or waits for its turn."""
        return any(table.state in ("queued", "reading") for table in self.tables)

    @property
    def done(self) -> float:
        """The delivered fraction of all tables, from 0 to 1. If all chunks were planned before, they count alike, and otherwise all
        tables do: the fraction must not shrink when the turn of a large table comes.
        """
        planned = [table.planned or 0 for table in self.tables]
        weights = planned if all(planned) else [1] * len(planned)
        done = sum(table.done * weight for table, weight in zip(self.tables, weights, strict=True))
        return done / sum(weights) if weights else 0.0

    @property
    def rows(self) -> int:
        """The rows that were read in this process."""
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        """The size of these rows, as the server sent them."""
        return sum(table.bytes for table in self.tables)

    @property
    def chunks(self) -> int:
        """The number of chunks that are planned."""
        return sum(table.chunks or 0 for table in self.tables)

    @property
    def chunks_done(self) -> int:
        """The number of delivered chunks."""
        return sum(table.chunks_done for table in self.tables)


class Repeated:
    """Finds the tables whose delivered chunks are read again: after a truncate, an altered column or a lost snapshot, or because a
    sink asks for the chunks.
    """

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        self._again: set[str] = set()

    def marked(self, tables: Iterable[TableStatistics]) -> list[TableStatistics]:
        """Return the statistics. ``again`` is set for a table until all of its chunks are delivered again."""
        found = list(tables)
        for each in found:
            if each.state not in ("queued", "reading"):
                self._again.discard(each.table)
            elif each.chunks_done < self._most.get(each.table, 0):
                self._again.add(each.table)
        self._most = {each.table: each.chunks_done for each in found}
        return [replace(each, again=each.table in self._again) for each in found]


class TableCounters:
    """Counts the rows of one table that were read, and its chunks that were delivered."""

    def __init__(
        self,
        table: str,
        *,
        estimated_rows: int | None = None,
        chunks: int | None = None,
        chunks_done: int = 0,
        state: TableState = "queued",
    ) -> None:
        self.table = table
        self.state: TableState = state
        self.estimated_rows = estimated_rows
        self.chunks = self._planned = chunks
        self.chunks_done = chunks_done
        self.rows = 0
        self.bytes = 0
        self.error: str | None = None
        self._began: float | None = None
        self._seconds = 0.0

    def begin(self, now: float) -> None:
        """Begin to read the table.

        :param now: the time in seconds, of a clock that never goes back.
        """
        if self._began is None:
            self._began = now
        self.state = "reading"

    def add(self, rows: int, size: int, now: float) -> None:
        """Count rows that were read; ``now`` as for ``begin``."""
        self.begin(now)
        self.rows += rows
        self.bytes += size
        self._seconds = now - self._began if self._began is not None else 0.0

    def end_chunk(self, *, last: bool) -> None:
        """Count a chunk that was delivered.

        :param last: whether the chunk is the table's last one.
        """
        self.chunks_done += 1
        self.state = "delivered" if last else "reading"

    def fail(self, error: str) -> None:
        """Record why the table cannot be read."""
        self.state, self.error = "failed", error

    def statistics(self) -> TableStatistics:
        """Return the counters as they are."""
        return TableStatistics(
            self.table,
            self.state,
            self.rows,
            self.bytes,
            self.estimated_rows,
            self.chunks,
            self.chunks_done,
            self.rows / self._seconds if self._seconds > 0 else 0.0,
            self.error,
            self._planned,
        )


def describe(statistics: SnapshotStatistics, rows_per_second: float) -> str:
    """Return the progress as one line.

    :param rows_per_second: of all tables together.
    """
    tables = statistics.tables
    ended = sum(table.state in ("delivered", "complete") for table in tables)
    parts = [
        f"{statistics.done:.0%}",
        f"{ended:,} of {len(tables):,} tables",
        f"{statistics.rows:,} rows",
        f"{rows_per_second:,.0f} rows/s",
    ]
    if again := sum(table.again for table in tables):
        parts.append(f"{again:,} read again")
    if failed := sum(table.state == "failed" for table in tables):
        parts.append(f"{failed:,} failed")
    if statistics.paused:
        parts.append("paused")
    if statistics.wal is not None:
        parts.append(f"the slot keeps {format_size(statistics.wal.bytes)} of WAL")
    return ", ".join(parts)


def reading(tables: Iterable[TableStatistics]) -> list[TableStatistics]:
    """Return the tables that are being read."""
    return [table for table in tables if table.state == "reading"]
