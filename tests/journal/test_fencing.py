"""One writer of a journal in an object store, over HTTP: seconds, sleepers, lost answers and kills at every request."""

from __future__ import annotations

import asyncio
import re
import threading
from functools import partial

import pytest

from aiorepl.errors import JournalError
from aiorepl.journal import JournalReader
from aiorepl.sink import Batch, SinkContext
from aiorepl.storage.objects.location import ObjectStore
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

OPTIONS = {"segment_bytes": 300, "block_bytes": 100}
TAKEN_OVER = r"another writer has taken over the journal in (s3|az)://.* \(host .*, process \d+, since .*\)"


@pytest.fixture(scope="module")
def stream() -> Stream:
    """Two small transactions, and one that is several parts of a segment."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True), column("note"))
    stream.transaction(table.insert("1", "x"))
    stream.transaction(*(table.insert(str(number), "x" * 40) for number in range(10, 30)))
    stream.transaction(table.insert("2", "x"))
    stream.parts = list(stream.slices())
    return stream


class Life:
    """One writer: it continues where the journal ends, and makes each transaction durable."""

    def __init__(self, tools, place: ObjectStore, stream: Stream) -> None:
        self.sink = tools.sink(place, **OPTIONS)
        self.stream = stream
        self.acknowledged = 0

    async def open(self) -> None:
        end = await self.sink.open(SinkContext("journal", self.stream.position))
        self.acknowledged = 0 if end is None else end.lsn

    async def write(self, most: int | None = None) -> None:
        units = []
        for part in self.stream.parts:
            units.append(part)
            if part.end_lsn is None:
                continue
            if part.end_lsn > self.acknowledged and (most is None or most > 0):
                await self.sink.write(Batch(tuple(units)))
                await self.sink.flush()
                self.acknowledged = part.end_lsn
                most = None if most is None else most - 1
            units = []

    async def run(self) -> None:
        try:
            await self.open()
            await self.write()
        finally:
            await self.sink.close()


async def require(tools, place: ObjectStore, stream: Stream) -> None:
    """The journal has each transaction once, in order, and nothing else."""
    last = stream.units[-1][0]
    read = await tools.read(JournalReader(place), 0, last)
    assert tools.committed(stream) == tools.changes_of(tools.flat(read))


def below(place: ObjectStore, number: int) -> ObjectStore:
    """A prefix of its own."""
    return ObjectStore(f"{place.url}/{number}", place.config)


async def test_a_second_writer(object_store, stream, tools):
    """The later one takes over with its first write, and not by opening; the earlier one says so and is not confirmed."""
    place = object_store.location()
    one, two = Life(tools, place, stream), Life(tools, place, stream)
    await one.open()
    await one.write(1)
    await two.open()
    await one.write(1)
    # It has read an end that is no longer the end.
    with pytest.raises(JournalError, match=TAKEN_OVER):
        await two.write(1)
    await two.sink.close()

    three = Life(tools, place, stream)
    await three.open()
    await three.write()
    acknowledged = one.acknowledged
    with pytest.raises(JournalError, match=TAKEN_OVER):
        await one.write()
    assert acknowledged == one.acknowledged
    await one.sink.close()
    await three.sink.close()
    await require(tools, place, stream)


@pytest.mark.parametrize("way", ["asleep", "killed before", "killed after", "answer lost"])
@pytest.mark.by_day
async def test_every_request(bucket, layer, fault, stream, tools, way):
    """Whichever request a writer sleeps in, is killed at or gets no answer to, the journal has everything once."""
    changes = "PUT|POST|DELETE"
    for number in range(1, 100):
        behind, place = (
            below(bucket.location(endpoint=layer.endpoint), number),
            below(bucket.location(), number),
        )
        path, asleep, awake = f"/{number}/", threading.Event(), threading.Event()
        nth = fault(changes, path, lost=True)
        layer.faults[:] = [fault(changes, path, times=number - 1), nth]
        if way == "asleep":
            nth.lost, nth.meanwhile = False, lambda a=asleep, b=awake: (a.set(), b.wait(60))
        elif way != "answer lost":
            dead = fault("", path, status=403, times=1 << 40)
            nth.meanwhile = partial(layer.faults.append, dead)
            if way == "killed before":
                nth.lost, nth.status = False, 403

        writing = asyncio.create_task(Life(tools, behind, stream).run())
        finished = asyncio.gather(writing, return_exceptions=True)
        if way == "asleep":
            sleeping = asyncio.create_task(asyncio.to_thread(asleep.wait, 60))
            await asyncio.wait([finished, sleeping], return_when=asyncio.FIRST_COMPLETED)
        else:
            await finished
        await Life(tools, place, stream).run()
        awake.set()
        asleep.set()
        (error,) = await finished
        if way == "asleep" and error is not None:
            assert isinstance(error, JournalError)
            assert re.match(TAKEN_OVER, str(error)), error
        assert (error is None) == (way == "answer lost" or not nth.hits) or way == "asleep"
        await require(tools, place, stream)
        if not nth.hits:
            assert number > 8
            return
    raise AssertionError("there is no end of requests")
