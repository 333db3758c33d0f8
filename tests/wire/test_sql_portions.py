"""The SQL interface holds about a megabyte at once, whatever the size of the rows."""

from __future__ import annotations

import asyncpg
import pytest

from aiorepl import LSN
from aiorepl.pgoutput.options import PluginOptions
from aiorepl.wire.sql import SqlConnection

MIB = 1024 * 1024


@pytest.fixture
async def portions(database, slot_name):
    """``portions(statement)`` returns the payload sizes of each portion of a transaction."""
    client = await asyncpg.connect(database)
    await client.execute(
        "CREATE TABLE items (id int PRIMARY KEY, note text); CREATE PUBLICATION p FOR TABLE items"
    )
    await client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot_name)

    async def portions(statement):
        await client.execute(statement)
        connection = await SqlConnection.open(database)
        await connection.start_replication(slot_name, LSN(0), PluginOptions(("p",)).negotiate(18))
        found, last = [], b""
        while last[:1] != b"C":
            payloads = [frame.payload for frame in (await connection.receive())[0]]
            found.append([len(payload) for payload in payloads])
            last = payloads[-1]
        await connection.close()
        return found

    yield portions
    await client.close()


async def test_large_rows(portions):
    """Large rows are fetched a few at a time."""
    found = await portions("INSERT INTO items SELECT i, repeat('x', 200000) FROM generate_series(1, 300) i")
    assert 303 == sum(map(len, found))
    assert max(map(sum, found[1:])) <= MIB
    assert len(found[0]) <= 100


async def test_small_rows(portions):
    """Small rows are fetched a thousand at a time."""
    found = await portions("INSERT INTO items SELECT i, 'x' FROM generate_series(1, 5000) i")
    assert 5003 == sum(map(len, found))
    assert len(found) <= 5
