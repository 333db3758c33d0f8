"""``aiorepl.follow``: new transactions of a journal, and a ``Resync`` for missing segments."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import pytest

import aiorepl
from aiorepl import ConfigurationError, Invalidations, JournalError, Resync
from aiorepl.journal import Cursors, JournalSink, prune
from aiorepl.sink import Batch, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

SOON = 0.005


class Written:
    """A journal that a test writes: a segment with a row for each call of ``add``."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.stream = Stream()
        self.table = self.stream.table("t", column("id", 23, key=True))

    async def add(self, *ids, gap=False, rows=None):
        """Add a transaction with these ids; after a gap, if asked for."""
        sink = JournalSink(self.folder, segment_bytes=1)
        at = await sink.open(SinkContext("journal", self.stream.position))
        if gap:
            self.stream.transaction(self.table.insert("0"))
            self.stream.slices()
            await sink.skip(at.lsn, self.stream.position.at(self.stream.lsn))
        for number in ids:
            self.stream.transaction(self.table.insert(str(number)))
        for part in self.stream.slices():
            await sink.write(Batch((part,)))
        await sink.flush()
        await sink.close()

    def prune(self):
        """Delete all segments but the last."""
        Cursors(self.folder).advance("all", self.stream.position.at(self.stream.lsn))
        assert prune(self.folder)
        Cursors(self.folder).remove("all")


@pytest.fixture
def written(tmp_path):
    """A journal that does not exist yet."""
    return Written(tmp_path / "journal")


async def read(stream):
    """Read the next transaction: its ids, or its Resync."""
    async with asyncio.timeout(60):
        transaction = await anext(stream)
        changes = [change async for change in transaction]
        await stream.ack(transaction)
    if isinstance(changes[0], Resync):
        (resync,) = changes
        return resync
    return [change.new["id"] for change in changes]


@pytest.mark.both_loops
async def test_from_the_end_on(written):
    """Transactions from before the start do not come, and no cursor is left."""
    await written.add(1, 2)
    async with aiorepl.follow(written.folder, poll=SOON) as stream:
        resync = await read(stream)
        assert ("start", written.stream.lsn, None) == (resync.reason, resync.lsn, resync.after)
        await written.add(3)
        await written.add(4, 5)
        assert [[3], [4], [5]] == [await read(stream) for _ in range(3)]
    assert [] == list((written.folder / "cursors").glob("*"))


async def test_before_there_is_a_journal(written, caplog):
    """The stream waits for the journal, logs that once, and loses none of the journal's first rows."""
    async with aiorepl.follow(written.folder, poll=SOON) as stream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SOON * 10):
                await anext(stream)
        await written.add(1)
        assert isinstance(await read(stream), Resync)
        await written.add(2)
        # The first row comes as well, if the journal was seen while it was empty.
        assert await read(stream) in ([1], [2])
    assert 1 == caplog.text.count("there is no journal in")


async def test_pruned(written):
    """A follower that is too slow gets a Resync, and then the next transactions."""
    await written.add(1)
    async with aiorepl.follow(written.folder, poll=SOON) as stream:
        start = await read(stream)
        await written.add(2, 3, 4)
        written.prune()
        resync = await read(stream)
        assert "pruned" in resync.reason
        assert (start.lsn, written.stream.lsn) == (resync.after, resync.lsn)
        await written.add(5)
        assert [5] == await read(stream)


async def test_pruned_while_it_is_read(written):
    """Segments may also be deleted after the chain was read, and before the segments are."""
    await written.add(1)
    async with aiorepl.follow(written.folder, poll=SOON) as stream:
        await read(stream)
        await written.add(*range(2, 300))
        assert [2] == await read(stream)
        written.prune()
        found = await read(stream)
        while not isinstance(found, Resync):
            found = await read(stream)
        assert "pruned" in found.reason
        await written.add(300)
        assert [300] == await read(stream)


async def test_a_gap(written):
    """Accepted gaps miss transactions."""
    await written.add(1)
    async with aiorepl.follow(written.folder, poll=SOON) as stream:
        await read(stream)
        await written.add(2, gap=True)
        resync = await read(stream)
        assert "has a gap between" in resync.reason
        await written.add(3)
        assert [3] == await read(stream)


@pytest.mark.parametrize("same", [True, False])
async def test_replaced(tmp_path, written, same):
    """Another journal in the folder is not mistaken for the first one, even of the same slot."""
    await written.add(1)
    async with aiorepl.follow(written.folder, poll=SOON) as stream:
        await read(stream)
        await written.add(2)
        assert [2] == await read(stream)
        shutil.rmtree(written.folder)
        other = Written(written.folder)
        if same:
            other.stream, other.table = written.stream, written.table
        else:
            position = other.stream.position
            other.stream.position = replace(position, system_identifier="8")
        await other.add(7)
        assert isinstance(await read(stream), Resync)
        await other.add(8)
        assert await read(stream) in ([7], [8])


async def test_replaced_while_it_was_empty(tmp_path, written):
    """Then no LSN tells the journals apart."""
    await written.add()
    other = Written(tmp_path / "other")
    await other.add(7)
    async with aiorepl.follow(written.folder, poll=0.3) as stream:
        assert 0 == (await read(stream)).lsn
        shutil.rmtree(written.folder)
        other.folder.rename(written.folder)
        assert "was replaced" in (await read(stream)).reason


async def test_damage_that_stays(written):
    """A damaged file ends the stream with an error."""
    await written.add(1)
    (written.folder / "position.json").write_bytes(b"{}")
    async with aiorepl.follow(written.folder, poll=0.0001) as stream:
        with pytest.raises(JournalError, match="is damaged"):
            await read(stream)


async def test_large_transactions_are_whole(written):
    """A follower never gets a part without the rest: transactions are published whole."""
    await written.add(1)
    async with aiorepl.follow(written.folder, poll=SOON) as stream:
        await read(stream)
        sink = JournalSink(written.folder, segment_bytes=4096, block_bytes=512)
        await sink.open(SinkContext("journal", written.stream.position))
        written.stream.transaction(*(written.table.insert(str(number)) for number in range(2, 2000)))
        parts = written.stream.slices(50)
        await sink.write(Batch(tuple(parts[:-1])))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SOON * 10):
                await anext(stream)
        await sink.write(Batch(tuple(parts[-1:])))
        await sink.flush()
        await sink.close()
        assert list(range(2, 2000)) == await read(stream)


async def test_with_invalidations(written):
    """Several processes share a journal, each with its own ``Invalidations``."""
    collected = [Invalidations(), Invalidations()]

    async def run(changed):
        async with aiorepl.follow(written.folder, poll=SOON) as stream:
            await changed.read(stream)

    tasks = [asyncio.create_task(run(changed)) for changed in collected]
    for changed in collected:
        assert changed.take().everything
        assert not changed.live
    await written.add(1)
    for changed in collected:
        async with asyncio.timeout(60):
            await changed.wait()
        assert changed.take().everything
        assert changed.live
    await written.add(2, 3)
    for changed in collected:
        keys = set()
        async with asyncio.timeout(60):
            while not keys >= {(2,), (3,)}:
                await changed.wait()
                keys |= changed.take().keys("public", "t")
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert not any(changed.live for changed in collected)


def test_options():
    """An invalid option is refused at once."""
    with pytest.raises(ConfigurationError, match="poll"):
        aiorepl.follow("journal", poll="often")
