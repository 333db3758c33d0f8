"""The contents of the status page, as a JSON object without row data. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from aiorepl.lsn import LSN
from aiorepl.monitoring.samples import lag_seconds
from aiorepl.monitoring.watch import JournalStatus, SlotStatus
from aiorepl.pipeline.statistics import PipelineStatistics

_MOST_ROWS: Final = 25


def status(
    name: str,
    statistics: PipelineStatistics,
    slot: SlotStatus | None,
    journal: JournalStatus | None,
    problems: list[str],
    now: datetime,
) -> dict[str, Any]:
    """Describe a pipeline.

    :param slot: the slot on the server; ``None`` if it was not read yet, or if there is no server.
    :param journal: the journal's files; ``None`` if they were not read yet, or if there is no journal.
    :param problems: the reasons why it is not ready.
    :param now: an aware datetime.
    """
    return {
        "name": name,
        "time": now.timestamp(),
        "state": statistics.state.value,
        "error": statistics.error,
        "problems": problems,
        "waiting_for": statistics.waiting_for,
        "ladder": _ladder(statistics, slot),
        "reconnects": statistics.reconnects,
        "last_error": statistics.last_error,
        "sinks": [_sink(name, statistics, now) for name in statistics.sinks],
        "buffers": [
            {
                "name": name,
                "bytes": buffer.bytes,
                "limit": buffer.limit,
                "backpressured": buffer.backpressured,
                "slowest": buffer.slowest,
            }
            for name, buffer in statistics.buffers.items()
        ],
        "transactions": {
            "memory": statistics.transaction_buffer.memory,
            "disk": statistics.transaction_buffer.spooled,
        },
        "gaps": len(statistics.gaps),
        "rows": _rows(statistics),
        "snapshots": _snapshots(statistics),
        "slot": None if slot is None else _slot(slot),
        "journal": None if journal is None else _journal(journal),
    }


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
    return [{"name": name, "lsn": str(lsn), "behind": top - lsn} for name, lsn in known]


def _sink(name: str, statistics: PipelineStatistics, now: datetime) -> dict[str, Any]:
    sink, lag = statistics.sinks[name], statistics.lags.get(name)
    return {
        "name": name,
        "state": "stopped" if sink.failed else "retrying" if sink.retrying else "running",
        "error": sink.failed or sink.retrying,
        "changes": sink.changes,
        "batches": sink.batches,
        "retries": sink.retries,
        "dead_letters": sink.dead_letters,
        "skipped": sink.skipped,
        "durable": str(sink.durable),
        "lag_bytes": None if lag is None else lag.durable,
        "lag_seconds": None if lag is None else lag_seconds(statistics, name, now),
    }


def _journal(journal: JournalStatus) -> dict[str, Any]:
    return {
        "bytes": journal.bytes,
        "prepared": journal.prepared,
        "consumers": [{"name": name, "bytes": size} for name, size in journal.consumers.items()],
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


def _snapshots(statistics: PipelineStatistics) -> list[dict[str, Any]]:
    """Describe the tables that snapshots read or have read."""
    if statistics.snapshot is None:
        return []
    return [
        {"name": table.table, "state": table.state, "rows": table.rows, "done": table.done}
        for table in statistics.snapshot.tables
    ]
