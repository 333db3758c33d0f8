"""Exactly once: whatever is killed, cut or sent twice, every transaction is there once and whole.

The target's tables have no unique key, so that a row that was written twice would be there twice.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import asyncpg
import pytest

from aiorepl import LSN, Batch, BatchPolicy, PermanentError, Position, SinkContext, SlotError, TransientError
from aiorepl.testing import CuttingProxy
from aiorepl.testing.faults import FailAfterWrite, FaultySink, Reject

pytestmark = pytest.mark.by_day

WORKER = Path(__file__).with_name("worker.py")
LOG = "CREATE TABLE log (id int, line text)"
SMALL = BatchPolicy(max_bytes=20_000)


class Load:
    """Small, large and rolled back transactions with savepoints, until it is left."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self):
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_):
        self._stopping = True
        await self._task

    async def _run(self) -> None:
        chance = random.Random(7)
        connection = await asyncpg.connect(self._dsn)
        number = 0
        while not self._stopping:
            rows = chance.choice([1, 1, 1, 10, 10, 100, 1500])
            number += rows
            await connection.execute(
                f"BEGIN; INSERT INTO log SELECT i, 'line ' || i FROM generate_series({number - rows + 1}, {number}) i;"
                f"SAVEPOINT s; INSERT INTO log VALUES (-1, 'never'); ROLLBACK TO s; {chance.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])}"
            )
            await asyncio.sleep(0.01)
        await connection.close()


@pytest.mark.parametrize("transactions", ["batch", "source"])
async def test_killed_at_random(pair, transactions, fork_server):
    """SIGKILL under load, many times, wherever it is."""
    await pair.both(LOG)
    await pair.slotted()
    chance = random.Random(3)
    async with Load(pair.source_dsn):
        for _ in range(8):
            process = await fork_server.start(
                WORKER,
                pair.source_dsn,
                pair.slot,
                pair.target_dsn,
                transactions,
                stdout=asyncio.subprocess.PIPE,
                imports=["aiorepl_sinks.postgres"],
            )
            assert b"started\n" == await process.stdout.readline()
            await asyncio.sleep(chance.uniform(0, 0.4))
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await pair.free()
    await pair.deliver(transactions=transactions)
    await pair.require_equal("log")
    assert 1000 < await pair.target.fetchval("SELECT count(*) FROM log")


async def test_connections_to_the_target_are_cut(pair, server):
    """A connection that is cut at any answer, a COMMIT's included: the batch is applied once."""
    await pair.both(LOG)
    await pair.slotted()
    chance = random.Random(11)
    async with CuttingProxy("127.0.0.1", int(server.dsn.rpartition(":")[2].partition("/")[0])) as proxy:
        pipeline = pair.pipeline(dsn=proxy.dsn_for(pair.target_dsn), until=None)
        async with Load(pair.source_dsn), pipeline:
            cuts = 0
            while cuts < 25 or pipeline.statistics().sinks["mirror"].retries <= 5:
                cuts += 1
                # Small answers: a few bytes on a cut may be that of BEGIN, of rows, of the position or of COMMIT.
                proxy.cut_after(chance.randrange(1, 400))
                await asyncio.sleep(chance.uniform(0.01, 0.1))
            await pair.reached(await pair.wal())
    await pair.deliver()
    await pair.require_equal("log")


async def test_a_write_whose_answer_is_lost_is_not_applied_twice(pair):
    """The position that is committed with the data identifies applied transactions."""
    await pair.both(LOG)
    await pair.slotted()
    await pair.source.execute("INSERT INTO log SELECT i, 'x' FROM generate_series(1, 30) i")
    sink = FaultySink(
        pair.sink(), write=[FailAfterWrite(TransientError("lost")), Reject(TransientError("no"))]
    )
    await pair.deliver(sink)
    await pair.require_equal("log")
    assert 3 <= sink.calls.count("write")


async def test_a_huge_transaction_in_slices(pair):
    """A transaction of many batches is one transaction of the target, in order, and invisible until its end."""
    await pair.both("CREATE TABLE items (id int PRIMARY KEY, note text)", LOG)
    await pair.slotted()
    await pair.commit(
        "INSERT INTO items SELECT i, 'x' FROM generate_series(1, 20000) i",
        "UPDATE items SET note = 'y' WHERE id % 3 = 0",
        "INSERT INTO log SELECT i, 'x' FROM generate_series(1, 5000) i",
        "DELETE FROM items WHERE id % 7 = 0",
    )
    await pair.source.execute("UPDATE items SET note = 'after' WHERE id = 1")
    delivering = asyncio.create_task(pair.deliver(batches=SMALL))
    seen = []
    while not delivering.done():
        seen.append(
            await pair.target.fetchval("SELECT (SELECT count(*) FROM items) + (SELECT count(*) FROM log)")
        )
        await asyncio.sleep(0)
    pipeline = await delivering
    assert pipeline.statistics().sinks["mirror"].batches > 8
    await pair.require_equal("items", "log")
    whole = 20000 - 20000 // 7 + 5000
    assert {0, whole} >= set(seen)
    assert len(seen) > 10


