"""A proxy keeps connections open and forwards nothing: calls without a time limit end once the server's process was seen to wait for its client."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import ConnectionLost, Pipeline, PipelineState
from aiorepl.snapshot.chunk_reader import ChunkReader
from aiorepl.snapshot.initial.exported import ExportedSnapshot
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.proxy import CuttingProxy
from aiorepl.wire import opening, server_process
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.opening import connect_sql
from tests.live.dropping_proxy import DroppingProxy
from tests.waiting import until

CREATING = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1 AND active_pid IS NOT NULL"
LOCKS = "SELECT pid FROM pg_locks WHERE relation = 'items'::regclass AND pid <> pg_backend_pid()"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The looks at a silent process are frequent, and a login times out soon."""
    monkeypatch.setattr(server_process, "SECONDS", 0.3)
    monkeypatch.setattr(opening, "_ONE_HOST_SECONDS", 1.0)


@pytest.fixture
async def proxy(published):
    """A proxy of the server."""
    parts = urlsplit(published.dsn)
    async with CuttingProxy(parts.hostname, parts.port) as proxy:
        yield proxy


@pytest.fixture
async def holder(published):
    """A connection with an open transaction that has an xid."""
    connection = await asyncpg.connect(published.dsn)
    await connection.execute("BEGIN")
    await connection.execute("INSERT INTO items VALUES (1)")
    yield connection
    await connection.close()


async def creating(published):
    """The process that creates the test's slot, in a list."""
    return [row["active_pid"] for row in await published.connection.fetch(CREATING, published.slot)]


@pytest.mark.parametrize("server", [13, 18], indirect=True)
@pytest.mark.parametrize("way", ["walsender", "sql"])
@pytest.mark.parametrize("silence", ["of this connection", "of all connections"])
async def test_a_slot_whose_answer_does_not_arrive(published, proxy, holder, way, silence):
    """Once the open transaction has ended, the start ends with ConnectionLost, and no process has the slot."""
    source = published.source(proxy.dsn_for(published.dsn), interface=way)
    run = asyncio.create_task(Pipeline(source, [MemorySink()], reconnect=None).run())
    await until(partial(creating, published))
    (proxy.hold if silence == "of this connection" else proxy.stall)()
    await holder.execute("COMMIT")
    with pytest.raises(ConnectionLost, match="nothing arrives on the connection"):
        async with asyncio.timeout(60):
            await run
    proxy.resume()
    await until(partial(creating, published), lambda found: not found)


@pytest.mark.parametrize("server", [13, 18], indirect=True)
@pytest.mark.parametrize("way", ["walsender", "sql"])
async def test_a_slot_that_waits(published, holder, monkeypatch, way):
    """A creation that waits for an open transaction goes on, however often the process is looked at."""
    looks, enough, look = [], asyncio.Event(), server_process.ServerProcess._look

    async def counted(process):
        looks.append(await look(process))
        if len(looks) == 5:
            enough.set()
        return looks[-1]

    monkeypatch.setattr(server_process.ServerProcess, "_look", counted)
    pipeline = Pipeline(published.source(interface=way), [MemorySink()], reconnect=None)
    async with asyncio.timeout(60):
        async with asyncio.TaskGroup() as group:
            group.create_task(pipeline.run())
            await enough.wait()
            await holder.execute("COMMIT")
            await until(
                lambda: asyncio.sleep(0, pipeline.state), lambda state: state is PipelineState.RUNNING
            )
            pipeline.stop()


async def test_a_copy_whose_rows_do_not_arrive(published, proxy):
    """The read ends with ConnectionLost. The next read ends the process that still sends, and with it the lock, and gets all rows."""
    await published.execute(
        "INSERT INTO items SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 20000) i"
    )
    async with published.connection.transaction(isolation="repeatable_read"):
        snapshot = await published.connection.fetchval("SELECT pg_export_snapshot()")
        reader = ChunkReader(partial(connect_sql, proxy.dsn_for(published.dsn)), snapshot, None)
        statement = "COPY (SELECT id, note FROM public.items) TO STDOUT (FORMAT binary)"

        async def read(held=None):
            total = 0
            async with aclosing(reader.read(statement, 2)) as parts:
                async for _, count in parts:
                    total += count
                    if held is not None:
                        proxy.hold()
                        held.append(reader.pid)
            return total

        held = []
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionLost, match=r"nothing arrives on the connection: .* cannot send"):
                await read(held)
            assert 20_000 == await read()
        assert held[0] not in [row["pid"] for row in await published.connection.fetch(LOCKS)]
        reader.abort()


async def test_a_snapshot_whose_answers_do_not_arrive(published, proxy):
    """The calls of the connection that keeps the snapshot end with ConnectionLost."""
    async with published.connection.transaction(isolation="repeatable_read"):
        name = await published.connection.fetchval("SELECT pg_export_snapshot()")
        connection = await connect_sql(proxy.dsn_for(published.dsn))
        snapshot = ExportedSnapshot(connection, ("p",), SnapshotOptions())
        proxy.hold()
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionLost):
                await snapshot.begin(name, published)
    await snapshot.close()


async def test_a_temporary_slot_whose_answer_is_lost(published, monkeypatch):
    """The network drops the answer to the creation. The process that has the slot is ended, so the name is free for the next attempt."""
    quick = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 2000}
    monkeypatch.setattr(opening, "_KEEPALIVE", quick)
    async with DroppingProxy(published.dsn, "down", b"consistent_point") as proxy:
        connection = await ReplicationConnection.open(proxy.dsn)
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionLost):
                await connection.create_slot(published.slot, temporary=True)
        await until(partial(creating, published), lambda found: not found)
        again = await ReplicationConnection.open(proxy.dsn)
        await again.create_slot(published.slot, temporary=True)
        await again.close()
