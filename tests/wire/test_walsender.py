"""The scripted walsender."""

from __future__ import annotations

import pytest

from aiorepl.errors import ConnectionLost
from aiorepl.lsn import LSN
from aiorepl.testing.walsender import CopyDone, Cut, Data, ScriptedWalsender, StandbyStatus
from aiorepl.wire.connection import ReplicationConnection

pytestmark = pytest.mark.both_loops


async def start(server: ScriptedWalsender) -> ReplicationConnection:
    """Return a connection on which the stream runs."""
    connection = await ReplicationConnection.open(server.dsn)
    await connection.start_replication("orders", LSN(0x10), {"proto_version": "1"})
    return connection


async def test_a_script_that_fails():
    """A mistake in a script ends the connection, and is raised when the server's context ends."""
    with pytest.raises(TypeError):
        async with ScriptedWalsender([Data("text")]) as server:
            connection = await start(server)
            with pytest.raises(ConnectionLost):
                await connection.receive()


async def test_scripts_in_order():
    """Each START_REPLICATION plays the next script; after the last one, nothing is sent."""
    async with ScriptedWalsender([Data(b"one"), Cut()], [Data(b"two"), CopyDone()]) as server:
        first, second, third = await start(server), await start(server), await start(server)
        assert [[b"one"], [b"two"]] == [
            [frame.payload for (run,) in [await c.receive()] for frame in run] for c in (first, second)
        ]
        third.send_status(LSN(1), LSN(1), LSN(1))
        status = await server.status()
        assert StandbyStatus(LSN(1), LSN(1), LSN(1), status.sent_at, reply_requested=False) == status
        for connection in (first, second, third):
            connection.abort()
