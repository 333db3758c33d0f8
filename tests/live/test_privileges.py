"""Roles with exactly the privileges of docs/reference/privileges.md, and the errors of roles with fewer."""

from __future__ import annotations

import re

import asyncpg
import pytest

from aiorepl import BatchPolicy, ConfigurationError, ConnectionFailed, Pipeline
from aiorepl.snapshot.merging.watermarks import emit
from aiorepl.source.diagnose.check import check
from aiorepl.testing import MemorySink
from tests.waiting import until

SOON = BatchPolicy(flush_seconds=0.1)


@pytest.fixture
async def cdc(published, documented_role):
    """The document's role on the source, not created yet."""
    role = documented_role("cdc", published.dsn)
    await role.open()
    yield role
    await role.close()


@pytest.fixture
def streaming(documented_role):
    """The statements of the section on streaming."""
    return documented_role.blocks("Streaming")


@pytest.fixture
def sql(documented_role):
    """The statements of the section on the SQL interface."""
    return documented_role.blocks("The SQL interface")


@pytest.fixture
def load(documented_role):
    """The statements of the section on the initial snapshot."""
    return documented_role.blocks("Snapshots")


EVERY_SERVER = pytest.mark.parametrize("server", [13, 15, 16, 18], indirect=True)


async def findings(source, **options):
    """The findings of ``check`` by subject."""
    return {finding.about: finding async for finding in check(source, **options)}


@EVERY_SERVER
@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_streaming(published, cdc, interface, streaming):
    """The role streams with either interface, creates its slot, looks up types and writes heartbeats."""
    await cdc.run(*streaming)
    await published.execute(
        "CREATE TYPE mood AS ENUM ('glad')", "CREATE TABLE moods (id int PRIMARY KEY, m mood)"
    )
    source = published.source(cdc.dsn, interface=interface, heartbeat_interval=0.05)
    found = await findings(source)
    assert {"ok", "warning"} >= {finding.level for finding in found.values()}
    sink = MemorySink()
    async with Pipeline(source, [sink], batches=SOON) as pipeline:
        await published.execute("INSERT INTO moods VALUES (1, 'glad')")
        await sink.wait_for_changes(1, durable=True)
        await until(lambda: beat(pipeline), lambda heartbeat: heartbeat.sent > 1)
        assert 0 == (await beat(pipeline)).failed
    assert "glad" == sink.changes[0].new["m"]


async def beat(pipeline):
    return pipeline.statistics().heartbeat


@EVERY_SERVER
async def test_the_sql_interface_where_more_was_revoked(published, cdc, streaming, sql):
    """Without EXECUTE on pg_control_system the error says what to grant; with it the role streams."""
    await cdc.run(*streaming)
    await published.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    source = published.source(cdc.dsn, interface="sql")
    advice = r"GRANT EXECUTE ON FUNCTION pg_catalog\.pg_control_system\(\) TO the role"
    with pytest.raises(ConnectionFailed, match=advice):
        await Pipeline(source, [MemorySink()], until="now").run()
    await cdc.run(sql[0])
    await Pipeline(source, [MemorySink()], until="now").run()


@EVERY_SERVER
async def test_the_history_of_timelines(published, cdc, streaming, sql):
    """The role reads the history file with the documented privileges, and not without them."""
    await cdc.run(*streaming)
    connection = await asyncpg.connect(cdc.dsn)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetchval("SELECT pg_read_file('PG_VERSION', 0, 10, true)")
        await cdc.run(sql[1])
        assert await connection.fetchval("SELECT pg_read_file('PG_VERSION', 0, 10, true)")
    finally:
        await connection.close()


@EVERY_SERVER
async def test_the_initial_load(published, cdc, tmp_path, streaming, load):
    """The role loads the tables, and continues with the stream."""
    await published.execute("INSERT INTO items VALUES (1, 'old')")
    await cdc.run(*streaming, *load)
    source = published.source(cdc.dsn)
    found = await findings(source, snapshot=True)
    assert ("ok", "the role can read all 1 tables") == (
        found["snapshot"].level,
        found["snapshot"].text,
    )
    sink = MemorySink()
    async with Pipeline(source, [sink], journal=str(tmp_path), snapshot=True, batches=SOON):
        await published.execute("INSERT INTO items VALUES (2, 'new')")
        await sink.wait_for_changes(2, durable=True)
    assert ["old", "new"] == [change.new["note"] for change in sink.changes]


