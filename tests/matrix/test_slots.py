"""Slots are created, altered, used and dropped on every server, by each interface that can."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import pytest

from aiorepl import LSN
from aiorepl.errors import ConfigurationError, SlotError
from aiorepl.pgoutput.options import PluginOptions
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.sql import SqlConnection
from tests.waiting import DEADLINE

pytestmark = pytest.mark.by_day

ROUTES = {"walsender": ReplicationConnection, "sql": SqlConnection}


@pytest.fixture(params=list(ROUTES))
async def connection(request, database):
    """A factory of connections by each interface."""
    opened = await ROUTES[request.param].open(database)
    yield opened
    await opened.close()


@pytest.fixture
async def walsender(database):
    """A replication connection."""
    opened = await ReplicationConnection.open(database)
    yield opened
    await opened.close()


@pytest.fixture
def slot(client, slot_name):
    """A function that returns the server's row of the test's slot, or ``None``."""

    async def said():
        row = await client.fetchrow(
            "SELECT to_jsonb(s)::text AS said FROM pg_replication_slots s WHERE slot_name = $1", slot_name
        )
        return row and json.loads(row["said"])

    return said


async def test_created(slot, connection, slot_name, version):
    """A slot begins at its consistent point, for pgoutput, without two_phase and failover, and outlives its connection."""
    created = await connection.create_slot(slot_name)
    await connection.close()
    said = await slot()

    assert (slot_name, None) == (created.name, created.snapshot_name)
    assert created.consistent_point == LSN.parse(said["confirmed_flush_lsn"])
    assert ("pgoutput", False) == (said["plugin"], said["temporary"])
    assert (False, False) == (said.get("two_phase", False), said.get("failover", False))


async def test_created_twice(connection, slot_name, version):
    """Creating a slot that exists is an error that says so."""
    await connection.create_slot(slot_name)
    with pytest.raises(SlotError, match="exists already"):
        await connection.create_slot(slot_name)


async def test_temporary(slot, connection, slot_name, version):
    """A temporary slot is dropped with its connection."""
    await connection.create_slot(slot_name, temporary=True)
    assert (await slot())["temporary"]

    await connection.close()
    async with asyncio.timeout(DEADLINE):
        while await slot() is not None:
            await asyncio.sleep(0.02)


async def test_two_phase(slot, connection, slot_name, version):
    """A two-phase slot needs PostgreSQL 15."""
    if version >= 15:
        await connection.create_slot(slot_name, two_phase=True)
        assert (await slot())["two_phase"]
    else:
        with pytest.raises(
            ConfigurationError, match=f"two_phase slot needs PostgreSQL 15 or later; .* {version}$"
        ):
            await connection.create_slot(slot_name, two_phase=True)
        assert await slot() is None


async def test_failover(slot, connection, slot_name, version):
    """A failover slot needs PostgreSQL 17."""
    if version >= 17:
        await connection.create_slot(slot_name, failover=True)
        assert (await slot())["failover"]
    else:
        with pytest.raises(
            ConfigurationError, match=f"failover slot needs PostgreSQL 17 or later; .* {version}$"
        ):
            await connection.create_slot(slot_name, failover=True)
        assert await slot() is None


@pytest.mark.parametrize("version", [17, 18])
async def test_failover_of_a_temporary_slot(slot, connection, slot_name, version):
    """A temporary slot with failover is rejected before the server is asked."""
    with pytest.raises(ConfigurationError, match="failover slot cannot be temporary"):
        await connection.create_slot(slot_name, failover=True, temporary=True)
    assert await slot() is None


@pytest.mark.parametrize("version", [17, 18])
async def test_two_phase_and_failover(slot, connection, slot_name, version):
    """PostgreSQL 17 cannot create a slot with both, and the error says what to do; 18 can."""
    if version == 18:
        await connection.create_slot(slot_name, two_phase=True, failover=True)
        assert {"two_phase": True, "failover": True}.items() <= (await slot()).items()
    else:
        with pytest.raises(ConfigurationError, match="two_phase alone and alter it to failover, or use 18"):
            await connection.create_slot(slot_name, two_phase=True, failover=True)
        assert await slot() is None


@pytest.mark.parametrize("version", [17, 18])
async def test_two_phase_and_then_failover(slot, walsender, slot_name):
    """Following that error's advice works."""
    await walsender.create_slot(slot_name, two_phase=True)
    await walsender.alter_slot(slot_name, failover=True)

    assert {"two_phase": True, "failover": True}.items() <= (await slot()).items()


@pytest.mark.parametrize(("option", "first"), [("failover", 17), ("two_phase", 18)])
async def test_altered(slot, walsender, slot_name, option, first, version):
    """An option is set and reset where the server can, and rejected by name where it cannot."""
    await walsender.create_slot(slot_name)
    if version >= first:
        for value in (True, False):
            await walsender.alter_slot(slot_name, **{option: value})
            assert value is (await slot())[option]
    else:
        with pytest.raises(
            ConfigurationError, match=f"{option} needs PostgreSQL {first} or later; .* {version}$"
        ):
            await walsender.alter_slot(slot_name, **{option: True})


