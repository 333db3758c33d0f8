"""The webhook example: ``aiorepl run examples/webhook.toml`` to ``examples/webhook_receiver.py``, stopped and started."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import signal
import sqlite3
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = (sys.executable, "-c", "from aiorepl.cli import main; main()", "run", EXAMPLES / "webhook.toml")


@pytest.fixture
def environment(database, free_port):
    """The environment of the example: a free port, a secret and a database."""
    return {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": database,
        "WEBHOOK_URL": f"http://127.0.0.1:{free_port()}/hook",
        "WEBHOOK_SECRET": "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode(),
    }


@asynccontextmanager
async def running(environment, *command):
    """A process of the example; it ends by SIGTERM and in order."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 90)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def lines(process, count):
    """The next lines that it prints."""
    async with asyncio.timeout(90):
        return [(await process.stdout.readline()).decode().rstrip("\n") for _ in range(count)]


async def test_the_example(database, environment, tmp_path):
    """Each row is printed once, also when the pipeline or the receiver was away."""
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    await connection.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    port = environment["WEBHOOK_URL"].rsplit(":", 1)[1].removesuffix("/hook")
    kept = tmp_path / "events.db"
    receiver = (sys.executable, EXAMPLES / "webhook_receiver.py", "--port", port, "--database", kept)

    async with running(environment, *RUN):
        async with asyncio.timeout(90):
            while not await connection.fetchval(
                "SELECT active FROM pg_replication_slots WHERE slot_name = 'webhook'"
            ):
                await asyncio.sleep(0.05)
        await connection.execute("INSERT INTO orders VALUES (1, 'first'), (2, NULL)")
        # There is no receiver yet: the sink tries until there is.
        async with running(environment, *receiver) as process:
            printed = await lines(process, 2)
            await connection.execute("UPDATE orders SET note = 'more' WHERE id = 1")
            printed += await lines(process, 1)
        await connection.execute("DELETE FROM orders WHERE id = 2")
        async with running(environment, *receiver) as process:
            printed += await lines(process, 1)
    await connection.execute("INSERT INTO orders VALUES (3, 'last')")
    async with running(environment, *receiver) as process, running(environment, *RUN):
        printed += await lines(process, 1)
    await connection.close()

    assert [
        'insert orders {"id": 1, "note": "first"}',
        'insert orders {"id": 2, "note": null}',
        'update orders {"id": 1, "note": "more"}',
        "delete orders null",
        'insert orders {"id": 3, "note": "last"}',
    ] == printed
    with sqlite3.connect(kept) as database_file:
        events = [
            json.loads(event) for (event,) in database_file.execute("SELECT event FROM events ORDER BY id")
        ]
    database_file.close()
    assert ["insert", "insert", "update", "delete", "insert"] == [event["kind"] for event in events]


async def test_a_stranger_is_refused(environment, tmp_path):
    """A request that is signed with another secret is not taken."""
    port = environment["WEBHOOK_URL"].rsplit(":", 1)[1].removesuffix("/hook")
    command = (
        sys.executable,
        EXAMPLES / "webhook_receiver.py",
        "--port",
        port,
        "--database",
        tmp_path / "e.db",
    )
    async with running(environment, *command):
        async with asyncio.timeout(90):
            while True:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        writer.write(b"POST /hook HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nwebhook-id: 1\r\n\r\n{}")
        assert b"400" in await reader.readline()
        writer.close()
        await writer.wait_closed()
