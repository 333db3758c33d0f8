"""The slot's confirmed LSN, observed on the server while a pipeline runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re

import asyncpg
import pytest

from aiorepl import BatchPolicy, Pipeline, RetryPolicy, Sink, TransientError
from aiorepl.pipeline import source_reader
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

SOON = BatchPolicy(flush_seconds=0.05)
QUICK = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.1)


async def configure(published, name, value):
    """Set a server setting for the test's database."""
    (database,) = await published.connection.fetchrow("SELECT quote_ident(current_database())")
    await published.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")


@contextlib.asynccontextmanager
async def watched(published, sinks):
    """Compare the slot's confirmed LSN with the sinks continuously; returns the list of observations."""
    observed = []
    connection = await asyncpg.connect(published.dsn)

    async def watch():
        query = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1"
        while True:
            confirmed = await connection.fetchval(query, published.slot)
            # Read before the sinks' positions, which only grow meanwhile.
            observed.append((confirmed, min(sink.durable for sink in sinks)))
            await asyncio.sleep(0.002)  # or it takes a processor for itself

    watching = asyncio.create_task(watch())
    try:
        yield observed
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        connection.terminate()


class Erratic(MemorySink):
    """A sink with random delays and retries."""

    def __init__(self, chance):
        super().__init__(keeps_position=True)
        self._chance = chance

    async def _stumble(self):
        await asyncio.sleep(self._chance.choice([0, 0.01, 0.1, 0.4]))
        if self._chance.random() < 0.3:
            raise TransientError("not now")

    async def write(self, batch):
        await self._stumble()
        await super().write(batch)

    async def flush(self):
        await self._stumble()
        await super().flush()


@pytest.mark.parametrize("seed", [1, 2])
async def test_confirmed_never_passes_the_least_durable(published, seed):
    """With three erratic sinks, unpublished WAL and a short wal_sender_timeout, the slot never passes the least durable
    sink.
    """
    chance = random.Random(seed)
    await configure(published, "wal_sender_timeout", "1s")
    await published.create_slot()
    begin = await published.confirmed()
    sinks = [Erratic(chance) for _ in range(3)]
    for sink in sinks:
        sink.durable = begin
    pipeline = Pipeline(published.source(), sinks, batches=SOON, retry=QUICK)
    async with watched(published, sinks) as observed, pipeline:
        number = 0
        # Until the slot was seen at several positions: how fast it advances is the machine's business.
        while number < 60 or len({confirmed for confirmed, _ in observed}) <= 3:
            await published.execute(f"INSERT INTO items VALUES ({number}, repeat('x', 5000))")
            await published.execute("SELECT pg_logical_emit_message(true, 'nobody', repeat('x', 5000))")
            await asyncio.sleep(chance.random() * 0.05)
            number += 1
        for sink in sinks:
            await sink.wait_for_changes(number, durable=True)
        await published.confirmed_past(await published.wal())
    assert [] == [(confirmed, durable) for confirmed, durable in observed if confirmed > durable]


class Away(MemorySink):
    """A sink that fails until it is back."""

    back = False

    async def write(self, batch):
        if not self.back:
            raise TransientError("gone")
        await super().write(batch)


async def test_one_of_three_is_gone_for_a_while(published, tmp_path):
    """With a journal the lags of the other sinks stay flat and the slot advances; the third one's lag grows and disappears
    again.
    """
    await published.create_slot()
    good, better, gone = MemorySink(), MemorySink(), Away()
    sinks = {"good": good, "better": better, "gone": gone}
    pipeline = Pipeline(published.source(), sinks, journal=str(tmp_path), batches=SOON, retry=QUICK)
    lags = []
    async with pipeline:
        for number in range(8):
            await published.execute(f"INSERT INTO items VALUES ({number}, repeat('x', 100000))")
            await good.wait_for_changes(number + 1, durable=True)
            await better.wait_for_changes(number + 1, durable=True)
            await published.confirmed_past(await published.wal())
            found = await until(
                lambda: pipeline.statistics().lags,
                lambda found: (0, 0) == (found["good"].accepted, found["better"].accepted),
            )
            lags.append(found["gone"].durable)
        assert [] == gone.batches
        assert sorted(lags) == lags
        assert lags[-1] - lags[0] > 7 * 1000  # repeated text, compressed
        await until(lambda: pipeline.statistics().sinks["gone"].retries, lambda retries: retries > 3)
        assert 0 == pipeline.statistics().reconnects
        gone.back = True
        await gone.wait_for_changes(8, durable=True)
        await until(lambda: pipeline.statistics().lags["gone"].durable, lambda lag: not lag)
    assert list(range(8)) == [change.key["id"] for change in gone.changes]


class Slow(Sink):
    """A sink that never finishes."""

    async def write(self, batch):
        await asyncio.Event().wait()


async def test_a_sink_that_holds_the_source_back_is_named(published, monkeypatch, caplog):
    """The statistics name the sink at once, the log after a while, at growing intervals."""
    monkeypatch.setattr(source_reader, "BACKPRESSURE_WARNING_SECONDS", 0.1)
    caplog.set_level(logging.WARNING, "aiorepl.pipeline")
    await published.create_slot()
    sinks = {"quick": MemorySink(), "slow": Slow()}
    async with Pipeline(
        published.source(), sinks, batches=SOON, buffer_bytes=64 * 1024, shutdown_timeout=0.1
    ) as pipeline:
        await published.execute(
            "INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 1000) i"
        )
        buffer = await until(
            lambda: pipeline.statistics().buffers["source"],
            # At first the quick sink may not have read anything either.
            lambda buffer: buffer.backpressured and buffer.slowest != "quick",
        )
        assert "slow" == buffer.slowest
        await until(
            lambda: [text for text in caplog.messages if "blocked the source" in text],
            lambda warnings: len(warnings) >= 2,
        )
    first, second, *_ = [record for record in caplog.records if "blocked the source" in record.getMessage()]
    assert re.match(r"sink slow has blocked the source for \d+ s, with ", first.getMessage())
    assert "all other sinks wait" in first.getMessage()
    assert second.created - first.created > 0.15


async def test_statistics_of_what_waits(published):
    """A transaction in progress counts in ``transaction_buffer`` until it commits."""
    await published.create_slot()
    await configure(published, "logical_decoding_work_mem", "64kB")
    async with Pipeline(published.source(streaming="on"), [MemorySink()]) as pipeline:
        transaction = published.connection.transaction()
        await transaction.start()
        await published.execute(
            "INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 2000) i"
        )
        waiting = await until(
            lambda: pipeline.statistics().transaction_buffer,
            lambda waiting: waiting.memory > 1_000_000,
        )
        assert 0 == waiting.spooled
        await transaction.rollback()
        await until(
            lambda: pipeline.statistics().transaction_buffer,
            lambda waiting: not waiting.memory,
        )
