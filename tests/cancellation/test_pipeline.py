"""A pipeline is cancelled at any await of any of its tasks and restarted: all changes arrive, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from aiorepl import (
    BatchPolicy,
    DeadLetters,
    Delivery,
    PermanentError,
    Pipeline,
    RetryPolicy,
    SyncSink,
    TransientError,
)
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from tests.today import of_today

AT_ONCE = RetryPolicy(timeout=None, wait_initial=0.0001, wait_max=0.0001)
# In the order of their commits: a plain one, one of several slices, a prepared one that commits behind the next.
EXPECTED = [1, *range(10, 30), 2, *range(40, 45), 3]


def committed():
    """Transactions of every kind, one larger than a batch, and one that rolls back."""
    stream = Stream()
    table = stream.table("items", column("id", 23, key=True), column("note"))

    def rows(*ids):
        return [table.insert(str(number), "a note") for number in ids]

    stream.transaction(*rows(1))
    stream.transaction(*rows(*range(10, 30)))
    stream.prepare("commits", *rows(*range(40, 45)))
    stream.prepare("rolls back", *rows(50, 51))
    stream.transaction(*rows(2))
    stream.rollback_prepared("rolls back")
    stream.commit_prepared("commits")
    stream.transaction(*rows(3))
    return stream


class Target(MemorySink):
    """Suspends before and after each step of each call, and cuts the connection in the middle of the stream."""

    def __init__(self, source, *, keeps_position=False):
        super().__init__(keeps_position=keeps_position)
        self._source = source
        self._calling = False
        self.calls = []
        self.cut = False

    async def open(self, context):
        async with self._call("open"):
            return await super().open(context)

    async def write(self, batch):
        async with self._call("write"):
            await super().write(batch)
        if not self.cut:
            self.cut = True
            self._source.disconnect()

    async def flush(self):
        async with self._call("flush"):
            await super().flush()

    async def close(self):
        async with self._call("close"):
            await super().close()

    @contextlib.asynccontextmanager
    async def _call(self, name):
        assert not self._calling
        assert name == "open" or "close" not in self.calls
        self.calls.append(name)
        self._calling = True
        try:
            await asyncio.sleep(0)
            yield
            await asyncio.sleep(0)
        finally:
            self._calling = False

    def crash(self):
        super().crash()
        self.calls.clear()

    @property
    def ids(self):
        """Return the durable changes."""
        return [change.key["id"] for batch in self.durable_batches for change in batch.changes]


def pipeline(source, sink, journal):
    return Pipeline(
        source,
        [sink],
        journal=journal,
        until=source.stream.lsn,
        reconnect=AT_ONCE,
        retry=AT_ONCE,
        batches=BatchPolicy(max_bytes=600, flush_seconds=0),
    )


def numbers():
    """Return the awaits to cancel at: all of the first ones, in which a pipeline starts, then fewer and fewer."""
    number = 0
    while True:
        number += 1 if number < 50 else number // 5
        yield number


def first_occurrences(ids):
    return list(dict.fromkeys(ids))


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
@pytest.mark.parametrize("keeps_position", [False, True], ids=["at_least_once", "exactly_once"])
async def test_run(tmp_path, watched, cancelling, journal, keeps_position):
    """The second start delivers what the first one did not make durable."""
    for number in of_today(numbers()):
        source = MemorySource(stream=committed(), read_bytes=400)
        begin = source.confirmed
        sink = Target(source, keeps_position=keeps_position)
        folder = str(tmp_path / str(number)) if journal else None
        attempt = cancelling(number, everywhere=True)
        await attempt.run(pipeline(source, sink, folder).run())
        await watched.nothing_left()
        assert source._state.connection is None
        if not journal:
            assert source.confirmed <= max(begin, sink.durable)
        if not attempt.cancelled:
            break
        assert not sink.calls or (sink.calls[-1] == "close" and sink.closed)
        sink.crash()
        await pipeline(source, sink, folder).run()
        assert EXPECTED == (sink.ids if keeps_position else first_occurrences(sink.ids))
    assert EXPECTED == first_occurrences(sink.ids)
    assert number > 30


class Refusing(Target):
    """Rejects every fifth row."""

    async def write(self, batch):
        await super().write(batch)
        if refused := [change for change in batch.changes if change.key["id"] % 5 == 0]:
            raise PermanentError("every fifth", rejected=refused)


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_dead_letters(tmp_path, watched, cancelling, journal):
    """A rejected change becomes a dead letter before anything after it is confirmed."""
    for number in of_today(numbers()):
        source = MemorySource(stream=committed(), read_bytes=400)
        sink, letters = Refusing(source), tmp_path / f"letters {number}"
        folder = str(tmp_path / str(number)) if journal else None
        delivery = Delivery(sink, on_error="dead_letter", dead_letters=letters)
        attempt = cancelling(number, everywhere=True)
        await attempt.run(pipeline(source, delivery, folder).run())
        await watched.nothing_left()
        if attempt.cancelled:
            sink.crash()
            await pipeline(source, delivery, folder).run()
        kept = [change for letter in DeadLetters(letters).letters() for change in letter.batch.changes]
        assert sorted({change.key["id"] for change in kept}) == sorted(i for i in EXPECTED if i % 5 == 0)
        assert EXPECTED == first_occurrences(sink.ids)
        if not attempt.cancelled:
            break
    assert number > 30


class Losing(Target):
    """Loses its accepted data once."""

    lost = False

    async def write(self, batch):
        await super().write(batch)
        if not self.lost and len(self.batches) > 1:
            self.lost = True
            MemorySink.crash(self)
            raise TransientError("the target was restarted", rewind=True)


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_sending_again(tmp_path, watched, cancelling, journal):
    """Lost data is delivered again even if the rewind is cancelled."""
    for number in of_today(numbers()):
        source = MemorySource(stream=committed(), read_bytes=400)
        sink = Losing(source, keeps_position=True)
        folder = str(tmp_path / str(number)) if journal else None
        attempt = cancelling(number, everywhere=True)
        await attempt.run(pipeline(source, sink, folder).run())
        await watched.nothing_left()
        if not attempt.cancelled:
            break
        sink.crash()
        await pipeline(source, sink, folder).run()
        assert EXPECTED == sink.ids
    assert EXPECTED == sink.ids
    assert number > 30


class Threaded(SyncSink):
    """Its calls run in threads, at most one at a time."""

    def __init__(self):
        self.accepted, self.durable = [], []
        self._lock = threading.Lock()

    def open(self, context):
        with self._alone():
            del self.accepted[len(self.durable) :]

    def write(self, batch):
        with self._alone():
            self.accepted += [change.key["id"] for change in batch.changes]

    def flush(self):
        with self._alone():
            self.durable = self.accepted[:]

    def close(self):
        with self._alone():
            pass

    @contextlib.contextmanager
    def _alone(self):
        assert self._lock.acquire(blocking=False)
        try:
            yield
        finally:
            self._lock.release()


async def test_threads(watched, cancelling):
    """A call in progress in a thread is completed, and calls never overlap."""
    for number in of_today(numbers()):
        source, sink = MemorySource(stream=committed(), read_bytes=400), Threaded()
        attempt = cancelling(number, everywhere=True)
        await attempt.run(pipeline(source, sink, None).run())
        await watched.nothing_left()
        if not attempt.cancelled:
            break
        await pipeline(source, sink, None).run()
        assert EXPECTED == first_occurrences(sink.durable)
    assert EXPECTED == first_occurrences(sink.durable)
    assert number > 30


async def test_a_body_beside_a_pipeline(watched, cancelling):
    """Wherever the body of ``async with pipeline`` is cancelled, the pipeline shuts down in an orderly way."""

    async def program(source, sink):
        async with pipeline(source, sink, None) as running:
            await running.started()
            await source.acknowledged()

    for number in of_today(numbers()):
        source = MemorySource(stream=committed(), read_bytes=400)
        sink = Target(source, keeps_position=True)
        attempt = cancelling(number, everywhere=True)
        await attempt.run(program(source, sink))
        await watched.nothing_left()
        assert not sink.calls or (sink.calls[-1] == "close" and sink.closed)
        if not attempt.cancelled:
            break
        sink.crash()
        await pipeline(source, sink, None).run()
        assert EXPECTED == sink.ids
    assert EXPECTED == sink.ids
    assert number > 30
