"""Heartbeats: a quiet database beside a busy one, and heartbeats that fail."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import pytest

from aiorepl import Message, Pipeline
from aiorepl.testing.faults import MemorySink
from tests.waiting import until


@pytest.fixture
async def busy(server):
    """Another database of the cluster, and a function that writes there."""
    connection = await asyncpg.connect(server.dsn)

    async def write():
        await connection.execute("SELECT pg_logical_emit_message(true, 'busy', repeat('x', 100000))")

    yield write
    await connection.close()


@pytest.mark.parametrize("heartbeat", [0.1, None], ids=["heartbeat", "none"])
async def test_the_slot_of_a_quiet_database_advances(published, busy, heartbeat):
    """Beside a busy database the slot advances, with heartbeats and through keepalives alone."""
    await published.create_slot()
    sink = MemorySink()
    source = published.source(heartbeat_interval=heartbeat, messages=True)
    async with Pipeline(source, [sink]) as pipeline:
        for _ in range(2):
            await busy()
            await published.confirmed_past(await published.wal())
        if heartbeat:
            await until(lambda: pipeline.statistics().heartbeat, lambda beats: beats.sent >= 3)
        else:
            assert pipeline.statistics().heartbeat is None
    assert [] == sink.changes


async def test_messages_with_the_prefix_are_delivered(published):
    """Messages of the user with the heartbeats' prefix are delivered if they have content."""
    await published.create_slot()
    sink = MemorySink()
    source = published.source(heartbeat_interval=0.05, messages=True)
    async with Pipeline(source, [sink]) as pipeline:
        await until(lambda: pipeline.statistics().heartbeat, lambda beats: beats.sent >= 2)
        for content, transactional in (("theirs", False), ("", True)):
            await published.execute(
                f"SELECT pg_logical_emit_message({transactional}, 'aiorepl', '{content}')"
            )
        await sink.wait_for_changes(2)
    assert [(b"theirs", False), (b"", True)] == [
        (change.content, change.transactional) for change in sink.changes if isinstance(change, Message)
    ]


async def test_a_heartbeat_without_the_privilege(published, server, caplog):
    """A missing privilege is logged once and counted each time; the stream continues, and a later success is logged."""
    function = "pg_logical_emit_message(boolean, text, text)"
    if server.version >= 17:
        function = "pg_logical_emit_message(boolean, text, text, boolean)"
    role = f"r_{published.slot[-20:]}"
    await published.create_slot()
    await published.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'",
        f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC",
        f"GRANT SELECT ON items TO {role}",
    )
    dsn = published.dsn.replace(published.dsn.split("//")[1].split("@")[0], f"{role}:x")
    sink = MemorySink()
    try:
        with caplog.at_level(logging.INFO, "aiorepl.heartbeat"):
            async with Pipeline(published.source(dsn, heartbeat_interval=0.05), [sink]) as pipeline:
                beats = await until(lambda: pipeline.statistics().heartbeat, lambda beats: beats.failed >= 3)
                assert "permission denied for function pg_logical_emit_message" in beats.error
                await published.execute("INSERT INTO items VALUES (1)")
                await sink.wait_for_changes(1)
                await published.execute(f"GRANT EXECUTE ON FUNCTION {function} TO PUBLIC")
                await until(lambda: pipeline.statistics().heartbeat, lambda beats: beats.sent)
        assert ["WARNING", "INFO"] == [
            record.levelname for record in caplog.records if record.name == "aiorepl.heartbeat"
        ]
    finally:
        await published.execute(f"REVOKE ALL ON items FROM {role}", f"DROP ROLE {role}")


async def test_it_ends_with_the_pipeline(published):
    """No task and no connection is left after the pipeline."""
    await published.create_slot()
    before = asyncio.all_tasks()
    async with Pipeline(published.source(heartbeat_interval=0.05), [MemorySink()]) as pipeline:
        await until(lambda: pipeline.statistics().heartbeat, lambda beats: beats.sent)
    assert before == asyncio.all_tasks()

    async def others():
        return await published.connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type IN ('client backend', 'walsender')"
        )

    await until(others, lambda count: count == 0)
