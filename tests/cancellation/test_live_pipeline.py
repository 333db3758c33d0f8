"""A pipeline on a real server, over each interface, with and without an initial snapshot, cancelled and restarted."""

from __future__ import annotations

from itertools import count

import asyncpg
import pytest

import aiorepl
from aiorepl import BatchPolicy, Pipeline, Source
from aiorepl.testing.faults import MemorySink
from tests.today import of_today

LOADED = [*range(100)]
STREAMED = [1000, *range(2000, 2200), 1001]
BATCHES = BatchPolicy(flush_seconds=0)


def numbers():
    """Return the awaits to cancel at: all of the first ones, which open connections, then fewer and fewer."""
    number = 0
    while True:
        number += 1 if number < 30 else number // 5
        yield number


def ids(sink):
    """Return the durable changes without duplicates."""
    return list(dict.fromkeys(change.key["id"] for batch in sink.durable_batches for change in batch.changes))


@pytest.fixture
async def written(replicated):
    """Rows from before the slot, and transactions after it."""
    await replicated.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "ALTER TABLE items ADD mood mood",
        f"INSERT INTO items SELECT n, 'loaded', 'ok' FROM generate_series(0, {len(LOADED) - 1}) n",
    )
    await replicated.create_slot()
    await replicated.execute(
        "INSERT INTO items VALUES (1000, 'one', 'ok')",
        "INSERT INTO items SELECT n, 'many', 'sad' FROM generate_series(2000, 2199) n",
        "INSERT INTO items VALUES (1001, 'last', 'ok')",
    )
    return replicated


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
@pytest.mark.parametrize("route", ["walsender", "sql"])
@pytest.mark.parametrize("cancelling", ["late", "again"], indirect=True)
async def test_run(written, watched, cancelling, tmp_path, route, journal):
    """The second start delivers what the first one did not make durable, and no session is left."""
    for number in of_today(numbers()):
        async with written.copied_slot() as slot:
            source = Source(written.dsn, slot=slot, publication="p", interface=route, heartbeat_interval=60)
            folder = str(tmp_path / str(number)) if journal else None
            sink = MemorySink(keeps_position=True)
            attempt = cancelling(number, everywhere=True)
            await attempt.run(Pipeline(source, [sink], journal=folder, until="now", batches=BATCHES).run())
            await watched.nothing_left()
            await written.nothing_left()
            if not journal and sink.position is not None:
                assert await written.confirmed(slot) <= sink.position.lsn
            if attempt.cancelled:
                sink.crash()
                await Pipeline(source, [sink], journal=folder, until="now", batches=BATCHES).run()
        assert STREAMED == ids(sink)
        assert len(STREAMED) == sum(map(len, sink.durable_batches))
        if not attempt.cancelled:
            break
    assert number > 20


@pytest.mark.parametrize("cancelling", ["late", "again"], indirect=True)
async def test_initial_load(written, watched, cancelling, tmp_path):
    """An interrupted load leaves no slot, or a journal with the whole load."""
    expected = sorted(LOADED + STREAMED)
    slot = f"{written.slot[:50]}_load"
    exists = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"
    for number in of_today(numbers()):
        source = Source(written.dsn, slot=slot, publication="p", create_slot=True)
        folder, sink = str(tmp_path / str(number)), MemorySink(keeps_position=True)

        def pipeline(source=source, folder=folder, sink=sink):
            return Pipeline(source, [sink], journal=folder, snapshot=True, until="now", batches=BATCHES)

        attempt = cancelling(number, everywhere=True)
        await attempt.run(pipeline().run())
        await watched.nothing_left()
        await written.nothing_left()
        if attempt.cancelled:
            sink.crash()
            await pipeline().run()
        assert expected == sorted(ids(sink))
        assert len(expected) == sum(map(len, sink.durable_batches))
        if await written.connection.fetchval(exists, slot):
            await written.connection.execute("SELECT pg_drop_replication_slot($1)", slot)
        if not attempt.cancelled:
            break
    assert number > 20


@pytest.mark.parametrize("route", ["walsender", "sql"])
async def test_creating_a_slot(replicated, watched, cancelling, route):
    """A start that is cancelled leaves no slot that it has created."""

    async def start(slot):
        async with aiorepl.connect(
            replicated.dsn, slot=slot, publication="p", interface=route, create_slot=True
        ) as stream:
            entered.append(stream.confirmed)

    entered = []
    for number in of_today(count(1)):
        slot = f"{replicated.slot[:50]}_{number}"
        attempt = cancelling(number, everywhere=True)
        entered.clear()
        await attempt.run(start(slot))
        await watched.nothing_left()
        await replicated.nothing_left()
        try:
            await replicated.connection.execute("SELECT pg_drop_replication_slot($1)", slot)
            assert entered
        except asyncpg.UndefinedObjectError:
            assert not entered
        if not attempt.cancelled:
            break
    assert number > 10
