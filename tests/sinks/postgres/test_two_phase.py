"""Prepared transactions: prepared on the target as on the source, and committed or rolled back as there."""

from __future__ import annotations

import pytest

from aiorepl import (
    Batch,
    BatchPolicy,
    CommitPrepared,
    PermanentError,
    RollbackPrepared,
    SinkContext,
    SinkError,
    TransientError,
)
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl_sinks.postgres.state import TargetState

pytestmark = pytest.mark.by_day

TWO_PHASE = {"two_phase": True}
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, note text)"


async def prepare(pair, gid: str, *statements: str) -> None:
    quoted = gid.replace("'", "''")
    await pair.source.execute(f"BEGIN; {'; '.join(statements)}; PREPARE TRANSACTION '{quoted}'")


async def prepared(pair) -> int:
    """Return the number of the sink's prepared transactions on the target."""
    return await pair.target.fetchval(
        "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'aiorepl\\_%'"
    )


@pytest.mark.parametrize("streaming", ["off", "on"])
async def test_prepared_then_committed_or_rolled_back(pair, streaming):
    """Nothing is visible before the commit, which may come after a restart."""
    source = {**TWO_PHASE, "streaming": streaming}
    await pair.both(ITEMS)
    await pair.slotted(two_phase=True)
    await pair.source.execute("INSERT INTO items VALUES (1, 'plain')")
    await prepare(pair, "it's one", "INSERT INTO items SELECT i, 'x' FROM generate_series(100, 200) i")
    await prepare(pair, "two", "UPDATE items SET note = 'never' WHERE id = 1")
    await pair.source.execute("INSERT INTO items VALUES (2, 'plain')")
    await pair.deliver(two_phase=True, source=source)
    assert 2 == await prepared(pair)
    await pair.require_equal("items")
    await pair.source.execute("COMMIT PREPARED 'it''s one'")
    await pair.source.execute("ROLLBACK PREPARED 'two'")
    await pair.source.execute("INSERT INTO items VALUES (3, 'plain')")
    await pair.deliver(two_phase=True, source=source)
    assert 0 == await prepared(pair)
    await pair.require_equal("items")
    assert 0 == await pair.target.fetchval("SELECT count(*) FROM aiorepl.prepared")


