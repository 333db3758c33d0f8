"""A primary that dies and a standby that is promoted: the pipeline goes on there, or says why it must not."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import BatchPolicy, Pipeline, RetryPolicy, SlotError, Source
from aiorepl.testing import EmbeddedServer
from aiorepl.testing.faults import MemorySink
from aiorepl.wire.connection import ReplicationConnection

QUICK = RetryPolicy(seconds=None, first=0.05, longest=0.2)
SOON = BatchPolicy(flush_seconds=0.1)
STANDBY = {
    "primary_slot_name": "standby",
    "hot_standby_feedback": "on",
    "sync_replication_slots": "on",
    # Copied from the primary; this one has no standby that it could wait for.
    "synchronized_standby_slots": "",
}


@pytest.fixture
def primary(request):
    """A primary; with an indirect parameter one that sends only what the standby has."""
    settings = {"synchronized_standby_slots": "standby"} if getattr(request, "param", False) else {}
    with EmbeddedServer(settings=settings) as server:
        yield server


@pytest.fixture
async def published(publish, primary):
    """Its database, published, with a slot for the standby."""
    published = await publish(primary.dsn)
    await published.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    return published


@pytest.fixture
def standby(published, primary):
    """The primary's standby, which synchronizes failover slots."""
    with EmbeddedServer(settings=STANDBY, standby_of=primary) as server:
        yield server


@pytest.fixture
async def there(standby):
    """A connection to the standby, and to what becomes of it."""
    connection = await asyncpg.connect(standby.dsn)
    yield connection
    connection.terminate()


def both(primary, standby):
    """The DSN of whoever is the primary."""
    parts = urlsplit(primary.dsn)
    netloc = f"{parts.netloc},127.0.0.1:{standby.port}"
    return parts._replace(netloc=netloc, query="target_session_attrs=read-write").geturl()


async def synchronized(published, there):
    """Wait until the standby has the slot for good."""

    async def look():
        # The standby's copy starts behind the slot, which has to come past it, and moves by these records alone.
        await published.execute("SELECT pg_log_standby_snapshot()")
        query = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = $1"
        return await there.fetchval(query, published.slot)

    await published.until(look, bool)


@pytest.mark.parametrize("primary", [True], indirect=True)
async def test_a_promotion(published, primary, standby, there):
    """Killed under load: what the promoted server has is delivered once and in order, and nothing that it has not."""
    sink = MemorySink()
    source = published.source(both(primary, standby), failover=True)
    async with AsyncExitStack() as stack:
        pipeline = Pipeline(source, [sink], reconnect=QUICK, batches=SOON)
        await stack.enter_async_context(pipeline)
        await published.execute("INSERT INTO items VALUES (0)")
        await sink.wait_for_changes(1)
        await synchronized(published, there)

        async def load():
            for number in range(1, 100_000):
                await published.execute(f"INSERT INTO items VALUES ({number}, repeat('x', 500))")

        writing = asyncio.create_task(load())
        await sink.wait_for_changes(100)
        await asyncio.to_thread(primary.kill)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await writing
        await there.fetchval("SELECT pg_promote()")
        await there.execute("INSERT INTO items VALUES (-1)")
        rows = [row["id"] for row in await there.fetch("SELECT id FROM items WHERE id >= 0 ORDER BY id")]
        await sink.wait_for_changes(len(rows) + 1, durable=True)
        assert [*rows, -1] == [change.key["id"] for change in sink.changes]
        confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1"
        end = await there.fetchval("SELECT pg_current_wal_lsn()")
        await published.until(lambda: there.fetchval(confirmed, published.slot), lambda found: found >= end)
        assert pipeline.statistics().reconnects >= 1


