"""Following a journal, cancelled at any await."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from aiorepl.journal import JournalReader, JournalSink
from aiorepl.sink import Batch, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from tests.today import of_today


class Journal:
    """Transactions in a journal of several segments and blocks."""

    def __init__(self, folder):
        self.folder = folder
        self.stream = Stream()
        self._table = self.stream.table("items", column("id", 23, key=True))
        self._sink = JournalSink(folder, block_bytes=100)

    async def write(self, *ids):
        """Commit a transaction and make it durable."""
        self.stream.transaction(*(self._table.insert(str(number)) for number in ids))
        if self.stream.ends[:-1] == []:
            await self._sink.open(SinkContext("journal", self.stream.position))
        await self._sink.write(Batch(tuple(self.stream.slices())))
        await self._sink.flush()

    async def close(self):
        await self._sink.close()


async def read(following, ids, last):
    """Read up to the row ``last``."""
    while ids[-1:] != [last]:
        ids += [change.new["id"] for change in (await anext(following)).changes]


@pytest.fixture
async def journal(tmp_path):
    made = Journal(tmp_path)
    await made.write(*range(1, 21))
    await made.write(21)
    await made.write(*range(22, 41))
    yield made
    await made.close()


@pytest.mark.both_loops
async def test_following_goes_on_after_any_await(journal, watched, cancelling):
    """Whichever await is cancelled, the next calls return what the cancelled one did not."""
    for number in of_today(count(1)):
        following, ids = JournalReader(journal.folder).follow(), []
        attempt = cancelling(number, everywhere=True)
        await attempt.run(read(following, ids, 40))
        await read(following, ids, 40)
        await following.aclose()
        assert [*range(1, 41)] == ids
        await watched.nothing_left()
        if not attempt.cancelled:
            break
    assert number > 10


async def test_following_goes_on_after_every_await(journal, watched, cancelling):
    """A reader whose every call is cancelled at its first await gets everything, including later appends."""
    following, ids = JournalReader(journal.folder).follow(poll=3600), []

    async def everything(last):
        cancelled = True
        while cancelled:
            attempt = cancelling(1)
            await attempt.run(read(following, ids, last))
            cancelled = attempt.cancelled
            await asyncio.sleep(0.001)

    await everything(40)
    waiting = asyncio.create_task(everything(42))
    await journal.write(41, 42)
    await waiting
    assert [*range(1, 43)] == ids
    await following.aclose()
    await watched.nothing_left()


async def test_dropped_without_closing(journal, watched, cancelling):
    """A reader that is cancelled and dropped leaves no task and no descriptor."""

    async def follow():
        async for _ in JournalReader(journal.folder).follow(poll=0.001):
            pass

    for number in range(1, 30):
        await cancelling(number, everywhere=True).run(follow())
    await watched.nothing_left()
