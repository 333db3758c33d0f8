"""When a silent connection counts as lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.source.feedback.liveness import Liveness, LivenessMonitor, limit


def test_asked_after_half_and_lost_after_the_other():
    """The server is asked after half of the limit, and lost at the second check after the limit."""
    monitor = LivenessMonitor(10, 0.0)
    monitor.record(1, 0.0)
    signs = [monitor.check(1, now) for now in (4.9, 5.0, 6.0, 9.9, 10.0, 10.5)]
    assert [
        Liveness.ALIVE,
        Liveness.PROBE,
        Liveness.ALIVE,
        Liveness.ALIVE,
        Liveness.ALIVE,
        Liveness.LOST,
    ] == signs


def test_data_restarts_the_limit():
    """New data restarts the limit, even at the last moment."""
    monitor = LivenessMonitor(10, 0.0)
    monitor.record(1, 0.0)
    assert [Liveness.PROBE, Liveness.ALIVE] == [monitor.check(1, 5.0), monitor.check(1, 10.0)]
    assert [Liveness.ALIVE, Liveness.ALIVE, Liveness.PROBE] == [
        monitor.check(2, 10.5),
        monitor.check(2, 15.0),
        monitor.check(2, 15.5),
    ]
    assert 10.5 == monitor.heard_at


def test_paused_reading_does_not_count():
    """Time in which reading is paused does not count."""
    monitor = LivenessMonitor(10, 0.0)
    assert {Liveness.ALIVE} == {monitor.check(None, float(now)) for now in range(3600)}
    assert Liveness.ALIVE == monitor.check(1, 3600.0)
    assert Liveness.ALIVE == monitor.check(1, 3604.0)


def test_without_a_limit():
    """With limit 0 a connection is never lost."""
    monitor = LivenessMonitor(0, 0.0)
    assert Liveness.ALIVE == monitor.check(1, 1e9)
    assert float("inf") == monitor.wait(1e9)


@pytest.mark.parametrize(
    ("expected", "chosen", "server"), [(60, None, 60), (2, None, 2), (60, None, 0), (5, 5, 60), (0, 0, 60)]
)
def test_limit(expected, chosen, server):
    """The limit is the configured one, the server's, or a minute."""
    assert expected == limit(chosen, server)


@given(st.floats(0.01, 100), st.lists(st.floats(0, 30), max_size=30))
def test_a_silent_server_is_lost_in_time(patience, pauses):
    """A silent server is lost soon after the limit, whatever checks come in between."""
    now, monitor = 0.0, LivenessMonitor(patience, 0.0)
    monitor.record(1, now)
    asked = False
    for pause in [*pauses, *[patience] * 30]:
        now += min(pause, max(monitor.wait(now), 1e-6))
        sign = monitor.check(1, now)
        asked = asked or sign is Liveness.PROBE
        if sign is Liveness.LOST:
            break
    else:
        pytest.fail("never lost")
    assert asked
    assert patience <= now + 1e-9 <= 1.2 * patience + 1e-3
