"""A role on the target with exactly the grants of docs/reference/privileges.md."""

from __future__ import annotations

import asyncio
import re

import asyncpg
import pytest

from aiorepl import PermanentError, SinkContext, SinkError
from aiorepl.testing.stream import Stream
from aiorepl_sinks.postgres import PostgresSink
from aiorepl_sinks.postgres.state import TargetState

TABLES = (
    "CREATE TABLE items (id int PRIMARY KEY, note text)",
    "CREATE TABLE parts (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item int REFERENCES items)",
    "CREATE TABLE whole (a int, b text)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
)
CHANGES = (
    "INSERT INTO items SELECT i, 'x' FROM generate_series(1, 2000) i",
    "INSERT INTO parts (item) SELECT i FROM generate_series(1, 100) i",
    "INSERT INTO whole VALUES (1, 'a'), (2, 'b'), (2, 'b')",
    "UPDATE items SET note = 'y' WHERE id < 500",
    "UPDATE items SET id = -id WHERE id > 1900",
    "UPDATE whole SET b = 'c' WHERE a = 1",
    "DELETE FROM parts WHERE id > 50",
    "DELETE FROM whole WHERE a = 2",
    "TRUNCATE parts",
    "INSERT INTO parts (item) VALUES (7)",
)
NAMES = ("items", "parts", "whole")


@pytest.fixture
def mirror(documented_role):
    """Makes the document's role on a pair's target, not created yet."""
    made = []

    async def make(pair):
        role = documented_role("mirror", pair.target_dsn)
        await role.open()
        made.append(role)
        return role

    make.blocks = documented_role.blocks("The postgres sink")
    make.made = made
    return make


@pytest.fixture
async def dropped(mirror, pairs):
    """Drops the roles while their databases are still there."""
    yield
    for role in mirror.made:
        await role.close()


pytestmark = pytest.mark.usefixtures("dropped")
EVERY_SERVER = pytest.mark.parametrize("version", [13, 15, 16, 18])


@EVERY_SERVER
@pytest.mark.parametrize("mode", ["upsert", "strict"])
async def test_every_change(pairs, mirror, version, mode):
    """The role applies every kind of change, and keeps its position."""
    pair = await pairs(18, version)
    await pair.both(*TABLES)
    await pair.slotted()
    role = await mirror(pair)
    await role.run(*mirror.blocks)
    for change in CHANGES:
        await pair.commit(change)
    await pair.deliver(dsn=role.dsn, mode=mode, messages=True)
    await pair.commit("SELECT pg_logical_emit_message(true, 'p', 'c')", "DELETE FROM items WHERE id = 1")
    await pair.deliver(dsn=role.dsn, mode=mode, messages=True)
    await pair.require_equal(*NAMES)
    assert role.name == await pair.target.fetchval(
        "SELECT tableowner FROM pg_tables WHERE schemaname = 'aiorepl' AND tablename = 'positions'"
    )


async def test_two_phase(pair, mirror):
    """The role prepares and commits prepared transactions."""
    await pair.both(*TABLES)
    await pair.slotted(two_phase=True)
    role = await mirror(pair)
    await role.run(*mirror.blocks)
    await pair.source.execute("BEGIN; INSERT INTO items VALUES (1); PREPARE TRANSACTION 'one'")
    await pair.deliver(dsn=role.dsn, two_phase=True, source={"two_phase": True})
    assert 1 == await pair.target.fetchval(
        "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
    )
    await pair.source.execute("COMMIT PREPARED 'one'")
    await pair.deliver(dsn=role.dsn, two_phase=True, source={"two_phase": True})
    await pair.require_equal(*NAMES)


async def test_create_on_the_database(pair, mirror):
    """With CREATE on the database the role needs no prepared schema."""
    await pair.both(*TABLES)
    await pair.slotted()
    role = await mirror(pair)
    statements = [line for line in mirror.blocks[0].splitlines() if "SCHEMA aiorepl" not in line]
    await role.run(*statements)
    await pair.commit(CHANGES[0])
    advice = rf'CREATE SCHEMA "aiorepl" AUTHORIZATION "{role.name}"'
    with pytest.raises(SinkError, match=advice):
        await pair.deliver(dsn=role.dsn)
    await role.run("GRANT CREATE ON DATABASE warehouse TO mirror")
    await pair.deliver(dsn=role.dsn)
    await pair.require_equal(*NAMES)


