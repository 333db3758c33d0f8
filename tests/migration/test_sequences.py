"""Sequences are copied in both directions of counting, never move backwards, and what was not copied is named."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from aiorepl.migration import sequences
from aiorepl.migration.sequences import copy_sequences
from aiorepl.wire.opening import connect_sql


@pytest.fixture
def copied(two):
    """Copy the sequences of a pair, and return the results as text."""

    async def copied(pair):
        ours, theirs = [await connect_sql(dsn) for dsn in pair.dsns]
        try:
            return [str(each) for each in await copy_sequences(ours, theirs)]
        finally:
            ours.terminate()
            theirs.terminate()

    return copied


@pytest.mark.parametrize("versions", [(13, 18), (18, 13), (16, 19)])
async def test_values(two, copied, versions):
    """The next value is the source's, for serial and identity columns, called or not, ascending or descending."""
    pair = await two(*versions)
    await pair.both(
        "CREATE TABLE items (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY)",
        "CREATE SEQUENCE down INCREMENT -2",
        "CREATE SEQUENCE fresh",
        "CREATE SEQUENCE planned",
        "CREATE SEQUENCE ahead",
        'CREATE SCHEMA "Odd"',
        'CREATE SEQUENCE "Odd"."a, ""b"',
    )
    for statement in (
        "INSERT INTO items SELECT FROM generate_series(1, 7)",
        "SELECT nextval('down'), nextval('down')",
        "SELECT setval('planned', 500, false)",
        "SELECT setval('ahead', 10)",
        """SELECT setval('"Odd"."a, ""b"', 3)""",
    ):
        await pair.source.execute(statement)
    await pair.target.execute("SELECT setval('ahead', 20)")
    expected = [
        'Odd.a, "b: 3, was 1',
        "public.ahead: 20",
        "public.down: -3, was -1",
        "public.fresh: 1",
        "public.items_id_seq: 7, was 1",
        "public.items_n_seq: 7, was 1",
        "public.planned: 500, was 1",
    ]
    assert expected == await copied(pair)
    assert [
        each.split(",")[0] if "b: 3" not in each else 'Odd.a, "b: 3' for each in expected
    ] == await copied(pair)
    names = ("down", "fresh", "items_id_seq", "items_n_seq", "planned", "ahead")
    following = [await pair.target.fetchval("SELECT nextval($1::text::regclass)", name) for name in names]
    assert [-5, 1, 8, 8, 500, 21] == following


@pytest.mark.parametrize("versions", [(13, 18), (18, 13)])
async def test_what_is_not_copied(two, copied, versions):
    """Missing sequences, another direction, a value out of range and missing privileges are named; the others are copied."""
    pair = await two(*versions)
    await pair.both("CREATE SEQUENCE fine", "SELECT nextval('fine')")
    await pair.source.execute("SELECT nextval('fine'); CREATE SEQUENCE absent")
    await pair.source.execute("CREATE SEQUENCE turned; CREATE SEQUENCE small; SELECT setval('small', 100)")
    await pair.target.execute("CREATE SEQUENCE turned INCREMENT -1; CREATE SEQUENCE small MAXVALUE 50")
    assert [
        "public.absent: not copied: the target has no such sequence",
        "public.fine: 2, was 1",
        'public.small: not copied: the target refuses it: setval: value 100 is out of bounds for sequence "small" (1..50)',
        "public.turned: not copied: it counts in the other direction on the target",
    ] == await copied(pair)


@pytest.mark.parametrize("version", [13, 18])
async def test_privileges(two, version):
    """A sequence that the role may not read is named, and never taken for one that was not used yet."""
    pair = await two(version, version)
    await pair.both("CREATE SEQUENCE secret", "SELECT setval('secret', 5)")
    await pair.source.execute("SELECT setval('secret', 9)")
    ours, theirs = [await connect_sql(dsn) for dsn in pair.dsns]
    try:
        await ours.execute("SET ROLE pg_monitor")
        (result,) = await copy_sequences(ours, theirs)
    finally:
        ours.terminate()
        theirs.terminate()
    assert "public.secret: not copied: the source refuses it: permission denied for sequence secret" == str(
        result
    )
    assert 5 == await pair.target.fetchval("SELECT last_value FROM secret")


@pytest.mark.parametrize("version", [13, 18])
async def test_sessions_that_take_numbers_meanwhile(two, copied, version, monkeypatch):
    """A session that takes many numbers between the look at the sequence and the copy gets none of them again."""
    pair = await two(version, version)
    await pair.both("CREATE SEQUENCE busy", "SELECT nextval('busy')")
    await pair.source.execute("SELECT setval('busy', 100)")
    read, session = sequences._value, await asyncpg.connect(pair.dsns[1])
    tasks = []

    async def raced(connection, name, row):
        value = await read(connection, name, row)
        if connection is not pair.source and value.last < 100 and not tasks:
            # The first look at the target: by the time of the copy it is ahead of the source.
            await session.execute("SELECT nextval('busy') FROM generate_series(1, 150)")
            tasks.append(None)
        elif len(tasks) == 1:
            # The second look: this session waits for the lock until the copy has committed.
            tasks.append(asyncio.create_task(session.fetchval("SELECT nextval('busy')")))
        return value

    monkeypatch.setattr(sequences, "_value", raced)
    try:
        assert ["public.busy: 151"] == await copied(pair)
        assert 152 == await tasks[1]
    finally:
        await session.close()


async def test_a_transaction_that_keeps_a_sequence_locked(two, copied, monkeypatch):
    """It is named as not copied, and the others are copied."""
    pair = await two(18, 18)
    await pair.both("CREATE SEQUENCE held", "CREATE SEQUENCE other")
    await pair.source.execute("SELECT setval('held', 100), setval('other', 100)")
    monkeypatch.setattr(sequences, "_LOCK_TIMEOUT", "100ms")
    session = await asyncpg.connect(pair.dsns[1])
    try:
        async with session.transaction():
            await session.execute("SELECT nextval('held')")
            held, other = await copied(pair)
        assert "public.held: not copied: sessions that have taken numbers from it" in held
        assert "public.other: 100, was 1" == other
        assert ["public.held: 100, was 1", "public.other: 100"] == await copied(pair)
    finally:
        await session.close()
