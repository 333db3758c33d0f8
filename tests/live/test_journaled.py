"""Pipelines with a journal: independent sinks, and an initial snapshot that continues with the stream."""

from __future__ import annotations

import asyncio
import errno
import functools
import os

import asyncpg
import pytest

from aiorepl import (
    BatchPolicy,
    Delete,
    Insert,
    JournalError,
    Pipeline,
    RetryPolicy,
    SinkError,
    Update,
)
from aiorepl.journal import publisher
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.storage.local import LocalStore
from aiorepl.testing.faults import FaultySink, Hang, MemorySink
from tests.waiting import until

pytestmark = pytest.mark.one_path

SOON = BatchPolicy(flush_seconds=0.1)


def fold(changes):
    """The table that the changes result in; fails on an insert of an existing row or a change of a missing one."""
    rows = {}
    for change in changes:
        key = change.key["id"]
        match change:
            case Insert():
                assert key not in rows
                rows[key] = change.new["note"]
            case Update():
                assert rows.pop(key) is not None
                rows[change.new["id"]] = change.new["note"]
            case Delete():
                del rows[key]
    return rows


async def test_a_stalled_sink_holds_nobody_back(published, tmp_path):
    """The slot follows the journal, and another sink gets everything, while one sink stalls."""
    await published.create_slot()
    quick, slow, hang = MemorySink(), MemorySink(), Hang()
    sinks = {"quick": quick, "slow": FaultySink(slow, write=[hang])}
    begin = await published.wal()
    async with Pipeline(published.source(), sinks, journal=str(tmp_path), batches=SOON) as pipeline:
        await published.execute("INSERT INTO items VALUES (1)")
        await hang.reached.wait()
        await published.execute("INSERT INTO items VALUES (2)", "INSERT INTO items VALUES (3)")
        end = await published.wal()
        await quick.wait_for_changes(3)
        await published.confirmed_past(end)
        assert [] == slow.batches
        # It has taken nothing yet from a journal that begins where the slot does.
        assert 0 < pipeline.statistics().lags["slow"].durable <= await published.wal() - begin
        hang.release()
        await slow.wait_for_changes(3)
    assert [1, 2, 3] == [change.key["id"] for change in slow.changes]


async def test_each_sink_goes_on_from_its_own_cursor(published, tmp_path):
    """After a restart each sink continues at its own cursor."""
    await published.create_slot()
    quick, slow = MemorySink(), MemorySink()
    hang = Hang()
    sinks = {"quick": quick, "slow": FaultySink(slow, write=[hang])}
    async with Pipeline(published.source(), sinks, journal=str(tmp_path), batches=SOON, shutdown_timeout=0.5):
        await published.execute("INSERT INTO items VALUES (1)")
        await hang.reached.wait()
        await quick.wait_for_changes(1, durable=True)
        cursor = functools.partial(asyncio.to_thread, Cursors(str(tmp_path)).get, "quick")
        await until(cursor, lambda kept: kept.lsn >= quick.durable)
    await published.execute("INSERT INTO items VALUES (2)")
    sinks = {"quick": quick, "slow": slow}
    await Pipeline(published.source(), sinks, journal=str(tmp_path), until="now").run()

    assert ([1, 2], [1, 2]) == tuple([change.key["id"] for change in sink.changes] for sink in (quick, slow))


@pytest.mark.parametrize("server", [15, 18], indirect=True)
async def test_initial_load_and_stream_fit(published, tmp_path):
    """Under continuous writes, load and stream together have no gap and no duplicate."""
    await published.execute("INSERT INTO items SELECT i, 'old' FROM generate_series(1, 3000) i")
    stop = asyncio.Event()

    async def write(first):
        connection = await asyncpg.connect(published.dsn)
        number = first
        while not stop.is_set():
            number += 1
            async with connection.transaction():
                await connection.execute("INSERT INTO items VALUES ($1, 'new')", number)
                await connection.execute(
                    "UPDATE items SET note = note || '.' WHERE id = $1", number % 1500 + first // 10**6
                )
                await connection.execute("DELETE FROM items WHERE id = $1", number - 7 if number % 3 else -1)
            if number % 5 == 0:
                await connection.execute("BEGIN; INSERT INTO items VALUES (-5, 'never'); ROLLBACK")
            await asyncio.sleep(0.001)  # or it takes a processor for itself
        await connection.close()

    sink = MemorySink()
    writers = [asyncio.create_task(write(first)) for first in (1_000_000, 2_000_000)]
    try:
        async with Pipeline(published.source(), [sink], journal=str(tmp_path), snapshot=True, batches=SOON):
            await sink.wait_for_changes(3000 + 500)
            stop.set()
            await asyncio.gather(*writers)
            last = await published.wal()
            await published.execute("INSERT INTO items VALUES (0, 'last')")
            await until(lambda: sink.changes[-1].transaction.commit_lsn, lambda lsn: lsn >= last)
    finally:
        stop.set()
        await asyncio.gather(*writers, return_exceptions=True)

    source = {row["id"]: row["note"] for row in await published.connection.fetch("SELECT * FROM items")}
    assert source == fold(sink.changes)
    identities = [(change.transaction.commit_lsn, change.ordinal) for change in sink.changes]
    assert sorted(set(identities)) == identities


