"""A start that waits for open transactions says for which, and ends at once without leaving anything on the server."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import ConnectionLost, Pipeline, PipelineState, SlotError
from aiorepl.source.server import slot_wait
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.proxy import CuttingProxy
from aiorepl.wire.connection import ReplicationConnection
from tests.waiting import until

CREATING = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1 AND active_pid IS NOT NULL"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What is waited for is looked up at once, and often."""
    monkeypatch.setattr(slot_wait, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(slot_wait, "SECONDS", 0.05)


@pytest.fixture
async def holder(published):
    """A connection with an open transaction that has an xid."""
    connection = await asyncpg.connect(published.dsn, server_settings={"application_name": "a report"})
    await connection.execute("BEGIN")
    await connection.execute("INSERT INTO items VALUES (1)")
    yield connection
    await connection.close()


async def creating(published):
    """The process that creates the test's slot, in a list."""
    return [row["active_pid"] for row in await published.connection.fetch(CREATING, published.slot)]


async def slots(published):
    """The number of slots with the test's name."""
    query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"
    return await published.connection.fetchval(query, published.slot)


@pytest.mark.parametrize("way", ["walsender", "sql"])
async def test_the_transaction_is_named(published, holder, caplog, way):
    """The log and the statistics name process, state and application, and never the row in the command."""
    pipeline = Pipeline(published.source(interface=way), [MemorySink()])
    run = asyncio.create_task(pipeline.run())
    waiting = await until(lambda: later(pipeline.statistics().waiting_for))
    assert f"of process {holder.get_server_pid()} (idle in transaction INSERT)" in waiting
    assert "'a report'" in waiting
    assert "VALUES" not in waiting
    assert any(waiting.partition(", begun")[0] in record.getMessage() for record in caplog.records)
    await holder.execute("COMMIT")
    await until(lambda: later(pipeline.state), lambda state: state is PipelineState.RUNNING)
    assert pipeline.statistics().waiting_for is None
    pipeline.stop()
    await run


async def later(value):
    """Return the value."""
    return value


async def test_a_prepared_transaction_is_named(published):
    """It has no process; the message says how to end it."""
    await published.execute("BEGIN", "INSERT INTO items VALUES (1)", "PREPARE TRANSACTION 'left behind'")
    pipeline = Pipeline(published.source(), [MemorySink()])
    run = asyncio.create_task(pipeline.run())
    try:
        waiting = await until(lambda: later(pipeline.statistics().waiting_for))
        assert "'left behind'" in waiting
        assert "ROLLBACK PREPARED" in waiting
    finally:
        await published.execute("ROLLBACK PREPARED 'left behind'")
    pipeline.stop()
    await run


@pytest.mark.parametrize("way", ["walsender", "sql"])
@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_it_ends_at_once(published, holder, way, how):
    """No slot and no process that creates one is left, although the transaction is still open."""
    pipeline = Pipeline(published.source(interface=way), [MemorySink()], shutdown_timeout=600)
    run = asyncio.create_task(pipeline.run())
    await until(lambda: creating(published))
    if how == "stopped":
        pipeline.stop()
    else:
        run.cancel()
    async with asyncio.timeout(60):
        with contextlib.suppress(asyncio.CancelledError):
            await run
    assert how == "cancelled" or run.exception() is None
    assert not await creating(published)
    assert 0 == await slots(published)
    assert holder.is_in_transaction()


@pytest.mark.parametrize("way", ["walsender", "sql"])
@pytest.mark.usefixtures("holder")
async def test_a_lost_connection(published, way):
    """The server does not notice that the client is gone, so the process is ended on another connection."""
    parts = urlsplit(published.dsn)
    async with CuttingProxy(parts.hostname, parts.port) as proxy:
        pipeline = Pipeline(
            published.source(proxy.dsn_for(published.dsn), interface=way), [MemorySink()], reconnect=None
        )
        run = asyncio.create_task(pipeline.run())
        await until(lambda: creating(published))
        proxy.cut()
        with pytest.raises(ConnectionLost):
            await run
    await until(lambda: creating(published), lambda pids: not pids)
    assert 0 == await slots(published)


@pytest.mark.usefixtures("holder")
async def test_a_process_without_a_client(published):
    """If the client was killed, the next start names the server's process and how to end it."""
    client = await ReplicationConnection.open(published.dsn)
    task = asyncio.create_task(
        client._create(f"CREATE_REPLICATION_SLOT {published.slot} LOGICAL pgoutput", "x")
    )
    [pid] = await until(lambda: creating(published))
    client.abort()
    with pytest.raises(ConnectionLost):
        await task
    with pytest.raises(
        SlotError, match=rf"being created by process {pid} .* SELECT pg_cancel_backend\({pid}\)"
    ) as raised:
        await Pipeline(published.source(), [MemorySink()]).run()
    assert raised.value.busy
    await published.execute(f"SELECT pg_cancel_backend({pid})")
