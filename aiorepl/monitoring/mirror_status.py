"""The contents of a mirror's status page, as a JSON object without row data. Pure."""

from __future__ import annotations

from typing import Any, Final

from aiorepl.spark.mirroring.statistics import MirroredTable, MirrorStatistics
from aiorepl.spark.reading.metrics import QueryStatistics

_MOST_TABLES: Final = 200


def mirror_status(mirror: MirrorStatistics, query: QueryStatistics | None) -> dict[str, Any]:
    """Describe a mirror.

    :param query: the mirror's query; ``None`` if the query has not started yet.
    """
    aside = [table for table in mirror.tables if table.problem is not None]
    return {
        "name": mirror.name,
        "state": "degraded" if mirror.state == "running" and aside else mirror.state,
        "problems": problems(mirror),
        "ladder": _ladder(mirror, query),
        "lag_bytes": mirror.bytes_behind,
        "restarts": mirror.restarts,
        "last_error": mirror.last_error,
        "batch": None
        if query is None or query.batch is None
        else {"number": query.batch, "seconds": query.seconds},
        "tables": [_table(table) for table in mirror.tables[:_MOST_TABLES]],
        "more_tables": max(len(mirror.tables) - _MOST_TABLES, 0),
    }


def problems(mirror: MirrorStatistics) -> list[str]:
    """List the reasons why the mirror is not ready; empty if it is ready."""
    found = []
    if mirror.state == "retrying":
        found.append(f"the query has ended, and is restarted: {mirror.last_error}")
    elif mirror.state != "running":
        found.append(f"the mirror is {mirror.state}")
    if mirror.journal_error is not None:
        found.append(mirror.journal_error)
    return found


def _ladder(mirror: MirrorStatistics, query: QueryStatistics | None) -> list[dict[str, Any]]:
    rungs = [
        ("journal", mirror.journal),
        ("planned", None if query is None else query.position),
        ("applied", mirror.lsn),
    ]
    known = [(name, lsn) for name, lsn in rungs if lsn]
    top = max((lsn for _, lsn in known), default=0)
    return [{"name": name, "lsn": str(lsn), "behind": top - lsn} for name, lsn in known]


def _table(table: MirroredTable) -> dict[str, Any]:
    return {
        "name": table.name,
        "lsn": str(table.lsn),
        "batch": table.batch,
        "lag_bytes": table.bytes_behind,
        "lag_seconds": table.seconds_behind,
        "error": table.problem,
    }