async def test_a_large_one_in_slices(pair):
    """Prepared whole, though it came in many batches."""
    small = BatchPolicy(max_bytes=10_000)
    await pair.both(ITEMS)
    await pair.slotted(two_phase=True)
    await prepare(
        pair, "large", "INSERT INTO items SELECT i, repeat('x', 100) FROM generate_series(1, 30000) i"
    )
    pipeline = await pair.deliver(two_phase=True, source=TWO_PHASE, batches=small)
    assert pipeline.statistics().sinks["mirror"].batches > 3
    assert 1 == await prepared(pair)
    await pair.source.execute("COMMIT PREPARED 'large'")
    await pair.deliver(two_phase=True, source=TWO_PHASE, batches=small)
    await pair.require_equal("items")


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize(
    ("step", "nth"),
    [
        ("is_prepared", 1),
        ("find", 1),
        ("record", 1),
        ("record", 2),
        *(("advance", nth) for nth in (1, 2, 3)),
        ("delete", 1),
    ],
)
async def test_the_process_ends_before_a_step(pair, commits, step, nth, monkeypatch):
    """If the process ends at any step between PREPARE, decision and bookkeeping, the next one completes it."""
    await pair.both("CREATE TABLE log (id int, note text)")
    await pair.slotted(two_phase=True)
    await pair.source.execute("INSERT INTO log VALUES (1000, 'before')")
    await prepare(pair, "one", "INSERT INTO log SELECT i, 'x' FROM generate_series(1, 50) i")
    await pair.source.execute("INSERT INTO log VALUES (2000, 'between')")
    await pair.source.execute(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED 'one'")
    await pair.source.execute("INSERT INTO log VALUES (3000, 'after')")
    calls = 0
    real = getattr(TargetState, step)

    async def ending(self, *arguments, **options):
        nonlocal calls
        calls += 1
        if calls == nth:
            raise ProcessKilled
        return await real(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(TargetState, step, ending)
        with pytest.raises(SinkError, match="ProcessKilled"):
            await pair.deliver(two_phase=True, source=TWO_PHASE)
    assert nth == calls
    await pair.deliver(two_phase=True, source=TWO_PHASE)
    await pair.require_equal("log")
    assert 0 == await prepared(pair)
    assert 0 == await pair.target.fetchval("SELECT count(*) FROM aiorepl.prepared")


class ProcessKilled(Exception):
    """Stands for the end of the process: the sink drops its connection, as the kernel would."""


@pytest.mark.parametrize("kind", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("done", [False, True])
async def test_the_answer_to_a_decision_is_lost(pair, kind, done, monkeypatch):
    """COMMIT PREPARED or ROLLBACK PREPARED, done or not when the connection went: asked of the target and finished."""
    await pair.both("CREATE TABLE log (id int, note text)")
    await pair.slotted(two_phase=True)
    await prepare(pair, "one", "INSERT INTO log SELECT i, 'x' FROM generate_series(1, 50) i")
    await pair.deliver(two_phase=True, source=TWO_PHASE)
    await pair.source.execute(f"{kind} PREPARED 'one'")
    await pair.source.execute("INSERT INTO log VALUES (1000, 'after')")
    sink = pair.sink(two_phase=True)
    lost = []
    write = sink.write

    async def losing(batch):
        ends = any(isinstance(part.two_phase, CommitPrepared | RollbackPrepared) for part in batch.slices)
        if ends and not lost:
            lost.append(True)
            if done:
                (gid,) = await pair.target.fetchrow("SELECT gid FROM aiorepl.prepared")
                await pair.target.execute(f"{kind} PREPARED '{gid}'")
            sink._drop()
            raise TransientError("lost")
        await write(batch)

    monkeypatch.setattr(sink, "write", losing)
    await pair.deliver(sink, source=TWO_PHASE)
    assert lost
    await pair.require_equal("log")
    assert 0 == await prepared(pair)


@pytest.mark.parametrize(("there", "here"), [("COMMIT", "ROLLBACK"), ("ROLLBACK", "COMMIT")])
async def test_somebody_else_decided_otherwise(pair, there, here):
    """A prepared transaction that was ended by hand, and differently from the source, is an error."""
    await pair.both(ITEMS)
    await pair.slotted(two_phase=True)
    await prepare(pair, "one", "INSERT INTO items VALUES (1, 'x')")
    await pair.deliver(two_phase=True, source=TWO_PHASE)
    (gid,) = await pair.target.fetchrow("SELECT gid FROM aiorepl.prepared WHERE source_gid = 'one'")
    await pair.target.execute(f"{here} PREPARED '{gid}'")
    await pair.source.execute(f"{there} PREPARED 'one'")
    await pair.source.execute("INSERT INTO items VALUES (2, 'after')")
    with pytest.raises(PermanentError, match="by hand on the target"):
        await pair.deliver(two_phase=True, source=TWO_PHASE)


async def test_without_the_option(pair):
    """Prepared transactions arrive when they commit, as one transaction."""
    await pair.both(ITEMS)
    await pair.slotted(two_phase=True)
    await prepare(pair, "one", "INSERT INTO items VALUES (1, 'x')")
    await pair.deliver(source=TWO_PHASE)
    assert 0 == await prepared(pair)
    await pair.source.execute("COMMIT PREPARED 'one'")
    await pair.deliver(source=TWO_PHASE)
    await pair.require_equal("items")


def one_xid(start: int, row: str) -> Stream:
    """A stream in which the first transaction is prepared; every such stream gives it the same xid."""
    stream = Stream(start=start)
    table = stream.table("items", column("id", 23, key=True), column("note"))
    stream.prepare("one", table.insert(row, "x"))
    return stream


async def write(sink, stream) -> None:
    await sink.open(SinkContext("mirror", stream.position))
    await sink.write(Batch(tuple(stream.slices())))
    await sink.close()


async def test_an_xid_that_the_source_gives_out_again(pair):
    """A prepared transaction is its xid and the LSN of its PREPARE: another one with that xid never takes its place."""
    await pair.target.execute(ITEMS)
    await write(pair.sink(two_phase=True), one_xid(0x1000000, "1"))
    await pair.target.execute(f"ROLLBACK PREPARED '{await only_gid(pair)}'")

    later = one_xid(0x2000000, "2")
    await write(pair.sink(two_phase=True), later)
    later.commit_prepared("one")
    await write(pair.sink(two_phase=True), later)
    assert [2] == [row["id"] for row in await pair.target.fetch("SELECT id FROM items")]
    assert 0 == await pair.target.fetchval("SELECT count(*) FROM aiorepl.prepared")


async def test_an_xid_whose_first_transaction_is_still_prepared_here(pair):
    """The source has ended that unnoticed: nothing is written until it is ended here as well."""
    await pair.target.execute(ITEMS)
    await write(pair.sink(two_phase=True), one_xid(0x1000000, "1"))
    gid = await only_gid(pair)

    later, sink = one_xid(0x2000000, "2"), pair.sink(two_phase=True)
    await sink.open(SinkContext("mirror", later.position))
    batch = Batch(tuple(later.slices()))
    with pytest.raises(PermanentError, match=f"ROLLBACK PREPARED '{gid}'"):
        await sink.write(batch)
    await pair.target.execute(f"ROLLBACK PREPARED '{gid}'")
    await sink.write(batch)
    later.commit_prepared("one")
    await sink.write(Batch(tuple(later.slices())))
    await sink.close()
    assert [2] == [row["id"] for row in await pair.target.fetch("SELECT id FROM items")]


async def only_gid(pair) -> str:
    (row,) = await pair.target.fetch("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    return row["gid"]


async def test_the_table_of_an_earlier_version(pair):
    """A table of an earlier version is rejected with advice, and unchanged."""
    await pair.target.execute("CREATE SCHEMA aiorepl")
    await pair.target.execute("CREATE TABLE aiorepl.prepared (sink text, slot text, xid bigint, gid text)")
    sink = pair.sink(two_phase=True)
    with pytest.raises(PermanentError, match=r"DROP TABLE .*prepared, and start again"):
        await sink.open(SinkContext("mirror", Stream().position))
    await sink.close()
    assert 0 == await pair.target.fetchval("SELECT count(*) FROM aiorepl.prepared")
