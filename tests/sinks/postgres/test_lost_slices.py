"""The target goes away within transactions larger than a batch: they come again, and are there once and whole.

The tables have no unique key, so that a row that was written twice would be there twice. What the slot is confirmed with is
watched all the while.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import asyncpg
import pytest

from aiorepl import LSN, BatchPolicy, Delivery, Pipeline, RetryPolicy, Source, TransientError
from aiorepl.testing import CuttingProxy
from aiorepl.testing.faults import FaultySink, MemorySink

pytestmark = pytest.mark.by_day

LOG = "CREATE TABLE log (id int, line text)"
SMALL = BatchPolicy(max_bytes=20_000, flush_seconds=0.05)
PATIENT = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)


async def sever(pair, name="mirror"):
    """End the sink's connection as an administrator does, and wait until it has ended."""
    # Not on the target's own database, which may let nobody in.
    admin = await asyncpg.connect(pair.source_dsn)
    await admin.fetch(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = $1",
        f"aiorepl {name}",
    )
    await admin.close()


class Severed(FaultySink):
    """Loses its connection before some calls of ``write``: of those within a transaction the n-th ones.

    How many there are is decided by reads, which may bring a megabyte each; ``beyond`` is the first with a row of that
    ordinal or a later one.
    """

    def __init__(self, pair, *places, name="mirror", beyond=None, **options):
        super().__init__(pair.sink(**options))
        self._beyond = beyond
        self._pair = pair
        self._places = places
        self._name = name
        self.within = 0
        self.supports_prepared = self.inner.supports_prepared

    async def write(self, batch):
        if self.is_within:
            self.within += 1
            beyond = self._beyond is not None and any(
                change.ordinal >= self._beyond for change in batch.changes
            )
            if beyond:
                self._beyond = None
            if beyond or self.within in self._places:
                await self.lose()
        await super().write(batch)

    @property
    def is_within(self):
        """Return whether slices are in the open transaction of the target."""
        return self.inner._writer is not None and self.inner._writer.incomplete is not None

    async def lose(self):
        """The connection."""
        await sever(self._pair, self._name)


@asynccontextmanager
async def watched(pair, names=("mirror",)):
    """Check that whatever the slot confirms is on the target; return the observations."""
    seen = []
    source, target = await asyncpg.connect(pair.source_dsn), await asyncpg.connect(pair.target_dsn)

    async def watch():
        while True:
            confirmed = await source.fetchval(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", pair.slot
            )
            # Asked after the slot: it only grows meanwhile.
            there = await target.fetch(
                "SELECT sink, lsn::text FROM aiorepl.positions WHERE sink = ANY ($1)", names
            )
            if len(there) == len(names):
                seen.append((LSN.parse(confirmed), min(LSN.parse(lsn) for _, lsn in there)))
            await asyncio.sleep(0.01)

    await target.execute("CREATE SCHEMA IF NOT EXISTS aiorepl")
    await target.execute(
        "CREATE TABLE IF NOT EXISTS aiorepl.positions (sink text, slot text, system_identifier text NOT NULL, "
        "timeline int NOT NULL, lsn pg_lsn NOT NULL, moved timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (sink, slot))"
    )
    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        (ended,) = await asyncio.gather(watching, return_exceptions=True)
        source.terminate()
        target.terminate()
    assert isinstance(ended, asyncio.CancelledError), ended
    assert [] == [(confirmed, there) for confirmed, there in seen if confirmed > there]
    assert seen


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
@pytest.mark.parametrize("way", ["plain", "streamed", "sql"])
async def test_a_backend_is_terminated(pair, tmp_path, way, journal):
    """Repeated losses at several slices of two transactions, with others before, between and after them."""
    await pair.both(LOG)
    await pair.slotted()
    await pair.source.execute(pair.kilobytes(3))
    await pair.source.execute(pair.kilobytes(8000))
    await pair.source.execute(pair.kilobytes(2, "y"))
    await pair.source.execute(pair.kilobytes(8000, "z"))
    await pair.source.execute(pair.kilobytes(1, "y"))
    # A slice is what one read brings, or a megabyte of what was spooled or is in the journal.
    sink = Severed(pair, 1, 2, 4, 7, 13, 15, 40)
    source = {"plain": {}, "streamed": {"streaming": "on"}, "sql": {"interface": "sql"}}[way]
    if way == "streamed":
        await pair.source.execute(
            f"ALTER DATABASE \"{pair.source_dsn.rpartition('/')[2]}\" SET logical_decoding_work_mem = '64kB'"
        )
    kept = None if not journal else str(tmp_path / "journal")
    async with watched(pair) if not journal else _nothing():
        pipeline = await pair.deliver(
            Delivery(sink, retry=PATIENT), batches=SMALL, source=source, journal=kept
        )
    assert pipeline.statistics().sinks["mirror"].rewinds > 3
    await pair.require_equal("log")
    assert 16006 == await pair.target.fetchval("SELECT count(*) FROM log")


