"""DSNs with several hosts, for every kind of connection."""

from __future__ import annotations

import asyncio
import os
import socket
from urllib.parse import urlsplit

import pytest

import aiorepl
from aiorepl import ConfigurationError, ConnectionFailed, Pipeline
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.proxy import CuttingProxy
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.opening import connect_sql
from aiorepl.wire.sql import SqlConnection


@pytest.fixture
def refusing():
    """A port on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def with_hosts(dsn, *ports, **options):
    """The DSN with a host for each port before its own."""
    parts = urlsplit(dsn)
    user, _, place = parts.netloc.rpartition("@")
    hosts = ",".join([*(f"127.0.0.1:{port}" for port in ports), place])
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return parts._replace(netloc=f"{user}@{hosts}", query=query).geturl()


@pytest.mark.parametrize("server", [13, 14, 18], indirect=True)
@pytest.mark.parametrize("open_one", [connect_sql, ReplicationConnection.open, SqlConnection.open])
async def test_the_next_host_is_tried(database, refusing, open_one):
    """A host that refuses connections is skipped, also with target_session_attrs."""
    for options in ({}, {"target_session_attrs": "read-write"}, {"target_session_attrs": "primary"}):
        connection = await open_one(with_hosts(database, refusing, **options))
        connection.abort() if hasattr(connection, "abort") else connection.terminate()


@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_a_host_that_swallows_packets_is_passed_over(published, interface):
    """Each host has its own connect_timeout."""
    parts = urlsplit(published.dsn)
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    sink = MemorySink()
    async with CuttingProxy(parts.hostname, parts.port) as dead:
        dead.stall()
        dsn = with_hosts(published.dsn, dead.port, connect_timeout=4, target_session_attrs="read-write")
        await Pipeline(published.source(dsn, interface=interface), [sink], until="now").run()
    assert [1] == [change.key["id"] for change in sink.changes]


async def test_connect_takes_them(published, refusing):
    """``aiorepl.connect`` supports several hosts."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    dsn = with_hosts(published.dsn, refusing)
    async with aiorepl.connect(dsn, slot=published.slot, publication="p", until="now") as stream:
        assert [1] == [change.key["id"] async for transaction in stream async for change in transaction]


@pytest.mark.parametrize("server", [13, 18], indirect=True)
@pytest.mark.parametrize("open_one", [connect_sql, ReplicationConnection.open, SqlConnection.open])
async def test_no_host_is_what_is_asked_for(database, open_one):
    """A list without a primary is a temporary error, because a standby may be promoted."""
    with pytest.raises(ConnectionFailed, match="target_session_attrs") as caught:
        await open_one(with_hosts(database, target_session_attrs="standby"))
    assert not caught.value.permanent


async def test_hosts_of_the_environment(database, refusing, monkeypatch):
    """PGHOST and PGPORT may list several hosts."""
    parts = urlsplit(database)
    monkeypatch.setenv("PGHOST", f"127.0.0.1,{parts.hostname}")
    monkeypatch.setenv("PGPORT", f"{refusing},{parts.port}")
    monkeypatch.setenv("PGUSER", parts.username)
    monkeypatch.setenv("PGPASSWORD", parts.password)
    monkeypatch.setenv("PGDATABASE", parts.path[1:])
    connection = await connect_sql(None)
    assert parts.path[1:] == await connection.fetchval("SELECT current_database()")
    await connection.close()


async def test_a_list_that_does_not_fit(database):
    """Three ports for two hosts are an error that does not quote the DSN."""
    with pytest.raises(ConfigurationError, match="is invalid") as caught:
        await connect_sql("postgresql:///x?host=a,b&port=1,2,3&password=hidden")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("server", [13, 18], indirect=True)
@pytest.mark.parametrize("open_one", [connect_sql, ReplicationConnection.open, SqlConnection.open])
async def test_the_server_sends_keepalives(database, open_one):
    """The server detects a dead client by TCP keepalives. Otherwise its process would keep locks and snapshots for hours."""
    connection = await open_one(database)
    query = "SELECT setting FROM pg_settings WHERE name LIKE 'tcp_keepalives%' ORDER BY name"
    rows = await (connection.fetch(query) if open_one is connect_sql else connection.query(query))
    assert ["3", "30", "10"] == [row["setting"] for row in rows]
    connection.abort() if hasattr(connection, "abort") else connection.terminate()


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="this system has no such option")
@pytest.mark.parametrize("open_one", [connect_sql, ReplicationConnection.open])
@pytest.mark.both_loops
async def test_tcp_keepalive(database, open_one):
    """Every connection has TCP keepalive, so the kernel detects a dead peer."""
    connection = await open_one(database)
    transport = connection.socket_transport if open_one is connect_sql else connection._protocol._transport
    number = transport.get_extra_info("socket").fileno()
    with socket.socket(fileno=os.dup(number)) as copy:
        assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert 30 == copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert 60_000 == copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    connection.abort() if open_one is not connect_sql else connection.terminate()
    await asyncio.sleep(0)
