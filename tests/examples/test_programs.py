"""The examples run against a real server, and confirm their last change when they end."""

from __future__ import annotations

import asyncio
import json
import runpy
import signal
from pathlib import Path

import asyncpg
import httpx2
import pytest
from fastapi.testclient import TestClient

# Slots belong to the whole server, and an example's name is in the example.
pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("examples")]

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOP = "CREATE PUBLICATION shop FOR ALL TABLES"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_consume(running, connection, slot, number):
    """Prints changes; what was printed is acknowledged, but for a transaction that was interrupted before its end came."""
    await connection.execute(f"CREATE TABLE items (id int PRIMARY KEY, note text); {SHOP}")
    async with running("consume.py") as process:
        await slot("consume", active=True)
        await connection.execute("INSERT INTO items VALUES (1, 'first'); UPDATE items SET note = 'second'")
        await connection.execute("DELETE FROM items")
        await process.line("insert items", "'note': 'first'")
        await process.line("update items", "'note': 'second'")
        await process.line("delete items {'id': 1}")
        await connection.execute("INSERT INTO items VALUES (2, 'last')")
        await process.line("insert items", "'note': 'last'")
        await process.interrupt(number)
    # The end of the last one may not have come yet. Then it comes again: its begin, its table, its row and its end.
    assert await slot("consume") in (0, 4)


async def test_order_service(running, connection, slot):
    """Each handler is called with an object; a change that was handled is confirmed."""
    await connection.execute(
        f"CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL, total numeric NOT NULL, state text NOT NULL); {SHOP}"
    )
    async with running("order_service.py") as process:
        await slot("order_service", active=True)
        await connection.execute("INSERT INTO orders VALUES (1, 'Ada', 9.50, 'new'), (2, 'Bob', 1, 'new')")
        await connection.execute("UPDATE orders SET state = 'cancelled' WHERE id = 1")
        await connection.execute("DELETE FROM orders WHERE id = 1")
        await process.line("order 1: pack it for Ada, 9.50")
        await process.line("order 2: pack it for Bob, 1")
        await process.line("order 1: refund 9.50 to Ada")
        await process.line("order 1: forget it")
        await process.interrupt(signal.SIGTERM)
    assert 0 == await slot("order_service")


async def test_task_group(running, connection, slot):
    """Counts; a cancelled group leaves the slot free."""
    await connection.execute(f"CREATE TABLE items (id int PRIMARY KEY); {SHOP}")
    async with running("task_group.py") as process:
        await slot("counted", active=True)
        await connection.execute("INSERT INTO items SELECT generate_series(1, 7)")
        await process.line("{'items': 7}")
        assert "ended" in await process.interrupt()
    await slot("counted")


async def test_outbox(running, connection, slot, tmp_path):
    """Committed messages are dispatched, rolled back ones are not, and those without a handler become dead letters."""
    await connection.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE PUBLICATION outbox")
    emit = "SELECT pg_logical_emit_message(true, $1, $2)"
    async with running(str(EXAMPLES / "outbox.py"), folder=tmp_path) as process:
        await slot("outbox", active=True)
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction():
                await connection.execute(emit, "order.placed", '{"id": 1}')
                raise ZeroDivisionError
        async with connection.transaction():
            await connection.execute("INSERT INTO orders VALUES (2)")
            await connection.execute(emit, "order.placed", '{"id": 2}')
            await connection.execute(emit, "order.unheard_of", "{}")
            await connection.execute(emit, "order.cancelled", '{"id": 2}')
        placed, cancelled = await process.line("placed"), await process.line("cancelled")
        assert ["2", "2"] == [placed.split()[-1], cancelled.split()[-1]]
        commit_lsn = placed.split()[1].removesuffix("-0")
        assert f"{commit_lsn}-2" == cancelled.split()[1]
        said = await process.interrupt()
    assert [1, 1] == [said.count("placed"), said.count("cancelled")]
    assert 0 == await slot("outbox", "outbox")
    assert [path for path in (tmp_path / "refused").rglob("*") if path.is_file()]


async def test_fan_out(running, connection, slot, tmp_path):
    """Every sink has what it should have, of the same transaction and with the same identities."""
    await connection.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, name text, email text);"
        "CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric, note text);"
        "INSERT INTO customers VALUES (1, 'Ada', 'ada@example.org');" + SHOP
    )
    async with running("fan_out.py", str(tmp_path), MASKS="a long random secret") as process:
        await slot("fan_out", active=True)
        async with connection.transaction():
            await connection.execute("INSERT INTO customers VALUES (2, 'Bob', 'bob@example.org')")
            await connection.execute("INSERT INTO orders VALUES (1, 1, 9.50, 'gift'), (2, 1, 1, 'internal')")
            await connection.execute("DELETE FROM customers WHERE id = 2")
        order = json.loads(await process.line('"table":"orders"'))
        said = await process.interrupt()
    assert {"id": 1, "customer": 1, "total": "9.50", "note": "gift", "customer_name": "Ada"} == order["new"]
    assert "internal" not in said
    archive, deletes = lines(tmp_path / "archive"), lines(tmp_path / "deletes")
    assert ["insert", "insert", "insert", "delete"] == [event["kind"] for event in archive]
    assert [3] == [event["ordinal"] for event in deletes]
    assert 64 == len(archive[0]["new"]["email"])
    assert {**order, "new": None} == {**archive[1], "new": None}
    assert 0 == await slot("fan_out")