@asynccontextmanager
async def _nothing():
    """Check nothing, because the slot waits for the journal."""
    yield


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_cut_anywhere(pair, server, seed):
    """Any answer of the target's may be the last, also one to COMMIT, while another sink is served beside it."""
    await pair.both(LOG)
    await pair.slotted()
    chance = random.Random(seed)
    for _ in range(4):
        await pair.source.execute(pair.kilobytes(chance.choice([1, 50, 3000])))
    beside = MemorySink()
    async with (
        CuttingProxy("127.0.0.1", int(server.dsn.rpartition(":")[2].partition("/")[0])) as proxy,
        watched(pair),
    ):
        pipeline = Pipeline(
            Source(pair.source_dsn, slot=pair.slot, publication="p"),
            {"mirror": pair.sink(dsn=proxy.dsn_for(pair.target_dsn)), "beside": beside},
            batches=SMALL,
            retry=PATIENT,
        )
        async with pipeline:
            number = 0
            while number < 20 or not pipeline.statistics().sinks["mirror"].rewinds:
                number += 1
                proxy.cut_after(chance.randrange(1, 2000))
                await asyncio.sleep(chance.uniform(0.02, 0.2))
                if number % 4 == 1:
                    await pair.source.execute(pair.kilobytes(chance.choice([1, 1500])))
            end = await pair.wal()
            async with asyncio.timeout(120):
                while await pair.position() < end:
                    await asyncio.sleep(0.02)
        assert 0 == pipeline.statistics().sinks["beside"].rewinds
    await pair.require_equal("log")
    identities = [(change.transaction.commit_lsn, change.ordinal) for change in beside.changes]
    assert len(set(identities)) == len(identities) == await pair.target.fetchval("SELECT count(*) FROM log")
    assert sorted(identities) == identities


async def test_two_targets_are_lost_in_turns(pairs):
    """Each sink gets what it has lost and no row twice, while the other continues or reconnects itself."""
    pair, other = await pairs(), await pairs()
    await pair.both(LOG)
    await other.target.execute(LOG)
    await pair.slotted()
    for number in (3000, 10, 5000):
        await pair.source.execute(pair.kilobytes(number))
    sinks = {
        "mirror": Severed(pair, 1, 2, 5, beyond=3500),
        "second": Severed(other, 2, 4, 5, beyond=3000, name="second"),
    }
    pipeline = Pipeline(
        Source(pair.source_dsn, slot=pair.slot, publication="p"),
        sinks,
        batches=SMALL,
        retry=PATIENT,
        until="now",
    )
    async with watched(pair), asyncio.timeout(120):
        await pipeline.run()
    found = pipeline.statistics()
    assert (4, 4) == (found.sinks["mirror"].rewinds, found.sinks["second"].rewinds)
    assert (0, None) == (found.reconnects, found.last_error)
    await pair.require_equal("log")
    assert await pair.rows(pair.source, "log") == await other.rows(other.target, "log")


async def test_the_target_restarts(pairs, servers):
    """If the target restarts within a transaction, in order or by a crash, the whole transaction arrives."""
    with servers.new(18) as target:
        pair = await pairs()
        pair.target_dsn = target.dsn
        await pair.source.execute(LOG)
        setting = await asyncpg.connect(target.dsn)
        await setting.execute(LOG)
        await setting.close()
        await pair.slotted()
        await pair.source.execute(pair.kilobytes(5000))

        class Restarted(Severed):
            async def lose(self):
                if self.within == 3:
                    await asyncio.to_thread(target.restart)
                else:
                    await asyncio.to_thread(target.kill)
                    restarting.append(asyncio.create_task(asyncio.to_thread(target.start)))

        restarting = []
        pipeline = await pair.deliver(Delivery(Restarted(pair, 3, 6), retry=PATIENT), batches=SMALL)
        await asyncio.gather(*restarting)
        assert 2 == pipeline.statistics().sinks["mirror"].rewinds
        setting = await asyncpg.connect(target.dsn)
        assert await pair.rows(pair.source, "log") == await pair.rows(setting, "log")
        await setting.close()


async def test_an_initial_load(pair, tmp_path):
    """A large transaction is read again from the journal, long after its snapshot is gone."""
    await pair.both(LOG)
    await pair.source.execute(pair.kilobytes(8000))
    sink = Severed(pair, 1, 3, 6)
    pipeline = await pair.deliver(
        Delivery(sink, retry=PATIENT),
        journal=str(tmp_path / "journal"),
        snapshot=True,
        source={"create_slot": True},
        batches=SMALL,
    )
    assert 3 == pipeline.statistics().sinks["mirror"].rewinds
    await pair.source.execute(pair.kilobytes(10, "y"))
    await pair.deliver(journal=str(tmp_path / "journal"))
    await pair.require_equal("log")


