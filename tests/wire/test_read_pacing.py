"""Reading of a busy socket pauses for moments: when it does, how a pause ends, and what it must not delay."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from aiorepl.wire import protocol, read_pacing
from aiorepl.wire.read_pacing import Timer

MIB = 1024 * 1024

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no timerfd")


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The clock of the protocol."""
    clock = Clock()
    monkeypatch.setattr(protocol, "time", clock)
    return clock


def descriptors() -> list[Path]:
    """Return the open file descriptors of this process."""
    return list(Path("/proc/self/fd").iterdir())


def until_it_rests(copying, backend) -> int:
    """Send small reads in quick succession until the protocol pauses; return how many."""
    count = 0
    while copying.transport.reading:
        copying.send(backend.xlog(b"a"))
        count += 1
    return count


async def test_small_reads_behind_each_other(copying, backend, clock):
    """After many small reads the protocol pauses, and resumes by itself; then it pauses after each."""
    assert 10 < until_it_rests(copying, backend) < 100
    for _ in range(3):
        copying.transport.resumed.clear()
        await copying.transport.resumed.wait()
        assert copying.transport.reading
        assert 1 == until_it_rests(copying, backend)


async def test_what_came_before_is_received(copying, backend, clock):
    """Frames from before a pause are received during it, and ``receive`` does not end it."""
    count = until_it_rests(copying, backend)

    assert count == len(await copying.received())
    assert not copying.transport.reading
    await copying.transport.resumed.wait()


async def test_reads_with_pauses(copying, backend, clock):
    """Rows with time between them cause no pause."""
    for _ in range(100):
        copying.send(backend.xlog(b"a"))
        clock.now += 0.001
        assert copying.transport.reading


async def test_large_reads(copying, backend, clock):
    """A large read causes no pause."""
    until_it_rests(copying, backend)
    await copying.transport.resumed.wait()
    copying.send(backend.xlog(bytes(100_000)))
    assert copying.transport.reading


async def test_a_full_inbox(copying, backend, clock):
    """If the TLS layer fills the inbox during a pause, the end of the pause does not resume reading."""
    until_it_rests(copying, backend)
    copying.send(backend.xlog(bytes(2 * MIB)))
    rung = asyncio.Event()
    alarm = Timer(asyncio.get_running_loop(), 0.01, rung.set)
    alarm.set()
    await rung.wait()
    alarm.close()

    assert not copying.transport.reading
    await copying.received()
    assert copying.transport.reading


async def test_a_connection_that_is_lost_meanwhile(copying, backend, clock):
    """A connection that is lost during a pause is freed, and so is its timer."""
    before = {*descriptors()}
    until_it_rests(copying, backend)
    assert len(before) < len(descriptors())
    copying.protocol.abort()
    copying.transport.resumed.clear()
    await asyncio.sleep(0)

    assert before == {*descriptors()}
    assert not copying.transport.resumed.is_set()


async def test_a_system_without_such_alarms(copying, backend, clock, monkeypatch):
    """Without timer descriptors the protocol reads without pauses."""

    def refuse(*_: object) -> None:
        raise AttributeError("timerfd_create")

    monkeypatch.setattr(read_pacing, "Timer", refuse)
    for _ in range(100):
        copying.send(backend.xlog(b"a"))
        assert copying.transport.reading


async def test_an_alarm():
    """A timer fires once each time it is set."""
    rung = asyncio.Queue()
    alarm = Timer(asyncio.get_running_loop(), 0.0004, lambda: rung.put_nowait(None))
    for _ in range(3):
        alarm.set()
        await rung.get()
    assert rung.empty()
    alarm.close()
    alarm.close()
