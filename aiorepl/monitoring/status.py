"""The contents of the status page, as a JSON object without row data. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from aiorepl.lsn import LSN
from aiorepl.monitoring.samples import lag_seconds
from aiorepl.monitoring.slot_watch import SlotStatus
from aiorepl.pipeline.statistics import PipelineStatistics


def status(
    name: str, statistics: PipelineStatistics, slot: SlotStatus | None, problems: list[str], now: datetime
) -> dict[str, Any]:
    """Describe a pipeline.

    :param slot: the slot on the server; ``None`` if it was not read yet, or if there is no server.
    :param problems: the reasons why it is not ready.
    :param now: an aware datetime.
    """
    return {
        "name": name,
        "time": now.timestamp(),
        "state": statistics.state.value,
        "error": statistics.error,
        "problems": problems,
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
        "tables": _tables(statistics),
        "slot": None if slot is None else _slot(slot),
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
        ("server", None if slot is None else slot.server_lsn),
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


def _tables(statistics: PipelineStatistics) -> list[dict[str, Any]]:
    """Describe the tables that snapshots read or have read."""
    if statistics.snapshot is None:
        return []
    return [
        {"name": table.table, "state": table.state, "rows": table.rows, "done": table.done}
        for table in statistics.snapshot.tables
    ]
