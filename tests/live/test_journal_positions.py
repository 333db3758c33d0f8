"""With a journal, a sink's own position is compared with the journal, the slot and the server."""

from __future__ import annotations

import shutil
from dataclasses import replace

import asyncpg
import pytest

from aiorepl import LSN, BatchPolicy, Pipeline, Position, SinkContext, SlotError
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.sink import JournalSink
from aiorepl.testing.faults import FaultySink, Hang, MemorySink

pytestmark = pytest.mark.by_day

SOON = BatchPolicy(flush_seconds=0.1)


def keys(sink):
    """The keys of the delivered rows, in their order."""
    return [change.key["id"] for change in sink.changes if change.kind in ("insert", "read")]


def journal(folder, name="journal"):
    """The options of a pipeline with a journal."""
    return {"journal": str(folder / name), "batches": SOON}


async def fed(published, sink, **options):
    """Delivers a first row durably."""
    async with Pipeline(published.source(), [sink], **options):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1, durable=True)


async def without(published, tmp_path, sink):
    """Delivers a second row to another sink, so that the slot is past it, and deletes the journal."""
    await fed(published, sink, **journal(tmp_path))
    other = MemorySink()
    async with Pipeline(published.source(), {"other": other}, **journal(tmp_path)):
        await published.execute("INSERT INTO items VALUES (2)")
        await other.wait_for_changes(2, durable=True)
        await published.confirmed_past(other.durable)
    await published.execute("INSERT INTO items VALUES (3)")


async def test_behind_an_empty_journal(published, tmp_path):
    """A sink that is behind an empty journal stops alone, or continues with a gap."""
    sink, plain = MemorySink(keeps_position=True), MemorySink()
    await without(published, tmp_path, sink)
    options = journal(tmp_path, "new")
    with pytest.raises(SlotError, match=r"sink keeping is at .*, but the journal begins at .*--accept-gap"):
        await Pipeline(published.source(), {"keeping": sink, "plain": plain}, until="now", **options).run()
    assert ([1], [3]) == (keys(sink), keys(plain))

    pipeline = Pipeline(published.source(), {"keeping": sink}, until="now", accept_gap=True, **options)
    await pipeline.run()
    assert [1, 3] == keys(sink)
    assert ["sink keeping"] == [gap.holder for gap in pipeline.statistics().gaps]


async def test_in_the_gap_of_an_older_copy(published, tmp_path):
    """A sink ahead of a journal that was replaced by an older copy continues after the gap, once the gap is accepted.

    A sink at the end of the gap continues, too, although the journal lacks its last transaction.
    """
    sink, last, other = MemorySink(keeps_position=True), MemorySink(keeps_position=True), MemorySink()
    options = journal(tmp_path)
    await fed(published, sink, **options)
    shutil.copytree(tmp_path / "journal", tmp_path / "copy")
    async with Pipeline(published.source(), {"keeping": sink}, **options):
        await published.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(2, durable=True)
    async with Pipeline(published.source(), {"last": last, "other": other}, **options):
        await published.execute("INSERT INTO items VALUES (3)")
        await last.wait_for_changes(3, durable=True)
        await other.wait_for_changes(3, durable=True)
        await published.confirmed_past(other.durable)
    shutil.rmtree(tmp_path / "journal")
    shutil.move(tmp_path / "copy", tmp_path / "journal")
    await published.execute("INSERT INTO items VALUES (4)")

    accepting = Pipeline(published.source(), {"last": last}, until="now", accept_gap=True, **options)
    await accepting.run()
    assert (1, [1, 2, 3, 4]) == (len(accepting.statistics().gaps), keys(last))
    keeping = {"keeping": sink}
    with pytest.raises(SlotError, match=r"sink keeping is at .*, inside the gap .*--accept-gap"):
        await Pipeline(published.source(), keeping, until="now", **options).run()
    assert [1, 2] == keys(sink)

    accepting = Pipeline(published.source(), keeping, until="now", accept_gap=True, **options)
    await accepting.run()
    assert [1, 2, 4] == keys(sink)
    assert ["sink keeping"] == [gap.holder for gap in accepting.statistics().gaps]


