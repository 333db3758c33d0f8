"""The schedule of status updates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl import LSN
from aiorepl.source.feedback.schedule import StatusSchedule


@given(st.floats(0.1, 600), st.lists(st.tuples(st.floats(0, 5), st.integers(0, 5)), max_size=50))
def test_never_later_than_half_of_the_timeout(timeout, moments):
    """The next status is due before half of ``wal_sender_timeout``, whenever ``flushed`` moves."""
    now, sent_at = 0.0, 0.0
    feedback = StatusSchedule(timeout, now)
    for pause, flushed in moments:
        now += pause
        wait = feedback.wait(now, LSN(flushed))
        assert now + wait <= max(now, sent_at + timeout / 2)
        if wait == 0:
            feedback.sent(now, LSN(flushed))
            sent_at = now


@pytest.mark.parametrize(("timeout", "interval"), [(60, 10), (0, 10), (3, 1), (0.3, 0.1)])
def test_interval(timeout, interval):
    """The interval is 10 s, or a third of ``wal_sender_timeout`` if that is shorter; 0 means that the timeout is off."""
    assert interval == pytest.approx(StatusSchedule(timeout, 0.0).interval)


def test_due_soon_after_flushed_moved():
    """A move of ``flushed`` is reported within a second, at most once a second."""
    feedback = StatusSchedule(60, 100.0)
    feedback.sent(100.0, LSN(1))
    assert 9.5 == feedback.wait(100.5, LSN(1))
    assert 0.5 == feedback.wait(100.5, LSN(2))
    assert 0 == feedback.wait(101.0, LSN(2))
    feedback.sent(101.0, LSN(2))
    assert 10 == feedback.wait(101.0, LSN(2))
    assert 0 == feedback.wait(111.0, LSN(2))


def test_the_first_status_is_due_soon():
    """The first status is due after a second."""
    assert 1 == StatusSchedule(60, 100.0).wait(100.0, LSN(1))
