"""Where deliveries begin and end, what the slot is confirmed with, and stable identities."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from aiorepl import LSN, Pipeline, SlotError
from aiorepl.testing.faults import FaultySink, Hang, MemorySink
from tests.waiting import until


async def test_until_an_lsn_is_what_committed_below_it(published):
    """``until`` compares commit records, not rows."""
    await published.create_slot()
    other = await asyncpg.connect(published.dsn)
    long = other.transaction()
    await long.start()
    await other.execute("INSERT INTO items VALUES (1)")
    await published.execute("INSERT INTO items VALUES (2)", "INSERT INTO items VALUES (3)")
    middle = await published.wal()
    await long.commit()
    await other.close()
    await published.execute("INSERT INTO items VALUES (4)")

    deliveries = [await published.deliver(until=middle), await published.deliver(until="now")]
    assert [[2, 3], [1, 4]] == [[event["key"]["id"] for event in events] for events in deliveries]


async def test_until_a_commit_record_excludes_exactly_that_transaction(published):
    """``until`` at a commit record excludes that transaction; one byte more includes it."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)", "INSERT INTO items VALUES (2)")
    _, second = await published.headers()
    commit_lsn = LSN.parse(second["commit_lsn"])

    deliveries = [await published.deliver(until=until) for until in (commit_lsn, LSN(commit_lsn + 1))]
    assert [[1], [2]] == [[event["key"]["id"] for event in events] for events in deliveries]


async def test_until_now_ends_where_nothing_is_published(published):
    """``until="now"`` ends after unpublished WAL, and confirms it."""
    await published.create_slot()
    await published.execute("CREATE TABLE later (id int)", "DROP TABLE later")
    end = await published.wal()

    assert [] == await published.deliver()
    await published.confirmed_past(end)


async def test_identities_and_order_stay_over_restarts(published):
    """Unconfirmed changes are sent again in the same order with the same identities."""
    await published.create_slot()
    await published.commit(*(f"INSERT INTO items VALUES ({i})" for i in range(10)))
    await published.execute("UPDATE items SET note = 'x'", "BEGIN", "DELETE FROM items", "ROLLBACK")
    await published.execute("DELETE FROM items WHERE id % 2 = 0")

    async def deliver_and_fail():
        sink, hang = MemorySink(), Hang()
        async with Pipeline(
            published.source(), {"s": FaultySink(sink, flush=[hang])}, shutdown_timeout=0
        ) as pipeline:
            changes = await sink.wait_for_changes(25)
            assert pipeline.statistics().sinks["s"].changes == 25
        return [
            (change.kind, change.key["id"], change.transaction.commit_lsn, change.ordinal)
            for change in changes
        ]

    first, second = await deliver_and_fail(), await deliver_and_fail()
    assert first == second
    assert [*range(10), *range(10), *range(5)] == [ordinal for *_, ordinal in first]
    events = await published.deliver()
    assert [(str(lsn), ordinal) for *_, lsn, ordinal in first] == [
        (event["commit_lsn"], event["ordinal"]) for event in events
    ]


async def test_confirmed_never_passes_what_is_durable(published):
    """The slot waits for a sink that has accepted and not flushed, and moves with its flush."""
    await published.create_slot()
    memory, hang = MemorySink(), Hang()
    sink = FaultySink(memory, flush=[None, hang])
    async with Pipeline(published.source(), [sink]) as pipeline:
        await published.execute("INSERT INTO items VALUES (1)")
        await memory.wait_for_changes(1, durable=True)
        await published.confirmed_past(memory.durable)
        await published.execute("INSERT INTO items VALUES (2)")
        await hang.reached.wait()

        # Over several statuses and unpublished WAL: the slot may move up to the transaction, and never past it.
        _, position = memory.changes
        end = asyncio.get_running_loop().time() + 2.5
        while asyncio.get_running_loop().time() < end:
            await published.execute("CREATE TEMP TABLE t (i int)", "DROP TABLE t")
            assert memory.durable <= await published.confirmed() <= position.transaction.commit_lsn
        await until(
            lambda: pipeline.statistics().received,
            lambda received: received > position.transaction.commit_lsn,
        )
        hang.release()
        await published.confirmed_past(await published.wal())


