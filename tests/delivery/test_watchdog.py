"""A sink that blocks the event loop is noticed, named and counted, and only that."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from aiorepl import Sink
from aiorepl.delivery import watchdog
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.watchdog import held_responsible, watching

pytestmark = pytest.mark.both_loops


@pytest.fixture(autouse=True)
def soon(monkeypatch, caplog):
    """A limit that a test can wait for."""
    monkeypatch.setattr(watchdog, "LIMIT_SECONDS", 0.1)
    caplog.set_level(logging.WARNING, "aiorepl.watchdog")


def threads():
    """The watchdogs' threads."""
    return [thread for thread in threading.enumerate() if thread.name == "aiorepl watchdog"]


async def gone():
    """Wait until all have ended."""
    async with asyncio.timeout(10):
        for thread in threads():
            await asyncio.to_thread(thread.join)


class Blocks(Sink):
    """Does not know better."""

    async def write(self, batch):
        await asyncio.sleep(0)
        time.sleep(0.35)  # noqa: ASYNC251 - that is what it is about


async def test_who_blocks_is_named(lane, caplog):
    """Sink, place and advice, once for one call; another sink that only waits is not accused."""
    lane = lane(Blocks())
    lane.commit(1)
    waits = SinkStatistics("waits")
    with watching():
        waiting = asyncio.create_task(asyncio.sleep(60))
        held_responsible(waiting, waits)
        held_responsible(lane.start(), lane.runner.statistics)
        await lane.finish()
        waiting.cancel()
    (message,) = caplog.messages
    assert message.startswith("sink s has blocked the event loop for 0.")
    assert "in write at " in message
    assert "test_watchdog.py:" in message
    assert "SyncSink" in message
    assert (1, 0) == (lane.runner.statistics.blocked, waits.blocked)


async def test_told_again_while_it_lasts(caplog):
    """With growing pauses, and counted once."""
    sink = SinkStatistics("s")

    async def block():
        time.sleep(0.8)  # noqa: ASYNC251

    with watching():
        await asyncio.sleep(0.1)
        held_responsible(task := asyncio.create_task(block()), sink)
        await task
    assert (2, 1) == (len(caplog.messages), sink.blocked)


async def test_a_loop_that_is_busy_with_short_things_is_not_blocked(caplog):
    """However busy."""
    end = time.monotonic() + 0.4
    with watching():
        while time.monotonic() < end:
            time.sleep(0.01)  # noqa: ASYNC251
            await asyncio.sleep(0)
    assert [] == caplog.messages


async def test_others_who_block_are_told_by_their_task(caplog):
    """The program around the pipeline may be at fault as well."""

    async def block():
        time.sleep(0.35)  # noqa: ASYNC251

    with watching():
        await asyncio.sleep(0.1)
        await asyncio.create_task(block(), name="theirs")
    (message,) = caplog.messages
    assert message.startswith("task 'theirs' has blocked")


async def test_one_thread_for_a_loop_and_none_without_pipelines():
    """However many pipelines run, and it ends with the last of them."""
    await gone()
    with watching(), watching():
        assert 1 == len(threads())
    await gone()
    with watching():
        assert 1 == len(threads())
    await gone()