async def test_a_deadlock_within_a_huge_transaction_is_retried(pair):
    """An error that leaves the connection open undoes one call, not the transaction."""
    await pair.both("CREATE TABLE items (id int PRIMARY KEY, note text)")
    await pair.both("INSERT INTO items SELECT i, 'x' FROM generate_series(1, 3000) i")
    await pair.slotted()
    await pair.source.execute("UPDATE items SET note = 'y'")
    other = await asyncpg.connect(pair.target_dsn)
    lock = other.transaction()
    await lock.start()
    await other.execute("SELECT FROM items WHERE id = 2500 FOR UPDATE")
    pipeline = pair.pipeline(batches=SMALL, settings={"lock_timeout": "50ms"})
    running = asyncio.create_task(pipeline.run())
    async with asyncio.timeout(90):
        # A few times in vain.
        while "mirror" not in (sinks := pipeline.statistics().sinks) or sinks["mirror"].retries < 3:
            await asyncio.sleep(0.005)
    await lock.rollback()
    await other.close()
    await running
    await pair.require_equal("items")


async def test_idle_wal_moves_the_position(pair):
    """The slot is confirmed past WAL that holds nothing for us, and the target keeps up, so that a restart fits."""
    await pair.both(LOG)
    await pair.source.execute("ALTER PUBLICATION p RENAME TO other")
    await pair.source.execute("CREATE PUBLICATION p FOR TABLE log")
    await pair.source.execute("CREATE TABLE unpublished (n int)")
    await pair.slotted()
    for _ in range(2):
        await pair.source.execute("INSERT INTO unpublished SELECT generate_series(1, 1000)")
        await pair.deliver()
        confirmed = await pair.source.fetchval(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", pair.slot
        )
        assert LSN.parse(confirmed) <= await pair.position()


async def test_a_journal_with_an_initial_load(pair, tmp_path):
    """Existing rows are delivered first, through the journal, then the changes; also after a restart."""
    await pair.both(LOG, "CREATE TABLE items (id int PRIMARY KEY, note text)")
    await pair.source.execute("INSERT INTO log SELECT i, 'before' FROM generate_series(1, 5000) i")
    await pair.source.execute("INSERT INTO items SELECT i, E'a\\tb\\\\' FROM generate_series(1, 100) i")
    for _ in range(2):
        await pair.deliver(
            journal=str(tmp_path / "journal"), snapshot=True, source={"create_slot": True}, batches=SMALL
        )
        await pair.require_equal("log", "items")
        await pair.source.execute("INSERT INTO log SELECT i, 'after' FROM generate_series(1, 50) i")
        await pair.source.execute("UPDATE items SET note = 'changed' WHERE id < 5")


async def test_two_processes_as_one_sink(pair):
    """The second waits for the first, and does not deliver beside it."""
    await pair.both(LOG)
    await pair.slotted()
    first, second = pair.sink(), pair.sink()
    await pair.source.execute("INSERT INTO log VALUES (1, 'x')")
    taken = pair.pipeline(first)
    await taken.run()
    system = await pair.source.fetchval("SELECT system_identifier::text FROM pg_control_system()")
    context = SinkContext("mirror", Position(system, 1, pair.slot, LSN(1)))
    held = await first.open(context)
    with pytest.raises(TransientError, match="another connection delivers"):
        await second.open(context)
    await first.close()
    assert held == await second.open(context)
    await second.close()


async def test_a_position_that_somebody_moved(pair, source):
    """If another session changes the position, the sink stops."""
    sink = pair.sink()
    await sink.open(source.context)
    await pair.target.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    await sink.write(source.batch([1]))
    await pair.target.execute("UPDATE aiorepl.positions SET lsn = '0/1'")
    with pytest.raises(PermanentError, match="another session has changed the position"):
        await sink.write(source.batch([2]))
    await sink.close()
    assert 1 == await pair.target.fetchval("SELECT count(*) FROM items")


async def test_the_source_is_another_one(pair):
    """A position of another cluster or slot is rejected, and so is a slot that is past it."""
    await pair.both(LOG)
    await pair.slotted()
    await pair.source.execute("INSERT INTO log VALUES (1, 'x')")
    await pair.deliver()
    await pair.target.execute("UPDATE aiorepl.positions SET system_identifier = '42'")
    with pytest.raises(SlotError, match="cluster 42"):
        await pair.deliver()
    system = await pair.source.fetchval("SELECT system_identifier::text FROM pg_control_system()")
    await pair.target.execute("UPDATE aiorepl.positions SET lsn = '0/1', system_identifier = $1", system)
    with pytest.raises(SlotError, match="begins at"):
        await pair.deliver()


async def test_cancelled_anywhere(pair, source):
    """A cancelled write is applied completely or not at all, and the next process continues."""
    await pair.target.execute("CREATE TABLE items (id int, note text)")
    batches = [source.batch([number], [number + 1000]) for number in range(1, 13)]
    chance = random.Random(2)
    for batch in batches:
        patience, done = 0.004, False
        while not done:
            sink = pair.sink(mode="strict")
            try:
                held = await sink.open(source.context)
            except TransientError:
                continue  # as the engine would
            if held.lsn >= batch.end_lsn:
                await sink.close()
                break
            writing = asyncio.ensure_future(sink.write(batch))
            await asyncio.wait({writing}, timeout=chance.uniform(0, patience))
            patience *= 1.5
            done = writing.done()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await sink.close()
    assert 24 == await pair.target.fetchval("SELECT count(*) FROM items")
    assert 24 == await pair.target.fetchval("SELECT count(DISTINCT id) FROM items")


def test_batches_are_what_the_tests_take_them_for(source):
    """Slices of a transaction: one end, at the last."""
    parts = source.parts([1, 2, 3])
    assert [None] * (len(parts) - 1) == [batch.end_lsn for batch in parts[:-1]]
    assert isinstance(parts[-1], Batch)
    assert parts[-1].end_lsn is not None
