"""The primary dies and a standby is promoted: the pipeline continues there, or says why it cannot."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from aiorepl import BatchPolicy, Pipeline, RetryPolicy, SlotError
from aiorepl.journal import Cursors, JournalReader
from aiorepl.source.continuity import Gap
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

pytestmark = pytest.mark.by_day

QUICK = RetryPolicy(timeout=None, wait_initial=0.05, wait_max=0.2)
SOON = BatchPolicy(flush_seconds=0.1)


def keys(sink):
    """The keys of the delivered rows, in their order."""
    return [change.key["id"] for change in sink.changes]


async def under_load(pair, sink):
    """Promote the standby while rows are written, and return the promoted server's rows, with -1 at the end."""

    async def load():
        for number in range(1, 100_000):
            await pair.published.execute(f"INSERT INTO items VALUES ({number}, repeat('x', 500))")

    writing = asyncio.create_task(load())
    await sink.wait_for_changes(100)
    await asyncio.to_thread(pair.primary.kill)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await writing
    await pair.standby_client.fetchval("SELECT pg_promote()")
    found = await pair.rows()
    await pair.standby_client.execute("INSERT INTO items VALUES (-1)")
    return [*found, -1]


@pytest.mark.parametrize("waits", [True], indirect=True)
@pytest.mark.parametrize("version", [17, 18], indirect=True)
@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_a_promotion(published, pair, interface):
    """After a promotion under load, exactly the promoted server's rows are delivered, once and in order."""
    sink = MemorySink()
    source = published.source(pair.dsn, failover=True, interface=interface)
    async with AsyncExitStack() as stack:
        pipeline = Pipeline(source, [sink], reconnect=QUICK, batches=SOON)
        await stack.enter_async_context(pipeline)
        await published.execute("INSERT INTO items VALUES (0)")
        await sink.wait_for_changes(1)
        await pair.synchronized()
        expected = await under_load(pair, sink)
        await sink.wait_for_changes(len(expected), durable=True)
        assert expected == keys(sink)
        confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1"
        end = await pair.standby_client.fetchval("SELECT pg_current_wal_lsn()")
        await until(
            lambda: pair.standby_client.fetchval(confirmed, published.slot), lambda found: found >= end
        )
        assert pipeline.statistics().reconnects >= 1


@pytest.mark.parametrize("waits", [True], indirect=True)
@pytest.mark.parametrize("version", [17, 18], indirect=True)
async def test_a_promotion_with_a_journal(published, pair, tmp_path):
    """Journal and sinks continue; their new positions have the new timeline, which a restart accepts."""
    plain, keeping = MemorySink(), MemorySink(keeps_position=True)
    sinks, options = {"plain": plain, "keeping": keeping}, {"journal": str(tmp_path), "batches": SOON}
    source = published.source(pair.dsn, failover=True)
    async with Pipeline(source, sinks, reconnect=QUICK, **options):
        await published.execute("INSERT INTO items VALUES (0)")
        await plain.wait_for_changes(1)
        await pair.synchronized()
        expected = await under_load(pair, plain)
        for sink in (plain, keeping):
            await sink.wait_for_changes(len(expected), durable=True)
    reader, cursors = JournalReader(tmp_path), Cursors(tmp_path)
    indexes = [reader.index(segment) for segment in reader.segments()]
    assert [1, 2] == list(dict.fromkeys(index.end.timeline for index in indexes))
    kept = [reader.position(), cursors.get("plain"), cursors.get("keeping"), keeping.position]
    assert [2, 2, 2, 2] == [position.timeline for position in kept]

    await pair.standby_client.execute("INSERT INTO items VALUES (-2)")
    again = Pipeline(source, sinks, until="now", **options)
    await again.run()
    assert [*expected, -2] == keys(plain) == keys(keeping)
    assert () == again.statistics().gaps


