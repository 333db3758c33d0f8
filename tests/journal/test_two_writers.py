"""Two writers of one journal: the epoch decides, where no lock does."""

from __future__ import annotations

import errno
import os

import pytest

from aiorepl.errors import JournalError, TransientError
from aiorepl.journal import JournalReader, JournalSink
from aiorepl.journal.verification import problems
from aiorepl.lsn import LSN
from aiorepl.sink import Batch, SinkContext
from aiorepl.storage.local import LocalStore
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream


class Unlocked(LocalStore):
    """A folder without locks, as an object store is."""

    def lock(self) -> None:
        """Do nothing."""


@pytest.fixture
def stream() -> Stream:
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True), column("note"))
    for number in range(6):
        stream.transaction(*[table.insert(str(row), "x" * 40) for row in range(1 + number % 2 * 10)])
    return stream


def writer(folder, store=None) -> JournalSink:
    return JournalSink(folder, store=store or Unlocked(folder), block_bytes=100, segment_bytes=300)


async def opened(folder, stream, store=None) -> JournalSink:
    sink = writer(folder, store)
    await sink.open(SinkContext("journal", stream.position))
    return sink


async def write(sink, *slices) -> None:
    await sink.write(Batch(slices))
    await sink.flush()


@pytest.mark.parametrize("left", ["nothing", "a part", "a segment"])
async def test_a_writer_that_slept(tmp_path, tools, stream, left) -> None:
    """A writer whose journal was taken over fails with its next commit, says who took it, and has forked nothing."""
    slices = stream.slices(100)
    sleeping = await opened(tmp_path, stream)
    await write(sleeping, slices[0])
    if left == "a part":
        await sleeping.write(Batch(tuple(stream.again(4)[1:3])))
    elif left == "a segment":
        await sleeping.write(Batch((slices[1],)))
    awake = await opened(tmp_path, stream)
    await write(awake, *slices[:3])
    with pytest.raises(
        JournalError, match=rf"another writer has taken over .* \(host .*, process {os.getpid()}"
    ):
        await write(sleeping, *slices[1:])
    with pytest.raises(JournalError, match="taken over"):
        await sleeping.flush()
    await sleeping.close()
    await write(awake, *slices)
    await awake.close()
    read = await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    assert tools.flat(slices) == tools.flat(read)
    assert list(problems(tmp_path)) == []


async def test_a_writer_whose_file_is_deleted(tmp_path, stream) -> None:
    """A writer whose unpublished segment a later one has deleted, because the lock file was, says who has taken over."""
    slices = stream.slices(100)
    first = await opened(tmp_path, stream)
    await first.write(Batch((slices[0],)))
    second = await opened(tmp_path, stream)
    await second.write(Batch(()))
    with pytest.raises(JournalError, match=r"another writer has taken over .* \(host"):
        await first.flush()
    await first.close()
    await second.close()


async def test_a_writer_that_is_open_takes_nothing(tmp_path, stream) -> None:
    """A second pipeline that does not get the slot never writes, and the first one continues."""
    slices = stream.slices(100)
    first = await opened(tmp_path, stream)
    await write(first, slices[0])
    second = await opened(tmp_path, stream)
    await write(first, slices[1])
    with pytest.raises(JournalError, match="taken over"):
        await second.write(Batch(tuple(slices[:2])))
    await second.close()
    await write(first, *slices[2:])
    await first.close()
    assert stream.ends[-1] == JournalReader(tmp_path).end().lsn


async def test_what_a_fenced_writer_uploads(tmp_path, tools, stream) -> None:
    """A segment that a fenced writer uploads after the takeover is not read, and deleted once its range is durable."""
    slices = stream.slices(100)
    sleeping = await opened(tmp_path, stream)
    await write(sleeping, slices[0])
    awake = await opened(tmp_path, stream)
    await awake.write(Batch(()))
    with pytest.raises(JournalError, match="taken over"):
        await write(sleeping, slices[1])
    await sleeping.close()
    await awake.close()
    assert 2 == len(list(tmp_path.glob("segments/*")))
    assert 1 == len(JournalReader(tmp_path).segments())
    next_one = await opened(tmp_path, stream)
    await write(next_one, *slices)
    await next_one.close()
    read = await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    assert tools.flat(slices) == tools.flat(read)
    named = {segment.file for segment in JournalReader(tmp_path).segments()}
    assert named == {f"segments/{path.name}" for path in tmp_path.glob("segments/*")}


class LosingAnswers(Unlocked):
    """A store that carries out every second replacement, and then reports a time-out."""

    calls = 0

    def replace(self, name: str, data: bytes, version: str | None) -> str:
        new = super().replace(name, data, version)
        self.calls += 1
        if self.calls % 2:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        return new


async def test_lost_answers(tmp_path, tools, stream) -> None:
    """A commit whose answer was lost is recognised as the writer's own."""
    slices = stream.slices(100)
    store = LosingAnswers(tmp_path)
    sink = writer(tmp_path, store)
    calls = [lambda: sink.open(SinkContext("journal", stream.position))]
    for part in slices:
        calls += [lambda part=part: sink.write(Batch((part,))), sink.flush]
    for call in calls:
        try:
            await call()
        except TransientError:
            await call()
    await sink.close()
    assert store.calls > 10
    read = await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    assert tools.flat(slices) == tools.flat(read)
    assert list(problems(tmp_path)) == []
