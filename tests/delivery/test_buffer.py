"""The buffer keeps slices until the slowest reader has released them, and is bounded by bytes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl import LSN, Position, Slice, SnapshotOptions, Source
from aiorepl.delivery.buffer import SliceBuffer
from aiorepl.pipeline.direct import DirectFanOut
from aiorepl.pipeline.fan_out import Inputs
from aiorepl.snapshot.incremental.requests import Snapshots
from aiorepl.snapshot.ledger.ledger import ChunkLedger
from aiorepl.snapshot.ledger.store import MemoryLedger
from aiorepl.snapshot.planning import hides_no_key
from aiorepl.source.ledger import Ledger

LIMIT = 100
OPTIONS = SimpleNamespace(buffer_bytes=LIMIT, accept_gap=False)


def part(size: int) -> Slice:
    """Return a slice of this size."""
    return Slice(None, (), True, LSN(1), size)


def test_another_limit():
    """A larger limit ends backpressure at its half; a smaller one begins it with the next slice."""
    buffer = SliceBuffer(LIMIT)
    cursor = buffer.cursor()
    buffer.extend([part(60), part(60)])
    assert buffer.backpressured
    buffer.resize(239)
    assert buffer.backpressured
    buffer.resize(240)
    assert not buffer.backpressured
    buffer.resize(10)
    assert 10 == buffer.statistics().limit
    buffer.extend([part(5)])
    assert buffer.backpressured
    while cursor.take():
        cursor.release(1)
    assert not buffer.backpressured


@given(
    st.lists(
        st.one_of(
            st.integers(0, 60),
            st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from(["take", "release"])),
        ),
        max_size=60,
    )
)
def test_every_reader_gets_everything_once_in_order(steps):
    """The buffer holds exactly the slices that the slowest reader has not released."""
    buffer = SliceBuffer(LIMIT)
    cursors = [buffer.cursor() for _ in range(3)]
    written, taken, released = [], [0, 0, 0], [0, 0, 0]
    for step in steps:
        if isinstance(step, int):
            written.append(part(step))
            buffer.extend([written[-1]])
        elif step[1] == "take":
            found = cursors[step[0]].take()
            if taken[step[0]] < len(written):
                assert found is written[taken[step[0]]]
                taken[step[0]] += 1
            else:
                assert found is None
        elif released[step[0]] < taken[step[0]]:
            cursors[step[0]].release(1)
            released[step[0]] += 1
        held = written[min(released) :]
        statistics = buffer.statistics()
        assert (sum(kept.size for kept in held), len(held)) == (statistics.bytes, statistics.slices)
        assert [len(written) - count for count in taken] == [cursor.waiting for cursor in cursors]
        assert statistics.backpressured or statistics.bytes <= LIMIT
        assert not statistics.backpressured or statistics.bytes > LIMIT // 2


async def test_room_waits_for_the_slowest_reader():
    """Above the limit the writer waits until the slowest reader has released half of it."""
    buffer = SliceBuffer(LIMIT)
    quick, slow = buffer.cursor(), buffer.cursor()
    buffer.extend([part(40), part(40), part(40)])
    room = asyncio.create_task(buffer.wait_for_room())
    for cursor in (quick, slow):
        while cursor.take() is not None:
            pass
    quick.release(3)
    slow.release(1)
    await asyncio.sleep(0)
    assert not room.done()
    slow.release(1)
    await asyncio.wait_for(room, 60)
    assert not buffer.statistics().backpressured


async def test_holds_back():
    """A reader that has taken all of a full buffer learns that it must release slices."""
    buffer = SliceBuffer(LIMIT)
    cursor = buffer.cursor()
    buffer.extend([part(60), part(60)])
    assert not cursor.blocks_writer
    cursor.take()
    cursor.take()
    assert cursor.blocks_writer
    cursor.release(2)
    assert not cursor.blocks_writer


async def test_a_reader_waits_for_slices_or_the_end():
    """A new slice or the end wakes a waiting reader."""
    buffer = SliceBuffer(LIMIT)
    cursor = buffer.cursor()
    for wake in (lambda: buffer.extend([part(1)]), buffer.close):
        assert cursor.take() is None
        waiting = asyncio.create_task(cursor.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        wake()
        await asyncio.wait_for(waiting, 60)
        cursor.take()
    assert cursor.ended


async def test_the_end_comes_after_the_rest():
    """A closed buffer still delivers the slices that it has."""
    buffer = SliceBuffer(LIMIT)
    cursor = buffer.cursor()
    buffer.extend([part(1)])
    buffer.close()
    assert not cursor.ended
    await cursor.wait()
    assert cursor.take() is not None
    assert cursor.ended


async def test_a_reader_that_leaves_holds_nothing_back():
    """A closed cursor keeps no slices in the buffer, taken or not."""
    buffer = SliceBuffer(LIMIT)
    stays, leaves = buffer.cursor(), buffer.cursor()
    buffer.extend([part(120)])
    stays.take()
    stays.release(1)
    assert buffer.statistics().backpressured
    leaves.close()
    await asyncio.wait_for(buffer.wait_for_room(), 60)
    assert 0 == buffer.statistics().bytes


async def test_waiting_can_be_cancelled():
    """A reader whose wait was cancelled finds the slices that arrived meanwhile."""
    buffer = SliceBuffer(LIMIT)
    cursor = buffer.cursor()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cursor.wait(), 0.01)
    buffer.extend([part(1)])
    await asyncio.wait_for(cursor.wait(), 60)
    assert cursor.take() is not None


class Phase:
    """An initial snapshot that reads nothing."""

    options = SnapshotOptions()
    hides_key = staticmethod(hides_no_key)

    def __init__(self):
        self.store = MemoryLedger(ChunkLedger(Position("1", 1, "s", LSN(0))))

    async def read(self, emit):
        """There is no initial snapshot."""


class Capture:
    """A source that returns each of these reads, and then waits."""

    source = Source(None, slot="s", publication="p")
    tables = None

    def __init__(self, *reads):
        self.ledger = Ledger(LSN(0), ["s"])
        self.asked = asyncio.Event()
        self.waiting = list(reads)

    async def receive(self):
        if self.waiting:
            return self.waiting.pop(0)
        self.asked.set()
        await asyncio.Event().wait()
        return None


@asynccontextmanager
async def reading(capture, buffer):
    """Read everything into the buffer."""
    fan_out = DirectFanOut(Inputs(OPTIONS, capture, {}, Phase(), Snapshots(None), {}))
    task = asyncio.create_task(fan_out._reader.read(buffer))
    await capture.asked.wait()
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_was_delivered_last_is_not_kept():
    """Delivered slices are freed even if no more arrive; otherwise spooled changes would keep their disk space."""

    class Changes(list):
        pass

    capture, buffer = Capture([Slice(None, Changes(), True, LSN(20), 10)]), SliceBuffer(100)
    cursor = buffer.cursor("s")
    kept = weakref.ref(capture.waiting[0][0].changes)
    async with reading(capture, buffer):
        assert cursor.take() is not None
        cursor.release(1)
        gc.collect()
        assert kept() is None


async def test_a_read_without_slices_wakes_no_sink():
    """A read without slices, such as that of a keepalive, wakes no sink; a read with slices does."""
    for reads, wakes in (([], []), False), (([], [part(1)]), True):
        capture, buffer = Capture(*reads), SliceBuffer(100)
        waiting = asyncio.create_task(buffer.cursor("s").wait())
        await asyncio.sleep(0)
        async with reading(capture, buffer):
            for _ in range(3):
                await asyncio.sleep(0)
            assert wakes is waiting.done()
        waiting.cancel()
