"""Interruptions of the stream: how long to wait before a reconnect, and when a reconnect is useless."""

from __future__ import annotations

import pytest

from aiorepl import ConnectionLost, RetryPolicy, ServerError, SlotError
from aiorepl.errors import SpoolError
from aiorepl.lsn import LSN
from aiorepl.source.interruptions import Interruptions

POLICY = RetryPolicy(timeout=None, wait_initial=1, wait_max=10)
LOST = ConnectionLost("gone")


def removed(segment, routine="CheckXLogRemoved"):
    """The server's error about a file of WAL."""
    return ServerError(
        {"C": "XX000", "R": routine, "M": f"requested WAL segment {segment} has already been removed"}
    )


def connected(policy=POLICY):
    """The interruptions of a stream that has just begun."""
    interruptions = Interruptions(policy)
    interruptions.started(0.0)
    return interruptions


def pauses(interruptions, *furthest, error=LOST, now=0.0):
    """The pauses after one loss at each of these LSNs."""
    return [interruptions.pause(error, LSN(lsn), now) for lsn in furthest]


def test_pauses_grow_until_something_new_arrives():
    """If the server fails again and again at the same position, the pauses grow; new data starts them again."""
    assert [1, 2, 4, 8, 10, 10, 1, 2] == pauses(connected(), 7, 7, 7, 7, 7, 7, 8, 8)


def test_a_connection_that_has_lasted_starts_the_pauses_again():
    """The connections of an idle stream count as losses only if they are short."""
    interruptions = connected()
    interruptions.started(100.0)
    assert [1, 2] == pauses(interruptions, 7, 7, now=109.0)
    assert [1] == pauses(interruptions, 7, now=110.0)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RetryPolicy(attempts=2, wait_initial=1), [1, 2, None]),
        (RetryPolicy(timeout=3, wait_initial=1), [1, 2, None]),
        (RetryPolicy(timeout=0, wait_initial=1), [1, None, None]),
        (RetryPolicy(attempts=2, wait_max=0), [0, 0, None]),
    ],
    ids=["attempts", "timeout", "no time", "no waits"],
)
def test_the_policy_ends_useless_reconnects(policy, expected):
    """Reconnects without new data are limited as attempts to connect are."""
    assert expected == pauses(connected(policy), 7, 7, 7)


def test_a_full_disk_is_waited_for():
    """A spool that cannot be written is tried again after the policy's longest wait, without a limit."""
    full = SpoolError("no space left")
    assert [10] * 9 == pauses(connected(RetryPolicy(attempts=2, wait_max=10)), *[7] * 9, error=full)


@pytest.mark.parametrize("routine", ["CheckXLogRemoved", "WalSndSegmentOpen", "wal_segment_open"])
def test_wal_that_is_gone(routine):
    """After removed WAL, the stream reconnects. If the same file is missing twice, an error says what to do."""
    interruptions = connected()
    assert [1] == pauses(interruptions, 7, error=removed("6E", routine))
    assert [2] == pauses(interruptions, 7, error=removed("70", routine))
    with pytest.raises(SlotError, match=r"segment 70 .* lost for this slot\. Drop the slot .*accept_gap"):
        pauses(interruptions, 7, error=removed("70", routine))
