"""Pipelines and consumers without a server: everything else is what runs in production."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

import aiorepl
from aiorepl import (
    LSN,
    BatchPolicy,
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    RetryPolicy,
    SlotError,
)
from aiorepl.testing import FaultySink, MemorySink, MemorySource, Stream
from aiorepl.testing.faults import Hang
from aiorepl.testing.messages import Binary, column
from aiorepl.values.types import ENUM, TypeInfo

QUICK = BatchPolicy(flush_seconds=0.01)
AT_ONCE = RetryPolicy(wait_initial=0.001, wait_max=0.002)


class Shop:
    """A stream of orders."""

    def __init__(self, **options):
        self.stream = Stream(**options)
        self.orders = self.stream.table("orders", column("id", 23, key=True), column("note"))
        self.source = MemorySource(stream=self.stream)

    def order(self, *ids):
        """Commit a transaction."""
        return self.stream.transaction(*(self.orders.insert(str(number), "note") for number in ids))

    @asynccontextmanager
    async def pipeline(self, *sinks, **options):
        """Runs; and is done in time."""
        options = {"batches": QUICK, "reconnect": AT_ONCE, **options}
        async with asyncio.timeout(60), aiorepl.Pipeline(self.source, list(sinks), **options) as pipeline:
            yield pipeline


@pytest.fixture
def shop():
    """A stream with a table of ids."""
    return Shop()


def ids(sink):
    """Return the ids that a sink has received."""
    return [change.new["id"] for change in sink.changes]


async def test_a_pipeline(shop):
    """Transactions that are committed before and while a pipeline runs are delivered and confirmed."""
    sink = MemorySink()
    shop.order(1, 2)
    async with shop.pipeline(sink):
        await sink.wait_for_changes(2)
        end = shop.order(3)
        assert await shop.source.acknowledged(end) == end
    assert [1, 2, 3] == ids(sink)
    assert end == shop.source.confirmed


async def test_a_consumer(shop):
    """``aiorepl.connect`` accepts the source; its acknowledgements move the slot."""
    first, second = shop.order(1), shop.order(2)
    async with asyncio.timeout(60), aiorepl.connect(shop.source) as stream:
        async for transaction in stream:
            await transaction.skip()
            if transaction.end_lsn == first:
                await stream.ack(transaction)
                await shop.source.acknowledged(first)
            else:
                break
    assert first == shop.source.confirmed
    async with aiorepl.connect(shop.source, until="now") as stream:
        again = [change.new["id"] async for transaction in stream async for change in transaction]
    assert ([2], second) == (again, shop.stream.lsn)


def test_a_source_says_it_all(shop):
    """Options that the source has cannot be given again."""
    with pytest.raises(ConfigurationError, match="set these in the Source instead: slot"):
        aiorepl.connect(shop.source, slot="other")


async def test_until_now(shop):
    """A pipeline ends with what is there."""
    shop.order(1, 2)
    sink = MemorySink()
    await asyncio.wait_for(aiorepl.Pipeline(shop.source, [sink], until="now").run(), 60)
    assert [1, 2] == ids(sink)
    assert shop.stream.lsn == shop.source.confirmed


async def test_nothing_is_acknowledged_that_is_not_durable(shop):
    """The slot waits for the sink."""
    hang = Hang()
    sink = FaultySink(flush=[hang])
    begin = shop.stream.lsn
    end = shop.order(1)
    async with shop.pipeline(sink):
        await hang.reached.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(shop.source.acknowledged(end), 0.1)
        assert begin == shop.source.confirmed
        hang.release()
        await shop.source.acknowledged()


async def test_what_was_not_acknowledged_comes_again(shop):
    """Unconfirmed transactions are sent to the next pipeline with the same identities; tables are described again."""
    first = shop.order(1)
    sink = MemorySink()
    async with shop.pipeline(sink):
        await shop.source.acknowledged(first)
    shop.order(2)
    lost = FaultySink(flush=[Hang()])
    async with shop.pipeline(lost, shutdown_timeout=0.01):
        await lost.inner.wait_for_changes(1)
    async with shop.pipeline(sink):
        await shop.source.acknowledged()
    assert [1, 2] == ids(sink)
    assert lost.inner.changes[0].transaction.commit_lsn == sink.changes[1].transaction.commit_lsn


@pytest.mark.parametrize("refusals", [0, 3])
async def test_a_lost_connection(shop, refusals):
    """The pipeline reconnects, and no change is lost or delivered twice."""
    sink = MemorySink()
    async with shop.pipeline(sink) as pipeline:
        for number in range(1, 6):
            shop.order(number)
            await sink.wait_for_changes(number)
            shop.source.disconnect(refusals)
        shop.order(6)
        await shop.source.acknowledged()
        assert 5 == pipeline.statistics().reconnects
    assert list(range(1, 7)) == ids(sink)


async def test_a_loss_that_is_not_mended(shop):
    """Without reconnecting it is the consumer's, or the pipeline's, error."""
    with pytest.raises(ConnectionLost, match="cut by the test"):
        async with asyncio.timeout(60), aiorepl.connect(shop.source, reconnect=None) as stream:
            shop.source.disconnect()
            await anext(aiter(stream))
    shop.source.disconnect(refused_attempts=1)
    with pytest.raises(ConnectionFailed, match="refused by the test"):
        await aiorepl.Pipeline(shop.source, [MemorySink()]).run()


async def test_one_at_a_time(shop):
    """A slot in use is rejected, as by a server."""
    async with aiorepl.connect(shop.source):
        with pytest.raises(SlotError, match="in use"):
            async with aiorepl.connect(shop.source):
                pass
    async with aiorepl.connect(shop.source):
        pass


async def test_a_slow_sink_holds_the_source_back(shop):
    """Within the pipeline's memory, however much is committed."""
    hang = Hang()
    sink = FaultySink(write=[hang])
    for number in range(2000):
        shop.order(number)
    async with shop.pipeline(sink, buffer_bytes=50_000) as pipeline:
        await hang.reached.wait()
        assert pipeline.statistics().received < shop.stream.lsn
        hang.release()
        await shop.source.acknowledged()
    assert list(range(2000)) == ids(sink.inner)


