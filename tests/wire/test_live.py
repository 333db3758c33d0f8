"""A real server's rejections raise the right class of error, with one line that says what to do."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

import pytest

from aiorepl import ConfigurationError, ConnectionFailed, Pipeline, SlotError, Source
from aiorepl.errors import AioreplError, ConnectionLost
from aiorepl.lsn import LSN
from aiorepl.pgoutput.options import PluginOptions
from aiorepl.testing import MemorySink
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.opening import connect_sql
from aiorepl.wire.sql import SqlConnection
from tests.servers import execute


async def refused(dsn: str, *, slot: str = "missing", publication: str = "everything") -> AioreplError:
    """Return the error of a pipeline that cannot start."""
    with pytest.raises(AioreplError) as caught:
        await Pipeline(Source(dsn, slot=slot, publication=publication), [MemorySink()], reconnect=None).run()
    assert 1 == len(str(caught.value).splitlines())
    password = urlsplit(dsn).password
    assert password is None or password not in str(caught.value)
    return caught.value


def as_user(dsn: str, user: str, password: str) -> str:
    """Return the DSN for another user."""
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(user)}:{quote(password)}@{host}").geturl()


@asynccontextmanager
async def walsender(dsn: str) -> AsyncIterator[ReplicationConnection]:
    """Open a replication connection."""
    connection = await ReplicationConnection.open(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def dsn(database) -> str:
    """A database with a publication."""
    await execute(database, "CREATE PUBLICATION everything FOR ALL TABLES")
    return database


@pytest.fixture
async def role(database, slot_name) -> AsyncIterator[str]:
    """A role that may log in with the password ``right``, and nothing else."""
    await execute(database, f"CREATE ROLE {slot_name} LOGIN PASSWORD 'right'")
    yield slot_name
    await execute(database, f"DROP ROLE {slot_name}")


async def test_wrong_password(database, role):
    """The error names the password, and is not retried."""
    await execute(database, f"ALTER ROLE {role} REPLICATION")
    error = await refused(as_user(database, role, "wr0ng-s3cr3t"))
    if "AIOREPL_TEST_DSN" in os.environ and not isinstance(error, ConnectionFailed):
        pytest.skip("the server of AIOREPL_TEST_DSN asks for no password")

    assert (ConnectionFailed, True) == (type(error), error.permanent)
    assert "check the password in the DSN" in str(error)


async def test_no_such_database(server):
    """The error names the database."""
    error = await refused(server.dsn_for("no_such_database"))

    assert (ConnectionFailed, True) == (type(error), error.permanent)
    assert 'database "no_such_database" does not exist' in str(error)
    assert "check the database name" in str(error)


async def test_no_replication_privilege(database, role):
    """The error has the statement that grants the missing attribute."""
    error = await refused(as_user(database, role, "right"))

    assert (ConnectionFailed, True) == (type(error), error.permanent)
    assert "ALTER ROLE … REPLICATION" in str(error)


async def test_publication_missing(database):
    """A missing publication is an error before the stream begins, not at its first change."""
    error = await refused(database, publication='no "such" one')

    assert ConfigurationError is type(error)
    assert "CREATE PUBLICATION" in str(error)
    assert 'no "such" one' in str(error)


async def test_slot_missing(dsn):
    """The error names the missing slot and the way to create it."""
    error = await refused(dsn)

    assert (SlotError, False) == (type(error), error.busy)
    assert (
        "replication slot 'missing' does not exist: create it, by create_slot = true in a pipeline file, or --create-slot"
        == str(error)
    )


async def test_a_physical_slot(dsn, slot_name):
    """The error says that the slot is physical."""
    await execute(dsn, f"SELECT pg_create_physical_replication_slot('{slot_name}')")
    error = await refused(dsn, slot=slot_name)
    await execute(dsn, f"SELECT pg_drop_replication_slot('{slot_name}')")

    assert (SlotError, False) == (type(error), error.busy)
    assert f"slot {slot_name!r} is a physical slot: use another name" == str(error)


async def test_a_slot_of_another_database(server, dsn, slot_name):
    """The error names both databases."""
    await execute(server.dsn, f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput')")
    error = await refused(dsn, slot=slot_name)
    await execute(server.dsn, f"SELECT pg_drop_replication_slot('{slot_name}')")

    assert SlotError is type(error)
    theirs, ours = (urlsplit(each).path[1:] for each in (server.dsn, dsn))
    assert f"slot {slot_name!r} belongs to database {theirs!r}, the DSN names {ours!r}" == str(error)


async def test_slot_in_use(dsn, slot_name):
    """The error names the process that uses the slot, and is busy, so that a start can wait."""
    async with walsender(dsn) as connection:
        await connection.create_slot(slot_name)
        await connection.start_replication(slot_name, LSN(0), PluginOptions(("everything",)).negotiate(18))
        error = await refused(dsn, slot=slot_name)
        await connection.stop()

    assert (SlotError, True) == (type(error), error.busy)
    assert "is in use by process" in str(error)


async def test_wal_level(servers):
    """The error names wal_level and how to change it."""
    with servers.new(18, wal_level="replica") as server:
        error = await refused(server.dsn)
        async with walsender(server.dsn) as connection:
            with pytest.raises(ConfigurationError, match="set wal_level = logical"):
                await connection.create_slot("s")

    assert ConfigurationError is type(error)
    assert "the server's wal_level is replica: set wal_level = logical and restart it" == str(error)


async def test_what_the_server_itself_refuses(dsn, slot_name):
    """Errors of START_REPLICATION without a check before it are as clear, and leave the connection usable."""
    name, physical = slot_name, f"p{slot_name}"[:63]
    options = PluginOptions(("everything",)).negotiate(10)
    async with walsender(dsn) as connection, walsender(dsn) as other:
        await connection.create_slot(name)
        await connection.query(f"SELECT pg_create_physical_replication_slot('{physical}')")
        await other.start_replication(name, LSN(0), options)
        for slot, busy, expected in (
            ("missing", False, "does not exist: create it"),
            (physical, False, "cannot be used"),
            (name, True, "another consumer is connected"),
        ):
            with pytest.raises(SlotError, match=expected) as caught:
                await connection.start_replication(slot, LSN(0), options)
            assert busy == caught.value.busy
        with pytest.raises(SlotError, match="exists already"):
            await connection.create_slot(name)
        with pytest.raises(SlotError, match="does not exist"):
            await connection.drop_slot("missing")
        with pytest.raises(SlotError, match="another consumer"):
            await connection.drop_slot(name)
        await other.stop()
        await connection.drop_slot(name, wait=True)
        await connection.drop_slot(physical)


async def test_names_that_need_quotes(database, slot_name):
    """A publication with any name is found, checked and streamed from."""
    names = ("Plain", "a,b", 'say "hi"', "it's", "Größe 🐘")
    quoted = (name.replace('"', '""') for name in names)
    await execute(database, *(f'CREATE PUBLICATION "{name}" FOR ALL TABLES' for name in quoted))
    await execute(database, "CREATE TABLE t (i int PRIMARY KEY)")
    async with walsender(database) as connection:
        created = await connection.create_slot(slot_name, temporary=True)
        await execute(database, "INSERT INTO t VALUES (1)")
        await connection.start_replication(
            created.name, created.consistent_point, PluginOptions(names).negotiate(connection.server_version)
        )
        received = b""
        while b"C" not in received:
            for item in await connection.receive():
                if isinstance(item, list):
                    received += b"".join(frame.payload[:1] for frame in item)
        await connection.stop()

    assert b"BRIC" == received


async def test_timeouts_of_the_server(dsn):
    """Those for idle clients and for transactions do not hold for any connection, because they would end a stream or a snapshot."""
    names = ["idle_session_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"]
    database = urlsplit(dsn).path[1:]
    await execute(dsn, *(f"ALTER DATABASE {database} SET {name} = '1h'" for name in names))
    reader = await connect_sql(dsn)
    try:
        async with walsender(dsn) as connection:
            for name in names:
                assert "0" == await reader.fetchval(f"SHOW {name}")
                assert [{name: "0"}] == await connection.query(f"SHOW {name}")
    finally:
        await reader.close()


async def test_a_polled_connection_that_closes_at_once(database):
    """A connection of the SQL interface that is lost right after it was opened is told as lost by the next query."""
    connection = await SqlConnection.open(database)
    connection._connection.terminate()

    connection.on_notice(lambda notice: None)
    with pytest.raises(ConnectionLost):
        await connection.query("SELECT 1")


async def test_urls_of_sqlalchemy(database):
    """The driver that SQLAlchemy's URLs name is ignored."""
    connection = await connect_sql(database.replace("postgresql://", "postgresql+asyncpg://"))
    await connection.close()


async def test_no_dsn(monkeypatch):
    """Without a DSN, the error says that none was given, and how to give one."""
    for name in ("PGHOST", "PGSERVICE", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPORT", "1")

    with pytest.raises(ConnectionFailed, match=r"no DSN was given: pass one, by --dsn or AIOREPL_DSN"):
        await connect_sql(None)
