"""The initial snapshot without a journal: read before the stream, with positions below the slot's."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from aiorepl import BatchPolicy, ConfigurationError, Delivery, Pipeline, Selection, SlotError, SnapshotOptions
from aiorepl.errors import AioreplError, TransientError
from aiorepl.journal import JournalSink
from aiorepl.snapshot import chunk_reader
from aiorepl.snapshot.initial import exported
from aiorepl.snapshot.initial.exported import ExportedSnapshot
from aiorepl.snapshot.initial.ordering import ChunkOrder
from aiorepl.snapshot.initial.snapshot import InitialSnapshot
from aiorepl.snapshot.ledger.file import LedgerFile
from aiorepl.testing.faults import FaultySink, Hang, MemorySink, Reject
from tests.waiting import until

pytestmark = pytest.mark.by_day

SOON = BatchPolicy(flush_seconds=0.05)
# A row of each takes more than half of a block.
ROWS = 6


@pytest.fixture
def options(tmp_path):
    """Options of a pipeline whose chunks have one row or two."""
    state = SnapshotOptions(state=str(tmp_path / "state"), chunk_bytes=8192)
    return {"snapshot": state, "batches": SOON}


@pytest.fixture
async def filled(published):
    """The database with some wide rows in a table, and an empty table."""
    await published.execute(
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "ALTER TABLE items ALTER note SET STORAGE PLAIN",
        f"INSERT INTO items SELECT id, repeat('x', 4000) FROM generate_series(1, {ROWS}) id",
    )
    return published


def headers(sink):
    """The headers of the chunks that were delivered, in order."""
    parts = [part for batch in sink.batches for part in batch.slices if part.end_lsn is not None]
    return [part.transaction.snapshot for part in parts if part.transaction and part.transaction.snapshot]


def rows(sink):
    """The kind and key of each change."""
    return [(change.kind, change.key and change.key["id"]) for change in sink.changes]


READ = [("read", number) for number in range(1, ROWS + 1)]


@pytest.mark.parametrize("keeps_position", [True, False])
async def test_rows_come_before_the_stream(filled, options, keeps_position):
    """Every row once, each chunk with its header, then what was committed since; the slot is confirmed only in its stream."""
    sink, hang = MemorySink(keeps_position=keeps_position), Hang()
    held = FaultySink(sink, write=[hang])
    pipeline = Pipeline(filled.source(), [held], **options)
    async with pipeline:
        await hang.reached.wait()
        start = await filled.confirmed()
        await filled.execute("INSERT INTO items VALUES (100, 'new')")
        hang.release()
        await sink.wait_for_changes(ROWS + 1, durable=True)
        found = await filled.confirmed_past(start + 1)
    assert [*READ, ("insert", 100)] == rows(sink)
    assert start < sink.changes[-1].transaction.commit_lsn < found
    chunks = headers(sink)
    assert ("empty", True, False) == (chunks[0].table, chunks[0].last_of_table, chunks[0].last)
    assert list(range(1, len(chunks))) == [chunk.number for chunk in chunks[1:]]
    assert [False] * (len(chunks) - 2) + [True] == [
        chunk.last and chunk.last_of_table for chunk in chunks[1:]
    ]
    assert {start} == {chunk.snapshot_lsn for chunk in chunks}
    lsns = [change.transaction.commit_lsn for change in sink.changes]
    assert sorted(lsns) == lsns
    assert lsns[ROWS - 1] < start

    again = MemorySink(keeps_position=keeps_position)
    again.position = again._durable_position = sink.position
    await filled.execute("INSERT INTO items VALUES (101, 'newer')")
    await Pipeline(filled.source(), [again], until="now", **options).run()
    assert [("insert", 101)] == rows(again)


async def test_one_check_of_the_locks_for_many_chunks(filled, options, monkeypatch):
    """Chunks that had been read before the last check of the locks need no check of their own."""
    await filled.execute(*(f"CREATE TABLE t{number} AS SELECT 1 AS id" for number in range(10)))
    left, checks = set(), []
    all_read = asyncio.Event()
    plan, end, verify = InitialSnapshot.plan, ChunkOrder.end, ExportedSnapshot.verify

    async def planned(snapshot, *arguments, **options):
        made = await plan(snapshot, *arguments, **options)
        left.update(range(len(made)))
        return made

    async def ended(order, number, error=None):
        await end(order, number, error)
        left.remove(number)
        if not left:
            all_read.set()

    async def check(exported, tables):
        checks.append(tables)
        await verify(exported, tables)
        await all_read.wait()

    monkeypatch.setattr(InitialSnapshot, "plan", planned)
    monkeypatch.setattr(ChunkOrder, "end", ended)
    monkeypatch.setattr(ExportedSnapshot, "verify", check)
    await Pipeline(filled.source(), [MemorySink()], until="now", **options).run()

    # One check for the first chunk, during which all chunks are read, and at most one for the others.
    assert len(checks) <= 2


async def test_options_of_sinks_hold(filled, options):
    """A selection leaves a table out, and masks columns; its chunks have no rows then."""
    sink, masked = MemorySink(), MemorySink()
    sinks = {
        "left": Delivery(sink, selection=Selection(tables=["!public.items"])),
        "masked": Delivery(masked, selection=Selection(mask=["public.items.note"], secret="s" * 32)),
    }
    await Pipeline(filled.source(), sinks, until="now", **options).run()
    assert [] == rows(sink)
    assert headers(masked) == headers(sink)
    assert READ == rows(masked)
    assert all("x" not in change.new["note"] for change in masked.changes)


async def test_a_sink_that_lost_chunks(filled, options):
    """They are read again under the same snapshot, and other sinks get them once."""
    other, sink = MemorySink(), MemorySink(keeps_position=True)
    lost = Reject(TransientError("lost", rewind=True))

    class Losing(FaultySink):
        async def open(self, context):
            sink.crash()
            return await super().open(context)

    faulty = Losing(sink, flush=[None, None, lost, None, lost])
    policy = BatchPolicy(max_bytes=1, flush_bytes=1)
    pipeline = Pipeline(
        filled.source(), {"other": other, "sink": faulty}, until="now", **options | {"batches": policy}
    )
    await pipeline.run()
    assert READ == rows(other) == rows(sink)
    assert 2 == pipeline.statistics().sinks["sink"].rewinds


async def test_a_sink_that_lost_chunks_with_the_snapshot(filled, options):
    """If the exported snapshot is gone as well, the lost chunks are read while the stream runs."""
    sink = MemorySink(keeps_position=True)

    class Losing(FaultySink):
        async def open(self, context):
            sink.crash()
            return await super().open(context)

        async def flush(self):
            if self.calls.count("flush") == 1:
                await until(
                    lambda: pipeline.statistics().snapshot.tables[1].state,
                    lambda state: state == "delivered",
                )
                await filled.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
                )
            await super().flush()

    lost = Reject(TransientError("lost", rewind=True))
    policy = BatchPolicy(max_bytes=1, flush_bytes=1)
    sinks = {"sink": Losing(sink, flush=[None, lost])}
    pipeline = Pipeline(filled.source(), sinks, **options | {"batches": policy})
    async with pipeline:
        await until(
            lambda: {change.key["id"] for change in sink.changes},
            lambda keys: keys == set(range(1, ROWS + 1)),
        )
    assert 1 == pipeline.statistics().sinks["sink"].rewinds


async def test_an_intent_without_a_slot(filled, options, tmp_path):
    """It means nothing once the slot is created without a snapshot."""
    state, sink = tmp_path / "state", MemorySink()
    await LedgerFile(state, filled.slot).intend(truncates=True)
    phase_options = options | {"snapshot": False, "journal": str(state)}
    await Pipeline(filled.source(), [sink], until="now", **phase_options).run()
    assert [] == rows(sink)
    assert not list(state.glob("*-intent"))


async def test_a_start_that_fails(filled, options, tmp_path):
    """Neither the slot nor a plan is left, and the next start reads everything."""
    refusing = FaultySink(open=[Reject(AioreplError("no"))])
    with pytest.raises(AioreplError):
        await Pipeline(filled.source(), [refusing], **options).run()
    assert (
        await filled.connection.fetchval(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", filled.slot
        )
        == 0
    )
    assert not list((tmp_path / "state").glob(f"{filled.slot}*"))
    sink = MemorySink()
    await Pipeline(filled.source(), [sink], until="now", **options).run()
    assert READ == rows(sink)


async def test_a_start_that_fails_once_a_sink_has_its_position(filled, options):
    """The slot is kept for the sink, and the next start delivers everything."""
    sink, refusing = MemorySink(keeps_position=True), FaultySink(open=[Reject(AioreplError("no"))])
    with pytest.raises(AioreplError):
        await Pipeline(filled.source(), {"sink": sink, "refusing": refusing}, **options).run()
    async with Pipeline(filled.source(), {"sink": sink}, **options):
        await until(
            lambda: {change.key["id"] for change in sink.changes},
            lambda keys: keys == set(range(1, ROWS + 1)),
        )


async def test_a_table_that_fails_in_the_middle_of_a_chunk(filled, options, monkeypatch):
    """The pipeline ends, so that nothing counts as delivered that is not; the next start delivers everything."""
    # More than the buffers of a connection.
    await filled.execute("INSERT INTO items SELECT id, repeat('x', 4000) FROM generate_series(7, 300) id")
    monkeypatch.setattr(chunk_reader, "PART_BYTES", 1)
    options["snapshot"] = replace(options["snapshot"], chunk_bytes=1 << 20, in_flight_bytes=1)
    sink = MemorySink()

    async def failing(_, described, *__) -> None:
        if described.table.name == "items":
            raise SlotError("no")

    with monkeypatch.context() as patch:
        patch.setattr(InitialSnapshot, "_require_unaltered", failing)
        with pytest.raises(
            SlotError, match=r"table public\.items was not read: no; a part of it was delivered"
        ):
            await Pipeline(filled.source(), [sink], **options).run()
    async with Pipeline(filled.source(), [sink], **options):
        await until(
            lambda: {change.key["id"] for change in sink.changes},
            lambda keys: keys == set(range(1, 301)),
        )


async def test_a_stop_before_anything_is_durable(filled, options):
    """The slot is dropped, and the next start begins anew."""
    sink, hang = MemorySink(), Hang()
    work = asyncio.create_task(Pipeline(filled.source(), [FaultySink(sink, flush=[hang])], **options).run())
    await hang.reached.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    sink = MemorySink()
    await Pipeline(filled.source(), [sink], until="now", **options).run()
    assert READ == rows(sink)


async def test_a_snapshot_again(filled, options):
    """``resnapshot`` begins with a truncate, also for a sink that is far behind; one that is ahead would skip it."""
    sink = MemorySink(keeps_position=True)
    await Pipeline(filled.source(), [sink], until="now", batches=SOON).run()
    await filled.connection.fetch("SELECT pg_drop_replication_slot($1)", filled.slot)
    await filled.execute("DELETE FROM items WHERE id > 2")
    await Pipeline(filled.source(), [sink], until="now", resnapshot=True, **options).run()
    assert [("truncate", None), *READ[:2]] == [(kind, key) for kind, key in map(_of, sink.changes)]

    await filled.execute("INSERT INTO items VALUES (7, 'x')")
    await Pipeline(filled.source(), [sink], until="now", **options).run()
    assert ("insert", 7) == _of(sink.changes[-1])

    ahead = MemorySink(keeps_position=True)
    ahead.position = sink.position.at(sink.position.lsn + 0x8000000)
    with pytest.raises(SlotError, match="ahead of the initial snapshot"):
        await Pipeline(filled.source(), [ahead], resnapshot=True, **options).run()


def _of(change):
    return change.kind, None if change.kind == "truncate" else change.key["id"]


async def test_a_slot_without_a_ledger(filled, options, caplog):
    """Its snapshot may not have been complete, and the ledger was lost: that is said once."""
    await filled.create_slot()
    sink = MemorySink()
    for _ in range(2):
        await Pipeline(filled.source(), [sink], until="now", **options).run()
    assert [] == rows(sink)
    assert 1 == sum("the rows from before the slot are not read" in message for message in caplog.messages)


async def test_a_kill_before_the_plan_is_written(filled, options, tmp_path):
    """The next start does not take the slot for one that needs no snapshot: it reads all tables while the stream runs."""
    await filled.create_slot()
    await LedgerFile(tmp_path / "state", filled.slot).intend(truncates=False)
    sink = MemorySink()
    async with Pipeline(filled.source(), [sink], **options) as pipeline:
        await until(
            lambda: {table.state for table in pipeline.snapshots.tables.values()},
            {"complete"}.__eq__,
        )
    assert await filled.connection.fetchval("SELECT count(*) FROM items") == len(rows(sink))


async def test_a_slot_that_was_there(filled, options):
    """It begins where it is, without a snapshot."""
    await filled.create_slot()
    sink = MemorySink()
    await Pipeline(filled.source(), [sink], until="now", **options).run()
    assert [] == rows(sink)


async def test_it_needs_a_folder(published):
    """Without a journal the plan has no place."""
    with pytest.raises(ConfigurationError, match="state="):
        Pipeline(published.source(), [MemorySink()], snapshot=True)


async def test_room_after_the_end_of_a_journal(filled, tmp_path):
    """A snapshot of many chunks into a journal that ends with the WAL: their positions come after that end."""
    await filled.execute(
        f"INSERT INTO items SELECT id, repeat('x', 4000) FROM generate_series({ROWS + 1}, 200) id"
    )
    options = {
        "journal": str(tmp_path),
        "until": "now",
        "batches": SOON,
        "snapshot": SnapshotOptions(chunk_bytes=8192),
    }
    sink = MemorySink()
    await Pipeline(filled.source(), [sink], **options).run()
    end = sink.changes[-1].transaction.commit_lsn
    await Pipeline(filled.source(), [sink], resnapshot=True, **options).run()
    again = sink.changes[200:]
    assert "truncate" == again[0].kind
    assert list(range(1, 201)) == [change.key["id"] for change in again[1:]]
    assert end < again[0].transaction.commit_lsn


@pytest.mark.parametrize("durable", [1, 3])
async def test_a_restart_below_the_slot(filled, options, durable):
    """A sink that is in the snapshot, or at its end, goes on with what is left of it, and then with the stream."""
    sink, hang = MemorySink(keeps_position=True), Hang()
    held = FaultySink(sink, flush=[*[None] * durable, hang])
    policy = {"batches": BatchPolicy(max_bytes=1, flush_bytes=1, flush_seconds=0.01)}
    work = asyncio.create_task(Pipeline(filled.source(), {"sink": held}, **options | policy).run())
    await hang.reached.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    sink.crash()
    assert sink.position.lsn < await filled.confirmed()
    known = len(sink.changes)
    assert 2 * durable == known

    await filled.execute("INSERT INTO items VALUES (100, 'new')")
    async with Pipeline(filled.source(), {"sink": sink}, **options):
        await until(
            lambda: rows(sink),
            lambda found: {*READ, ("insert", 100)} <= set(found),
        )
    # Chunks that are durable are not read again.
    assert READ[:known] == [row for row in rows(sink) if row[1] <= known]


async def test_a_sink_that_is_restored_to_before_a_snapshot_again(filled, options):
    """The sink gets the truncate again, and then all rows, also those that the sink had before."""
    sink = MemorySink(keeps_position=True)
    await Pipeline(filled.source(), {"sink": sink}, until="now", batches=SOON).run()
    before = sink.position
    await filled.connection.fetch("SELECT pg_drop_replication_slot($1)", filled.slot)
    policy = {"batches": BatchPolicy(max_bytes=1, flush_bytes=1, flush_seconds=0.01)}
    # The first start ends after some chunks, and the second one when it has left the others to the stream.
    for durable, once in ((3, {"resnapshot": True}), (0, {})):
        hang = Hang()
        held = FaultySink(sink, flush=[*[None] * durable, hang])
        pipeline = Pipeline(filled.source(), {"sink": held}, **options | policy | once)
        work = asyncio.create_task(pipeline.run())
        await hang.reached.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        sink.crash()
    assert before.lsn < sink.position.lsn

    restored = MemorySink(keeps_position=True)
    restored.position = before
    async with Pipeline(filled.source(), {"sink": restored}, **options) as pipeline:
        await pipeline.snapshots.completed()
    assert [("truncate", None), *READ] == [_of(change) for change in restored.changes]


@pytest.mark.parametrize("statement", ["ALTER TABLE later ADD COLUMN extra int DEFAULT 7", "TRUNCATE later"])
@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
@pytest.mark.parametrize("connections", [1, 3])
async def test_an_alteration_of_a_table_that_is_not_read_yet(
    filled, options, tmp_path, monkeypatch, statement, journal, connections
):
    """The snapshot ends for it, and the rest is read while the stream runs. Otherwise it would wait for the snapshot, and the
    snapshot's COPY for it, without an end.
    """
    await filled.execute(
        "CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later SELECT generate_series(1, 3)"
    )
    chunks = SnapshotOptions(
        state=None if journal else str(tmp_path / "state"),
        chunk_bytes=8192,
        in_flight_bytes=1,
        connections=connections,
    )
    sink, hang = MemorySink(), Hang()
    # What the snapshot waits for: the journal, if there is one.
    waiting = JournalSink if journal else MemorySink
    write = waiting.write
    monkeypatch.setattr(waiting, "write", lambda writer, batch: hang.strike(lambda: write(writer, batch)))
    pipeline = Pipeline(
        filled.source(),
        [sink],
        **options | {"snapshot": chunks},
        journal=str(tmp_path / "journal") if journal else None,
        buffer_bytes=1,
    )
    other = await asyncpg.connect(filled.dsn)
    async with asyncio.timeout(60), pipeline:
        await hang.reached.wait()
        waits = "SELECT count(*) FROM pg_locks WHERE relation = 'later'::regclass AND NOT granted"
        altering = asyncio.create_task(other.execute(statement))
        await until(lambda: filled.connection.fetchval(waits))
        hang.release()
        await altering
        await filled.execute("INSERT INTO later (id) VALUES (100)")

        async def caught_up() -> bool:
            there = await filled.connection.fetch("SELECT id FROM later")
            found = {
                change.new["id"]
                for change in sink.changes
                if change.kind != "truncate" and change.table == "later"
            }
            return {row["id"] for row in there} <= found

        await until(caught_up)
        await sink.wait_for_changes(ROWS)
    await other.close()
    assert {number for _, number in READ} <= {
        change.new["id"] for change in sink.changes if change.kind != "truncate" and change.table == "items"
    }


@pytest.mark.parametrize("table", ["empty", "items"])
async def test_a_table_is_altered_while_the_sinks_stand_still(filled, options, table):
    """An ALTER TABLE waits for the snapshot only until ``lock_timeout``, even if the sinks stand still. No row is lost."""
    sink, hang = MemorySink(), Hang()
    held = FaultySink(sink, write=[hang])
    snapshot = replace(options["snapshot"], lock_timeout=0.5, connections=1)
    options |= {"snapshot": snapshot, "batches": BatchPolicy(max_rows=1), "buffer_bytes": 1}
    async with Pipeline(filled.source(), [held], **options) as pipeline:
        await hang.reached.wait()
        async with asyncio.timeout(60):
            await filled.execute(f"ALTER TABLE {table} ADD extra int")
        hang.release()
        await filled.execute("INSERT INTO items VALUES (100, 'new')")
        await until(lambda: {key for _, key in rows(sink)}, lambda keys: 100 in keys)
        await pipeline.snapshots.completed()
    assert {*range(1, ROWS + 1), 100} == {key for _, key in rows(sink)}


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_a_table_is_altered_while_the_snapshot_is_planned(
    filled, options, monkeypatch, tmp_path, journal, again
):
    """The start gives way to the ALTER TABLE, and all rows are read while the stream runs."""
    sink, altering = MemorySink(keeps_position=True), []
    if journal:
        options |= {"journal": tmp_path / "journal", "snapshot": replace(options["snapshot"], state=None)}
    if again:
        await Pipeline(filled.source(), [sink], until="now", **options).run()
        await filled.execute("DELETE FROM items WHERE id > 2")

    async def plan(connection, *_):
        altering.append(asyncio.create_task(filled.execute("ALTER TABLE items ADD extra int")))
        await connection.fetchval("SELECT pg_sleep(600)")

    options["snapshot"] = replace(options["snapshot"], lock_timeout=0.5)
    async with asyncio.timeout(60):
        with monkeypatch.context() as patch:
            patch.setattr(exported, "plan_tables", plan)
            pipeline = Pipeline(filled.source(), [sink], resnapshot=again, **options)
            work = asyncio.create_task(pipeline.run())
            await pipeline.started()
        await altering[0]
        await pipeline.snapshots.completed()
        await filled.execute("INSERT INTO items VALUES (100, 'new')")
        await until(
            lambda: [_of(change) for change in sink.changes],
            lambda found: ("insert", 100) in found,
        )
        pipeline.stop()
        await work
    expected = [*READ[:2], ("insert", 100)] if again else [*READ, ("insert", 100)]
    found = [_of(change) for change in sink.changes]
    if again:
        found = found[found.index(("truncate", None)) + 1 :]
    assert expected == found


async def test_a_snapshot_again_that_ends_before_its_first_chunk(filled, options, monkeypatch):
    """Its truncate is delivered even if another session's ALTER TABLE ends the snapshot before anything was delivered."""
    sink, run = MemorySink(keeps_position=True), InitialSnapshot.run
    await Pipeline(filled.source(), [sink], until="now", batches=SOON).run()
    await filled.connection.fetch("SELECT pg_drop_replication_slot($1)", filled.slot)
    await filled.execute("DELETE FROM items WHERE id > 2")

    async def run_late(*arguments, **named):
        await filled.execute("ALTER TABLE items ADD extra int")
        return await run(*arguments, **named)

    monkeypatch.setattr(InitialSnapshot, "run", run_late)
    options["snapshot"] = replace(options["snapshot"], lock_timeout=0.5)
    async with asyncio.timeout(60):
        async with Pipeline(filled.source(), [sink], resnapshot=True, **options) as pipeline:
            await pipeline.snapshots.completed()
    assert [("truncate", None), *READ[:2]] == [_of(change) for change in sink.changes]
