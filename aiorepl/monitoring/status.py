"""The contents of the status page, as a JSON object without row data. Pure."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any, Final

from aiorepl.delivery.buffer import BufferStatistics
from aiorepl.lsn import LSN
from aiorepl.monitoring.progress import alive
from aiorepl.monitoring.samples import lag_seconds
from aiorepl.monitoring.trends import Trends
from aiorepl.monitoring.watch import JournalStatus, SlotStatus
from aiorepl.pipeline.statistics import PipelineStatistics
from aiorepl.snapshot.statistics import TableStatistics

_MOST_ROWS: Final = 25
_MOST_SNAPSHOTS: Final = 50
_BY_PROGRESS: Final = ("reading", "failed", "queued", "delivered", "cancelled", "complete")
_RECENT: Final = 30
"""The number of steps of ten seconds in the last five minutes."""


def status(
    name: str,
    statistics: PipelineStatistics,
    slot: SlotStatus | None,
    journal: JournalStatus | None,
    problems: list[str],
    now: datetime,
    rates: dict[str, Any] | None = None,
    address: str = "",
    trends: Trends | None = None,
    *,
    recent: bool = True,
) -> dict[str, Any]:
    """Describe a pipeline.

    :param slot: the slot on the server; ``None`` if it was not read yet, or if there is no server.
    :param journal: the journal's files; ``None`` if they were not read yet, or if there is no journal.
    :param problems: of the pipeline, its sinks and its slot.
    :param now: an aware datetime.
    :param rates: from ``Rates.describe``.
    :param address: of the source's server.
    :param trends: the lags and rates of the charts.
    :param recent: whether the lags and rates of the last five minutes are wanted.
    """
    return {
        "name": name,
        "server": {
            "address": address or None,
            "database": None if slot is None else slot.database,
            "version": None if slot is None else slot.version,
        },
        "uptime_seconds": statistics.uptime_seconds if alive(statistics.state) else None,
        "rates": None if rates is None else rates | _recent_rates(trends if recent else None),
        "slowest": _slowest(statistics),
        "state": statistics.state.value,
        "error": statistics.error,
        "problems": problems,
        "waiting_for": statistics.waiting_for,
        "ladder": _ladder(statistics, slot),
        "reconnects": statistics.reconnects,
        "last_error": statistics.last_error,
        "sinks": [_sink(name, statistics, now, trends, recent=recent) for name in statistics.sinks],
        "buffers": [_buffer(name, buffer) for name, buffer in statistics.buffers.items()],
        "transactions": {
            "memory": statistics.transaction_buffer.memory,
            "disk": statistics.transaction_buffer.spooled,
        },
        "gaps": len(statistics.gaps),
        "publication": _publication(statistics),
        "rows": _rows(statistics),
        "snapshots": _snapshots(statistics),
        "more_snapshots": Counter(table.state for table in _by_progress(statistics)[_MOST_SNAPSHOTS:]),
        "snapshot": _snapshot(statistics),
        "slot": None if slot is None else _slot(slot),
        "journal": None if journal is None else _journal(journal),
    }


def _buffer(name: str, buffer: BufferStatistics) -> dict[str, Any]:
    return {
        "name": name,
        "bytes": buffer.bytes,
        "limit": buffer.limit,
        "backpressured": buffer.backpressured,
        "slowest": buffer.slowest,
    }


def _publication(statistics: PipelineStatistics) -> dict[str, Any] | None:
    """Describe the watch on the publications."""
    if (watch := statistics.publication) is None:
        return None
    return {"changes": dict(watch.changes), "error": watch.error}


def _slot(slot: SlotStatus) -> dict[str, Any]:
    return {
        "retained": slot.retained_bytes,
        "safe": slot.safe_bytes,
        "wal_status": slot.wal_status,
        "active": slot.active,
        "error": slot.error,
    }


def _ladder(statistics: PipelineStatistics, slot: SlotStatus | None) -> list[dict[str, Any]]:
    rungs = [
        # Read less often than the stream.
        (
            "server",
            None if slot is None or slot.server_lsn is None else max(slot.server_lsn, statistics.received),
        ),
        ("received", statistics.received),
        ("accepted", statistics.accepted),
        ("durable", statistics.flushed),
    ]
    known = [(name, lsn) for name, lsn in rungs if lsn]
    top = max((lsn for _, lsn in known), default=LSN(0))
    ladder = [{"name": name, "lsn": str(lsn), "behind": top - lsn} for name, lsn in known]
    if (slowest := _slowest(statistics)) is not None and len(statistics.lags) > 1:
        lsn, lag = statistics.sinks[slowest].durable, statistics.lags[slowest].durable
        behind = max(top - lsn, 0) if lsn else lag
        ladder.append({"name": "slowest sink", "sink": slowest, "lsn": str(lsn), "behind": behind})
    return ladder


def _slowest(statistics: PipelineStatistics) -> str | None:
    """Return the sink that is furthest behind; ``None`` if none is."""
    lags = {name: lag.durable for name, lag in statistics.lags.items() if lag.durable}
    return max(lags, key=lags.__getitem__) if lags else None


def _recent_rates(trends: Trends | None) -> dict[str, Any]:
    units = ("rows", "bytes")
    return {} if trends is None else {"recent": {unit: trends.recent_rates(unit, _RECENT) for unit in units}}


def _sink(
    name: str, statistics: PipelineStatistics, now: datetime, trends: Trends | None, *, recent: bool
) -> dict[str, Any]:
    sink, lag = statistics.sinks[name], statistics.lags.get(name)
    running = "running" if alive(statistics.state) else "ended"
    return {
        "name": name,
        "series": name if trends is None else trends.series(name),
        "state": "stopped"
        if sink.failed
        else "paused"
        if sink.paused and running != "ended"
        else "retrying"
        if sink.retrying and running != "ended"
        else running,
        "error": sink.failed or sink.retrying,
        "waiting_for": sink.waiting_for,
        "changes": sink.changes,
        "batches": sink.batches,
        "retries": sink.retries,
        "dead_letters": sink.dead_letters,
        "skipped": sink.skipped,
        "durable": str(sink.durable),
        "lag_bytes": None if lag is None else lag.durable,
        "lag_seconds": None if lag is None else lag_seconds(statistics, name, now),
        "recent_lags": trends.recent_lags(name, _RECENT) if trends is not None and recent else [],
    }


def _journal(journal: JournalStatus) -> dict[str, Any]:
    return {
        "bytes": journal.bytes,
        "prepared": journal.prepared,
        "consumers": [
            {"name": name, "label": journal.labels.get(name, ""), "bytes": size}
            for name, size in journal.consumers.items()
        ],
        "error": journal.error,
    }


def _rows(statistics: PipelineStatistics) -> list[dict[str, Any]]:
    """Describe the received rows of the busiest tables."""
    busiest = sorted(
        statistics.tables, key=lambda each: each.inserts + each.updates + each.deletes, reverse=True
    )
    return [
        {
            "table": each.table,
            "inserts": each.inserts,
            "updates": each.updates,
            "deletes": each.deletes,
            "bytes": each.insert_bytes + each.update_bytes + each.delete_bytes,
        }
        for each in busiest[:_MOST_ROWS]
    ]


def _snapshot(statistics: PipelineStatistics) -> dict[str, Any] | None:
    """Describe all of these tables together."""
    snapshot = statistics.snapshot
    if snapshot is None:
        return None
    ended = sum(table.state in ("delivered", "complete") for table in snapshot.tables)
    return {
        "tables": len(snapshot.tables),
        "ended": ended,
        "rows": snapshot.rows,
        "done": snapshot.done,
        "again": sum(table.again for table in snapshot.tables),
        "paused": snapshot.paused,
    }


def _snapshots(statistics: PipelineStatistics) -> list[dict[str, Any]]:
    """Describe the first tables that snapshots read or have read, those in progress before the others."""
    return [
        {
            "name": table.table,
            "state": table.state,
            "rows": table.rows,
            "estimated_rows": table.estimated_rows,
            "rows_per_second": table.rows_per_second,
            "done": table.done,
            "again": table.again,
        }
        for table in _by_progress(statistics)[:_MOST_SNAPSHOTS]
    ]


def _by_progress(statistics: PipelineStatistics) -> list[TableStatistics]:
    tables = () if statistics.snapshot is None else statistics.snapshot.tables
    return sorted(tables, key=lambda table: _BY_PROGRESS.index(table.state))
