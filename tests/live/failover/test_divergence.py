"""A server with another history, although its name, its LSNs and its timeline's number are the same."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from aiorepl import BatchPolicy, Pipeline, RetryPolicy, SlotError
from aiorepl.journal import JournalReader
from aiorepl.source.continuity import Gap
from aiorepl.testing.faults import FaultySink, Hang, MemorySink
from tests.live.backup import Backup
from tests.waiting import until

pytestmark = pytest.mark.by_day

QUICK = RetryPolicy(timeout=None, wait_initial=0.05, wait_max=0.2)
SOON = BatchPolicy(flush_seconds=0.1)
ANOTHER = "restored from a backup, or (is|of) another promoted standby"


def keys(sink):
    """The keys of the delivered rows, in their order."""
    return [change.key["id"] for change in sink.changes]


@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_a_transaction_that_was_received_in_part(published, pair, interface):
    """If the promoted server never had a partly received transaction, the pipeline stops and says so."""
    memory, hang = MemorySink(), Hang()
    sink = FaultySink(memory, write=[None, None, hang])
    source = published.source(pair.dsn, failover=True, interface=interface)
    small = BatchPolicy(max_bytes=100_000, flush_seconds=0.1)
    pipeline = Pipeline(source, {"s": sink}, reconnect=QUICK, batches=small, buffer_bytes=500_000)
    work = asyncio.create_task(pipeline.run())
    await pipeline.started()
    await published.execute("INSERT INTO items VALUES (1)")
    await memory.wait_for_changes(1)
    await pair.synchronized()
    await pair.hold_back()
    await published.execute(
        "INSERT INTO items SELECT i, repeat('x', 500) FROM generate_series(1000, 20999) i"
    )
    await hang.reached.wait()
    await pair.promote_as_it_is()
    await pair.standby_client.execute("INSERT INTO items VALUES (2)")
    await pair.standby_client.execute("INSERT INTO items VALUES (3)")
    hang.release()

    with pytest.raises(
        SlotError, match=r"received a part of the transaction that commits at .* Start again to"
    ):
        await work
    partial = [part for batch in memory.batches for part in batch.slices if part.changes][1:]
    assert partial
    assert 1 == len({part.transaction.commit_lsn for part in partial})
    assert not any(part.last for part in partial)
    assert [1, 2, 3] == await pair.rows()
    again = MemorySink(keeps_position=True)
    await Pipeline(source, [again], until="now").run()
    assert [2, 3] == keys(again)[-2:]


class Siblings:
    """A pair, and a second standby that replaces the promoted one."""

    def __init__(self, pair, sibling, standby_client):
        self.pair = pair
        self.server = sibling
        self.standby_client = standby_client

    @property
    def dsn(self):
        """The DSN of whoever is the primary."""
        return self.pair.dsn_with(self.server)

    async def synchronized(self):
        """Wait until both standbys have the slot as a persistent one, and everything that was committed."""
        await self.pair.synchronized()
        await self.pair.synchronized(self.standby_client)
        await self.pair.caught_up()
        query, end = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", await self.pair.published.wal()
        await until(lambda: self.standby_client.fetchval(query, str(end)))

    async def take_over(self):
        """Kill the promoted server and promote its sibling, on a timeline of the same number; its WAL gets past the
        other's.
        """
        await asyncio.to_thread(self.pair.standby.kill)
        await self.standby_client.fetchval("SELECT pg_promote()")
        await self.standby_client.execute("INSERT INTO items VALUES (50)")
        await self.standby_client.execute("SELECT pg_switch_wal()")
        await self.standby_client.execute("INSERT INTO items VALUES (60)")


@pytest.fixture
async def siblings(pair, sibling):
    """A primary with two standbys."""
    standby_client = await asyncpg.connect(sibling.dsn)
    yield Siblings(pair, sibling, standby_client)
    standby_client.terminate()


@pytest.mark.parametrize("version", [17, 18], indirect=True)
@pytest.mark.parametrize("journal", [True, False], ids=["journal", "direct"])
async def test_another_standby_with_the_same_timeline(published, pair, siblings, tmp_path, journal):
    """A position on one of two promoted standbys is refused on the other, though both are on timeline 2 from the same LSN."""
    sink = MemorySink(keeps_position=True)
    source = published.source(siblings.dsn, failover=True)
    options = {"journal": str(tmp_path)} if journal else {}
    async with Pipeline(source, [sink], reconnect=QUICK, batches=SOON, **options):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1, durable=True)
        await siblings.synchronized()
        await pair.promote()
        for number in (20, 21):
            await pair.standby_client.execute(f"INSERT INTO items VALUES ({number}, repeat('x', 1000))")
        await sink.wait_for_changes(3, durable=True)
    held = sink.position
    assert 2 == held.timeline
    await siblings.take_over()

    holder = f"journal {tmp_path}" if journal else "sink memory"
    with pytest.raises(SlotError, match=f"{holder} is at .*{ANOTHER}.*--accept-gap"):
        await Pipeline(source, [sink], until="now", **options).run()
    assert [1, 20, 21] == keys(sink)

    pipeline = Pipeline(source, [sink], until="now", accept_gap=True, **options)
    await pipeline.run()
    (gap,) = pipeline.statistics().gaps
    assert isinstance(gap, Gap)
    assert holder == gap.holder
    assert gap.after < held.lsn <= gap.until
    await siblings.standby_client.execute("INSERT INTO items VALUES (61)")
    await Pipeline(source, [sink], until="now", **options).run()
    assert [1, 20, 21, 60, 61] == keys(sink)
    if journal:
        assert [(gap.after, gap.until)] == JournalReader(tmp_path).gaps()


async def test_another_standby_takes_over_under_the_stream(published, pair, siblings):
    """A reconnect compares positions, too."""
    sink = MemorySink()
    source = published.source(siblings.dsn, failover=True)
    pipeline = Pipeline(source, [sink], reconnect=QUICK, batches=SOON)
    work = asyncio.create_task(pipeline.run())
    await pipeline.started()
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1)
    await siblings.synchronized()
    await pair.promote()
    await pair.standby_client.execute("INSERT INTO items VALUES (20, repeat('x', 1000))")
    await sink.wait_for_changes(2)
    # Its WAL is past the other one's before it accepts connections.
    await siblings.take_over()
    with pytest.raises(SlotError, match=ANOTHER + r"|the server's WAL ends at"):
        await work
    assert [1, 20] == keys(sink)


@pytest.mark.parametrize("version", [13, 14, 17, 18], indirect=True)
@pytest.mark.parametrize("interface", ["walsender", "sql"])
@pytest.mark.parametrize("slot", ["copied", "made anew"])
@pytest.mark.parametrize("journal", [True, False], ids=["journal", "direct"])
async def test_a_backup_that_was_restored(published, primary, tmp_path, journal, slot, interface):
    """A restored server reuses LSNs on the same timeline; its new transactions are not mistaken for delivered ones."""
    sink = MemorySink(keeps_position=True)
    source = published.source(interface=interface)
    options = {"journal": str(tmp_path / "journal"), "batches": SOON} if journal else {"batches": SOON}
    async with Pipeline(source, [sink], **options):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1, durable=True)
    backup = Backup(primary, tmp_path)
    await backup.take()
    client = await asyncpg.connect(primary.dsn)
    async with Pipeline(source, [sink], **options):
        await client.execute("INSERT INTO items VALUES (2)")
        await client.execute("INSERT INTO items VALUES (3)")
        await sink.wait_for_changes(3, durable=True)
    await client.close()
    await backup.restore()
    client = await asyncpg.connect(primary.dsn)
    if slot == "made anew":
        await client.execute(f"SELECT pg_drop_replication_slot('{published.slot}')")
        await client.execute(f"SELECT pg_create_logical_replication_slot('{published.slot}', 'pgoutput')")
    await client.execute("INSERT INTO items SELECT i FROM generate_series(50, 59) i")
    await client.execute("SELECT pg_switch_wal()")
    await client.execute("INSERT INTO items VALUES (60)")

    with pytest.raises(SlotError, match=ANOTHER):
        await Pipeline(source, [sink], until="now", **options).run()
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = $1"
    async with asyncio.timeout(60):  # the server notices a dropped connection later
        while await client.fetchval(active, published.slot):
            await asyncio.sleep(0.01)
    # With an empty journal the sink's own position is refused in the same way.
    with pytest.raises(SlotError, match=f"sink memory .*{ANOTHER}"):
        await Pipeline(source, [sink], until="now", journal=str(tmp_path / "new")).run()
    assert [1, 2, 3] == keys(sink)
    await client.close()


async def test_a_restart_with_what_the_slot_was_not_told(published, primary, tmp_path):
    """An unconfirmed last transaction is sent again, found to be the same, and not delivered twice, even after a crash of
    the server.
    """
    sink, hang = MemorySink(keeps_position=True), Hang()
    async with Pipeline(
        published.source(), [FaultySink(sink, flush=[None, hang])], batches=SOON, shutdown_timeout=0
    ):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1, durable=True)
        await published.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(2)
        await hang.reached.wait()
    assert await published.confirmed() < sink.position.last.commit_lsn
    await asyncio.to_thread(primary.kill)
    await asyncio.to_thread(primary.start)
    client = await asyncpg.connect(primary.dsn)
    await client.execute("INSERT INTO items VALUES (3)")
    await Pipeline(published.source(), [sink], until="now").run()
    assert [1, 2, 3] == keys(sink)
    await client.close()
