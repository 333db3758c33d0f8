"""Retries: after which errors, how often, and when."""

from __future__ import annotations

import asyncio
import time

import pytest
import stamina

from aiorepl import (
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    DataError,
    PermanentError,
    ProtocolError,
    RetryPolicy,
    ServerError,
    SlotError,
    TransientError,
)
from aiorepl.retry import may_pass

QUICK = RetryPolicy(timeout=None, wait_initial=0.001, wait_max=0.002)


def server_error(sqlstate):
    """The server's error with this SQLSTATE."""
    return ServerError({"C": sqlstate} if sqlstate else {})


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        (True, ConnectionLost("gone")),
        (True, ConnectionResetError()),
        (True, ConnectionFailed("nobody there")),
        (False, ConnectionFailed("wrong password", permanent=True)),
        (True, SlotError("in use", busy=True)),
        (False, SlotError("missing")),
        (True, server_error("57P01")),
        (True, server_error("53300")),
        (True, server_error("40P01")),
        (True, server_error("08006")),
        (True, ServerError({"C": "XX000", "R": "CheckXLogRemoved"})),
        (True, ServerError({"C": "XX000", "R": "relation_open"})),
        (False, server_error("XX000")),
        (False, server_error("42501")),
        (False, server_error(None)),
        (False, ProtocolError("nonsense")),
        (False, ConfigurationError("no")),
        (False, DataError("no")),
        (False, ZeroDivisionError()),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else f"{type(value).__name__} {value}",
)
def test_may_pass(expected, error):
    """Only errors that may pass without a change on this side are retried."""
    assert expected == may_pass(error)


async def attempts(policy, error, *, connection=False):
    """The number of attempts if every one fails."""
    count = 0
    try:
        async for attempt in policy.connection() if connection else policy.sink("sink s: write"):
            with attempt:
                count += 1
                raise error
    except type(error):
        return count


async def test_a_sink_is_tried_again_after_transient_errors_only():
    """A sink's call is retried after TransientError alone, up to ``attempts``."""
    policy = RetryPolicy(attempts=3, wait_initial=0.001)
    errors = [TransientError("later"), PermanentError("never"), ZeroDivisionError(), OSError()]
    assert [3, 1, 1, 1] == [await attempts(policy, error) for error in errors]


async def test_a_first_attempt_costs_nothing(monkeypatch):
    """A call that succeeds, or is cancelled, at its first attempt does without stamina."""
    monkeypatch.setattr(stamina, "retry_context", None)
    done = 0
    async for attempt in QUICK.sink("sink s: write"):
        with attempt:
            assert 1 == attempt.num
            done += 1
    assert 1 == done
    with pytest.raises(asyncio.CancelledError):
        async for attempt in QUICK.sink("sink s: write"):
            with attempt:
                raise asyncio.CancelledError


async def test_a_connection_is_tried_again_after_what_may_pass():
    """A connection is retried after errors that may pass, and after no others."""
    policy = RetryPolicy(attempts=3, wait_initial=0.001)
    errors = [ConnectionLost("gone"), SlotError("missing"), TransientError("a sink's")]
    assert [3, 1, 1] == [await attempts(policy, error, connection=True) for error in errors]


async def test_a_time_limit():
    """Retries end after ``timeout``."""
    policy = RetryPolicy(timeout=0.2, wait_initial=0.01, wait_max=0.02)
    async with asyncio.timeout(60):
        assert await attempts(policy, TransientError("later")) < 40


@pytest.mark.parametrize("during", ["attempt", "wait"])
async def test_a_suspended_process_tries_again(monkeypatch, during):
    """After a suspension of hours during an attempt or a wait, all attempts are made."""
    steady = time.monotonic

    def suspend():
        monkeypatch.setattr(time, "monotonic", lambda: steady() + 12 * 3600)

    tries = 0
    with pytest.raises(TransientError):
        async for attempt in RetryPolicy(attempts=5, wait_initial=0.001, wait_max=0.002).sink(
            "sink s: write"
        ):
            with attempt:
                tries += 1
                if during == "attempt":
                    suspend()
                else:
                    asyncio.get_running_loop().call_soon(suspend)
                raise TransientError("the connection is gone")
    assert 5 == tries


async def test_no_time():
    """A time limit of 0 means a single attempt."""
    assert 1 == await attempts(RetryPolicy(timeout=0), TransientError("later"))


async def test_retry_after_is_waited_for():
    """A retry waits as long as the peer asks, even beyond ``wait_max``."""
    clock = asyncio.get_running_loop().time
    begin, tries = clock(), 0
    async for attempt in QUICK.sink("sink s: write"):
        with attempt:
            tries += 1
            if tries == 1:
                raise TransientError("busy", retry_after=0.2)
    assert 2 == tries
    assert clock() - begin >= 0.2


async def test_the_first_of_many_failures_is_logged(caplog):
    """The log names the call, the attempt, the pause and the error, and is not filled by the next failures."""
    tries = []
    async for attempt in QUICK.sink("sink s: write"):
        with attempt:
            tries.append(1)
            if len(tries) < 3:
                raise TransientError("503")
    assert ["sink s: write failed at attempt 1, and is repeated in about 0.0 s: 503"] == [
        record.getMessage() for record in caplog.records if record.name in ("aiorepl.sink", "stamina")
    ]
