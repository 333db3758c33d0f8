"""The worker of one sink: batches, flushes and reported progress."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from aiorepl import LSN, BatchPolicy, Position, Sink
from aiorepl.testing.faults import FaultySink, Hang, MemorySink

SELDOM = BatchPolicy(flush_seconds=60)


async def test_durable_only_after_a_flush(harness):
    """Written transactions are accepted; flushed ones are durable."""
    hang = Hang()
    sink = FaultySink(flush=[hang])
    harness = harness(sink)
    begin = harness.ledger.flushed
    end = harness.commit(1)
    harness.start()
    await hang.reached.wait()
    assert (end, begin) == (harness.ledger.accepted, harness.ledger.flushed)
    hang.release()
    await harness.finish()
    assert end == harness.ledger.flushed == harness.worker.statistics.durable


async def test_a_sink_that_only_writes_is_durable_on_return(harness):
    """Without a flush of its own, each batch is durable when write returns."""

    class WriteOnly(Sink):
        written = asyncio.Event()

        async def write(self, batch):
            self.written.set()

    harness = harness(WriteOnly(), batches=SELDOM)
    harness.start()
    for _ in range(2):
        end = harness.commit(1)
        await asyncio.wait_for(WriteOnly.written.wait(), 60)
        WriteOnly.written.clear()
        await asyncio.sleep(0)
        assert end == harness.ledger.flushed


async def test_a_sink_that_never_waits_lets_others_run(harness):
    """Other tasks run between two batches, however much there is to write."""
    turns = []

    class Busy(Sink):
        async def write(self, batch):
            turns.append("write")

    async def other():
        while turns.count("write") < 3:
            turns.append("other")
            await asyncio.sleep(0)

    harness = harness(Busy(), batches=BatchPolicy(max_bytes=1, flush_seconds=60))
    for number in range(3):
        harness.commit(number)
    harness.start()
    await asyncio.gather(other(), harness.finish())

    writes = [place for place, what in enumerate(turns) if what == "write"]
    assert 3 == len(writes)
    assert all("other" in turns[before:after] for before, after in pairwise(writes))


async def test_what_came_together_is_a_batch(harness, ids):
    """A batch has all transactions that have arrived, up to the limit; later ones go into the next batch."""
    sink = MemorySink()
    harness = harness(sink)
    for number in range(3):
        harness.commit(number, number + 10)
    harness.start()
    await sink.wait_for_changes(6)
    harness.commit(5)
    await harness.finish()
    assert [[0, 10, 1, 11, 2, 12], [5]] == ids(sink)


async def test_a_transaction_that_is_not_whole_is_waited_for(harness, ids):
    """The slices of a transaction become one batch if it fits."""
    sink = MemorySink()
    harness = harness(sink)
    harness.commit(1, 2, 3, at_once=1)
    await harness.finish()
    assert [[1, 2, 3]] == ids(sink)


async def test_a_large_transaction_comes_in_parts(harness, ids):
    """Only the last batch of a large transaction has an end, and only then it is accepted."""
    sink = MemorySink()
    harness = harness(sink, batches=BatchPolicy(max_bytes=500, flush_seconds=0))
    end = harness.commit(1, 2, 3, 4, at_once=1)
    await harness.finish()
    # The last slice, which says that it is whole, has no change of its own here; it is told all the same.
    assert [[1, 2], [3, 4], []] == ids(sink)
    assert [None, None, end] == [batch.end_lsn for batch in sink.batches]
    assert end == harness.ledger.flushed


async def test_no_more_rows_than_asked_for(harness, ids):
    """Batches have at most max_rows, larger transactions are split, and the buffer is released."""
    sink = MemorySink()
    harness = harness(sink, batches=BatchPolicy(max_rows=3, flush_seconds=0.01))
    harness.commit(1, 2)
    harness.commit(3, 4)
    end = harness.commit(*range(5, 13))
    await harness.finish()
    assert [[1, 2], [3, 4], [5, 6, 7], [8, 9, 10], [11, 12]] == ids(sink)
    assert [[True], [True], [False], [False], [True]] == [
        [part.last for part in batch.slices] for batch in sink.batches
    ]
    assert end == harness.ledger.flushed
    assert 0 == harness.buffer.statistics().slices


async def test_a_batch_waits_for_more(harness, ids):
    """A batch that is not full waits for the linger time, and no longer."""
    sink = MemorySink()
    harness = harness(sink, batches=BatchPolicy(linger=0.5, flush_seconds=0.01))
    clock = asyncio.get_running_loop().time
    began = clock()
    harness.start()
    for number in range(3):
        harness.commit(number)
        await asyncio.sleep(0)
    await asyncio.wait_for(sink.wait_for_changes(3, durable=True), 60)
    assert 0.5 <= clock() - began
    assert [[0, 1, 2]] == ids(sink)
    await harness.finish()


async def test_what_does_not_wait_for_more(harness, ids):
    """A full batch, one that blocks the source, and the last one do not linger."""
    sink = MemorySink()
    harness = harness(sink, batches=BatchPolicy(max_rows=2, linger=3600, flush_seconds=0.01))
    harness.start()
    harness.commit(1)
    harness.commit(2)
    await asyncio.wait_for(sink.wait_for_changes(2, durable=True), 60)
    harness.commit(3)
    await asyncio.sleep(0)
    await harness.finish()
    assert [[1, 2], [3]] == ids(sink)


async def test_a_full_window_waits_for_no_age(harness):
    """A part of a transaction is written if the buffer has no room for the rest."""
    sink = MemorySink()
    harness = harness(sink, limit=200, batches=BatchPolicy(linger=3600, flush_seconds=0.01))
    harness.start()
    while not harness.buffer.backpressured:
        harness.commit(1)
    await asyncio.wait_for(sink.wait_for_changes(1), 60)
    await harness.finish()


async def test_a_transaction_without_an_end_is_forgotten_at_the_end(harness, ids):
    """An unfinished transaction at the end is dropped and not confirmed."""
    sink = MemorySink()
    harness = harness(sink)
    end = harness.commit(1)
    harness.stream.transaction(harness.table.insert("2", "x"), harness.table.insert("3", "y"))
    harness.buffer.extend(harness.stream.slices(1)[:2])
    await harness.finish()
    assert ([[1]], end) == (ids(sink), harness.ledger.flushed)


async def test_flush_by_age(harness):
    """Accepted data is flushed after flush_seconds even if nothing new arrives."""
    sink = MemorySink()
    harness = harness(sink, batches=BatchPolicy(flush_seconds=0.05))
    clock = asyncio.get_running_loop().time
    harness.start()
    begin = clock()
    harness.commit(1)
    async with asyncio.timeout(60):
        await sink.wait_for_changes(1, durable=True)
    assert clock() - begin >= 0.05


async def test_flush_by_bytes(harness):
    """Accepted data is flushed before flush_seconds once it exceeds flush_bytes."""
    sink = FaultySink()
    harness = harness(sink, batches=BatchPolicy(flush_bytes=2000, flush_seconds=60))
    harness.start()
    for number in range(10):
        harness.commit(number)
        await sink.inner.wait_for_changes(number + 1)
    await harness.finish()
    assert 10 == sink.calls.count("write")
    # A row counts 400 bytes and something.
    assert 2 == sink.calls.count("flush")


async def test_nothing_is_flushed_that_was_not_written(harness):
    """A worker without slices makes no calls."""
    sink = FaultySink()
    harness = harness(sink, batches=BatchPolicy(flush_seconds=0))
    harness.start()
    for _ in range(20):
        await asyncio.sleep(0)
    await harness.finish()
    assert [] == sink.calls


@pytest.mark.parametrize("keeps_position", [True, False])
async def test_batches_without_changes(harness, keeps_position):
    """Slices without changes move the confirmation; only a sink that keeps its position gets them."""
    sink = MemorySink()
    harness = harness(sink, keeps_position=keeps_position)
    end = harness.receive(harness.stream.transaction())
    await harness.finish()
    assert ([end] if keeps_position else []) == [batch.end_lsn for batch in sink.batches]
    assert end == harness.ledger.flushed


async def test_what_the_sink_holds_is_not_given_again(harness, ids):
    """Transactions that ended at or before the sink's position are dropped, and the buffer is released."""
    sink = MemorySink()
    plain = harness(sink)
    held = plain.commit(1)
    harness = harness(sink, after=held, keeps_position=True)
    harness.commit(1)
    harness.commit(2)
    end = harness.commit(3)
    await harness.finish()
    assert ([[2, 3]], end) == (ids(sink), harness.ledger.flushed)
    assert 0 == harness.buffer.statistics().slices