async def test_a_snapshot_exported(client, walsender, slot_name, version):
    """Another session that imports the snapshot sees the rows of the slot's creation."""
    await client.execute("INSERT INTO items VALUES (1)")
    created = await walsender.create_slot(slot_name, snapshot="export")
    await client.execute("INSERT INTO items VALUES (2)")

    async with client.transaction(isolation="repeatable_read", readonly=True):
        await client.execute(f"SET TRANSACTION SNAPSHOT '{created.snapshot_name}'")
        assert [(1,)] == [tuple(row) for row in await client.fetch("SELECT id FROM items")]


async def test_a_snapshot_used(client, walsender, slot_name, version):
    """The same connection's transaction sees the rows of the slot's creation."""
    await client.execute("INSERT INTO items VALUES (1)")
    await walsender.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    created = await walsender.create_slot(slot_name, snapshot="use")
    await client.execute("INSERT INTO items VALUES (2)")

    assert [{"id": "1"}] == await walsender.query("SELECT id FROM public.items")
    assert created.snapshot_name is None
    await walsender.query("COMMIT")


@pytest.mark.parametrize("snapshot", ["export", "use"])
async def test_no_snapshot_by_sql(slot, database, slot_name, snapshot, version):
    """No SQL function exports a snapshot, and the error names the interface that does."""
    connection = await SqlConnection.open(database)
    with pytest.raises(ConfigurationError, match="walsender"):
        await connection.create_slot(slot_name, snapshot=snapshot)
    await connection.close()
    assert await slot() is None


async def test_dropped(slot, walsender, slot_name, version):
    """A dropped slot is gone, and dropping it again is an error that says so."""
    await walsender.create_slot(slot_name)
    await walsender.drop_slot(slot_name)
    assert await slot() is None

    with pytest.raises(SlotError, match="does not exist"):
        await walsender.drop_slot(slot_name)


@contextlib.asynccontextmanager
async def in_use(database, slot_name, version):
    """A slot that another connection reads."""
    reader = await ReplicationConnection.open(database)
    await reader.create_slot(slot_name)
    await reader.start_replication(slot_name, LSN(0), PluginOptions(("p",)).negotiate(version))
    try:
        yield
    finally:
        await reader.stop()
        await reader.close()


@pytest.mark.parametrize("attempt", ["drop", "read"])
async def test_a_slot_in_use(slot, walsender, database, slot_name, attempt, version):
    """A slot in use can be neither dropped nor read, and the error says that it is in use."""
    options = PluginOptions(("p",)).negotiate(version)
    async with in_use(database, slot_name, version):
        with pytest.raises(SlotError, match="another consumer is connected") as caught:
            if attempt == "drop":
                await walsender.drop_slot(slot_name)
            else:
                await walsender.start_replication(slot_name, LSN(0), options)
        assert caught.value.busy
        assert (await slot())["active"]


async def test_dropping_waits(slot, client, walsender, database, slot_name, version):
    """With ``wait`` a slot is dropped as soon as it is free."""
    async with asyncio.timeout(DEADLINE):
        async with in_use(database, slot_name, version):
            dropping = asyncio.create_task(walsender.drop_slot(slot_name, wait=True))
            await somebody_waits(client)
            assert not dropping.done()
            assert await slot() is not None
        await dropping
    assert await slot() is None


@pytest.mark.parametrize("version", [17, 18])
async def test_altering_waits(slot, client, walsender, database, slot_name, version):
    """A slot is altered as soon as it is free."""
    async with asyncio.timeout(DEADLINE):
        async with in_use(database, slot_name, version):
            altering = asyncio.create_task(walsender.alter_slot(slot_name, failover=True))
            await somebody_waits(client)
            assert not altering.done()
            assert not (await slot())["failover"]
        await altering
    assert (await slot())["failover"]


async def somebody_waits(client):
    """Return once a session of this database waits for a slot."""
    waits = (
        "SELECT wait_event = 'ReplicationSlotDrop' FROM pg_stat_activity WHERE datname = current_database()"
    )
    while (True,) not in {tuple(row) for row in await client.fetch(waits)}:
        await asyncio.sleep(0.02)


async def test_listed(fork_server, walsender, database, slot_name, version):
    """``aiorepl slots`` shows the columns that this server has for a slot."""
    await walsender.create_slot(slot_name, two_phase=version >= 15)
    program = Path(sys.executable).with_name("aiorepl")
    process = await fork_server.start(program, "slots", "--dsn", database, stdout=asyncio.subprocess.PIPE)
    listed, _ = await process.communicate()
    assert 0 == process.returncode
    head, *rows = listed.decode().splitlines()
    (row,) = [row for row in rows if row.startswith(slot_name + " ")]

    assert ["slot", "database", "plugin", "active", "temporary", "confirmed"] == head.split()[:6]
    at = head.index("two_phase")
    assert {13: "", 14: "false"}.get(version, "true") == row[at : at + len("two_phase")].strip()
