"""Stalled sinks: the connection stays, and memory is bounded."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import BatchPolicy, Pipeline
from aiorepl.testing.faults import FaultySink, Hang, MemorySink
from tests.waiting import until

MEMORY = 1024 * 1024


@pytest.mark.both_loops
@pytest.mark.by_day
async def test_a_stalled_sink_keeps_its_connection_and_a_bounded_window(published):
    """After a stall longer than wal_sender_timeout, with 30 times the budget waiting, nothing is lost."""
    await published.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET wal_sender_timeout = ''10s''', current_database()); END $$"
    )
    await published.create_slot()
    memory, hang = MemorySink(), Hang()
    sink = FaultySink(memory, write=[hang])
    async with Pipeline(published.source(), [sink], buffer_bytes=MEMORY) as pipeline:
        walsender = await published.walsender()
        for start in range(0, 30_000, 10_000):
            await published.execute(
                f"INSERT INTO items SELECT {start} + i, repeat('x', 1000) FROM generate_series(1, 10000) i"
            )
        await hang.reached.wait()
        end = asyncio.get_running_loop().time() + 12.5
        while asyncio.get_running_loop().time() < end:
            buffer = pipeline.statistics().buffers["source"]
            # One read of the socket may be about a megabyte, and its overhead.
            assert buffer.bytes <= 4 * MEMORY
            assert walsender == await published.walsender()
            await asyncio.sleep(0.2)
        assert buffer.backpressured
        assert 0 == pipeline.statistics().sinks["faulty"].changes

        hang.release()
        changes = await memory.wait_for_changes(30_000)
        await published.confirmed_past(await published.wal())
        assert 0 == pipeline.statistics().reconnects
        assert not pipeline.statistics().buffers["source"].backpressured
    assert list(range(1, 30_001)) == [change.key["id"] for change in changes]


async def test_a_window_counts_only_what_is_not_delivered(published):
    """The buffer is empty once everything is delivered."""
    await published.create_slot()
    sink = MemorySink()
    async with Pipeline(published.source(), [sink], buffer_bytes=MEMORY) as pipeline:
        await published.execute(
            "INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 5000) i"
        )
        await sink.wait_for_changes(5000, durable=True)

        # The end may arrive after the last change, and unpublished WAL at any time.
        await until(
            lambda: pipeline.statistics().buffers["source"],
            lambda buffer: (0, 0, False) == (buffer.bytes, buffer.slices, buffer.backpressured),
        )


async def test_a_large_transaction_comes_in_slices(published):
    """A transaction of many batches keeps its order, and is confirmed with its last slice."""
    await published.create_slot()
    memory, hang = MemorySink(), Hang()
    sink = FaultySink(memory, write=[None, None, hang])
    policy = BatchPolicy(max_bytes=64 * 1024, flush_seconds=0.1)
    async with Pipeline(published.source(), [sink], batches=policy, buffer_bytes=MEMORY) as pipeline:
        await published.execute(
            "INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 3000) i"
        )
        await hang.reached.wait()
        assert [None, None] == [batch.end_lsn for batch in memory.batches]
        # Unpublished WAL may move it up to the transaction, and no further.
        assert pipeline.statistics().flushed <= memory.changes[0].transaction.commit_lsn
        hang.release()
        changes = await memory.wait_for_changes(3000, durable=True)
        # The end may arrive after the last change, in a slice of its own.
        await memory.wait_until_durable(changes[-1].transaction.commit_lsn + 1)

    assert list(range(3000)) == [change.ordinal for change in memory.changes]
    assert 1 == len({change.transaction.commit_lsn for change in memory.changes})
    slices = [part for batch in memory.batches for part in batch.slices if part.transaction is not None]
    assert [True, *[False] * (len(slices) - 1)] == [part.first for part in slices]
    assert [*[False] * (len(slices) - 1), True] == [part.last for part in slices]


async def test_a_transaction_larger_than_memory_and_smaller_than_a_batch(published):
    """A transaction that does not fit in the buffer is delivered in parts."""
    await published.create_slot()
    sink = MemorySink()
    policy = BatchPolicy(max_bytes=1024 * MEMORY)
    async with Pipeline(published.source(), [sink], batches=policy, buffer_bytes=MEMORY):
        await published.execute(
            "INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 10000) i"
        )
        await sink.wait_for_changes(10_000, durable=True)
    assert list(range(10_000)) == [change.ordinal for change in sink.changes]
    assert max(batch.size for batch in sink.batches) <= 4 * MEMORY