async def test_the_window_is_let_go_of_when_it_is_written(harness):
    """A slice is released only after its write, which may have to be repeated."""
    hang = Hang()
    harness = harness(FaultySink(write=[hang]))
    harness.commit(1)
    harness.start()
    await hang.reached.wait()
    assert 1 == harness.buffer.statistics().slices
    hang.release()
    await harness.finish()
    assert 0 == harness.buffer.statistics().slices


async def test_a_full_window_is_not_waited_on(harness, ids):
    """A transaction below the batch limit and above the buffer's limit is delivered in parts."""
    sink = MemorySink()
    harness = harness(sink, limit=1000)
    harness.start()
    end = harness.stream.transaction(*(harness.table.insert(str(number), "x") for number in range(10)))
    for part in harness.stream.slices(1):
        if part.end_lsn is not None:
            harness.ledger.complete(part.end_lsn)
        harness.buffer.extend([part])
        await asyncio.wait_for(harness.buffer.wait_for_room(), 60)
    await harness.finish()
    assert list(range(10)) == [number for batch in ids(sink) for number in batch]
    assert len(sink.batches) > 1
    assert end == harness.ledger.flushed


async def test_statistics(harness):
    """Statistics have counters and positions."""
    harness = harness(MemorySink())
    harness.commit(1, 2)
    end = harness.commit(3)
    await harness.finish()
    statistics = harness.worker.statistics
    assert ("s", 3, 1, 1, 0) == (
        statistics.name,
        statistics.changes,
        statistics.batches,
        statistics.flushes,
        statistics.retries,
    )
    assert (end, end) == (statistics.accepted, statistics.durable)
    assert statistics.committed is not None


async def test_memory_sink_forgets_what_was_not_flushed():
    """A crash of the test sink resets its data and position to the last flush."""
    from aiorepl import SinkContext

    position = Position("1", 1, "s", LSN(1))
    sink = MemorySink(keeps_position=True)
    assert position == await sink.open(SinkContext("s", position))
    sink.crash()
    assert (position, []) == (sink.position, sink.batches)


async def test_a_chunk_without_rows(harness):
    """A sink without a position gets the end of a snapshot's chunk, but no other transaction without changes."""
    sink = MemorySink()
    harness = harness(sink)
    harness.receive(harness.stream.snapshot(harness.table))
    harness.commit()
    await harness.finish()

    chunks = [
        part.transaction.snapshot
        for batch in sink.batches
        for part in batch.slices
        if part.transaction.snapshot
    ]
    assert [("items", True)] == [(chunk.table, chunk.last) for chunk in chunks]
