"""Transactions whose outcome is decided after they were sent: streamed and prepared ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from aiorepl import LSN, Pipeline, Source
from aiorepl.formats.native import NativeFormat
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import PluginOptions, Streaming
from aiorepl.testing.faults import MemorySink
from aiorepl.wire.connection import ReplicationConnection
from tests.waiting import DEADLINE

LARGE = "INSERT INTO items SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i"


@pytest.fixture
async def client(database: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to a database with a published table."""
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    await connection.execute("CREATE PUBLICATION p FOR TABLE items")
    yield connection
    await connection.close()


@pytest.fixture
async def other(database: str, client: asyncpg.Connection) -> AsyncIterator[asyncpg.Connection]:
    """Another connection, whose commits flush WAL: a walsender sends only WAL that is flushed."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def received(connection: ReplicationConnection, decoder: Decoder) -> AsyncIterator[Any]:
    """Yield the messages of the stream."""
    while True:
        for item in await connection.receive():
            if isinstance(item, list):
                for message in decoder.messages(item):
                    yield message


async def first(kind: type, messages: AsyncIterator[Any]) -> Any:
    """Return the next message of a kind."""
    async with asyncio.timeout(DEADLINE):
        while not isinstance(message := await anext(messages), kind):
            pass
        return message


@pytest.mark.parametrize(
    ("version", "streaming"),
    [(version, Streaming.ON) for version in (14, 15, 16, 17, 18)]
    + [(version, Streaming.PARALLEL) for version in (16, 17, 18)],
    ids=str,
)
async def test_an_abort_of_what_was_streamed(database, slot_name, client, other, version, streaming):
    """A streamed transaction that rolls back ends with a Stream Abort of its xid."""
    connection = await ReplicationConnection.open(f"{database}?logical_decoding_work_mem=64kB")
    await connection.create_slot(slot_name, temporary=True)
    asked = PluginOptions(("p",), streaming=streaming).negotiate(version)
    await connection.start_replication(slot_name, LSN(0), asked)
    async with contextlib.aclosing(received(connection, Decoder(streaming))) as messages:
        await client.execute("BEGIN")
        await client.execute(LARGE)
        await other.execute("INSERT INTO items VALUES (-1, 'brings it out')")
        start = await first(m.StreamStart, messages)
        await client.execute("ROLLBACK")
        await other.execute("INSERT INTO items VALUES (-2, 'as well')")
        abort = await first(m.StreamAbort, messages)
    await connection.close()

    assert (start.xid, start.xid) == (abort.xid, abort.subxid)
    assert (
        (streaming is Streaming.PARALLEL) == (abort.abort_lsn is not None) == (abort.abort_time is not None)
    )


@pytest.mark.parametrize("version", [15, 16, 17, 18])
@pytest.mark.parametrize("streaming", ["off", "on"])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.by_day
async def test_a_decision_that_comes_alone(database, slot_name, client, end, streaming):
    """The outcome of a prepared transaction is delivered, even if no other message follows."""
    sink = MemorySink()
    sink.supports_prepared = True
    source = Source(
        f"{database}?logical_decoding_work_mem=64kB",
        slot=slot_name,
        publication="p",
        create_slot=True,
        two_phase=True,
        streaming=streaming,
    )
    gid = f"{slot_name[-50:]} é"
    async with Pipeline(source, [sink]), asyncio.timeout(DEADLINE):
        await client.execute("BEGIN")
        await client.execute(LARGE)
        await client.execute(f"PREPARE TRANSACTION '{gid}'")
        await sink.wait_for_changes(1000)
        before = LSN.parse(await client.fetchval("SELECT pg_current_wal_insert_lsn()::text"))
        await client.execute(f"{end} PREPARED '{gid}'")
        await sink.wait_until_durable(before + 1)

    native = NativeFormat(boundaries=True)
    kinds = [json.loads(line)["kind"] for batch in sink.batches for line in native.events(batch.slices)]
    decision = "commit_prepared" if end == "COMMIT" else "rollback_prepared"
    assert ["begin", *["insert"] * 1000, "prepare", decision] == kinds
