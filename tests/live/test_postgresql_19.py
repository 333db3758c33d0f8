"""What is new in PostgreSQL 19: the effective wal_level, types, publications of all sequences and EXCEPT, statistics of slots."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from aiorepl import ConfigurationError, Pipeline, SnapshotOptions, Source
from aiorepl.formats.native import NativeFormat
from aiorepl.monitoring import PrometheusCollector, Watch
from aiorepl.source.diagnose.check import check
from aiorepl.testing import EmbeddedServer
from aiorepl.testing.faults import MemorySink
from aiorepl.wire.connection import ReplicationConnection

pytestmark = pytest.mark.server


@pytest.fixture
def new_server(servers):
    """Starts a server of its own."""
    return lambda **settings: servers.new(19, **settings)


async def findings(source):
    """The texts of the findings, by what they are about."""
    found = {}
    async for each in check(source):
        found.setdefault(each.about, []).append(each.text)
    return found


async def events(source, **form):
    """The events up to now."""
    sink = MemorySink()
    await Pipeline(source, [sink], until="now").run()
    return [json.loads(line) for batch in sink.batches for line in NativeFormat(**form).events(batch.slices)]


@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_a_server_that_raises_its_wal_level(new_server, interface):
    """With ``wal_level = replica`` the first slot makes the level logical; ``check`` shows it before and afterwards."""
    with new_server(wal_level="replica") as server:
        connection = await asyncpg.connect(server.dsn)
        await connection.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
        source = Source(server.dsn, slot="s", publication="p", create_slot=True, interface=interface)
        before = (await findings(source))["server"]
        assert [] == await events(source)
        await connection.execute("INSERT INTO t VALUES (1)")
        (event,) = await events(source)
        after = (await findings(source))["server"]
        await connection.close()

    assert {"id": 1} == event["new"]
    assert ["PostgreSQL 19, wal_level replica (logical with the first slot)"] == before
    assert ["PostgreSQL 19, wal_level replica (logical now)"] == after


async def test_a_server_that_cannot_decode(new_server):
    """``wal_level = minimal`` is refused, before a slot is created and by the creation itself."""
    with new_server(wal_level="minimal", max_wal_senders="0") as server:
        source = Source(server.dsn, slot="s", publication="p", create_slot=True, interface="sql")
        with pytest.raises(ConfigurationError, match="wal_level is minimal: set wal_level = logical"):
            await Pipeline(source, [MemorySink()]).run()
        connection = await source.open()
        with pytest.raises(ConfigurationError, match="set wal_level = logical on the server"):
            await connection.create_slot("s")
        await connection.close()


@pytest.mark.parametrize("interface", ["walsender", "sql"])
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
async def test_types(servers, binary, interface):
    """oid8 has 64 bits; regdatabase is a name in text and a number in binary."""
    server = servers(19)
    connection = await asyncpg.connect(server.dsn)
    name = f"types_{interface}_{binary}".lower()
    try:
        await connection.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, o oid8, os oid8[], d regdatabase)"
        )
        await connection.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}")
        source = Source(
            server.dsn, slot=name, publication=name, create_slot=True, binary=binary, interface=interface
        )
        assert [] == await events(source)
        await connection.execute(
            f"INSERT INTO {name} VALUES (1, '18446744073709551615', '{{0,NULL}}', 'postgres')"
        )
        sink = MemorySink()
        await Pipeline(source, [sink], until="now").run()
        oid = await connection.fetchval("SELECT 'postgres'::regdatabase::oid::int8")
    finally:
        await connection.execute(f"DROP TABLE IF EXISTS {name}; DROP PUBLICATION IF EXISTS {name}")
        await connection.execute(f"SELECT pg_drop_replication_slot('{name}')")
        await connection.close()
    (change,) = sink.changes
    database = oid if binary else "postgres"
    assert {"id": 1, "o": 2**64 - 1, "os": [0, None], "d": database} == dict(change.new)


async def test_publications(new_server, tmp_path):
    """What EXCEPT leaves out is in no snapshot and no stream, and ``check`` names it, and sequences."""
    with new_server() as server:
        connection = await asyncpg.connect(server.dsn)
        await connection.execute(
            "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE secret (id int PRIMARY KEY)"
        )
        await connection.execute(
            "INSERT INTO t VALUES (1); INSERT INTO secret VALUES (1); CREATE SEQUENCE numbers"
        )
        await connection.execute("CREATE PUBLICATION p FOR ALL TABLES EXCEPT (TABLE secret)")
        await connection.execute("CREATE PUBLICATION q FOR ALL SEQUENCES")
        source = Source(server.dsn, slot="s", publication=("p", "q"), create_slot=True)
        found = (await findings(source))["publication"]
        alone = (await findings(Source(server.dsn, slot="s", publication="q")))["publication"]
        sink = MemorySink()
        options = SnapshotOptions(state=str(tmp_path))
        async with asyncio.timeout(90), Pipeline(source, [sink], snapshot=options):
            await sink.wait_for_changes(1)
            await connection.execute("INSERT INTO secret VALUES (2); INSERT INTO t VALUES (2)")
            await connection.execute("SELECT nextval('numbers')")
            await sink.wait_for_changes(2)
        await connection.close()

    assert [("t", 1), ("t", 2)] == [(change.table, change.new["id"]) for change in sink.changes]
    assert [
        "p, q: 1 table",
        "p leaves out public.secret",
        "q: sequences are not sent; set them on the target when you switch to it",
    ] == found
    assert "q: no tables, so nothing is sent" == alone[0]


async def test_statistics_of_the_slot(new_server):
    """``slots`` and the metrics count how often decoding needed more memory than the server has for it."""
    with new_server(logical_decoding_work_mem="64kB") as server:
        connection = await asyncpg.connect(server.dsn)
        await connection.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
        sink = MemorySink()
        pipeline = Pipeline(Source(server.dsn, slot="s", publication="p", create_slot=True), [sink])
        registry = CollectorRegistry()
        async with asyncio.timeout(90), pipeline, Watch(pipeline, seconds=0.05) as watch:
            registry.register(PrometheusCollector(pipeline, watch=watch))
            await connection.execute("INSERT INTO t SELECT generate_series(1, 5000)")
            await sink.wait_for_changes(5000)
            while not registry.get_sample_value("aiorepl_slot_memory_exceeded_total", {"pipeline": "s"}):
                await asyncio.sleep(0.02)
        command = [sys.executable, "-m", "aiorepl", "slots", "--dsn", server.dsn]
        listed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        await connection.close()

    header, row = listed.stdout.splitlines()
    assert header.split("  ")[-1] == "memory exceeded"
    assert "not synchronized" in header
    assert int(row.split()[-1]) >= 1


async def test_a_slot_that_is_not_synchronized(new_server):
    """The metrics have the reason why a standby does not synchronize a failover slot."""
    with new_server() as primary:
        connection = await asyncpg.connect(primary.dsn)
        await connection.execute("CREATE PUBLICATION p")
        replication = await ReplicationConnection.open(primary.dsn)
        await replication.create_slot("s", failover=True)
        await replication.close()
        # The standby begins after WAL that the slot still needs.
        await connection.execute("CREATE TABLE t (id int); SELECT pg_switch_wal(); CHECKPOINT")
        await connection.execute("SELECT pg_create_physical_replication_slot('standby', true)")
        settings = {
            "hot_standby_feedback": "on",
            "primary_slot_name": "standby",
            "sync_replication_slots": "on",
        }
        with EmbeddedServer(standby_of=primary, settings=settings) as standby:
            pipeline = Pipeline(Source(standby.dsn, slot="s", publication="p"), [MemorySink()])
            registry = CollectorRegistry()
            async with asyncio.timeout(90), Watch(pipeline, seconds=0.05) as watch:
                registry.register(PrometheusCollector(pipeline, watch=watch))
                while watch.slot is None or watch.slot.not_synchronized is None:
                    await asyncio.sleep(0.02)
                labels = {"pipeline": "s", "reason": watch.slot.not_synchronized}
                assert 1.0 == registry.get_sample_value("aiorepl_slot_not_synchronized", labels)
        await connection.close()

    assert "wal_or_rows_removed" == labels["reason"]
