"""One failure or cancellation at any step of writing loses and duplicates nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import threading

import pytest

from aiorepl.errors import TransientError
from aiorepl.journal import Cursors, JournalReader, JournalSink
from aiorepl.journal.verification import problems
from aiorepl.lsn import LSN
from aiorepl.sink import Batch, SinkContext
from aiorepl.storage.local import LocalStore
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

pytestmark = pytest.mark.by_day


@pytest.fixture(autouse=True)
def unsynced(monkeypatch) -> None:
    """Skip fsync, because a hundred journals take long and nothing loses power; every second segment makes manifests."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("aiorepl.journal.publisher._TAIL_SEGMENTS", 1)
    monkeypatch.setattr("aiorepl.journal.publisher.MERGED", 2)


def transactions() -> Stream:
    """Return plain and prepared transactions, some larger than a batch; a gid is reused at once."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True), column("note"))

    def rows(count: int) -> list[bytes]:
        return [table.insert(str(row), "x" * 40) for row in range(count)]

    stream.transaction(*rows(3))
    stream.prepare("x", *rows(12))
    stream.commit_prepared("x")
    stream.prepare("x", *rows(2))
    stream.transaction(*rows(12))
    stream.rollback_prepared("x")
    stream.prepare("stays", *rows(3))
    stream.prepare("x", *rows(1))
    stream.commit_prepared("x")
    return stream


def batches(stream: Stream) -> list[Batch]:
    """Return batches of a few slices, as the engine makes them."""
    slices = stream.again(5)
    return [Batch(tuple(slices[start : start + 3])) for start in range(0, len(slices), 3)]


class Failing(LocalStore):
    """A store whose step of this number fails once with a full disk."""

    def __init__(self, path, at: int) -> None:
        super().__init__(path)
        self.left = at

    def reached(self, step: str, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Waiting(LocalStore):
    """A store whose step of this number waits for the test."""

    def __init__(self, path, at: int) -> None:
        super().__init__(path)
        self.left = at
        self.loop = asyncio.get_running_loop()
        self.there = asyncio.Event()
        self.go_on = threading.Event()

    def reached(self, step: str, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.loop.call_soon_threadsafe(self.there.set)
            assert self.go_on.wait(60)


def opened(folder, store) -> JournalSink:
    return JournalSink(folder, block_bytes=150, segment_bytes=600, store=store)


async def insist(call, *arguments) -> None:
    """Repeat a call after a transient error, as the engine does."""
    try:
        await call(*arguments)
    except TransientError:
        await call(*arguments)


async def everything(folder, tools) -> None:
    """Check that the journal has everything once, and after another start keeps exactly the undecided transactions."""
    stream = transactions()
    assert await tools.write(folder, stream.position, ()) is not None
    stream.slices()
    assert list(problems(folder)) == []
    reader = JournalReader(folder)
    read = await tools.read(reader, LSN(0), reader.end().lsn)
    assert tools.changes_of(tools.flat(read)) == tools.committed(stream)
    assert tools.kept(folder) == {begin for begin, _, decided in tools.prepared(stream) if decided is None}


@pytest.mark.parametrize(("flushes", "restarts"), [(1, False), (3, False), (3, True)])
async def test_no_room_once(tmp_path, tools, flushes: int, restarts: bool) -> None:
    """The repeated call continues, and so does another writer that gets what is not durable again."""
    stream, at = transactions(), 0
    stream.slices()
    while True:
        at += 1
        folder = tmp_path / str(at)
        store = Failing(folder, at)
        sink = opened(folder, store)
        try:
            context = SinkContext("journal", stream.position)
            await insist(sink.open, context)
            for number, batch in enumerate(batches(stream), 1):
                if not restarts:
                    await insist(sink.write, batch)
                    if number % flushes == 0:
                        await insist(sink.flush)
                    continue
                try:
                    await sink.write(batch)
                    if number % flushes == 0:
                        await sink.flush()
                except TransientError:
                    await sink.close()
                    sink = opened(folder, LocalStore(folder))
                    await sink.open(context)
                    for again in batches(stream)[:number]:
                        await sink.write(again)
            await insist(sink.flush)
        finally:
            await sink.close()
        await everything(folder, tools)
        if store.left > 0:
            break
    assert at > 60


@pytest.mark.parametrize("restarts", [False, True])
async def test_cancelled_once(tmp_path, tools, restarts: bool) -> None:
    """After a cancellation at any step the writer can be called again, and the journal can be reopened."""
    stream, at = transactions(), 0
    stream.slices()
    context = SinkContext("journal", stream.position)
    while True:
        at += 1
        folder = tmp_path / str(at)
        store = Waiting(folder, at)
        sink = opened(folder, store)
        there = asyncio.create_task(store.there.wait())

        async def call(function, *arguments, store=store, there=there) -> bool:
            """Make a call, and return whether it has ended."""
            task = asyncio.create_task(function(*arguments))
            await asyncio.wait((task, there), return_when=asyncio.FIRST_COMPLETED)
            if not there.done() or store.go_on.is_set():
                await task
                return True
            task.cancel()
            store.go_on.set()
            await asyncio.gather(task, return_exceptions=True)
            return False

        async def again(number: int, folder=folder) -> JournalSink:
            """Open another writer, and write everything up to a batch."""
            reopened = opened(folder, LocalStore(folder))
            await reopened.open(context)
            for batch in batches(stream)[:number]:
                await reopened.write(batch)
            return reopened

        try:
            if not await call(sink.open, context):
                await sink.close()
                sink = await again(0)
            for number, batch in enumerate(batches(stream), 1):
                for function, arguments in ((sink.write, (batch,)), (sink.flush, ())):
                    if not await call(function, *arguments):
                        if restarts:
                            await sink.close()
                            sink = await again(number)
                            break
                        await function(*arguments)
            await sink.flush()
        finally:
            await sink.close()
            there.cancel()
        await everything(folder, tools)
        if store.left > 0:
            break
    assert at > 60


async def test_no_room_for_a_cursor(journal) -> None:
    """A cursor that cannot be written keeps its position at every step, and moves with the next call."""
    folder, stream = journal
    first, later = (stream.position.at(end) for end in (stream.ends[0], stream.ends[2]))
    at = 0
    while True:
        at += 1
        Cursors(folder).reset("s", first)
        store = Failing(folder, at)
        try:
            Cursors(folder, store=store).advance("s", later)
        except OSError:
            assert Cursors(folder).get("s") in (first, later)
        else:
            break
        assert Cursors(folder).advance("s", later) == Cursors(folder).get("s") == later
    assert at > 3
