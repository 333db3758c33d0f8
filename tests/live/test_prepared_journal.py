"""Prepared transactions with a journal: confirmed once they are in the journal, delivered when they commit."""

from __future__ import annotations

import dataclasses

import pytest

from aiorepl import BatchPolicy, Pipeline
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

pytestmark = pytest.mark.by_day

SOON = BatchPolicy(flush_seconds=0.1)


def kept(folder):
    """The number of prepared transactions in the journal."""
    return len(list(folder.glob("prepared/*")))


@pytest.mark.parametrize("streaming", ["off", "on"])
async def test_a_prepare_is_confirmed_and_its_rows_come_with_the_commit(published, tmp_path, streaming):
    """Rows are delivered with the commit, also after a restart, when the server sends none; never after a rollback."""
    await published.create_slot()
    source = dataclasses.replace(published.source(), two_phase=True, streaming=streaming)
    sink = MemorySink()
    async with Pipeline(source, {"memory": sink}, journal=str(tmp_path), batches=SOON):
        await published.execute(
            "BEGIN", "INSERT INTO items SELECT generate_series(1, 5000)", "PREPARE TRANSACTION 'kept'"
        )
        await published.execute("BEGIN", "INSERT INTO items VALUES (7001)", "PREPARE TRANSACTION 'dropped'")
        await published.execute("INSERT INTO items VALUES (9001)")
        await sink.wait_for_changes(1, durable=True)
        await published.confirmed_past(await published.wal())
        assert 2 == kept(tmp_path)
    assert [9001] == [change.key["id"] for change in sink.changes]
    async with Pipeline(source, {"memory": sink}, journal=str(tmp_path), batches=SOON):
        await published.execute("COMMIT PREPARED 'kept'")
        await published.execute("ROLLBACK PREPARED 'dropped'")
        await sink.wait_for_changes(5001, durable=True)
        await published.confirmed_past(await published.wal())
    assert [9001, *range(1, 5001)] == [change.key["id"] for change in sink.changes]
    assert list(range(5000)) == [change.ordinal for change in sink.changes[1:]]
    assert 0 == kept(tmp_path)


async def test_a_gid_that_is_used_again(published, tmp_path):
    """The second transaction with a gid is not mistaken for the first."""
    await published.create_slot()
    source = dataclasses.replace(published.source(), two_phase=True)
    sink = MemorySink()
    async with Pipeline(source, {"memory": sink}, journal=str(tmp_path), batches=SOON):
        for number in (1, 2):
            await published.execute(
                "BEGIN", f"INSERT INTO items VALUES ({number})", "PREPARE TRANSACTION 'x'"
            )
            if number == 1:
                await published.execute("COMMIT PREPARED 'x'")
        await sink.wait_for_changes(1, durable=True)
        await published.confirmed_past(await published.wal())
        assert 1 == kept(tmp_path)
        await published.execute("COMMIT PREPARED 'x'", "INSERT INTO items VALUES (3)")
        await sink.wait_for_changes(3, durable=True)
        await published.confirmed_past(await published.wal())
    assert [1, 2, 3] == [change.key["id"] for change in sink.changes]
    assert 0 == kept(tmp_path)


async def test_a_connection_lost_behind_a_rollback(published, tmp_path):
    """After a ROLLBACK PREPARED without later WAL the pipeline reconnects and continues."""
    await published.create_slot()
    source = dataclasses.replace(published.source(), two_phase=True)
    sink = MemorySink()
    async with Pipeline(source, {"memory": sink}, journal=str(tmp_path), batches=SOON):
        await published.execute("BEGIN", "INSERT INTO items VALUES (1)", "PREPARE TRANSACTION 'x'")
        await published.execute("ROLLBACK PREPARED 'x'")
        await published.confirmed_past(await published.wal())
        walsender = await published.walsender()
        await published.connection.fetchval("SELECT pg_terminate_backend($1)", walsender)
        await until(published.walsender, lambda pid: pid not in (None, walsender))
        await published.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(1)
    assert [2] == [change.key["id"] for change in sink.changes]


@pytest.mark.parametrize(("at_prepare", "at_commit"), [(True, False), (False, True), (False, False)])
async def test_a_two_phase_slot_read_without_asking(published, tmp_path, at_prepare, at_commit):
    """A two_phase slot sends prepared transactions to every consumer, and the journal keeps them."""
    await published.create_slot(two_phase=True)
    source, sink = published.source(), MemorySink()
    asking = dataclasses.replace(source, two_phase=at_prepare)
    async with Pipeline(asking, {"memory": sink}, journal=str(tmp_path), batches=SOON):
        await published.execute("BEGIN", "INSERT INTO items VALUES (1)", "PREPARE TRANSACTION 'kept'")
        await published.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(1, durable=True)
        await published.confirmed_past(await published.wal())
    asking = dataclasses.replace(source, two_phase=at_commit)
    async with Pipeline(asking, {"memory": sink}, journal=str(tmp_path), batches=SOON):
        await published.execute("COMMIT PREPARED 'kept'", "INSERT INTO items VALUES (3)")
        await sink.wait_for_changes(2, durable=True)
        await published.confirmed_past(await published.wal())
    assert [2, 1, 3] == [change.key["id"] for change in sink.changes]
    assert 0 == kept(tmp_path)


async def test_a_two_phase_slot_read_without_asking_or_journal(published):
    """Undecided prepared transactions are sent again at the next start, even if the sink has later ones."""
    await published.create_slot(two_phase=True)
    source, sink = published.source(), MemorySink(keeps_position=True)
    async with Pipeline(source, [sink], batches=SOON):
        await published.execute("BEGIN", "INSERT INTO items VALUES (1)", "PREPARE TRANSACTION 'held'")
        await published.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(1, durable=True)
    async with Pipeline(source, [sink], batches=SOON):
        await published.execute("COMMIT PREPARED 'held'", "INSERT INTO items VALUES (3)")
        await sink.wait_for_changes(2, durable=True)
        await published.confirmed_past(await published.wal())
    assert [2, 1, 3] == [change.key["id"] for change in sink.changes]
