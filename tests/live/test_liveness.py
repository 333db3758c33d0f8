"""Networks that drop packets without an error."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import ConnectionFailed, ConnectionLost, Pipeline, RetryPolicy
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

QUICK = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)


async def set_timeout(published, value):
    """Set the server's wal_sender_timeout for the test's database."""
    await published.execute(
        f"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET wal_sender_timeout = ''{value}''', current_database()); END $$"
    )


@pytest.mark.both_loops
async def test_a_silent_network_is_a_lost_connection(published, proxy):
    """If open connections transmit nothing, the pipeline reconnects within the server's own timeout, and nothing is
    missing.
    """
    await set_timeout(published, "1s")
    await published.create_slot()
    sink = MemorySink()
    source = published.source(proxy.dsn_for(published.dsn))
    async with Pipeline(source, [sink], reconnect=QUICK) as pipeline:
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1)
        proxy.stall()
        await published.execute("INSERT INTO items VALUES (2)")
        # Either the server or the client has given up, so the old walsender ends. The new connection gets no answer
        # while the proxy stalls.
        await until(
            lambda: pipeline.statistics().last_error,
            lambda error: error and "the server has sent nothing for 1 s" in error,
        )
        proxy.cut()
        proxy.resume()
        await sink.wait_for_changes(2)
        assert pipeline.statistics().reconnects
    assert [1, 2] == [change.key["id"] for change in sink.changes]


async def test_a_quiet_server_is_asked_and_kept(published):
    """A server with wal_sender_timeout 0 is asked for a reply, and the connection is kept."""
    await set_timeout(published, "0")
    await published.create_slot()
    async with Pipeline(published.source(receive_timeout=8), [MemorySink()]) as pipeline:
        walsender = await published.walsender()
        before = quiet = 0.0
        # After half of that silence the server was asked for a reply.
        while before < 3.9 or quiet > before:
            await asyncio.sleep(0.02)
            before, quiet = quiet, pipeline.statistics().idle_seconds
        assert walsender == await published.walsender()
        assert (0, None) == (pipeline.statistics().reconnects, pipeline.statistics().last_error)
        # Exporters of metrics may read it in a thread.
        assert (await asyncio.to_thread(pipeline.statistics)).idle_seconds is not None


async def test_without_reconnect_silence_is_the_error(published, proxy):
    """With ``reconnect=None`` the error names the configured limit."""
    await published.create_slot()
    source = published.source(proxy.dsn_for(published.dsn), receive_timeout=1.5)
    pipeline = Pipeline(source, [MemorySink()], reconnect=None)
    work = asyncio.create_task(pipeline.run())
    await pipeline.started()
    proxy.stall()
    with pytest.raises(ConnectionLost, match=r"the server has sent nothing for 1\.5 s, though it was asked"):
        await work


@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_a_server_that_never_answers(published, proxy, interface):
    """Connecting to a server that accepts and never replies fails."""
    proxy.stall()
    source = published.source(proxy.dsn_for(published.dsn) + "?connect_timeout=1", interface=interface)
    with pytest.raises(ConnectionFailed, match=r"the server at 127.0.0.1:\d+ did not answer in time"):
        await Pipeline(source, [MemorySink()]).run()
