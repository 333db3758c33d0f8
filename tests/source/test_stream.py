"""``aiorepl.connect`` with a transaction in the spool."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.source.stream import ReplicationStream
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.spool import Extent, Spool
from aiorepl.values import Types

ROWS, CHUNKS = 4000, 4


class Received:
    """A capture that has received two transactions, the first of them in chunks in the spool."""

    def __init__(self, folder):
        decoder = Decoder(Streaming.ON)
        assembler = Assembler(Types(), spool=Spool(folder))
        feed = lambda *payloads: assembler.feed([decoder.decode(each) for each in payloads])  # noqa: E731
        table = build.relation(
            oid=7, name="items", columns=[column("id", 23, key=True), column("note")], xid=3
        )
        feed(build.stream_start(xid=3, first_segment=True), table, build.stream_stop())
        for first in range(0, ROWS, ROWS // CHUNKS):
            rows = (
                build.insert(relation=7, new=[str(number), "x" * 1000], xid=3)
                for number in range(first, first + ROWS // CHUNKS)
            )
            feed(build.stream_start(xid=3, first_segment=False), *rows, build.stream_stop())
            assembler.in_progress._relieve()
        self._slices = []
        self._slices += feed(build.stream_commit(xid=3, commit_lsn=16, end_lsn=24))
        self._slices += feed(build.stream_start(xid=4, first_segment=True), build.stream_stop())
        self._slices += feed(build.stream_commit(xid=4, commit_lsn=32, end_lsn=40))

    async def receive(self):
        slices, self._slices = self._slices, None
        return slices


@pytest.fixture
def stream(tmp_path):
    """A stream of these transactions."""
    return ReplicationStream(Received(tmp_path))


@pytest.fixture
def reads(monkeypatch):
    """The sizes of all reads from the spool."""
    sizes = []
    read = Extent.read

    def counted(extent):
        data = read(extent)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(Extent, "read", counted)
    return sizes


async def test_the_spool_is_read_once(stream, reads):
    """Iterating a transaction reads each of its chunks once, however many rows it has."""
    transaction = await anext(stream)
    assert list(range(ROWS)) == [change.new["id"] async for change in transaction]
    assert CHUNKS == len(reads)
    assert 24 == transaction.end_lsn


@pytest.mark.parametrize("taken", [0, 1, ROWS - 1])
async def test_skipped_changes_are_not_read(stream, reads, taken):
    """Skipped changes are not read from the spool."""
    transaction = await anext(stream)
    for number in range(taken):
        assert number == (await anext(transaction)).new["id"]

    following = await anext(stream)
    assert (24, 32) == (transaction.end_lsn, following.commit_lsn)
    assert -(-taken * CHUNKS // ROWS) == len(reads)
    assert [] == [change async for change in transaction]


async def test_a_consumer_yields(stream):
    """A consumer that never waits yields to the event loop within a large transaction."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    transaction = await anext(stream)
    before = turns
    assert ROWS == len([change async for change in transaction])
    assert turns - before >= CHUNKS - 2
    counting.cancel()