async def test_a_pipeline_with_a_journal(shop, tmp_path):
    """With a journal, the journal's durable end is confirmed."""
    hang = Hang()
    sink = FaultySink(write=[hang])
    async with shop.pipeline(sink, journal=str(tmp_path)):
        end = shop.order(1)
        await hang.reached.wait()
        await shop.source.acknowledged(end)
        hang.release()
        await sink.inner.wait_for_changes(1)


async def test_types_messages_and_prepared_transactions():
    """Types that are not built in come from the stream; prepared rows when they commit, or never."""
    mood = TypeInfo(99999, "public", "mood", ENUM)
    stream = Stream(types=[mood], binary=True)
    moods = stream.table("moods", column("mood", mood.oid, key=True))
    stream.prepare("kept", moods.insert(Binary(b"happy")))
    stream.prepare("dropped", moods.insert(Binary(b"sad")))
    stream.message("note", b"between")
    source = MemorySource(stream=stream)
    sink = MemorySink()
    async with aiorepl.Pipeline(source, [sink], batches=QUICK):
        await sink.wait_for_changes(1)
        assert LSN(0x1000000) == source.confirmed
        stream.rollback_prepared("dropped")
        stream.commit_prepared("kept")
        await sink.wait_for_changes(2)
        await source.acknowledged()
    message, insert = sink.changes
    assert (b"between", "happy") == (message.content, insert.new["mood"])


def test_there_is_no_server_for_a_heartbeat():
    """Options that need a server are rejected."""
    with pytest.raises(ConfigurationError, match="heartbeat"):
        MemorySource(heartbeat_interval=1.0)


async def test_there_are_no_tables_to_load(shop, tmp_path):
    """A memory source has its slot already."""
    with pytest.raises(SlotError, match="exists but the journal is empty"):
        await aiorepl.Pipeline(shop.source, journal=str(tmp_path), snapshot=True).run()


def test_a_row_of_too_few_values():
    """A row with too few values is rejected when it is built."""
    shop = Shop()
    for write in (shop.orders.insert, shop.orders.update, shop.orders.delete):
        with pytest.raises(ValueError, match="orders has 2 columns, not 1"):
            write("1")
    for part in ("key", "old"):
        with pytest.raises(ValueError, match="orders has 2 columns, not 1"):
            shop.orders.update("1", "note", **{part: ["1"]})
