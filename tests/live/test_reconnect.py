"""Lost connections: within the process every change is delivered exactly once, and no gap is skipped."""

from __future__ import annotations

import asyncio
import random

import asyncpg
import pytest

from aiorepl import BatchPolicy, ConnectionFailed, Pipeline, RetryPolicy, ServerError, SlotError
from aiorepl.testing.faults import FaultySink, Hang, MemorySink
from tests.waiting import until

pytestmark = pytest.mark.by_day

QUICK = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)
SMALL = BatchPolicy(max_bytes=32 * 1024, flush_seconds=0.1)


@pytest.mark.both_loops
@pytest.mark.parametrize("seed", [1, 2])
async def test_cut_anywhere(published, proxy, seed):
    """Transactions of all sizes arrive whole, once and in order, if the connection is cut at random bytes under load."""
    chance = random.Random(seed)
    await published.create_slot()
    sink = MemorySink()
    pipeline = Pipeline(
        published.source(proxy.dsn_for(published.dsn)),
        [sink],
        reconnect=QUICK,
        batches=SMALL,
        buffer_bytes=256 * 1024,
    )
    first = 0
    async with pipeline:
        for _ in range(12):
            rows = chance.choice([1, 10, 500, 4000])
            proxy.cut_after(chance.randrange(1, rows * 150))
            await published.execute(
                f"INSERT INTO items SELECT {first} + i, repeat('x', 60) FROM generate_series(0, {rows - 1}) i",
                "BEGIN",
                f"INSERT INTO items VALUES ({first}, 'not this one') ON CONFLICT (id) DO UPDATE SET note = 'nor this'",
                "ROLLBACK",
            )
            first += rows
            await sink.wait_for_changes(first)
        changes = await sink.wait_for_changes(first)
        await published.confirmed_past(await published.wal())
        reconnects = pipeline.statistics().reconnects

    assert list(range(first)) == [change.key["id"] for change in changes]
    identities = [(change.transaction.commit_lsn, change.ordinal) for change in changes]
    assert sorted(set(identities)) == identities
    assert reconnects >= 3


async def test_terminated_in_the_middle_of_a_large_transaction(published):
    """A large transaction continues in the middle after its walsender was killed, without duplicates."""
    await published.create_slot()
    memory, hang = MemorySink(), Hang()
    sink = FaultySink(memory, write=[hang])
    async with Pipeline(
        published.source(), [sink], reconnect=QUICK, batches=SMALL, buffer_bytes=256 * 1024
    ) as pipeline:
        # More than the socket buffers hold, because their content still arrives after the walsender was killed.
        await published.execute(
            "INSERT INTO items SELECT i, repeat('x', 1900) FROM generate_series(0, 14999) i"
        )
        await hang.reached.wait()
        await published.connection.fetchval("SELECT pg_terminate_backend($1)", await published.walsender())
        hang.release()
        changes = await memory.wait_for_changes(15_000, durable=True)
        # The end may arrive after the last change, in a slice of its own.
        await memory.wait_until_durable(changes[-1].transaction.commit_lsn + 1)
        assert 1 == pipeline.statistics().reconnects

    assert [(i, i) for i in range(15_000)] == [(change.ordinal, change.key["id"]) for change in changes]
    # One transaction, read by two connections.
    assert 1 == len({change.transaction.commit_lsn for change in changes})
    assert 2 == len({id(change.transaction) for change in changes})
    slices = [part for batch in memory.batches for part in batch.slices if part.transaction]
    assert (1, 1) == (sum(part.first for part in slices), sum(part.last for part in slices))


async def test_while_nobody_answers(published, proxy):
    """While the server refuses connections, the pipeline retries, and delivers what was committed meanwhile."""
    await published.create_slot()
    sink = MemorySink()
    async with Pipeline(published.source(proxy.dsn_for(published.dsn)), [sink], reconnect=QUICK) as pipeline:
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1)
        proxy.refuse()
        proxy.cut()
        await published.execute("INSERT INTO items VALUES (2)")
        proxy.accept()
        changes = await sink.wait_for_changes(2)
        assert 1 == pipeline.statistics().reconnects

    assert [1, 2] == [change.key["id"] for change in changes]


async def test_without_reconnect_a_loss_is_an_error(published):
    """Received changes are delivered and confirmed before the error is raised."""
    await published.create_slot()
    sink = MemorySink()
    pipeline = Pipeline(published.source(), [sink], reconnect=None)
    work = asyncio.create_task(pipeline.run())
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1)
    await published.connection.fetchval("SELECT pg_terminate_backend($1)", await published.walsender())

    with pytest.raises(ServerError, match="terminating connection") as raised:
        await work
    assert "57P01" == raised.value.sqlstate
    assert sink.batches == sink.durable_batches
    assert sink.closed


async def test_the_first_connection_is_not_retried(published, proxy):
    """An unavailable source is an error of the start."""
    proxy.refuse()
    with pytest.raises(ConnectionFailed):
        await Pipeline(published.source(proxy.dsn_for(published.dsn)), [MemorySink()]).run()


async def test_a_slot_that_somebody_else_moved_is_refused(published, proxy):
    """A slot that another client has advanced is a gap, and an error."""
    await published.create_slot()
    sink = MemorySink()
    pipeline = Pipeline(published.source(proxy.dsn_for(published.dsn)), [sink], reconnect=QUICK)
    work = asyncio.create_task(pipeline.run())
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1)
    proxy.refuse()
    proxy.cut()
    await until(published.walsender, lambda pid: pid is None)
    await published.execute("INSERT INTO items VALUES (2)")
    await published.connection.fetchval(
        "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", published.slot
    )
    await published.execute("INSERT INTO items VALUES (3)")
    proxy.accept()

    with pytest.raises(SlotError, match=r"moved to .* by another consumer"):
        await work
    assert [1] == [change.key["id"] for change in sink.changes]


async def test_a_slot_that_is_gone_is_refused_at_once(published, proxy):
    """A dropped slot is an error, and is not recreated."""
    await published.create_slot()
    pipeline = Pipeline(published.source(proxy.dsn_for(published.dsn)), [MemorySink()], reconnect=QUICK)
    work = asyncio.create_task(pipeline.run())
    await pipeline.started()
    proxy.refuse()
    proxy.cut()
    await until(published.walsender, lambda pid: pid is None)
    await published.connection.fetchval("SELECT pg_drop_replication_slot($1)", published.slot)
    proxy.accept()

    with pytest.raises(SlotError, match="does not exist"):
        await work
    assert 0 == await published.connection.fetchval(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", published.slot
    )


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_a_server_that_restarts(publish, servers, how):
    """The pipeline continues after a fast or immediate shutdown, which does not wait for it."""
    with servers.new(18) as server:
        published = await publish(server.dsn)
        await published.create_slot()
        sink = MemorySink()
        async with Pipeline(published.source(), [sink], reconnect=QUICK, batches=SMALL) as pipeline:
            await published.execute("INSERT INTO items VALUES (1)")
            await sink.wait_for_changes(1)
            if how == "fast":
                await asyncio.to_thread(server.restart)
                assert "immediate shutdown" not in server.log()
            else:
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            connection = await asyncpg.connect(server.dsn)
            await connection.execute("INSERT INTO items VALUES (2)")
            await connection.close()
            changes = await sink.wait_for_changes(2)
            assert pipeline.statistics().reconnects >= 1
            assert pipeline.statistics().last_error is None
        assert [1, 2] == [change.key["id"] for change in changes]
