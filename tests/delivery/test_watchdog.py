"""A sink that blocks the event loop is logged by name and counted; other sinks are not."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time

import pytest

from aiorepl import Sink
from aiorepl.delivery import watchdog
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.watchdog import attribute_to_sink, watching

pytestmark = pytest.mark.both_loops


@pytest.fixture(autouse=True)
def short_limit(monkeypatch, caplog):
    """Shorten the limit for tests."""
    monkeypatch.setattr(watchdog, "LIMIT_SECONDS", 0.1)
    caplog.set_level(logging.WARNING, "aiorepl.watchdog")


@pytest.fixture
def told(caplog):
    """Return the messages about one culprit; a machine that stalls may cause messages about others."""
    return lambda who: [
        text for text in caplog.messages if text.startswith(f"{who} has blocked the event loop")
    ]


def threads():
    """Return the watchdogs' threads."""
    return [thread for thread in threading.enumerate() if thread.name == "aiorepl watchdog"]


async def gone():
    """Wait until all watchdog threads have ended."""
    async with asyncio.timeout(60):
        for thread in threads():
            await asyncio.to_thread(thread.join)


def block(until):
    """Block the loop until the condition holds."""
    while not until():
        time.sleep(0.01)


class Blocks(Sink):
    """A sink that blocks the loop until the watchdog has logged it."""

    def __init__(self, told):
        self.told = told

    async def write(self, batch):
        await asyncio.sleep(0)
        # A machine that stood still just before has the sink accused elsewhere, and here a little later.
        block(lambda: [text for text in self.told("sink s") if "in block at " in text])


async def test_who_blocks_is_named(harness, told):
    """The log names sink, code location and advice once per call; a sink that only waits is not named."""
    harness = harness(Blocks(told))
    harness.commit(1)
    waits = SinkStatistics("waits")
    with watching():
        waiting = asyncio.create_task(asyncio.sleep(60))
        attribute_to_sink(waiting, waits)
        attribute_to_sink(harness.start(), harness.worker.statistics)
        await harness.finish()
        waiting.cancel()
    *before, message = told("sink s")
    assert float(re.search(r"for (\d+\.\d) s, in ", message)[1]) >= 0.1
    assert "in block at " in message
    assert "test_watchdog.py:" in message
    assert "SyncSink" in message
    assert 1 <= harness.worker.statistics.blocked <= 1 + len(before)
    assert 0 == waits.blocked


async def test_told_again_while_it_lasts(told):
    """A long block is logged at growing intervals, and counted once."""
    sink = SinkStatistics("s")

    async def blocks():
        block(lambda: len(told("sink s")) >= 2)

    with watching():
        attribute_to_sink(task := asyncio.create_task(blocks()), sink)
        await task
    first, second, *_ = (float(re.search(r"for (\d+\.\d) s, in ", text)[1]) for text in told("sink s"))
    assert first >= 0.1
    assert second >= 0.4
    assert 1 == sink.blocked


async def test_a_loop_that_is_busy_with_short_things_is_not_blocked(monkeypatch, caplog):
    """A busy loop that yields is not logged."""
    monkeypatch.setattr(watchdog, "LIMIT_SECONDS", 1.0)
    longest = 1.0
    while longest > 0.4:  # the machine stood still
        caplog.clear()
        longest, now = 0.0, time.monotonic()
        end = now + 1.6
        with watching():
            while now < end:
                time.sleep(0.01)  # noqa: ASYNC251
                await asyncio.sleep(0)
                before, now = now, time.monotonic()
                longest = max(longest, now - before)
    assert [] == caplog.messages


async def test_others_who_block_are_told_by_their_task(told):
    """A task that is not a sink's is logged by its name."""

    async def blocks():
        block(lambda: told("task 'theirs'"))

    with watching():
        await asyncio.create_task(blocks(), name="theirs")
    assert "without one, the machine may be overloaded" in told("task 'theirs'")[0]


async def test_one_thread_for_a_loop_and_none_without_pipelines():
    """All pipelines of a loop share one thread, which ends with the last pipeline."""
    await gone()
    with watching(), watching():
        assert 1 == len(threads())
    await gone()
    with watching():
        assert 1 == len(threads())
    await gone()
