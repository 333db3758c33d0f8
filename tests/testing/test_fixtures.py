"""The fixtures that other tests stand on: a database and slots of one's own, both loops, no unseen errors."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest


@pytest.mark.postgres(15, 16, 18)
def test_the_server_has_the_version_that_the_mark_names(request, server, database):
    """A test marked with versions runs on each, and each decodes."""
    ((number,),) = database.run("SELECT current_setting('server_version_num')::int / 10000")

    assert request.node.callspec.params["server"] == number == server.version
    assert [("logical",)] == [tuple(row) for row in database.run("SHOW wal_level")]


async def test_database_is_empty_and_ones_own(database, connection):
    """Each test begins with no table of another's, in the database that its name tells of."""
    assert database.name == await connection.fetchval("SELECT current_database()")
    assert [] == await connection.fetch("SELECT * FROM pg_tables WHERE schemaname = 'public'")


async def test_nothing_that_holds_a_database_keeps_it(server, new_database):
    """Slots, a walsender and a prepared transaction that a test leaves behind go with its database."""
    with new_database("held") as database:
        idle, busy = database.slot("idle"), database.slot("busy")
        database.run(
            "CREATE TABLE t (i int)",
            "CREATE PUBLICATION p FOR TABLE t",
            f"SELECT pg_create_logical_replication_slot('{idle}', 'pgoutput')",
            f"SELECT pg_create_logical_replication_slot('{busy}', 'pgoutput')",
        )
        session = await database.connect()
        await session.execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'it''s left'")
        walsender = await database.connect(
            server_settings={"replication": "database"}, statement_cache_size=0
        )
        options = "proto_version '1', publication_names 'p'"
        streaming = asyncio.ensure_future(
            walsender.execute(f"START_REPLICATION SLOT {busy} LOGICAL 0/0 ({options})")
        )
        active = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{busy}' AND active"
        while not await session.fetch(active):
            await asyncio.sleep(0.01)

    with pytest.raises(asyncpg.PostgresError):
        await streaming
    session.terminate()
    async with asyncio.timeout(10):
        connection = await asyncpg.connect(server.dsn)
        left = await connection.fetch(
            "SELECT slot_name FROM pg_replication_slots WHERE slot_name = ANY($1) UNION ALL "
            "SELECT datname FROM pg_database WHERE datname = $2",
            [idle, busy],
            database.name,
        )
        await connection.close()
    assert [] == left


@pytest.mark.both_loops
async def test_both_loops(request):
    """The mark runs a test under uvloop and under plain asyncio, whatever the policy is."""
    uvloop = pytest.importorskip("uvloop")

    expected = uvloop.Loop if "uvloop" in request.node.name else asyncio.SelectorEventLoop
    assert isinstance(asyncio.get_running_loop(), expected)


def test_an_exception_that_no_one_handled_fails_the_test(pytester, loop_errors):
    """A callback that raised, and a task whose exception nobody retrieved."""
    pytester.makepyfile(
        """
        import asyncio

        def fail():
            raise RuntimeError("unseen")

        async def fail_later():
            fail()

        async def test_callback():
            asyncio.get_running_loop().call_soon(fail)
            await asyncio.sleep(0)

        async def test_task():
            task = asyncio.ensure_future(fail_later())
            await asyncio.wait([task])

        async def test_seen():
            task = asyncio.ensure_future(fail_later())
            await asyncio.wait([task])
            assert str(task.exception()) == "unseen"

        def test_without_loop():
            pass
        """
    )
    asyncio_options = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    result = pytester.runpytest_inprocess("-p", "loop_fixtures", *asyncio_options)

    loop_errors.clear()  # this test's own watch saw them as well
    result.assert_outcomes(passed=4, errors=2)
    result.stdout.fnmatch_lines(["*an event loop saw an unhandled exception:*", "*RuntimeError: unseen*"])
