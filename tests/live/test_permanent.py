"""Errors that a reconnect cannot solve end the pipeline at once, and say what to do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from aiorepl import BatchPolicy, ConfigurationError, ConnectionFailed, Pipeline, RetryPolicy, SlotError
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.proxy import CuttingProxy
from tests.waiting import until

pytestmark = pytest.mark.by_day

QUICK = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)
SOON = BatchPolicy(flush_seconds=0.1)


@pytest.fixture
async def role(published):
    """A role for the test alone, with the required privileges."""
    name = f"r_{published.slot[-20:]}"
    await published.execute(
        f"CREATE ROLE {name} LOGIN REPLICATION PASSWORD 'right'", f"GRANT SELECT ON items TO {name}"
    )
    yield name
    await published.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@pytest.mark.parametrize(
    ("statement", "error", "expected"),
    [
        ("ALTER ROLE {role} PASSWORD 'wrong'", ConnectionFailed, "check the password in the DSN"),
        ("ALTER ROLE {role} NOREPLICATION", ConnectionFailed, "ALTER ROLE … REPLICATION on the source"),
        ("ALTER ROLE {role} NOLOGIN", ConnectionFailed, "check user and pg_hba.conf"),
        ("DROP PUBLICATION p", ConfigurationError, "no publication 'p' in this database: CREATE PUBLICATION"),
        ("SELECT pg_drop_replication_slot('{slot}')", SlotError, "does not exist: create it"),
    ],
    ids=["password", "permission", "login", "publication", "slot"],
)
async def test_changes_found_by_a_reconnect(published, proxy, role, statement, error, expected):
    """The first attempt to reconnect finds the change; everything received before is delivered."""
    await published.create_slot()
    parts = urlsplit(proxy.dsn_for(published.dsn))
    dsn = parts._replace(netloc=f"{role}:right@{parts.netloc.rpartition('@')[2]}").geturl()
    sink = MemorySink()
    work = asyncio.create_task(Pipeline(published.source(dsn), [sink], reconnect=QUICK, batches=SOON).run())
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1, durable=True)
    proxy.refuse()
    proxy.cut()
    await until(published.walsender, lambda pid: pid is None)
    await published.execute(statement.format(role=role, slot=published.slot))
    proxy.accept()
    with pytest.raises(error, match=expected) as caught:
        await work
    assert "right" not in str(caught.value)
    assert [1] == [change.key["id"] for change in sink.changes]


MISSING = r"publication .*p.* (does|did) not exist.*CREATE PUBLICATION.*--resnapshot.*--accept-gap"


@pytest.mark.parametrize("server", [15, 17, 18], indirect=True)
async def test_a_publication_that_is_dropped_under_the_stream(published):
    """The pipeline stops, whether the server raises an error (to 17) or skips changes with a warning (18)."""
    await published.create_slot()
    sink = MemorySink()
    work = asyncio.create_task(Pipeline(published.source(), [sink], reconnect=QUICK, batches=SOON).run())
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1, durable=True)
    await published.execute("DROP PUBLICATION p", "INSERT INTO items VALUES (2)")
    with pytest.raises(ConfigurationError, match=MISSING):
        async with asyncio.timeout(60):
            await work
    assert [1] == [change.key["id"] for change in sink.changes]


@pytest.mark.parametrize("server", [16, 18], indirect=True)
@pytest.mark.parametrize("interface", ["walsender", "sql"])
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
@pytest.mark.parametrize("publications", [("p",), ("others", "p")], ids=["alone", "one of two"])
async def test_a_publication_that_is_made_anew(published, interface, running, publications):
    """Changes between drop and recreation are missing, so no start delivers or confirms anything after them."""
    await published.execute(
        "DROP PUBLICATION p",
        "CREATE TABLE others (id int PRIMARY KEY)",
        "CREATE PUBLICATION others FOR TABLE others",
        "CREATE PUBLICATION p FOR TABLE items",
    )
    source = replace(published.source(interface=interface), publication=publications)
    sink = MemorySink(keeps_position=True)
    pipeline = Pipeline(source, [sink], reconnect=QUICK, batches=SOON)
    work = asyncio.create_task(pipeline.run())
    await pipeline.started()
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1, durable=True)
    if not running:
        pipeline.stop()
        await work
    await published.execute("DROP PUBLICATION p", "INSERT INTO items VALUES (2)")
    passed_over = await published.wal()
    await published.execute(
        "CREATE PUBLICATION p FOR TABLE items",
        "INSERT INTO items VALUES (3)",
        "INSERT INTO others VALUES (4)",
    )
    if running:
        with pytest.raises(ConfigurationError, match=MISSING):
            await work
    for _ in range(2):
        await until(published.walsender, lambda pid: pid is None)
        with pytest.raises(ConfigurationError, match=MISSING):
            await Pipeline(source, [sink], until="now").run()
    assert [1] == [change.key["id"] for change in sink.changes]
    assert await published.confirmed() < passed_over


async def test_a_slot_that_is_invalidated_under_the_stream(limited):
    """The server ends the walsender; the error says why, and names the ways to continue."""
    await limited.create_slot()
    sink = MemorySink()
    parts = urlsplit(limited.dsn)
    async with CuttingProxy(parts.hostname, parts.port) as proxy:
        pipeline = Pipeline(limited.source(proxy.dsn_for(limited.dsn)), [sink], reconnect=QUICK)
        work = asyncio.create_task(pipeline.run())
        await limited.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1)
        # The walsender cannot send, so the slot falls behind.
        proxy.stall()
        await limited.lose_slot()
        proxy.resume()
        with pytest.raises(SlotError, match=r"is lost .*--resnapshot"):
            await work
