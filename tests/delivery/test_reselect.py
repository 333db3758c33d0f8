"""A worker with ``reselect``: order, memory and errors. The rows of the source are faked."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from aiorepl import UNCHANGED, BatchPolicy, ConnectionFailed, ConnectionLost
from aiorepl.testing.faults import MemorySink
from tests.waiting import until


class Rows:
    """The rows of a source: each has ``value`` in its large column, except for those that are gone.

    :param value: the text of the large column.
    :param failures: how often ``read`` fails.
    """

    def __init__(self, value=b"large", failures=0, gone=()):
        self.value, self.failures, self.gone = value, failures, gone
        self.asked: list[list[str]] = []
        self.largest = 0
        self.closed = False

    async def read(self, changes, transactions, most_bytes):
        """Read the rows, as ``PresentRows.read``."""
        await asyncio.sleep(0)
        self.asked.append([change.new["id"] for change in changes])
        if self.failures:
            self.failures -= 1
            raise ConnectionLost("the server is gone")
        distinct = len({change.new["id"] for change in changes})
        if distinct > 1 and distinct * len(self.value) > most_bytes:
            return None
        self.largest = max(self.largest, distinct * len(self.value))
        return [{} if change.new["id"] in self.gone else {"note": self.value} for change in changes]

    def close(self):
        """Record the call."""
        self.closed = True


def update(harness, number, note=UNCHANGED):
    """An update of one row, by default without its large column."""
    return harness.table.update(str(number), note)


def notes(sink):
    """The id and the large column of each change."""
    return [(change.new["id"], change.new["note"]) for change in sink.changes]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("max_rows", [None, 3])
async def test_order_and_memory(harness, seed, max_rows):
    """Random rows lack values, and reads fail: each change is delivered once, in order and whole, and the buffer is released."""
    random = Random(seed)
    rows = Rows(b"x" * random.choice([1, 30, 300, 2000]), failures=random.choice([0, 0, 2]), gone={3})
    sink = MemorySink()
    worker = harness(
        sink, batches=BatchPolicy(max_bytes=1000, max_rows=max_rows, flush_seconds=0.01), rows=rows
    )
    worker.start()
    expected, ends = [], []
    for _ in range(random.randrange(1, 12)):
        contents = []
        for _ in range(random.randrange(6)):
            number, lacks = random.randrange(5), random.random() < 0.6
            contents.append(update(worker, number, UNCHANGED if lacks else "sent"))
            expected.append(
                (number, ("sent" if not lacks else UNCHANGED if number == 3 else rows.value.decode()))
            )
        ends.append(worker.receive(worker.stream.transaction(*contents), random.choice([None, 60, 200])))
        if random.random() < 0.5:
            await asyncio.sleep(0)
    await worker.finish()
    assert notes(sink) == expected
    statistics = worker.worker.statistics
    lacking = sum(number == 3 and note is UNCHANGED for number, note in expected)
    assert statistics.not_reselected == lacking
    assert statistics.durable == ends[-1]
    assert rows.largest <= max(1000, len(rows.value))
    assert max((batch.size for batch in sink.batches), default=0) < 4000 + 3 * len(rows.value)
    assert worker.buffer.statistics().slices == 0
    assert rows.closed


async def test_rows_of_many_transactions_are_read_together(harness):
    """Rows of all transactions that have arrived are read at once."""
    rows, sink = Rows(), MemorySink()
    worker = harness(sink, rows=rows)
    for number in range(20):
        worker.receive(worker.stream.transaction(update(worker, number)))
    await worker.finish()
    assert rows.asked == [list(range(20))]
    assert notes(sink) == [(number, "large") for number in range(20)]


async def test_a_transaction_from_the_spool(harness, tmp_path):
    """Changes in the spool are delivered in order with rows that are read."""
    rows, sink = Rows(), MemorySink()
    worker = harness(sink, rows=rows)
    worker.receive(worker.stream.transaction(update(worker, 1)))
    worker.commit_from_disk(tmp_path, 2, 3)
    await worker.finish()
    assert notes(sink) == [(1, "large"), (2, "secret 2"), (3, "secret 3")]


async def test_an_error_that_does_not_pass(harness):
    """Earlier complete changes are written and flushed; then the sink stops with the error."""

    class Refused(Rows):
        async def read(self, changes, transactions, most_bytes):
            raise ConnectionFailed("no privilege", permanent=True)

    sink = MemorySink()
    worker = harness(sink, batches=BatchPolicy(flush_seconds=60.0), rows=Refused())
    worker.commit(1)
    end = worker.commit(2)
    worker.receive(worker.stream.transaction(update(worker, 3)))
    worker.buffer.close()
    with pytest.raises(ConnectionFailed, match="no privilege"):
        await worker.worker.run()
    assert [change.new["id"] for change in sink.changes] == [1, 2]
    assert worker.worker.statistics.durable == end


async def test_retries_end(harness):
    """A source that does not come back stops the sink once the retries are spent."""
    rows = Rows(failures=99)
    worker = harness(MemorySink(), rows=rows)
    worker.receive(worker.stream.transaction(update(worker, 1)))
    worker.buffer.close()
    with pytest.raises(ConnectionLost):
        await worker.worker.run()
    assert rows.asked == [[1]] * 3
    assert rows.closed


async def test_a_flush_is_not_held_up(harness):
    """Changes before a row that waits for the source are flushed when they are due."""
    found = asyncio.Event()

    class Locked(Rows):
        async def read(self, changes, transactions, most_bytes):
            await found.wait()
            return await super().read(changes, transactions, most_bytes)

    worker = harness(MemorySink(), rows=Locked())
    worker.start()
    end = worker.commit(1)
    worker.receive(worker.stream.transaction(update(worker, 2)))
    await until(lambda: worker.worker.statistics.durable == end)
    found.set()
    await worker.finish()


async def test_cancelled_while_it_reads(harness):
    """A read ends with the worker."""
    reading, ended = asyncio.Event(), asyncio.Event()

    class Locked(Rows):
        async def read(self, changes, transactions, most_bytes):
            reading.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    rows = Locked()
    worker = harness(MemorySink(), rows=rows)
    worker.receive(worker.stream.transaction(update(worker, 1)))
    task = asyncio.create_task(worker.worker.run())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert rows.closed
