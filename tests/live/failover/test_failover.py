"""Failover slots, and standbys before their promotion."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from aiorepl import ConfigurationError, ConnectionFailed, Pipeline, SlotError, Source
from aiorepl.retry import may_pass
from aiorepl.snapshot.merging.watermarks import require_messages
from aiorepl.testing.faults import MemorySink
from aiorepl.wire.connection import ReplicationConnection
from tests.waiting import until


async def test_a_standby_is_waited_for(published, standby, pair):
    """A slot that is being synchronized cannot be read; the error says so, and counts as temporary."""
    await Pipeline(published.source(failover=True), [MemorySink()], until="now").run()
    await pair.synchronized()
    with pytest.raises(SlotError, match="is being synchronized from the primary") as caught:
        await Pipeline(published.source(standby.dsn), [MemorySink()]).run()
    assert caught.value.busy


async def test_a_table_is_read_again_after_a_promotion(published, standby, standby_client, pair):
    """While a table is read, its connection may lead to a standby that is promoted next. Without the slot's copy there is none to wait for."""
    await Pipeline(published.source(failover=True), [MemorySink()], until="now").run()
    await pair.synchronized()
    with pytest.raises(ConnectionFailed, match="which a standby cannot") as caught:
        await require_messages(standby_client, published.slot)
    assert may_pass(caught.value)
    with pytest.raises(ConfigurationError, match="which a standby cannot"):
        await require_messages(standby_client, "another")


async def test_a_heartbeat_on_a_standby_writes_nothing(published, standby):
    """On a standby heartbeats are skipped and counted."""
    await published.create_slot()
    connection = await ReplicationConnection.open(standby.dsn)
    creating = asyncio.create_task(connection.create_slot(f"{published.slot[:50]}_own"))
    while not creating.done():
        # A slot on a standby begins where the primary logs its running transactions.
        await published.execute("SELECT pg_log_standby_snapshot()")
        await asyncio.wait({creating}, timeout=0.1)
    await creating
    await connection.close()
    published.slot = f"{published.slot[:50]}_own"
    sink = MemorySink()
    async with Pipeline(published.source(standby.dsn, heartbeat_interval=0.05), [sink]) as pipeline:
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1)
        beats = await until(lambda: pipeline.statistics().heartbeat, lambda beats: beats.skipped >= 2)
        assert (0, 0, None) == (beats.sent, beats.failed, beats.error)


@pytest.mark.parametrize("version", [17, 18])
@pytest.mark.parametrize("journal", [True, False])
async def test_two_phase_as_well(servers, slot_name, tmp_path, version, journal):
    """A slot can have both options on every version, also with an initial snapshot."""
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
    """With ``failover`` an existing slot is altered; without it the slot stays as it is."""
    query = "SELECT failover FROM pg_replication_slots WHERE slot_name = $1"
    await published.create_slot()
    await Pipeline(published.source(), [MemorySink()], until="now").run()
    assert not await published.connection.fetchval(query, published.slot)
    await Pipeline(published.source(failover=True), [MemorySink()], until="now").run()
    assert await published.connection.fetchval(query, published.slot)