async def test_a_promotion_between_two_runs(published, pair, tmp_path):
    """Positions from before the promotion are in the new server's history, so the next start continues from them."""
    sink = MemorySink(keeps_position=True)
    source = published.source(pair.dsn, failover=True)
    async with Pipeline(source, [sink], journal=str(tmp_path)):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1, durable=True)
        await pair.synchronized()
    await published.execute("INSERT INTO items VALUES (2)")
    await pair.caught_up()
    assert 1 == sink.position.timeline
    await pair.promote()
    await pair.standby_client.execute("INSERT INTO items VALUES (3)")
    await Pipeline(source, [sink], journal=str(tmp_path), until="now").run()
    assert [1, 2, 3] == keys(sink)
    assert 2 == sink.position.timeline == JournalReader(tmp_path).position().timeline


@pytest.mark.parametrize("version", [13, 14, 16, 18], indirect=True)
@pytest.mark.parametrize("journal", [True, False])
async def test_a_slot_that_was_no_failover_slot(published, pair, tmp_path, journal):
    """A promoted server without the slot is refused with the ways to continue, at a reconnect and at a start."""
    sink = MemorySink()
    source = published.source(pair.dsn)
    options = {"journal": str(tmp_path)} if journal else {}
    pipeline = Pipeline(source, [sink], reconnect=QUICK, batches=SOON, **options)
    work = asyncio.create_task(pipeline.run())
    await pipeline.started()
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1, durable=True)
    await pair.caught_up()
    await pair.promote()
    with pytest.raises(SlotError, match=r"on timeline 2 after 1, has no slot .*--resnapshot.*--failover"):
        await work
    await pair.standby_client.execute("INSERT INTO items VALUES (2)")
    if journal:
        with pytest.raises(SlotError, match=r"the slot no longer has the transactions.*--accept-gap"):
            await Pipeline(source, [sink], until="now", **options).run()
        await Pipeline(source, [sink], resnapshot=True, until="now", **options).run()
        kinds = [change.kind for change in sink.changes]
        assert (["insert", "truncate", "read", "read"], [1, 2]) == (kinds, keys_of_last(sink, 2))


def keys_of_last(sink, count):
    """The keys of the last changes, sorted."""
    return sorted(change.key["id"] for change in sink.changes[-count:])


@pytest.mark.parametrize("version", [17, 18], indirect=True)
async def test_what_the_promoted_server_never_had(published, pair):
    """If the standby lacked the last delivered transactions, the pipeline stops, because its new WAL would be skipped."""
    sink = MemorySink()
    source = published.source(pair.dsn, failover=True)
    pipeline = Pipeline(source, [sink], reconnect=QUICK, batches=SOON)
    work = asyncio.create_task(pipeline.run())
    await pipeline.started()
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1)
    await pair.synchronized()
    await pair.hold_back()
    await published.execute("INSERT INTO items SELECT i FROM generate_series(2, 100) i")
    await sink.wait_for_changes(100)
    await pair.promote_as_it_is()

    with pytest.raises(
        SlotError, match=r"the promoted server left timeline 1 at .*synchronized_standby_slots"
    ):
        await work
    assert 100 == len(sink.changes)


