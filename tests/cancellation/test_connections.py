"""Connections and catalog queries, cancelled at any await."""

from __future__ import annotations

from itertools import count

import pytest

from aiorepl import LSN, Source
from aiorepl.pgoutput.options import PluginOptions
from aiorepl.values.types import TypeInfo
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.sql import SqlConnection
from tests.today import of_today

ROUTES = [ReplicationConnection, SqlConnection]
OPTIONS = PluginOptions(("p",)).negotiate(18)
# More than a portion of the SQL source. The rows are long, so that a walsender sends them in more than one piece.
ROWS = 500


@pytest.fixture
async def written(replicated):
    """Two transactions after the slot, a large one and a small one."""
    await replicated.create_slot()
    await replicated.execute(
        f"INSERT INTO items SELECT n, repeat('many', 100) FROM generate_series(1, {ROWS}) n",
        "INSERT INTO items VALUES (0, 'last')",
    )
    return replicated


async def messages(connection, received):
    """Gather the messages up to the second commit."""
    while sum(payload[:1] == b"C" for payload in received) < 2:
        for item in await connection.receive():
            if isinstance(item, list):
                received += [frame.payload for frame in item]


@pytest.mark.both_loops
@pytest.mark.parametrize("route", ROUTES)
async def test_receiving(written, watched, cancelling, route):
    """``receive`` returns what a cancelled call has not returned."""
    for number in of_today(count(1)):
        async with written.copied_slot() as slot:
            connection, received = await route.open(written.dsn), []
            await connection.start_replication(slot, LSN(0), OPTIONS)
            attempt = cancelling(number, everywhere=True)
            await attempt.run(messages(connection, received))
            await messages(connection, received)
            await connection.stop()
            await connection.close()
            assert ROWS + 6 == len(received)
            assert ROWS + 1 == len({payload for payload in received if payload[:1] == b"I"})
        await watched.nothing_left()
        if not attempt.cancelled:
            break
    assert number > 1


@pytest.mark.parametrize("route", ROUTES)
async def test_from_opening_to_closing(written, watched, cancelling, route):
    """Wherever a connection is cancelled, an abrupt end frees the slot and leaves nothing."""

    async def work(slot):
        connection = await route.open(written.dsn)
        try:
            await connection.query("SELECT 1 AS one")
            await connection.identify_system()
            await connection.start_replication(slot, LSN(0), OPTIONS)
            received = []
            await messages(connection, received)
            connection.send_status(LSN(1), LSN(1), LSN(1))
            await connection.stop()
            await connection.close()
        except BaseException:
            connection.abort()
            raise

    for number in of_today(count(1)):
        async with written.copied_slot() as slot:
            attempt = cancelling(number, everywhere=True)
            await attempt.run(work(slot))
            await watched.nothing_left()
        if not attempt.cancelled:
            break
    assert number > 10


@pytest.mark.both_loops
@pytest.mark.parametrize("route", ["walsender", "sql"])
async def test_looking_types_up(replicated, watched, cancelling, route):
    """A look-up that is cancelled leaves no session on the server."""
    await replicated.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    oid = await replicated.connection.fetchval("SELECT 'mood'::regtype::oid")
    source = Source(replicated.dsn, slot=replicated.slot, publication="p", interface=route)
    found = None
    for number in of_today(count(1)):
        attempt = cancelling(number)
        found = await attempt.run(source.look_up([oid]))
        await watched.nothing_left()
        await replicated.nothing_left()
        if not attempt.cancelled:
            break
    assert [TypeInfo(oid, "public", "mood", "e")] == found
    assert number > 3