@pytest.mark.parametrize("lacks", ["SELECT", "USAGE"])
async def test_an_initial_load_that_cannot_read(published, cdc, tmp_path, lacks, streaming, load):
    """``check`` and a start name the table and the GRANT if SELECT or USAGE is missing; no slot is left."""
    await cdc.run(*streaming)
    if lacks == "SELECT":
        await cdc.run(load[0].splitlines()[0])
    source = published.source(cdc.dsn)
    advice = rf'public\.items.*GRANT SELECT ON "public"\."items" TO "{cdc.name}"'
    found = (await findings(source, snapshot=True))["snapshot"]
    assert ("error", 2) == (found.level, found.exit_code)
    assert re.search(advice, found.text)
    with pytest.raises(ConfigurationError, match=advice):
        await Pipeline(source, [MemorySink()], journal=str(tmp_path), snapshot=True).run()
    assert 0 == await published.connection.fetchval(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", published.slot
    )


async def test_many_tables_that_cannot_be_read(published, cdc, streaming, load):
    """``check`` names some tables and the number of the others."""
    await cdc.run(*streaming, load[0].splitlines()[0])
    await published.execute(*(f"CREATE TABLE t{number} (id int PRIMARY KEY)" for number in range(7)))
    texts = [
        finding.text
        async for finding in check(published.source(cdc.dsn), snapshot=True)
        if finding.level == "error"
    ]
    assert (6, "3 more tables cannot be read") == (len(texts), texts[-1])


@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_no_replication(published, cdc, interface, streaming):
    """A start and ``check`` name the missing REPLICATION, with either interface."""
    await cdc.run(*(block.replace(" REPLICATION", "") for block in streaming))
    source = published.source(cdc.dsn, interface=interface)
    found = await findings(source)
    (error,) = [finding for finding in found.values() if finding.level == "error"]
    assert (3, True) == (error.exit_code, "REPLICATION" in error.text.partition("ALTER ROLE")[2])
    with pytest.raises(ConnectionFailed, match=r"ALTER ROLE .* REPLICATION"):
        await Pipeline(source, [MemorySink()], until="now").run()


async def test_no_connect(published, cdc, streaming):
    """A role without CONNECT gets that GRANT as advice, and not REPLICATION."""
    await cdc.run(streaming[0].splitlines()[0])
    with pytest.raises(ConnectionFailed, match="GRANT CONNECT ON DATABASE") as caught:
        await published.source(cdc.dsn).open()
    assert "REPLICATION" not in str(caught.value)


async def test_no_heartbeats(published, cdc, streaming):
    """``check`` warns with the GRANT if the role may not write heartbeats; a snapshot beside the stream fails with that GRANT."""
    await cdc.run(*streaming)
    functions = await published.connection.fetch(
        "SELECT oid::regprocedure::text AS name FROM pg_proc WHERE proname = 'pg_logical_emit_message'"
    )
    for function in functions:
        await published.execute(f"REVOKE EXECUTE ON FUNCTION {function['name']} FROM PUBLIC")
    found = (await findings(published.source(cdc.dsn, heartbeat_interval=1)))["privileges"]
    assert "warning" == found.level
    assert re.search(
        rf"GRANT EXECUTE ON FUNCTION pg_logical_emit_message\(.*text.*\) TO {cdc.name}", found.sql
    )
    assert "privileges" not in await findings(published.source(cdc.dsn))
    connection = await asyncpg.connect(cdc.dsn)
    try:
        with pytest.raises(
            ConfigurationError, match="writes logical messages, but permission denied"
        ) as caught:
            await emit(connection, "aiorepl.snapshot", "")
        text = str(caught.value)
        await published.execute(text[text.index("GRANT") :])
        await emit(connection, "aiorepl.snapshot", "")
    finally:
        await connection.close()
