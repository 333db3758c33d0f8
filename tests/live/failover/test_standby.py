"""Streaming from a standby that is promoted, or follows another primary, meanwhile."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import BatchPolicy, Pipeline, RetryPolicy
from aiorepl.journal import Cursors, JournalReader
from aiorepl.testing import EmbeddedServer
from aiorepl.testing.faults import MemorySink
from aiorepl.wire.connection import ReplicationConnection
from tests.waiting import until

pytestmark = pytest.mark.by_day

QUICK = RetryPolicy(timeout=None, wait_initial=0.05, wait_max=0.2)
SOON = BatchPolicy(flush_seconds=0.1)


def keys(sink):
    """The keys of the delivered rows, in their order."""
    return [change.key["id"] for change in sink.changes]


async def create_slot(published, standby):
    """A slot on the standby itself."""
    connection = await ReplicationConnection.open(standby.dsn)
    creating = asyncio.create_task(connection.create_slot(published.slot))
    while not creating.done():
        # The slot begins where the primary logs its running transactions.
        await published.execute("SELECT pg_log_standby_snapshot()")
        await asyncio.wait({creating}, timeout=0.1)
    await creating
    await connection.close()


async def followed(source, sink, options, work):
    """Run ``work`` during a pipeline, after which journal, cursors and sink are on timeline 2."""
    async with Pipeline(source, {"s": sink}, reconnect=QUICK, batches=SOON, **options) as pipeline:
        await work(pipeline)
    kept = [sink.position]
    if options:
        kept += [JournalReader(options["journal"]).position(), Cursors(options["journal"]).get("s")]
    assert [2] * len(kept) == [position.timeline for position in kept]
    assert all(1 == len(position.history) for position in kept)


@pytest.mark.parametrize("version", [16, 18], indirect=True)
@pytest.mark.parametrize("journal", [True, False], ids=["journal", "direct"])
async def test_it_is_promoted(published, pair, tmp_path, journal):
    """The stream continues without duplicates, and positions have the timeline that they were reached on."""
    await create_slot(published, pair.standby)
    source = published.source(pair.standby.dsn, create_slot=False)
    options = {"journal": str(tmp_path)} if journal else {}
    sink = MemorySink(keeps_position=True)

    async def work(pipeline):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1, durable=True)
        assert 1 == sink.position.timeline
        await pair.caught_up()
        await pair.promote()
        await pair.standby_client.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(2, durable=True)

    await followed(source, sink, options, work)
    await pair.standby_client.execute("INSERT INTO items VALUES (3)")
    pipeline = Pipeline(source, {"s": sink}, until="now", **options)
    await pipeline.run()
    assert [1, 2, 3] == keys(sink)
    assert () == pipeline.statistics().gaps


async def test_it_is_promoted_without_reconnecting(published, pair):
    """A promotion is no lost connection: the stream also continues with ``reconnect=None``."""
    await create_slot(published, pair.standby)
    sink = MemorySink(keeps_position=True)
    source = published.source(pair.standby.dsn, create_slot=False)
    async with Pipeline(source, [sink], reconnect=None, batches=SOON):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1)
        await pair.caught_up()
        await pair.promote()
        await pair.standby_client.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(2, durable=True)
    assert [1, 2] == keys(sink)
    assert 2 == sink.position.timeline


async def test_its_primary_is_replaced(published, pair, tmp_path):
    """The stream continues on a standby that follows the promoted server to the new timeline."""
    await published.execute("SELECT pg_create_physical_replication_slot('reader', true)")
    with EmbeddedServer(
        settings={"primary_slot_name": "reader", "hot_standby_feedback": "on"}, standby_of=pair.primary
    ) as reader:
        await create_slot(published, reader)
        standby_client = await asyncpg.connect(reader.dsn)
        sink = MemorySink(keeps_position=True)
        source = published.source(reader.dsn, create_slot=False)
        options = {"journal": str(tmp_path)}

        async def work(pipeline):
            await published.execute("INSERT INTO items VALUES (1)")
            await sink.wait_for_changes(1, durable=True)
            await pair.caught_up()
            await pair.promote()
            await pair.standby_client.execute("SELECT pg_create_physical_replication_slot('reader', true)")
            parts = urlsplit(pair.standby.dsn)
            conninfo = f"host=127.0.0.1 port={parts.port} user=postgres password={parts.password}"
            await standby_client.execute(f"ALTER SYSTEM SET primary_conninfo = '{conninfo}'")
            await standby_client.execute("SELECT pg_reload_conf()")
            await pair.standby_client.execute("INSERT INTO items VALUES (2)")
            await sink.wait_for_changes(2, durable=True)

        await followed(source, sink, options, work)
        await pair.standby_client.execute("INSERT INTO items VALUES (3)")
        query, end = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", await pair.wal()
        await until(lambda: standby_client.fetchval(query, end))
        await Pipeline(source, {"s": sink}, until="now", **options).run()
        assert [1, 2, 3] == keys(sink)
        await standby_client.close()
