"""Selections by parents, with a standby as the source: its snapshots do not list the transactions that are in progress."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from aiorepl import Delivery, Pipeline, Selection, Source
from aiorepl.testing import EmbeddedServer
from aiorepl.testing.faults import MemorySink

pytestmark = pytest.mark.server


async def test_a_parent_that_a_streamed_transaction_attaches(servers, tmp_path):
    """A table that was looked up while the transaction was in progress is looked up again once it has committed."""
    with (
        servers.new(18, logical_decoding_work_mem="64kB") as primary,
        EmbeddedServer(standby_of=primary, settings={"logical_decoding_work_mem": "64kB"}) as standby,
    ):
        writer, other = await asyncpg.connect(primary.dsn), await asyncpg.connect(primary.dsn)
        await writer.execute(
            "CREATE TABLE parts (id int, secret text) PARTITION BY RANGE (id);"
            "CREATE TABLE t (id int PRIMARY KEY, secret text); ALTER TABLE t ALTER id SET NOT NULL;"
            "CREATE TABLE noise (id int PRIMARY KEY, text text);"
            "CREATE PUBLICATION p FOR TABLE t, noise"
        )
        reader = await asyncpg.connect(standby.dsn)
        while not await reader.fetchval("SELECT count(*) FROM pg_publication"):
            await asyncio.sleep(0.02)
        sink = MemorySink()
        masked = Delivery(sink, selection=Selection(mask=("public.parts.secret?",), secret="s"))
        source = Source(
            standby.dsn, slot="s", publication="p", create_slot=True, proto_version=2, streaming="on"
        )

        async def keep_running():
            # The creation of a slot on a standby waits for a record of running transactions.
            while True:
                await other.execute("SELECT pg_log_standby_snapshot()")
                await asyncio.sleep(0.2)

        running = asyncio.create_task(keep_running())
        async with asyncio.timeout(90), Pipeline(source, [masked], state_dir=tmp_path) as pipeline:
            running.cancel()
            await asyncio.wait({running})
            attaching = writer.transaction()
            await attaching.start()
            await writer.execute("ALTER TABLE parts ATTACH PARTITION t FOR VALUES FROM (0) TO (100000)")
            # A later transaction commits, so that the snapshot of the next look-up ends after the open one.
            await other.execute("INSERT INTO noise VALUES (1)")
            await sink.wait_for_changes(1)
            await writer.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i")
            # The last part that the server streams has no row of the table, and so does not describe it.
            await writer.execute(
                "INSERT INTO noise SELECT i, repeat('x', 100) FROM generate_series(3, 2002) i"
            )
            await other.execute("INSERT INTO noise VALUES (2)")
            await sink.wait_for_changes(2)
            while not pipeline.statistics().transaction_buffer.memory:
                await asyncio.sleep(0.02)
            await attaching.commit()
            await sink.wait_for_changes(3002)
        for connection in (writer, other, reader):
            connection.terminate()
    secrets = {change.new["secret"] for change in sink.changes if change.relation.name == "t"}
    assert "x" * 100 not in secrets