async def test_a_slot_without_its_snapshot(published, tmp_path):
    """If the slot exists and the journal is empty, the tables are read while the stream runs."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1, 'before')")
    await published.connection.execute(
        "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", published.slot
    )
    sink = MemorySink()
    async with Pipeline(published.source(), [sink], journal=str(tmp_path), snapshot=True, batches=SOON):
        (change,) = await sink.wait_for_changes(1)
    assert ("read", 1) == (change.kind, change.new["id"])


async def test_a_second_start_does_not_load_again(published, tmp_path):
    """A restart continues with the stream, without a second load."""
    await published.execute("INSERT INTO items VALUES (1, 'before')")
    sink = MemorySink()
    for number in (2, 3):
        async with Pipeline(published.source(), [sink], journal=str(tmp_path), snapshot=True, batches=SOON):
            await published.execute(f"INSERT INTO items VALUES ({number}, 'live')")
            await sink.wait_for_changes(number, durable=True)

    assert [1, 2, 3] == [change.key["id"] for change in sink.changes]
    assert [0, *[sink.changes[1].transaction.xid]] == [change.transaction.xid for change in sink.changes[:2]]


async def test_passed_segments_are_deleted_while_it_runs(published, tmp_path):
    """With minimal retention only the newest segment is left, and segments that a slow sink still needs."""
    quick, slow, hang = MemorySink(), MemorySink(), Hang()
    sinks = {"quick": quick, "slow": FaultySink(slow, write=[hang])}
    options = {"journal": str(tmp_path), "batches": BatchPolicy(flush_seconds=0.01), "retention": "0s"}
    reader = JournalReader(tmp_path)

    async def segments():
        return len(reader.segments())

    async with Pipeline(published.source(), sinks, **options):
        for number in range(5):
            await published.execute(f"INSERT INTO items VALUES ({number})")
            await quick.wait_for_changes(number + 1, durable=True)
        await hang.reached.wait()
        held = reader.segments()
        assert 5 == len(held)
        hang.release()
        await until(segments, lambda count: count == 1)
    assert held[-1:] == reader.segments()
    assert list(range(5)) == [change.key["id"] for change in slow.changes]


async def test_a_journal_that_cannot_be_pruned_goes_on(published, tmp_path, caplog):
    """An error in pruning is logged once, and the pipeline continues."""
    sink = MemorySink()
    options = {"journal": str(tmp_path), "batches": SOON, "retention": "0s"}
    await Pipeline(published.source(), [sink], until="now", **options).run()
    (tmp_path / "cursors" / "odd.json").write_text("{")
    async with Pipeline(published.source(), [sink], **options):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1, durable=True)
        await until(lambda: caplog.text, lambda text: "cannot be pruned" in text)
    assert "cursor 'odd'" in caplog.text


@pytest.fixture
def failing_cursor(monkeypatch):
    """Makes writing the cursor of sink ``m`` fail with this error, this many times; counts the failures."""
    failures = []

    def begin(code, times):
        def reached(store, step, name):
            if step == "write" and name == "m.json" and len(failures) < times:
                failures.append(code)
                raise OSError(code, os.strerror(code))

        monkeypatch.setattr(LocalStore, "reached", reached)
        return failures

    return begin


async def test_a_cursor_that_cannot_be_moved_for_a_while(published, tmp_path, failing_cursor, caplog):
    """A full disk is retried: the sink continues, and its cursor moves once there is room."""
    sink, quickly = MemorySink(), RetryPolicy(wait_initial=0.01, wait_max=0.1)
    options = {"journal": str(tmp_path), "batches": SOON, "retry": quickly}
    async with Pipeline(published.source(), {"m": sink}, **options) as pipeline:
        failures = failing_cursor(errno.ENOSPC, 3)
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1, durable=True)
        cursor = functools.partial(asyncio.to_thread, Cursors(str(tmp_path)).get, "m")
        await until(cursor, lambda kept: kept.lsn >= sink.durable)
        assert pipeline.statistics().sinks["m"].failed is None
    assert 3 == len(failures)
    assert "moving its cursor failed at attempt 1" in caplog.text
    assert "No space left on device: make room" in caplog.text


async def test_accepted_gaps_that_cannot_be_read_for_a_while(published, tmp_path, monkeypatch, caplog):
    """A sink that starts reads the journal's gaps again until the store answers, and does not end the pipeline."""
    monkeypatch.setattr(publisher, "_CHUNKS", 1)  # so that the gaps have a file of their own
    await published.execute("INSERT INTO items VALUES (1)")
    options = {"journal": str(tmp_path), "batches": SOON}
    await Pipeline(published.source(), [MemorySink()], snapshot=True, until="now", **options).run()
    failures, read, chain = [], LocalStore.read, JournalReader.chain

    def unanswered(store, name, *arguments):
        if name.startswith("completeness/") and failures == [None]:
            failures.append(name)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(store, name, *arguments)

    def before_reading(reader):
        found = chain(reader)
        failures.extend([None] if not failures else [])
        return found

    monkeypatch.setattr(LocalStore, "read", unanswered)
    monkeypatch.setattr(JournalReader, "chain", before_reading)
    await Pipeline(published.source(), {"m": MemorySink()}, until="now", **options).run()

    assert 2 == len(failures)
    assert "sink m: reading the journal failed at attempt 1" in caplog.text