async def test_fastapi_cache(running, connection, slots, free_port):
    """A row is cached and removed when it changes, and no slot is left when the service stops."""
    await products(connection)
    port = free_port()
    server = ("-m", "uvicorn", "fastapi_cache:app", "--port", str(port), "--lifespan", "on")
    async with (
        running(*server) as process,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        await process.line("Uvicorn running")

        async def get():
            answer = await client.get("/products/1")
            return answer.json()["price"], answer.headers["x-cache"]

        async with asyncio.timeout(90):
            # The Resync at the start may come within the first request.
            while ("20", "hit") != await get():
                pass
        await connection.execute("UPDATE products SET price = 25")
        async with asyncio.timeout(90):
            while (await get())[0] != "25":
                await asyncio.sleep(0.01)
        assert ("25", "hit") == await get()
        (walsender,) = await slots()
        await connection.fetchval("SELECT pg_terminate_backend($1)", walsender)
        async with asyncio.timeout(90):
            while (await slots()) in ([], [walsender]):
                await asyncio.sleep(0.01)
        await connection.execute("TRUNCATE products")
        async with asyncio.timeout(90):
            while (await client.get("/products/1")).status_code != 404:
                await asyncio.sleep(0.01)
        assert (await client.get("/health")).json()["live"]
        assert "Application shutdown complete" in await process.interrupt(signal.SIGTERM)
    async with asyncio.timeout(90):
        while await slots():
            await asyncio.sleep(0.01)


async def test_workers_share_a_slot(running, connection, slots, free_port, tmp_path):
    """Each worker follows the journal of one process: a change invalidates the row in all workers, also after a restart of that process."""
    await products(connection)
    port, journal = free_port(), str(tmp_path / "journal")
    server = ("-m", "uvicorn", "fastapi_cache:app", "--port", str(port), "--workers", "2")
    async with running(*server, JOURNAL=journal) as process:
        await process.line("Application startup complete")
        await process.line("Application startup complete")

        async def answers():
            """Return the answers of both workers, each over a new connection."""
            found = {}
            async with asyncio.timeout(90):
                while len(found) < 2:
                    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                        answer = await client.get("/products/1")
                        found[answer.headers["x-worker"]] = answer.json()["price"], answer.headers["x-cache"]
            return set(found.values())

        for price in ("25", "30"):
            async with running("cache_journal.py", JOURNAL=journal) as holder:
                async with asyncio.timeout(90):
                    while [None] == await slots() or not await slots():
                        await asyncio.sleep(0.01)
                    while await answers() != {("20" if price == "25" else "25", "hit")}:
                        pass
                await connection.execute(f"UPDATE products SET price = {price}")
                async with asyncio.timeout(90):
                    while await answers() != {(price, "hit")}:
                        await asyncio.sleep(0.01)
                assert 1 == len(await slots())
                await holder.interrupt(signal.SIGTERM)
        await process.interrupt(signal.SIGTERM)
    assert [None] == await slots()
    await connection.fetchval("SELECT pg_drop_replication_slot('cache')")


async def products(connection):
    """Create the table of the cache, with a row."""
    await connection.execute("CREATE TABLE products (id int PRIMARY KEY, name text, price numeric)")
    await connection.execute("INSERT INTO products VALUES (1, 'lamp', 20)")
    await connection.execute("CREATE PUBLICATION products FOR TABLE products")


@pytest.fixture
def slots(connection):
    """The processes that read the slots of the test's database; ``None`` for a slot without a reader."""

    async def slots():
        rows = await connection.fetch(
            "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
        )
        return [row["active_pid"] for row in rows]

    return slots


def test_fastapi_cache_starts_again(database, monkeypatch):
    """One process may start and stop the application any number of times, as a test suite does."""
    execute(
        database, "CREATE TABLE products (id int PRIMARY KEY); CREATE PUBLICATION products FOR TABLE products"
    )
    monkeypatch.setenv("DATABASE_URL", database)
    app = runpy.run_path(str(EXAMPLES / "fastapi_cache.py"))["app"]
    caches = []
    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/health").json()["live"]
            caches.append(app.state.products)
        assert not app.state.products.changed.live
    assert caches[0] is not caches[1]


def execute(dsn, statements):
    """Execute statements in a connection of their own."""

    async def executing():
        connection = await asyncpg.connect(dsn)
        await connection.execute(statements)
        await connection.close()

    asyncio.run(executing())


def lines(folder):
    """All events of a folder of files."""
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