async def test_behind_an_initial_load(published, tmp_path):
    """A load without a truncate is refused for a sink that is behind; one with a truncate continues."""
    sink = MemorySink(keeps_position=True)
    await without(published, tmp_path, sink)
    options = journal(tmp_path, "new")
    await published.connection.fetch("SELECT pg_drop_replication_slot($1)", published.slot)
    with pytest.raises(SlotError, match=r"sink memory is at .*, but the journal begins at "):
        await Pipeline(published.source(), [sink], until="now", snapshot=True, **options).run()
    # The next start does not either, because the journal begins with that load.
    with pytest.raises(SlotError, match=r"sink memory is at .*, but the journal begins at "):
        await Pipeline(published.source(), [sink], until="now", **options).run()
    assert [1] == keys(sink)

    await Pipeline(published.source(), [sink], until="now", resnapshot=True, **options).run()
    assert ["insert", "truncate"] == [change.kind for change in sink.changes][:2]
    assert [1, 2, 3] == sorted(keys(sink)[1:])


async def test_a_load_into_an_empty_journal_empties_the_tables(published, tmp_path):
    """``resnapshot`` truncates the tables, even if the journal is empty."""
    sink = MemorySink(keeps_position=True)
    await without(published, tmp_path, sink)
    await Pipeline(published.source(), [sink], until="now", resnapshot=True, **journal(tmp_path, "new")).run()
    assert ["insert", "truncate"] == [change.kind for change in sink.changes][:2]
    assert [1, 2, 3] == sorted(keys(sink)[1:])


@pytest.mark.parametrize("kept", [True, False], ids=["journal", "empty journal"])
async def test_ahead_of_the_server(published, tmp_path, kept):
    """A sink ahead of the server's WAL is refused, because new transactions would be mistaken for its own."""
    sink = MemorySink(keeps_position=True)
    await fed(published, sink, **journal(tmp_path))
    sink.position = replace(sink.position, lsn=LSN(sink.position.lsn + 0x10000000), last=None)
    await published.execute("INSERT INTO items VALUES (2)")
    with pytest.raises(SlotError, match=r"sink memory is at .*, but the server's WAL ends at "):
        await Pipeline(
            published.source(), [sink], until="now", **journal(tmp_path, "journal" if kept else "new")
        ).run()
    assert [1] == keys(sink)


async def test_ahead_of_the_slot(published, tmp_path):
    """A sink that ran without a journal continues with one: its last transaction is compared and skipped."""
    await published.create_slot()
    sink, hang = MemorySink(keeps_position=True), Hang()
    async with Pipeline(
        published.source(), [FaultySink(sink, flush=[None, hang])], batches=SOON, shutdown_timeout=0
    ):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1, durable=True)
        await published.execute("INSERT INTO items VALUES (2)")
        await hang.reached.wait()
    await published.execute("INSERT INTO items VALUES (3)")
    assert await published.confirmed() < sink.position.last.commit_lsn
    await Pipeline(published.source(), {"s": sink}, until="now", **journal(tmp_path)).run()
    assert [1, 2, 3] == keys(sink)


async def test_ahead_of_its_cursor(published, tmp_path):
    """A sink that committed before its cursor moved continues: its last transaction is compared and skipped."""
    sink = MemorySink(keeps_position=True)
    await fed(published, sink, **journal(tmp_path))
    hang = Hang()
    async with Pipeline(
        published.source(),
        {"memory": FaultySink(sink, flush=[hang])},
        shutdown_timeout=0,
        **journal(tmp_path),
    ):
        await published.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(2)
        await hang.reached.wait()
    await published.execute("INSERT INTO items VALUES (3)")
    await Pipeline(published.source(), [sink], until="now", **journal(tmp_path)).run()
    assert [1, 2, 3] == keys(sink)


