"""Changes from beside the stream: between transactions, at least once, and without a position of their own."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import (
    LSN,
    BatchPolicy,
    ConfigurationError,
    Delivery,
    PublicationChange,
    SyncSink,
    TransientError,
)
from aiorepl.delivery.notices import Notices
from aiorepl.testing.faults import MemorySink
from aiorepl.transactions.publication_changes import Difference
from tests.delivery.conftest import WorkerHarness


def change(number: int = 0) -> PublicationChange:
    return PublicationChange(Difference("table_added", 7, "public", "t"), LSN(1), number)


class Settled(Notices):
    """Notices that tell when changes are durable."""

    def __init__(self) -> None:
        super().__init__()
        self.done = asyncio.Event()
        self.settled = self.done.set


async def test_between_transactions():
    """A change is written and flushed while the stream is quiet, without a later position."""
    notices, sink = Settled(), MemorySink()
    work = WorkerHarness(sink, notices=notices)
    work.start()
    end = work.commit(1)
    await sink.wait_for_changes(1, durable=True)
    notices.add([change()])
    async with asyncio.timeout(60):
        await notices.done.wait()
    assert [] == notices.left
    assert ["insert", "publication"] == [each.kind for each in sink.changes]
    assert (end, end) == (sink.batches[-1].end_lsn, work.ledger.flushed)
    work.commit(2)
    await work.finish()
    assert ["insert", "publication", "insert"] == [each.kind for each in sink.changes]


@pytest.mark.parametrize("step", ["write", "flush"])
async def test_during_a_step_of_the_sink(step):
    """A change that arrives while the sink writes or flushes the former change is written while the stream is quiet."""
    notices, sink = Settled(), MemorySink()
    take, later = getattr(sink, step), [change(1)]

    async def arriving(*arguments):
        if later:
            notices.add([later.pop()])
        await take(*arguments)

    setattr(sink, step, arriving)
    work = WorkerHarness(sink, notices=notices)
    work.start()
    await asyncio.sleep(0)  # the worker waits for slices
    notices.add([change(0)])
    await sink.wait_for_changes(2, durable=True)
    await work.finish()
    assert [0, 1] == [each.ordinal for each in sink.changes]


async def test_not_within_a_transaction():
    """A change waits for the end of a transaction that is written in parts."""
    notices, sink = Settled(), MemorySink()
    work = WorkerHarness(sink, notices=notices, batches=BatchPolicy(max_rows=2, flush_seconds=0.01))
    write = sink.write

    async def first(batch):
        if not notices.left:
            notices.add([change()])
        await write(batch)

    sink.write = first
    work.commit(1, 2, 3, 4, 5)
    work.start()
    async with asyncio.timeout(60):
        await notices.done.wait()
    await work.finish()
    assert [*["insert"] * 5, "publication"] == [each.kind for each in sink.changes]


async def test_a_sink_that_loses_it():
    """A change that the sink has lost before the flush is written again."""
    notices = Notices()
    notices.add([change(0), change(1)])
    notices.write(2)
    assert [] == notices.unwritten
    notices.rewind()
    assert 2 == len(notices.unwritten)
    notices.write(1)
    notices.flush()
    assert [1] == [each.ordinal for each in notices.left]


async def test_a_failing_write():
    """A write that fails is repeated."""
    notices, sink = Settled(), MemorySink()
    work = WorkerHarness(sink, notices=notices)
    write, failures = sink.write, [TransientError("again")]

    async def failing(batch):
        if failures:
            raise failures.pop()
        await write(batch)

    sink.write = failing
    notices.add([change()])
    work.start()
    async with asyncio.timeout(60):
        await notices.done.wait()
    await work.finish()
    assert ["publication"] == [each.kind for each in sink.changes]


def test_sinks_that_do_not_take_them():
    """A sink that cannot take them is refused."""

    class Ordered(SyncSink):
        takes_publication_changes = False

        def write(self, batch):
            """Take nothing."""

    with pytest.raises(ConfigurationError, match="Ordered does not support changes of the publication"):
        Delivery(Ordered(), publication_changes=True)
