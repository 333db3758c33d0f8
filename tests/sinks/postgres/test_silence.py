"""A target that keeps its connection and does not answer is given up; a slow one is waited for."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import pytest

from aiorepl import TransientError
from aiorepl.testing import CuttingProxy
from aiorepl_sinks.postgres import connection

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, note text)"
SECONDS = 1.0
# A busy machine needs seconds for the answer of a target that is alive.
ALIVE_SECONDS = 5.0


@pytest.fixture
async def proxied(request, pair, server):
    """A proxy in front of the target, and an open sink that uses it. The parameter is the sink's timeout."""
    await pair.target.execute(ITEMS)
    async with CuttingProxy("127.0.0.1", server.port) as proxy:
        sink = pair.sink(dsn=proxy.dsn_for(pair.target_dsn), timeout=getattr(request, "param", SECONDS))
        yield proxy, sink
        proxy.resume()
        await sink.close()


async def ids(pair) -> list[int]:
    return [row["id"] for row in await pair.target.fetch("SELECT id FROM items ORDER BY id")]


async def test_a_target_that_does_not_answer(pair, proxied, source):
    """The call fails, and is repeated on a new connection: every row is there once."""
    proxy, sink = proxied
    await sink.open(source.context)
    await sink.write(source.batch([1]))
    batch = source.batch([2])
    proxy.stall()
    with pytest.raises(TransientError, match="not on another connection either"):
        await sink.write(batch)
    with pytest.raises(TransientError, match="cannot connect to the target"):
        await sink.write(batch)
    proxy.resume()
    await sink.write(batch)
    assert [1, 2] == await ids(pair)


async def test_a_start_at_a_target_that_does_not_answer(proxied, source):
    """Opening the sink fails."""
    proxy, sink = proxied
    proxy.stall()
    with pytest.raises(TransientError, match="cannot connect to the target"):
        await sink.open(source.context)


async def test_an_answer_that_never_comes(pair, proxied, source):
    """Only this connection is dead, and stays open: the call is made again on another."""
    proxy, sink = proxied
    await sink.open(source.context)
    proxy.hold()
    batch = source.batch([1])
    with pytest.raises(TransientError, match="has finished the call, but its answer has not arrived"):
        await sink.write(batch)
    await sink.write(batch)
    assert [1] == await ids(pair)


@pytest.mark.parametrize("track_activities", ["on", "off"])
@pytest.mark.parametrize("proxied", [ALIVE_SECONDS], indirect=True)
async def test_a_target_that_is_at_work_is_waited_for(pair, proxied, source, caplog, track_activities):
    """A call that waits for a lock is logged and not repeated, however long it takes, also if the target does not show what sessions do."""
    proxy, sink = proxied
    database = await pair.target.fetchval("SELECT pg_catalog.quote_ident(current_database())")
    await pair.target.execute(f"ALTER DATABASE {database} SET track_activities = {track_activities}")
    await sink.open(source.context)
    before = proxy.connections
    holder = await asyncpg.connect(pair.target_dsn)
    try:
        async with holder.transaction():
            await holder.execute("LOCK TABLE items")
            with caplog.at_level(logging.WARNING, "aiorepl.sink"):
                writing = asyncio.create_task(sink.write(source.batch([1])))
                async with asyncio.timeout(90):
                    # The second look was answered.
                    while proxy.connections < before + 3 and not writing.done():
                        await asyncio.sleep(0.05)
            assert not writing.done()
        await writing
    finally:
        await holder.close()
    assert [1] == await ids(pair)
    told, *_ = [record.getMessage() for record in caplog.records if record.name == "aiorepl.sink"]
    assert "waiting for Lock relation" in told


@pytest.fixture
async def blocked(pair, proxied, source, monkeypatch):
    """A call that waits for a lock, with a batch that does not fit into the buffers of the connection. Yields the call and the lock's holder."""
    soon = {name: 1000 if name == "TCP_USER_TIMEOUT" else 1 for name in connection._KEEPALIVE}
    monkeypatch.setattr(connection, "_KEEPALIVE", soon)
    proxy, sink = proxied
    await sink.open(source.context)
    before = proxy.connections
    holder = await asyncpg.connect(pair.target_dsn)
    await holder.execute("BEGIN; LOCK TABLE items")
    writing = asyncio.create_task(sink.write(source.batch([*range(20_000)], note="x" * 1000)))
    async with asyncio.timeout(90):
        # It was asked twice.
        while proxy.connections < before + 2 and not writing.done():
            await asyncio.sleep(0.05)
    yield writing, holder
    holder.terminate()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


@pytest.mark.parametrize("proxied", [ALIVE_SECONDS], indirect=True)
async def test_a_target_that_reads_nothing_is_waited_for(pair, proxied, blocked):
    """The kernel does not close a connection whose peer is alive and reads nothing."""
    writing, holder = blocked
    assert not writing.done()
    await holder.execute("COMMIT")
    async with asyncio.timeout(90):
        await writing
    assert 20_000 == len(await ids(pair))


@pytest.mark.parametrize("proxied", [ALIVE_SECONDS], indirect=True)
async def test_a_connection_that_is_lost_while_its_buffers_are_full(blocked, proxied):
    """The call fails with an error that lets the pipeline repeat it."""
    writing, _ = blocked
    assert not writing.done()
    proxied[0].cut()
    with pytest.raises(TransientError):
        async with asyncio.timeout(90):
            await writing