async def test_another_transaction_than_the_journals(published, tmp_path):
    """A sink whose last transaction is not in the journal is refused at every start."""
    sink = MemorySink(keeps_position=True)
    await fed(published, sink, **journal(tmp_path))
    earlier = sink.position
    await published.execute("INSERT INTO items VALUES (2)")
    between = await published.wal()
    await published.execute("INSERT INTO items VALUES (3)")
    await Pipeline(published.source(), {"other": MemorySink()}, until="now", **journal(tmp_path)).run()
    sink.position = replace(earlier, lsn=between, last=replace(earlier.last, commit_lsn=earlier.lsn, xid=1))
    for _ in range(2):
        with pytest.raises(
            SlotError, match=r"sink memory is at .* transaction, xid 1 at .* is not in the journal"
        ):
            await Pipeline(published.source(), [sink], until="now", **journal(tmp_path)).run()
    assert [1] == keys(sink)


async def test_a_sink_that_was_restored_moves_its_cursor_back(published, tmp_path):
    """Pruning keeps the segments that a restored sink reads again."""
    sink = MemorySink(keeps_position=True)
    await fed(published, sink, **journal(tmp_path))
    earlier = sink.position
    async with Pipeline(published.source(), [sink], **journal(tmp_path)):
        await published.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(2, durable=True)
    cursors = Cursors(tmp_path / "journal")
    assert cursors.get("memory").lsn > earlier.lsn

    sink.position = earlier
    hang = Hang()
    hanging = {"memory": FaultySink(sink, write=[hang])}
    async with Pipeline(published.source(), hanging, shutdown_timeout=0, **journal(tmp_path)):
        await hang.reached.wait()
        assert earlier.lsn == cursors.get("memory").lsn


@pytest.fixture
async def foreign(published, servers):
    """A database of another cluster, with a publication and a slot of the same name."""
    server = servers(17)
    database = published.dsn.rpartition("/")[2]
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(f'CREATE DATABASE "{database}"')
    await connection.close()
    connection = await asyncpg.connect(server.dsn_for(database))
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
    await connection.execute(f"SELECT pg_create_logical_replication_slot('{published.slot}', 'pgoutput')")
    await connection.execute("INSERT INTO items VALUES (7)")
    yield server.dsn_for(database), connection
    await connection.execute(f"SELECT pg_drop_replication_slot('{published.slot}')")
    await connection.close()
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(f'DROP DATABASE "{database}"')
    await connection.close()


@pytest.mark.parametrize(
    "options", [{"resnapshot": True}, {"accept_gap": True}, {}], ids=["resnapshot", "accept", "plain"]
)
@pytest.mark.parametrize("loaded", [True, False], ids=["journal", "load that was cut short"])
async def test_a_slot_of_another_cluster(published, foreign, tmp_path, options, loaded):
    """A slot of another cluster is neither dropped nor altered, whether the journal is empty or not."""
    if loaded:
        await fed(published, MemorySink(), **journal(tmp_path))
    else:
        system = await published.connection.fetchval(
            "SELECT system_identifier::text FROM pg_control_system()"
        )
        sink = JournalSink(tmp_path / "journal")
        await sink.open(SinkContext("journal", Position(system, 1, published.slot, await published.wal())))
        await sink.close()
    dsn, there = foreign
    query = "SELECT confirmed_flush_lsn, failover FROM pg_replication_slots WHERE slot_name = $1"
    before = await there.fetchrow(query, published.slot)
    source = published.source(dsn, failover=True)
    with pytest.raises(SlotError, match="the journal holds a position of cluster"):
        await Pipeline(source, [MemorySink()], until="now", **journal(tmp_path), **options).run()
    assert before == await there.fetchrow(query, published.slot)


async def test_a_slot_of_another_cluster_and_a_sink(published, foreign):
    """Nor is it for a sink that keeps its position."""
    sink = MemorySink(keeps_position=True)
    await fed(published, sink)
    dsn, there = foreign
    query = "SELECT confirmed_flush_lsn, failover FROM pg_replication_slots WHERE slot_name = $1"
    before = await there.fetchrow(query, published.slot)
    with pytest.raises(SlotError, match="sink memory holds a position of cluster"):
        await Pipeline(published.source(dsn, failover=True), [sink], until="now").run()
    assert before == await there.fetchrow(query, published.slot)
