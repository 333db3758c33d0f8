"""``aiorepl.connect``, cancelled at any await: reading continues, or starts again, without a loss."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

import aiorepl
from aiorepl import RetryPolicy
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from tests.today import of_today

AT_ONCE = RetryPolicy(timeout=None, wait_initial=0.0001, wait_max=0.0001)
WAYS = {
    "walsender": {},
    "sql": {"interface": "sql"},
    # The large transaction is streamed, and waits on disk.
    "spooled": {"streaming": "on", "transaction_buffer_bytes": 10_000},
}
# More than a portion of the SQL source. The rows are long, so that the transaction has several blocks where it is streamed.
LARGE = 250
EXPECTED = [1, 2, *range(100, 100 + LARGE), 3, 4]


@pytest.fixture
async def written(replicated):
    """Transactions of one row and of many, with types to be looked up, one of them in the middle."""
    await replicated.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')", "ALTER TABLE items ADD mood mood")
    await replicated.create_slot()
    await replicated.execute(
        "INSERT INTO items VALUES (1, 'one', 'ok')",
        "INSERT INTO items VALUES (2, 'two', 'sad')",
        f"INSERT INTO items SELECT n, repeat('many', 200), 'ok' FROM generate_series(100, {99 + LARGE}) n",
        "CREATE TYPE colour AS ENUM ('red')",
        "ALTER TABLE items ADD colour colour",
        "INSERT INTO items VALUES (3, 'three', 'ok', 'red')",
        "INSERT INTO items VALUES (4, 'four', 'ok', 'red')",
    )
    return replicated


class Reader:
    """Repeats a cancelled call, as a consumer with timeouts does."""

    def __init__(self, last=EXPECTED[-1], between=lambda count: None):
        self.ids = []
        self.acknowledged = 0
        self._last = last
        self._between = between
        self._transaction = None

    async def read(self, stream):
        """Read up to the last row, or the end of the stream."""
        if self._transaction is not None:
            await self._finish(stream)
        if [self._last] == self.ids[-1:]:
            return
        async for self._transaction in stream:
            await self._finish(stream)
            if [self._last] == self.ids[-1:]:
                return

    async def _finish(self, stream):
        async for change in self._transaction:
            self.ids.append(change.new["id"])
            self._between(len(self.ids))
        await stream.ack(self._transaction)
        self.acknowledged, self._transaction = len(self.ids), None


def connect(replicated, slot, way, **options):
    dsn = f"{replicated.dsn}&logical_decoding_work_mem=64kB"
    return aiorepl.connect(dsn, slot=slot, publication="p", **WAYS[way], **options)


@pytest.mark.parametrize("way", WAYS)
async def test_reading_goes_on_after_any_await(written, watched, cancelling, way):
    """Whichever await is cancelled, the next calls return exactly what the cancelled one did not."""
    for number in of_today(count(1)):
        async with written.copied_slot() as slot:
            reader, attempt = Reader(), cancelling(number, everywhere=True)
            async with connect(written, slot, way) as stream:
                await attempt.run(reader.read(stream))
                await reader.read(stream)
                acknowledged = stream.confirmed
            assert EXPECTED == reader.ids
            assert acknowledged <= await written.confirmed(slot)
        await watched.nothing_left()
        if not attempt.cancelled:
            break
    # The stream is open already, and on a busy machine much of it is there at once.
    assert number > 3


@pytest.mark.both_loops
@pytest.mark.parametrize("way", WAYS)
async def test_reading_goes_on_after_every_await(written, watched, cancelling, way):
    """A consumer whose every call is cancelled at its first await gets everything."""
    async with written.copied_slot() as slot:
        reader, cancelled = Reader(), True
        async with connect(written, slot, way) as stream:
            while cancelled:
                attempt = cancelling(1)
                await attempt.run(reader.read(stream))
                cancelled = attempt.cancelled
                await asyncio.sleep(0.001)
    assert EXPECTED == reader.ids
    await watched.nothing_left()


@pytest.mark.parametrize("way", WAYS)
async def test_beginning_anew_after_any_await(written, watched, cancelling, way):
    """Whichever await between entering and leaving is cancelled, nothing of it is left, and another consumer gets what
    was not acknowledged.
    """

    async def consume(reader, slot, **options):
        async with connect(written, slot, way, **options) as stream:
            await reader.read(stream)

    for number in of_today(count(1)):
        async with written.copied_slot() as slot:
            first, second = Reader(), Reader()
            attempt = cancelling(number, everywhere=True)
            await attempt.run(consume(first, slot))
            await watched.nothing_left()
            await written.nothing_left()
            assert EXPECTED[: len(first.ids)] == first.ids
            if attempt.cancelled:
                await consume(second, slot, until="now")
                again = len(EXPECTED) - len(second.ids)
                assert EXPECTED[again:] == second.ids
                assert again <= first.acknowledged
        if not attempt.cancelled:
            break
    assert EXPECTED == first.ids
    assert number > 10


@pytest.mark.both_loops
async def test_reading_goes_on_over_lost_connections(watched, cancelling):
    """If reconnecting is cancelled at any await, every row comes once."""
    for number in of_today(count(1)):
        stream = Stream()
        table = stream.table("items", column("id", 23, key=True))
        for first in range(1, 40, 10):
            stream.transaction(*(table.insert(str(number)) for number in range(first, first + 10)))
        # Several slices a transaction.
        source = MemorySource(stream=stream, read_bytes=100)
        reader = Reader(40, lambda count, source=source: count % 7 or source.disconnect(refused_attempts=1))
        async with aiorepl.connect(source, reconnect=AT_ONCE) as consumer:
            attempt = cancelling(number, everywhere=True)
            await attempt.run(reader.read(consumer))
            await reader.read(consumer)
        assert [*range(1, 41)] == reader.ids
        await watched.nothing_left()
        if not attempt.cancelled:
            break
    assert number > 20
