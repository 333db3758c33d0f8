"""Poolers: values are exact through PgBouncer, and a pool that does not keep a session is refused by name."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from urllib.parse import urlsplit

import asyncpg
import pytest
import trustme

from aiorepl import ConnectionFailed, Pipeline, SnapshotOptions
from aiorepl.source.diagnose.check import check
from aiorepl.testing.faults import MemorySink
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.opening import connect_sql
from tests.waiting import until

from .pgbouncer import IGNORED, pgbouncer

pytestmark = pytest.mark.server

# Every one changes the text of a value.
MISLEADING = {
    "extra_float_digits": "-5",
    "bytea_output": "escape",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Tokyo",
    "search_path": "mine",
}
TABLE = """
CREATE SCHEMA mine;
CREATE TABLE mine.v (id int PRIMARY KEY, f float8, b bytea, d date, i interval, t timestamptz, r regclass, s float8[]);
"""
ROW = (
    "INSERT INTO mine.v VALUES ({}, 0.1::float8 + 0.2::float8, '\\x00ff41', '2026-11-23', '1 mon -2 days 03:04:05', "
    "'2026-11-23 01:02:03+00', 'mine.v', ARRAY[0.1::float8 + 0.2::float8])"
)
EXACT = {
    "f": "0.30000000000000004",
    "b": "\\x00ff41",
    "d": "2026-11-23",
    "i": "1 mon -2 days +03:04:05",
    "t": "2026-11-23 01:02:03+00",
    "r": "mine.v",
    "s": "{0.30000000000000004}",
}


async def mislead(dsn):
    """Give the database settings under which text is not exact."""
    connection = await asyncpg.connect(dsn)
    for name, value in MISLEADING.items():
        await connection.execute(f"ALTER DATABASE {urlsplit(dsn).path[1:]} SET {name} = '{value}'")
    await connection.close()


def values(lines, number):
    """The values of one row, as text, without its key."""
    (new,) = [event["new"] for event in map(json.loads, lines) if event["new"]["id"] == str(number)]
    return {name: text for name, text in new.items() if name != "id"}


@pytest.mark.parametrize("ignored", ["", IGNORED], ids=["strict", "ignoring"])
@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_values_are_exact(published, ignored, interface):
    """Through a pool in session mode, no setting of the database shows in a value, on either interface."""
    await published.execute(TABLE)
    await mislead(published.dsn)
    await published.create_slot()
    await published.execute(ROW.format(1))
    with pgbouncer(published.dsn, pool_mode="session", ignore_startup_parameters=ignored) as dsn:
        lines = await published.lines(form={"values": "text"}, dsn=dsn, interface=interface)

    assert EXACT == values(lines, 1)


async def test_the_initial_snapshot(published, tmp_path):
    """Rows of an initial snapshot, and those of the stream after it, are the same through a pool."""
    await published.execute(TABLE, ROW.format(1))
    await mislead(published.dsn)
    sink = MemorySink()
    with pgbouncer(published.dsn, pool_mode="session", ignore_startup_parameters=IGNORED) as dsn:
        options = SnapshotOptions(state=str(tmp_path))
        async with asyncio.timeout(90), Pipeline(published.source(dsn), [sink], snapshot=options):
            await sink.wait_for_changes(1)
            await published.execute(ROW.format(2))
            await sink.wait_for_changes(2)

    snapshot, stream = (dict(change.new) for change in sink.changes)
    assert {**snapshot, "id": 2} == stream
    assert 0.1 + 0.2 == stream["f"]


@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_a_pool_in_transaction_mode(published, interface):
    """It is refused by name before anything is read, and its other clients keep their settings."""
    await published.create_slot()
    with pgbouncer(published.dsn, pool_mode="transaction", ignore_startup_parameters=IGNORED) as dsn:
        other = await asyncpg.connect(dsn)
        before = await other.fetchval("SHOW search_path")
        with pytest.raises(
            ConnectionFailed, match=r"pooler in transaction mode.*pool_mode = session"
        ) as caught:
            await Pipeline(published.source(dsn, interface=interface), [MemorySink()]).run()
        after = [await other.fetchval(f"SHOW {name}") for name in ("search_path", "extra_float_digits")]
        await other.close()

    assert caught.value.permanent
    assert [before, "1"] == after


async def test_a_replication_connection_in_transaction_mode(published):
    """The pooler gives it a server process of its own, so its settings are kept."""
    await mislead(published.dsn)
    with pgbouncer(published.dsn, pool_mode="transaction") as dsn:
        connection = await ReplicationConnection.open(dsn)
        found = [(await connection.query(f"SHOW {name}"))[0].popitem()[1] for name in MISLEADING]
        await connection.close()

    assert ["3", "hex", "ISO, MDY", "postgres", "UTC", ""] == found
    assert connection.pooled


async def test_settings_of_an_earlier_client(database):
    """A session that a pooler does not reset has the locale of another client for money; ours has the database's."""
    with pgbouncer(database, pool_mode="session", server_reset_query="") as dsn:
        earlier = await asyncpg.connect(dsn)
        await earlier.execute("SET lc_monetary = 'POSIX'")
        pid = await earlier.fetchval("SELECT pg_backend_pid()")
        await earlier.close()
        ours = await connect_sql(dsn)
        found = await ours.fetchrow(
            "SELECT pg_backend_pid() AS pid, current_setting('lc_monetary') AS locale"
        )
        await ours.close()

    assert {"pid": pid, "locale": "C"} == dict(found)


async def test_a_creation_that_is_cancelled(published):
    """A slot's creation that waits for a transaction is cancelled on the server, whose process the pooler does not name."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_type = 'walsender'"
    )
    with pgbouncer(published.dsn, pool_mode="session") as dsn:
        writer = await asyncpg.connect(published.dsn)
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute("INSERT INTO items VALUES (1)")
        connection = await ReplicationConnection.open(dsn)
        creating = asyncio.create_task(connection.create_slot(published.slot))
        await until(lambda: writer.fetchval(waiting), lambda found: found == 1)
        creating.cancel()
        await asyncio.wait({creating})
        left = await writer.fetchval(waiting)
        connection.abort()
    await transaction.rollback()
    await writer.close()

    assert 0 == left
    assert 0 == await published.connection.fetchval(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", published.slot
    )


async def test_tls(published, tmp_path):
    """TLS is verified up to the pooler, and ``check`` says that it ends there."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for path in (tmp_path, tmp_path / "server.pem"):
        shutil.chown(path, "nobody") if os.geteuid() == 0 else None
    files = {
        "client_tls_key_file": str(tmp_path / "server.pem"),
        "client_tls_cert_file": str(tmp_path / "server.pem"),
    }
    with pgbouncer(published.dsn, client_tls_sslmode="require", pool_mode="session", **files) as dsn:
        await published.create_slot()
        await published.execute("INSERT INTO items VALUES (1)")
        for mode in ("require", f"verify-full&sslrootcert={tmp_path / 'ca.pem'}"):
            source = published.source(f"{dsn}?sslmode={mode}")
            findings = {each.about: each async for each in check(source)}
            assert "ends at the pooler" in findings["pooler"].text
        (event,) = await published.deliver(dsn=f"{dsn}?sslmode={mode}")
        with pytest.raises(ConnectionFailed):
            await ReplicationConnection.open(f"{dsn}?sslmode=disable")

    assert {"id": 1, "note": None} == event["new"]