async def test_options_with_grants_of_their_own(pair, mirror):
    """Origin and replica work with what the document's table names, and say what they want without."""
    await pair.both(*TABLES)
    await pair.slotted()
    role = await mirror(pair)
    await role.run(*mirror.blocks)
    await pair.commit(CHANGES[0])
    with pytest.raises(SinkError, match="GRANT EXECUTE on the functions pg_replication_origin_"):
        await pair.deliver(dsn=role.dsn, origin=pair.slot[:40])
    with pytest.raises(SinkError, match="settings"):
        await pair.deliver(dsn=role.dsn, replica=True)
    text = (role.document()).partition("| `origin")[2].partition("\n")[0]
    functions = re.findall(r"`(pg_replication_origin_\w+\([^`]*\))`", text)
    assert 4 == len(functions)
    for function in functions:
        await role.run(f"GRANT EXECUTE ON FUNCTION {function} TO mirror")
    await role.run("GRANT SET ON PARAMETER session_replication_role TO mirror")
    await pair.deliver(dsn=role.dsn, origin=pair.slot[:40], replica=True)
    await pair.require_equal(*NAMES)
    await pair.target.execute("SELECT pg_replication_origin_drop($1)", pair.slot[:40])
    await pair.target.execute(f"REVOKE SET ON PARAMETER session_replication_role FROM {role.name}")


async def test_restart_identity(pair, mirror):
    """Only the table's owner restarts its sequences: the error says so."""
    await pair.both(*TABLES)
    await pair.slotted()
    role = await mirror(pair)
    await role.run(*mirror.blocks)
    await pair.commit("TRUNCATE parts RESTART IDENTITY")
    with pytest.raises(SinkError, match=r"truncate of public\.parts.*42501"):
        await pair.deliver(dsn=role.dsn)
    await pair.target.execute(f"ALTER TABLE parts OWNER TO {role.name}")
    await pair.deliver(dsn=role.dsn)


@pytest.mark.parametrize("lacks", ["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "USAGE"])
async def test_each_is_needed(pair, mirror, lacks):
    """Without one of the documented privileges the sink stops, and names the table and the GRANT."""
    await pair.both(*TABLES)
    await pair.slotted()
    role = await mirror(pair)
    await role.run(*mirror.blocks)
    on = "SCHEMA public" if lacks == "USAGE" else "ALL TABLES IN SCHEMA public"
    await role.run(f"REVOKE {lacks} ON {on} FROM mirror")
    for change in CHANGES:
        await pair.commit(change)
    with pytest.raises(SinkError, match="GRANT ") as caught:
        await pair.deliver(dsn=role.dsn)
    assert re.search(r"(items|parts|whole|schema public)", str(caught.value))


async def test_two_sinks_at_once(pair, mirror):
    """Sinks that find no tables at the same time do not fail each other."""
    await pair.both(*TABLES)
    role = await mirror(pair)
    await role.run(*mirror.blocks)
    assert not await pair.target.fetchval("SELECT to_regclass('aiorepl.positions') IS NOT NULL")
    connections = [await asyncpg.connect(role.dsn) for _ in range(4)]
    try:
        context = SinkContext("s", Stream().position)
        await asyncio.gather(
            *(TargetState(connection, "aiorepl", context).open() for connection in connections)
        )
    finally:
        for connection in connections:
            await connection.close()


async def test_a_check(pair, mirror):
    """The check names the missing schema, table and privilege one after the other, and creates nothing."""
    await pair.target.execute("CREATE TABLE items (id int PRIMARY KEY)")
    role = await mirror(pair)
    lines = mirror.blocks[0].splitlines()
    await role.run(*(line for line in lines if line.startswith(("CREATE ROLE", "GRANT CONNECT"))))
    sink = PostgresSink(role.dsn)
    with pytest.raises(PermanentError, match=rf'CREATE SCHEMA "aiorepl" AUTHORIZATION "{role.name}"'):
        await sink.check([("public", "items")])
    await pair.target.execute(f'CREATE SCHEMA aiorepl AUTHORIZATION "{role.name}"')
    with pytest.raises(PermanentError, match=r"no table public\.nope"):
        await sink.check([("public", "items"), ("public", "nope")])
    with pytest.raises(PermanentError, match='GRANT USAGE ON SCHEMA "public"'):
        await sink.check([("public", "items")])
    await pair.target.execute(f'GRANT USAGE ON SCHEMA public TO "{role.name}"')
    with pytest.raises(PermanentError, match=r'GRANT SELECT, INSERT.*ON "public"\."items" TO'):
        await sink.check([("public", "items")])
    await pair.target.execute(f'GRANT ALL ON items TO "{role.name}"')
    await sink.check([("public", "items")])
    assert not await pair.target.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'aiorepl'")