async def test_beside_a_journal_nobody_else_notices(pair, tmp_path):
    """Another sink has everything long before the one that is lost again and again."""
    await pair.both(LOG)
    await pair.slotted()
    await pair.source.execute(pair.kilobytes(8000))
    beside = MemorySink()
    count = await pair.source.fetchval("SELECT count(*) FROM log")

    class Behind(Severed):
        async def write(self, batch):
            if self.within == 6:
                await beside.wait_for_changes(count, durable=True)
            await super().write(batch)

    sinks = {"mirror": Delivery(Behind(pair, 1, 2, 4, 7), retry=PATIENT), "beside": beside}
    pipeline = Pipeline(
        Source(pair.source_dsn, slot=pair.slot, publication="p"),
        sinks,
        journal=str(tmp_path),
        batches=SMALL,
        until="now",
    )
    async with asyncio.timeout(120):
        await pipeline.run()
    assert 4 == pipeline.statistics().sinks["mirror"].rewinds
    assert count == len(beside.changes)
    await pair.require_equal("log")


@pytest.mark.parametrize("supports_prepared", [True, False], ids=["prepared", "held"])
@pytest.mark.parametrize("decision", ["COMMIT", "ROLLBACK"])
async def test_within_a_prepared_transaction(pair, supports_prepared, decision):
    """Before its PREPARE on the target, at it, and before its end."""
    await pair.both(LOG)
    await pair.slotted(two_phase=True)
    gid = f"{pair.slot}_gid"
    await pair.source.execute(f"BEGIN; {pair.kilobytes(4000)}; PREPARE TRANSACTION '{gid}'")
    await pair.source.execute(pair.kilobytes(5, "y"))
    await pair.source.execute(f"{decision} PREPARED '{gid}'")
    await pair.source.execute(pair.kilobytes(4000, "z"))
    sink = Severed(pair, 1, 3, 6, 10, 14, two_phase=supports_prepared)
    async with watched(pair):
        pipeline = await pair.deliver(
            Delivery(sink, retry=PATIENT), batches=SMALL, source={"two_phase": True}
        )
    assert pipeline.statistics().sinks["mirror"].rewinds in (4, 5)
    await pair.require_equal("log")
    assert 0 == await pair.target.fetchval(
        "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
    )
    assert 0 == await pair.target.fetchval("SELECT count(*) FROM aiorepl.prepared WHERE NOT committed")


async def test_stopped_while_the_target_is_away(pair):
    """A pipeline that is stopped while the target is unavailable ends at once, and the next start delivers everything."""
    await pair.both(LOG)
    await pair.slotted()
    await pair.source.execute(pair.kilobytes(10))
    name = pair.target_dsn.rpartition("/")[2]
    admin = await asyncpg.connect(pair.source_dsn)
    away = asyncio.Event()

    class Away(Severed):
        async def lose(self):
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            await super().lose()
            away.set()

    pipeline = Pipeline(
        Source(pair.source_dsn, slot=pair.slot, publication="p"),
        {"mirror": Delivery(Away(pair, 2), retry=RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2))},
        batches=SMALL,
        shutdown_timeout=1,
    )
    async with asyncio.timeout(60), pipeline:
        await pair.source.execute(pair.kilobytes(3000))
        await away.wait()
    await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    await admin.close()
    await pair.deliver()
    await pair.require_equal("log")


async def test_patience_ends(pair):
    """A target that loses every attempt fails after the policy's last one, with the reason; the slot does not move."""
    await pair.both(LOG)
    await pair.slotted()
    await pair.source.execute(pair.kilobytes(10))
    await pair.deliver()
    before = await pair.position()
    await pair.source.execute(pair.kilobytes(3000))
    sink = Severed(pair, *range(2, 10000, 2))
    async with watched(pair):
        with pytest.raises(TransientError, match="within the large transaction at"):
            await pair.deliver(
                Delivery(sink, retry=RetryPolicy(attempts=4, wait_initial=0.01)), batches=SMALL
            )
    assert before == await pair.position()
    assert 10 == await pair.target.fetchval("SELECT count(*) FROM log")
    await pair.deliver()
    await pair.require_equal("log")


async def test_poison_behind_a_large_transaction(pair):
    """The end of one transaction and a rejected row in a batch: the first is applied, the other skipped."""
    await pair.both("CREATE TABLE log (id int, line text CHECK (line <> 'poison'))")
    await pair.source.execute("ALTER TABLE log DROP CONSTRAINT log_line_check")
    await pair.slotted()
    await pair.source.execute(pair.kilobytes(1030))
    await pair.source.execute("INSERT INTO log VALUES (1, 'poison')")
    await pair.source.execute("INSERT INTO log VALUES (2, 'good')")
    pipeline = await pair.deliver(Delivery(pair.sink(), on_error="skip", retry=PATIENT), batches=SMALL)
    assert (1, 0) == (
        pipeline.statistics().sinks["mirror"].skipped,
        pipeline.statistics().sinks["mirror"].rewinds,
    )
    assert 1031 == await pair.target.fetchval("SELECT count(*) FROM log")
