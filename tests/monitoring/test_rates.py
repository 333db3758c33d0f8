"""Rows and bytes per second, from counters that are observed once a second."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from aiorepl.monitoring.rates import Rates
from aiorepl.snapshot.statistics import SnapshotStatistics, TableStatistics


def counted(rows: int, done: float | None = None, rows_read: int = 0) -> SimpleNamespace:
    """Statistics of a pipeline that has received these rows of ten bytes, and has read a part of a snapshot."""
    table = SimpleNamespace(kinds=lambda: [("insert", rows, 10 * rows)])
    read = TableStatistics(
        "public.t", "reading", rows=rows_read, chunks=100, chunks_done=round(100 * (done or 0))
    )
    return SimpleNamespace(tables=(table,), snapshot=None if done is None else SnapshotStatistics((read,)))


def test_rates():
    """The rate now is that of the last seconds; that of a minute does not count what is older."""
    rates = Rates()
    assert rates.describe(0) == {
        "now": None,
        "minute": None,
        "change_seconds": None,
        "snapshot_seconds": None,
    }
    for second in range(101):
        rates.observe(counted(100 * min(second, 80)), second)  # 100 rows/s, and none after 80 s

    described = rates.describe(100)
    assert {"rows": 0, "bytes": 0} == described["now"]
    assert pytest.approx(100 * 40 / 60) == described["minute"]["rows"]
    assert pytest.approx(1000 * 40 / 60) == described["minute"]["bytes"]
    assert 20 == described["change_seconds"]


def test_snapshots():
    """Rows of snapshots count, and the pace of the last minute says when they end."""
    rates = Rates()
    for second in range(11):
        rates.observe(counted(0, done=second / 20, rows_read=50 * second), second)

    described = rates.describe(10)
    assert 50 == described["now"]["rows"]
    assert pytest.approx(10) == described["snapshot_seconds"]
    ended = counted(0, done=1.0, rows_read=1000)
    ended.snapshot = SnapshotStatistics((replace(ended.snapshot.tables[0], state="complete"),))
    rates.observe(ended, 11)
    assert rates.describe(11)["snapshot_seconds"] is None


def test_rows_from_before():
    """Rows that were received before the first observation have no known age."""
    rates = Rates()
    rates.observe(counted(500), 0)
    rates.observe(counted(500), 1)
    assert rates.describe(1)["change_seconds"] is None
    rates.observe(counted(501), 2)
    assert 3 == rates.describe(5)["change_seconds"]


def test_a_pipeline_that_ended():
    """A rate of which nothing was observed in its time is unknown, and not the last one for ever."""
    rates = Rates()
    for second in range(11):
        rates.observe(counted(100 * second), second)
    assert rates.describe(20)["now"] is None
    assert rates.describe(20)["minute"]["rows"] == 100
    assert rates.describe(80)["minute"] is None