async def test_what_the_promoted_server_never_had(published, primary, standby, there):
    """The standby was away when the last transactions were delivered: to go on from there would lose what it writes now."""
    sink = MemorySink()
    source = published.source(both(primary, standby), failover=True)
    pipeline = Pipeline(source, [sink], reconnect=QUICK, batches=SOON)
    work = asyncio.create_task(pipeline.run())
    await pipeline.started()
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1)
    await synchronized(published, there)
    await asyncio.to_thread(standby.kill)
    await published.execute("INSERT INTO items SELECT i FROM generate_series(2, 100) i")
    await sink.wait_for_changes(100)
    await asyncio.to_thread(primary.kill)
    await asyncio.to_thread(standby.start)
    connection = await asyncpg.connect(standby.dsn)
    await connection.fetchval("SELECT pg_promote()")
    await connection.close()

    with pytest.raises(
        SlotError, match=r"the promoted server left timeline 1 at .*synchronized_standby_slots"
    ):
        await work
    assert 100 == len(sink.changes)


async def test_a_standby_is_waited_for(published, primary, standby, there):
    """A slot that is being synchronized is not ours to read; it says so, and that it may pass."""
    await Pipeline(published.source(failover=True), [MemorySink()], until="now").run()
    await synchronized(published, there)
    with pytest.raises(SlotError, match="is being synchronized from the primary") as caught:
        await Pipeline(published.source(standby.dsn), [MemorySink()]).run()
    assert caught.value.busy


async def test_a_heartbeat_on_a_standby_writes_nothing(published, primary, standby, there):
    """A slot of the standby's own is read there; beats are skipped, and counted."""
    await published.create_slot()
    connection = await ReplicationConnection.open(standby.dsn)
    creating = asyncio.create_task(connection.create_slot(f"{published.slot[:50]}_own"))
    while not creating.done():
        # A slot on a standby begins where the primary tells of its transactions in progress.
        await published.execute("SELECT pg_log_standby_snapshot()")
        await asyncio.wait({creating}, timeout=0.1)
    await creating
    await connection.close()
    published.slot = f"{published.slot[:50]}_own"
    sink = MemorySink()
    async with Pipeline(published.source(standby.dsn, heartbeat=0.05), [sink]) as pipeline:
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1)
        beats = await published.until(
            lambda: asyncio.sleep(0, pipeline.statistics().heartbeat), lambda beats: beats.skipped >= 2
        )
        assert (0, 0, None) == (beats.sent, beats.failed, beats.error)


@pytest.mark.parametrize("version", [17, 18])
@pytest.mark.parametrize("journal", [True, False])
async def test_two_phase_as_well(servers, slot_name, tmp_path, version, journal):
    """Both at once, also where the server makes no such slot, and with a load under the slot's snapshot."""
    connection = await asyncpg.connect(servers(version).dsn)
    await connection.execute(
        f"CREATE TABLE {slot_name} (id int); CREATE PUBLICATION {slot_name} FOR TABLE {slot_name}"
    )
    await connection.execute(f"INSERT INTO {slot_name} VALUES (1)")
    try:
        source = Source(
            servers(version).dsn,
            slot=slot_name,
            publication=slot_name,
            create_slot=True,
            two_phase=True,
            failover=True,
        )
        sink = MemorySink()
        options = {"journal": str(tmp_path), "snapshot": True} if journal else {}
        await Pipeline(source, [sink], until="now", **options).run()
        query = "SELECT two_phase AND failover FROM pg_replication_slots WHERE slot_name = $1"
        assert await connection.fetchval(query, slot_name)
        assert journal == len(sink.changes)
        await connection.execute("SELECT pg_drop_replication_slot($1)", slot_name)
    finally:
        await connection.execute(f"DROP PUBLICATION {slot_name}; DROP TABLE {slot_name}")
        await connection.close()


async def test_an_existing_slot_becomes_a_failover_slot(published, primary):
    """Asked for, it is altered; without being asked it stays what it is."""
    query = "SELECT failover FROM pg_replication_slots WHERE slot_name = $1"
    await published.create_slot()
    await Pipeline(published.source(), [MemorySink()], until="now").run()
    assert not await published.connection.fetchval(query, published.slot)
    await Pipeline(published.source(failover=True), [MemorySink()], until="now").run()
    assert await published.connection.fetchval(query, published.slot)
