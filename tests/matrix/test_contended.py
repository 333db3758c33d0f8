"""Another client reads, moves or drops the slot, on every server and by each interface."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import LSN, Pipeline, Sink, Source, connect
from aiorepl.errors import ConfigurationError, SlotError
from aiorepl.pgoutput.options import PluginOptions
from aiorepl.wire.interface import Restart
from aiorepl.wire.sql import SqlConnection
from tests.waiting import DEADLINE

pytestmark = pytest.mark.by_day

ROUTES = ["walsender", "sql"]
MOVE = "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())"


async def recreate(client, slot):
    """Drop and create the slot."""
    await client.execute("SELECT pg_drop_replication_slot($1)", slot)
    await client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)


async def move(client, slot):
    """Move the slot to the end of WAL."""
    await client.execute(MOVE, slot)


@pytest.fixture
async def slot(client, slot_name):
    """A slot with one row before it."""
    await client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot_name)
    return slot_name


async def polled(connection):
    """Confirm a whole round, and return its number of messages."""
    count = 0
    while True:
        for item in await connection.receive():
            if isinstance(item, Restart):
                return count
            if isinstance(item, list):
                count += len(item)
                end = LSN(item[-1].end)
                connection.send_status(end, end, end)


@pytest.fixture
async def poller(database, slot, version):
    """A connection that polls the slot."""
    connection = await SqlConnection.open(database)
    await connection.start_replication(slot, LSN(0), PluginOptions(("p",)).negotiate(version))
    yield connection
    connection.abort()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_slot_that_is_polled_is_in_use(client, database, slot, poller, route, version):
    """A second consumer is rejected between two polls, too, and receives everything once the first one has stopped."""
    await client.execute("INSERT INTO items VALUES (1)")
    assert 4 == await polled(poller)
    with pytest.raises(SlotError, match=r"in use by process \d+") as caught:
        async with connect(database, slot=slot, publication="p", interface=route, reconnect=None):
            pass
    assert caught.value.busy
    second = await SqlConnection.open(database)
    with pytest.raises(SlotError, match="another consumer reads slot") as caught:
        await second.start_replication(slot, LSN(0), PluginOptions(("p",)).negotiate(version))
    assert caught.value.busy
    await second.close()

    await client.execute("INSERT INTO items VALUES (2)")
    await poller.stop()
    async with connect(database, slot=slot, publication="p", interface=route, until="now") as stream:
        assert [2] == [change.new["id"] async for tx in stream async for change in tx]


async def test_the_server_looks_for_its_poller(poller, version):
    """The server releases the lock of a dead client after a minute, not after hours, also while it sends."""
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    rows = await poller.query(f"SELECT setting FROM pg_settings WHERE name IN {names} ORDER BY name")
    assert ["3", "30", "10", "60000"] == [row["setting"] for row in rows]


@pytest.mark.parametrize("meddle", [move, recreate])
async def test_moved_between_two_polls(client, slot, poller, meddle, version):
    """If another client moves the slot between two polls, the stream fails."""
    await client.execute("INSERT INTO items VALUES (1)")
    assert 4 == await polled(poller)
    assert 0 == await polled(poller)  # advances the slot
    await client.execute("INSERT INTO items VALUES (2)")
    await meddle(client, slot)
    await client.execute("INSERT INTO items VALUES (3)")
    with pytest.raises(SlotError, match=r"moved to .* by another consumer"):
        await polled(poller)


async def test_dropped_between_two_polls(client, slot, poller, version):
    """If the slot is dropped between two polls, the error says so."""
    await client.execute("INSERT INTO items VALUES (1)")
    assert 4 == await polled(poller)
    await client.execute("SELECT pg_drop_replication_slot($1)", slot)
    with pytest.raises(SlotError, match="does not exist"):
        await polled(poller)


@pytest.mark.parametrize("meddle", [move, recreate])
@pytest.mark.parametrize("route", ROUTES)
async def test_moved_before_the_stream_begins(client, database, slot, route, meddle, version):
    """If the slot is moved while a pipeline opens its sinks, the start fails."""

    class Slow(Sink):
        async def open(self, context):
            await client.execute("INSERT INTO items VALUES (1)")
            await meddle(client, slot)

        async def write(self, batch):
            pass

    source = Source(database, slot=slot, publication="p", interface=route)
    with pytest.raises(SlotError, match=r"moved to .* by another consumer"):
        await Pipeline(source, [Slow()], until="now", reconnect=None).run()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_publication_that_is_dropped(client, database, slot, route, version):
    """If the publication is dropped, the stream ends, and the error says what to create."""
    with pytest.raises(ConfigurationError, match=r"publication .*p.* did not exist.*CREATE PUBLICATION"):
        async with (
            connect(database, slot=slot, publication="p", interface=route) as stream,
            asyncio.timeout(DEADLINE),
        ):
            await client.execute("INSERT INTO items VALUES (1)")
            await anext(stream)
            await client.execute("DROP PUBLICATION p")
            await client.execute("INSERT INTO items VALUES (2)")
            async for _ in stream:
                pass
