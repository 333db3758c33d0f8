"""Logical messages within transactions: the same ones, in the same order, however the server sends the transaction."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from aiorepl import Pipeline, RetryPolicy, Source
from aiorepl.testing import CuttingProxy
from aiorepl.testing.faults import MemorySink

SOON = RetryPolicy(timeout=None, wait_initial=0.01, wait_max=0.2)
IMMEDIATE = "debug_logical_replication_streaming = immediate"


@pytest.fixture
async def streamed(tables):
    """The tables, in a database whose transactions are streamed at once."""
    name = await tables.fetchval("SELECT current_database()")
    await tables.execute(f'ALTER DATABASE "{name}" SET {IMMEDIATE}')
    await tables.execute("INSERT INTO two SELECT generate_series(1, 20)")
    return tables


@pytest.mark.parametrize("server", [16, 18], indirect=True)
@pytest.mark.parametrize("interface", ["walsender", "sql"])
@pytest.mark.parametrize("streaming", ["on", "parallel"])
async def test_messages_of_rolled_back_savepoints(server, streamed, slot_name, deliver, streaming, interface):
    """A message of a savepoint that was rolled back is never delivered, though a stream does not tell whose it is; all others are."""
    await streamed.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot_name)
    emit = "SELECT pg_logical_emit_message(true, '{}', '')"
    await streamed.execute(
        "BEGIN; INSERT INTO one VALUES (1);"
        + emit.format("before")
        + "; SAVEPOINT a;"
        + emit.format("rolled back alone")
        + "; ROLLBACK TO a; SAVEPOINT b;"
        + emit.format("rolled back before a row")
        + "; INSERT INTO one VALUES (2);"
        + emit.format("rolled back after a row")
        + "; ROLLBACK TO b; SAVEPOINT c; INSERT INTO one VALUES (3);"
        + emit.format("released")
        + "; RELEASE c; INSERT INTO one VALUES (4); COMMIT"
    )
    slices = await deliver(slot_name, streaming=streaming, interface=interface)
    changes = [change for part in slices for change in part.changes]
    words = [change.prefix if change.kind == "message" else change.new["id"] for change in changes]
    assert [1, "before", 3, "released", 4] == words
    assert [0, 1, 2, 3, 4] == [change.ordinal for change in changes]


@pytest.mark.parametrize("server", [16, 18], indirect=True)
async def test_a_reconnect_between_a_message_and_the_next_row(server, tables, slot_name, database):
    """The server may send a transaction again with a message and the next row, of a savepoint, in the other order."""
    name = await tables.fetchval("SELECT current_database()")
    await tables.execute("INSERT INTO two SELECT generate_series(1, 20)")
    sink = MemorySink()
    parts = urlsplit(database)
    async with CuttingProxy(parts.hostname or "127.0.0.1", parts.port or 5432) as proxy:
        source = Source(
            proxy.dsn_for(database),
            slot=slot_name,
            publication="p",
            create_slot=True,
            streaming="on",
            messages=True,
        )
        async with Pipeline(source, [sink], reconnect=SOON) as pipeline:
            # The message does not arrive whole at first; then the transaction is streamed.
            proxy.cut_after(2_000_000)
            await tables.execute(
                "BEGIN; INSERT INTO one VALUES (1);"
                "SELECT pg_logical_emit_message(true, 'm', repeat('x', 6000000));"
                "SAVEPOINT a; DELETE FROM two WHERE id IN (5, 6, 7); RELEASE a; INSERT INTO one VALUES (2); COMMIT"
            )
            await tables.execute(f'ALTER DATABASE "{name}" SET {IMMEDIATE}')
            async with asyncio.timeout(60):
                await sink.wait_for_changes(6)
            assert pipeline.statistics().reconnects
    words = ["m" if change.kind == "message" else (change.new or change.key)["id"] for change in sink.changes]
    assert [1, "m", 5, 6, 7, 2] == words
    assert [0, 1, 2, 3, 4, 5] == [change.ordinal for change in sink.changes]
