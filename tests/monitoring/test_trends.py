"""What charts show, beside the values: the marks. Pure."""

from __future__ import annotations

from aiorepl.monitoring.trends import MOST_MARKS, RECONNECT, START, Trends

NOON = 1_800_000_000


def kinds(trends: Trends) -> list[tuple[float, str]]:
    """The marks as pairs."""
    return [(mark["time"] - NOON, mark["kind"]) for mark in trends.marks()]


def test_marks():
    """A count that has grown makes a mark, the first one does not; the start has its own time."""
    trends = Trends()
    trends.observe(NOON, {}, counts={RECONNECT: 3})
    trends.observe(NOON + 1, {}, counts={RECONNECT: 3}, uptime_seconds=0.5)
    trends.observe(NOON + 2, {}, counts={RECONNECT: 5}, uptime_seconds=1.5)
    trends.observe(NOON + 3, {}, counts={RECONNECT: 5}, uptime_seconds=2.5)
    assert [(0.5, START), (2, RECONNECT)] == kinds(trends)
    assert [RECONNECT] == [mark["kind"] for mark in trends.marks(NOON + 1)]


def test_old_marks():
    """Marks are forgotten after a day, and there are never more than a few hundred."""
    trends = Trends()
    for number in range(10 * MOST_MARKS):
        trends.observe(NOON + number, {}, counts={RECONNECT: number})
    assert MOST_MARKS == len(trends.marks())
    trends.observe(NOON + 200_000, {}, counts={RECONNECT: 10 * MOST_MARKS})
    assert [(200_000, RECONNECT)] == kinds(trends)


def test_rates():
    """A rate below one is not 0; unknown rates leave a gap."""
    trends = Trends()
    trends.observe(NOON, {"s": 5}, {"rows": 0.2, "bytes": 20.0})
    trends.observe(NOON + 10, {"s": 6})
    trends.observe(NOON + 20, {"s": 7}, {"rows": 0.0, "bytes": 0.0})
    (part,) = (part for part in trends.parts() if (part["kind"], part["level"]) == ("rates", 1))
    assert [1, None, 0] == part["values"]["rows"]
    assert [None, 5, 6, 7] == trends.recent_lags("s", 4)
    assert [None, 1, None, 0] == trends.recent_rates("rows", 4)