@pytest.mark.parametrize(
    ("journal", "way"),
    [(True, "accept_gap"), (True, "resnapshot"), (False, "accept_gap"), (False, "resnapshot")],
)
async def test_a_start_ahead_of_the_promoted_server(published, pair, tmp_path, journal, way):
    """A start detects lost transactions even after the server's WAL is past them; both ways to continue work."""
    sink = MemorySink(keeps_position=True)
    source = published.source(pair.dsn, failover=True)
    options = {"journal" if journal else "state_dir": str(tmp_path)}
    holder = f"journal {tmp_path}" if journal else "sink memory"

    async def run(**more):
        pipeline = Pipeline(source, [sink], until="now", **options, **more)
        await pipeline.run()
        return pipeline

    async with Pipeline(source, [sink], **options):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1, durable=True)
        await pair.synchronized()
    await pair.hold_back()
    await published.execute("INSERT INTO items SELECT i, repeat('x', 100) FROM generate_series(100, 999) i")
    await run()
    await pair.promote_as_it_is()
    await pair.standby_client.execute("INSERT INTO items VALUES (3)")
    position = sink.position
    lost = range(100, 1000)
    assert [1, *lost] == keys(sink)

    stands = rf"{holder} is at {position.lsn} of timeline 1, which the promoted server left at "
    with pytest.raises(SlotError, match=stands + r".* the server's WAL ends at .*pg_switch_wal"):
        await run(**{way: True} if way == "accept_gap" else {})
    # From here on the two servers use the same LSNs for different transactions.
    await pair.standby_client.execute("SELECT pg_switch_wal()")
    await pair.standby_client.execute("INSERT INTO items VALUES (4)")
    with pytest.raises(SlotError, match=stands + ".*--accept-gap"):
        await run()

    pipeline = await run(**{way: True})
    await pair.standby_client.execute("INSERT INTO items VALUES (5)")
    await run()
    assert 2 == sink.position.timeline
    if way == "resnapshot":
        assert [1, 3, 4, 5] == keys_of_last(sink, 4)
        assert "truncate" == sink.changes[1 + len(lost)].kind
        return
    # The accepted gap: the new server's transactions between the divergence and the old server's end.
    assert [1, *lost, 4, 5] == keys(sink)
    (gap,) = pipeline.statistics().gaps
    assert (holder, position.lsn) == (gap.holder, gap.until)
    assert gap.after < position.lsn
    assert isinstance(gap, Gap)
    if journal:
        assert [(gap.after, gap.until)] == JournalReader(tmp_path).gaps()


@pytest.mark.parametrize("waits", [True], indirect=True)
@pytest.mark.parametrize("interface", ["walsender", "sql"])
@pytest.mark.parametrize("journal", [True, False], ids=["journal", "direct"])
async def test_open_streamed_transactions(published, pair, tmp_path, interface, journal):
    """Uncommitted transactions of the old server are dropped from memory, and committed ones delivered once."""
    for connection in (published.connection, pair.standby_client):
        await connection.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'")
        await connection.execute("SELECT pg_reload_conf()")
    sink = MemorySink(keeps_position=True)
    source = published.source(
        pair.dsn,
        failover=True,
        interface=interface,
        streaming="on",
        transaction_buffer_bytes=100_000,
        spill_dir=tmp_path,
    )
    options = {"journal": str(tmp_path / "journal")} if journal else {}
    rows = "INSERT INTO items SELECT i, repeat('x', 300) FROM generate_series({}, {}) i"
    async with AsyncExitStack() as stack:
        pipeline = Pipeline(source, [sink], reconnect=QUICK, batches=SOON, **options)
        await stack.enter_async_context(pipeline)
        await published.execute("INSERT INTO items VALUES (0)")
        await sink.wait_for_changes(1)
        await pair.synchronized()
        for number in (1, 2):
            connection = await asyncpg.connect(pair.primary.dsn)
            stack.callback(connection.terminate)
            await connection.execute("BEGIN; SAVEPOINT first")
            await connection.execute(rows.format(number * 10_000, number * 10_000 + 1999))
            await connection.execute("ROLLBACK TO first")
            await connection.execute(rows.format(number * 10_000 + 5000, number * 10_000 + 6999))
        await connection.execute("COMMIT")
        await sink.wait_for_changes(2001)
        await pair.caught_up()
        await pair.promote()
        expected = await pair.rows()
        await pair.standby_client.execute(rows.format(50_000, 51_999))
        await sink.wait_for_changes(4001)
        waiting = pipeline.statistics().transaction_buffer
    assert sorted([*expected, *range(50_000, 52_000)]) == sorted(keys(sink))
    assert 2001 == len(expected)
    # The SQL interface reads unconfirmed changes again.
    assert interface == "sql" or (0, 0) == (waiting.memory, waiting.spooled)