async def test_a_cursor_that_cannot_be_moved_at_all(published, tmp_path, failing_cursor):
    """A broken disk stops that sink alone, with an error that names the cursor."""
    sink, other = MemorySink(), MemorySink()
    options = {"journal": str(tmp_path), "batches": SOON}
    pipeline = Pipeline(published.source(), {"m": sink, "other": other}, **options)
    with pytest.raises(SinkError, match=r"cursor 'm' of journal .*: Input/output error"):
        async with pipeline:
            failing_cursor(errno.EIO, 1000)
            await published.execute("INSERT INTO items VALUES (1)")
            await until(lambda: pipeline.statistics().sinks["m"].failed, lambda failed: failed)
            await published.execute("INSERT INTO items VALUES (2)")
            await other.wait_for_changes(2, durable=True)


@pytest.fixture
def failing_reads(monkeypatch):
    """Makes this many reads of segments fail with this error, each after some that succeed; counts the failures."""
    read, failures, calls = LocalStore.read, [], []

    def begin(code, times, after=1):
        def counted(store, name, *arguments):
            if name.endswith(".segment"):
                calls.append(name)
                if len(calls) % (after + 1) == 0 and len(failures) < times:
                    failures.append(code)
                    raise OSError(code, os.strerror(code), name)
            return read(store, name, *arguments)

        monkeypatch.setattr(LocalStore, "read", counted)
        return failures

    return begin


async def test_a_journal_that_cannot_be_read_for_a_while(published, tmp_path, failing_reads, caplog):
    """Without file descriptors the sink waits, and gets each change once, also of a transaction it had begun."""
    sink, quickly = MemorySink(), RetryPolicy(wait_initial=0.01, wait_max=0.1)
    options = {"journal": str(tmp_path), "batches": SOON, "retry": quickly}
    async with Pipeline(published.source(), {"m": sink}, **options):
        failures = failing_reads(errno.EMFILE, 3)
        await published.execute(
            "INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 5000) i"
        )
        await sink.wait_for_changes(5000, durable=True)
    assert 3 == len(failures)
    assert list(range(1, 5001)) == [change.key["id"] for change in sink.changes]
    assert "reading the journal failed and is retried" in caplog.text


async def test_a_journal_that_cannot_be_read(published, tmp_path, failing_reads):
    """A broken disk is an error that names the file, and is not retried."""
    failures = failing_reads(errno.EIO, 1000, after=0)
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    with pytest.raises(JournalError, match=r"\.segment.*Input/output error"):
        await Pipeline(published.source(), {"m": MemorySink()}, journal=str(tmp_path), until="now").run()
    assert 1 == len(failures)