async def test_unpublished_wal_is_passed(published):
    """The slot follows unpublished WAL repeatedly, without wal_sender_timeout's keepalives."""
    await published.execute(
        "CREATE TABLE private (id int)",
        "ALTER PUBLICATION p RENAME TO everything",
        "CREATE PUBLICATION p FOR TABLE items",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET wal_sender_timeout = 0', current_database()); END $$",
    )
    await published.create_slot()
    async with Pipeline(published.source(), [MemorySink()]):
        for _ in range(3):
            await published.execute("INSERT INTO private VALUES (1)", "INSERT INTO private VALUES (2)")
            await published.confirmed_past(await published.wal())


async def test_the_slot_waits_for_the_slowest_sink(published):
    """The slower of two sinks decides; the other one is not held back."""
    await published.create_slot()
    quick, slow, hang = MemorySink(), MemorySink(), Hang()
    sinks = {"quick": quick, "slow": FaultySink(slow, write=[hang])}
    async with Pipeline(published.source(), sinks) as pipeline:
        await published.execute("INSERT INTO items VALUES (1)")
        (change,) = await quick.wait_for_changes(1, durable=True)
        begin, end = change.transaction.commit_lsn, quick.durable

        # Unpublished WAL may move everything up to the transaction, and a sink that has it further.
        assert slow.durable == 0
        assert await published.confirmed() <= begin
        statistics = pipeline.statistics()
        assert statistics.flushed <= begin < end <= statistics.sinks["quick"].durable
        hang.release()
        await published.confirmed_past(end)
        assert slow.durable >= end


async def test_a_sink_that_keeps_its_position_gets_every_change_once(published):
    """A sink that stopped between its own commit and the slot's confirmation continues at its own position."""
    await published.create_slot()
    sink, hang = MemorySink(keeps_position=True), Hang()
    await published.execute("INSERT INTO items VALUES (1)", "INSERT INTO items VALUES (2)")
    async with Pipeline(published.source(), [FaultySink(sink, flush=[hang])], shutdown_timeout=0):
        first, _ = await sink.wait_for_changes(2)
    await published.execute("INSERT INTO items VALUES (3)")
    assert await published.confirmed() <= first.transaction.commit_lsn
    await Pipeline(published.source(), [sink], until="now").run()

    assert [1, 2, 3] == [change.key["id"] for change in sink.changes]
    assert sink.position.lsn == await published.confirmed()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda position: position.at(LSN(position.lsn - 1)), "the slot no longer has the transactions"),
        (lambda position: replace(position, slot="another"), "holds a position of slot 'another'"),
        (lambda position: replace(position, system_identifier="1"), "holds a position of cluster 1"),
        (lambda position: replace(position, timeline=7), "holds a position of timeline 7"),
    ],
)
async def test_a_position_that_does_not_fit_is_refused(published, change, reason):
    """A position behind the slot, or of another slot, cluster or timeline, is refused, and nothing is delivered."""
    sink = MemorySink(keeps_position=True)
    await published.create_slot()
    await Pipeline(published.source(), [sink], until="now").run()
    await published.execute("INSERT INTO items VALUES (1)")
    sink.position = change(sink.position)

    with pytest.raises(SlotError, match=reason):
        await Pipeline(published.source(), [sink], until="now").run()
    assert [] == sink.changes


async def test_a_transaction_without_changes_need_not_come_again(published):
    """The server streams changes that are rolled back later, or does not send that transaction if it has more memory."""
    await published.create_slot()
    (database,) = await published.connection.fetchrow("SELECT quote_ident(current_database())")
    source = replace(published.source(), streaming="on")
    ahead, behind = MemorySink(keeps_position=True), MemorySink(keeps_position=True)
    await published.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    hanging = FaultySink(behind, write=[Hang()])
    async with Pipeline(source, {"ahead": ahead, "behind": hanging}, shutdown_timeout=0):
        await published.execute("INSERT INTO items VALUES (1)")
        async with published.connection.transaction():
            await published.execute(
                "SAVEPOINT a", "INSERT INTO items SELECT generate_series(10, 5000)", "ROLLBACK TO a"
            )
        await ahead.wait_until_durable(await published.wal())
    counts = [len(part.changes) for batch in ahead.batches for part in batch.slices if part.transaction]
    # The server may stream other transactions without changes, too.
    assert {1, 0} == set(counts)
    await published.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '1GB'")
    await published.execute("INSERT INTO items VALUES (2)")
    await Pipeline(source, {"ahead": ahead, "behind": behind}, until="now").run()
    for sink in (ahead, behind):
        assert [1, 2] == [change.key["id"] for change in sink.changes]
