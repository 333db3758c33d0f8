"""``aiorepl server``: a server to try aiorepl with."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal

import asyncpg
import pytest

pytestmark = pytest.mark.server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_server_until_a_signal(start, monkeypatch, number) -> None:
    """The first line sets the DSN of a server for logical replication, whatever the environment says of another server; a signal ends
    it with success.
    """
    monkeypatch.setenv("PGSSLMODE", "require")
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "standby")
    running = await start("--log-format", "json", "server")
    async with asyncio.timeout(90):
        line = (await running.process.stdout.readline()).decode()
    export, assignment = shlex.split(line)
    name, _, dsn = assignment.partition("=")
    assert (export, name) == ("export", "AIOREPL_DSN")
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SHOW wal_level") == "logical"
    await connection.close()

    running.send(number)
    ended = await running.finished()

    assert (ended.code, ended.out) == (0, "")
    assert "Ctrl-C" in json.loads(ended.err)["message"]
    with pytest.raises(OSError):
        await asyncpg.connect(dsn)
