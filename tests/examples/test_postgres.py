"""The mirror example: ``aiorepl run examples/postgres.toml`` from one server to another, stopped and started."""

from __future__ import annotations

import asyncio
import secrets
import signal

import asyncpg
import pytest

RUN = ("-c", "from aiorepl.cli import main; main()", "run", "postgres.toml")
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, note text, price numeric(12, 2));
CREATE TABLE lines (id int PRIMARY KEY, order_id int REFERENCES orders, n int)
"""


@pytest.fixture
async def mirror(servers):
    """The DSN of an empty database on an older server."""
    server = servers(16)
    name = f"mirror_{secrets.token_hex(4)}"
    admin = await asyncpg.connect(server.dsn)
    await admin.execute(f"CREATE DATABASE {name}")
    yield server.dsn_for(name)
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


async def test_the_example(connection, mirror, running, tmp_path):
    """Existing and new rows are on the target once, even after a restart."""
    target = await asyncpg.connect(mirror)
    for server in (connection, target):
        await server.execute(TABLES)
    await connection.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    await connection.execute("INSERT INTO orders SELECT i, 'before', i * 1.5 FROM generate_series(1, 1000) i")
    environment = {"MIRROR_URL": mirror, "MIRROR_JOURNAL": str(tmp_path / "journal")}
    for start in (1, 2):
        async with running(*RUN, **environment) as example:
            await connection.execute(
                f"INSERT INTO lines SELECT i, i, {start} FROM generate_series({start}, 900, 2) i"
            )
            await connection.execute(
                f"UPDATE orders SET note = 'start {start}', price = price / 3 WHERE id % 7 = {start}"
            )
            await until_equal(connection, target)
            example.process.send_signal(signal.SIGTERM)
            said, _ = await asyncio.wait_for(example.process.communicate(), 90)
            assert 0 == example.process.returncode, said.decode()
        await connection.execute("DELETE FROM orders WHERE id > 950")
    assert ["mirror"] == [row["sink"] for row in await target.fetch("SELECT sink FROM aiorepl.positions")]
    await target.close()


async def until_equal(source, target):
    """Wait until both tables are the same on both sides."""
    query = "SELECT * FROM orders o FULL JOIN lines l ON o.id = l.order_id ORDER BY o.id, l.id"
    async with asyncio.timeout(90):
        while await source.fetch(query) != await target.fetch(query):
            await asyncio.sleep(0.05)
