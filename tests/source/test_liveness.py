"""When silence counts as a loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.source.feedback.liveness import LivenessMonitor, Sign, limit


def test_asked_after_half_and_lost_after_the_other():
    """And only at a second look past the limit, for it may be us who were busy."""
    silence = LivenessMonitor(10, 0.0)
    silence.listen(1, 0.0)
    looks = [silence.look(1, now) for now in (4.9, 5.0, 6.0, 9.9, 10.0, 10.5)]
    assert [Sign.FINE, Sign.ASK, Sign.FINE, Sign.FINE, Sign.FINE, Sign.LOST] == looks


def test_a_sign_of_life_begins_anew():
    """Whenever it comes, also at the last moment."""
    silence = LivenessMonitor(10, 0.0)
    silence.listen(1, 0.0)
    assert [Sign.ASK, Sign.FINE] == [silence.look(1, 5.0), silence.look(1, 10.0)]
    assert [Sign.FINE, Sign.FINE, Sign.ASK] == [
        silence.look(2, 10.5),
        silence.look(2, 15.0),
        silence.look(2, 15.5),
    ]
    assert 10.5 == silence.heard_at


def test_time_in_which_we_do_not_listen_does_not_count():
    """A sink that holds the reader back for an hour loses no connection."""
    silence = LivenessMonitor(10, 0.0)
    assert {Sign.FINE} == {silence.look(None, float(now)) for now in range(3600)}
    assert Sign.FINE == silence.look(1, 3600.0)
    assert Sign.FINE == silence.look(1, 3604.0)


def test_nothing_is_for_ever():
    """With 0 it is never asked."""
    silence = LivenessMonitor(0, 0.0)
    assert Sign.FINE == silence.look(1, 1e9)
    assert float("inf") == silence.wait(1e9)


@pytest.mark.parametrize(
    ("expected", "chosen", "server"), [(60, None, 60), (2, None, 2), (60, None, 0), (5, 5, 60), (0, 0, 60)]
)
def test_limit(expected, chosen, server):
    """What was chosen, the server's patience, or a minute."""
    assert expected == limit(chosen, server)


@given(st.floats(0.01, 100), st.lists(st.floats(0, 30), max_size=30))
def test_who_waits_as_told_learns_in_time(patience, pauses):
    """A server that says nothing is lost soon after the limit, however often one looks in between."""
    now, silence = 0.0, LivenessMonitor(patience, 0.0)
    silence.listen(1, now)
    asked = False
    for pause in [*pauses, *[patience] * 30]:
        now += min(pause, max(silence.wait(now), 1e-6))
        sign = silence.look(1, now)
        asked = asked or sign is Sign.ASK
        if sign is Sign.LOST:
            break
    else:
        pytest.fail("never lost")
    assert asked
    assert patience <= now + 1e-9 <= 1.2 * patience + 1e-3
