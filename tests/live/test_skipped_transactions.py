"""The server finds no changes in a known transaction when it decodes the transaction again, and sends nothing of it.

The tests name another publication meanwhile, so that the server does so for certain. In production this follows from publications
that are altered while the transaction is in progress.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from aiorepl import LSN, BatchPolicy, Pipeline, RetryPolicy, SlotError
from aiorepl.position import Commit
from aiorepl.source.ledger import Ledger
from aiorepl.source.server.logged import is_logged
from aiorepl.source.server.queries import read_process
from aiorepl.testing.faults import FaultySink, Hang, MemorySink
from tests.waiting import until

pytestmark = pytest.mark.by_day

QUICK = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)
SMALL = BatchPolicy(max_bytes=32 * 1024, flush_seconds=0.1)
VERSIONS = pytest.mark.parametrize("server", [15, 16, 18], indirect=True)


@pytest.fixture
async def published(published):
    """A second table, in both publications; ``items`` is only in ``p``."""
    await published.execute(
        "CREATE TABLE others (id int PRIMARY KEY)", "CREATE PUBLICATION q FOR TABLE others"
    )
    await prepare(published)
    return published


async def prepare(published):
    """Create the slot, and on PostgreSQL 15 the extension that shows WAL."""
    await published.create_slot()
    if published.connection.get_server_version().major == 15:
        await published.execute("CREATE SCHEMA wal", "CREATE EXTENSION pg_walinspect SCHEMA wal")


def keys(sink) -> list[tuple[str, int]]:
    """The rows that the sink has."""
    return [(change.table, change.key["id"]) for change in sink.changes]


def parts(sink):
    """The slices of transactions that the sink has."""
    return [part for batch in sink.batches for part in batch.slices if part.transaction]


async def of_part(published, tmp_path, disturb, *, journal):
    """Deliver a part of a transaction, lose the connection, and deliver the rest from ``q``; return the keys of both."""
    memory, hang = MemorySink(), Hang()
    sink = memory if journal else FaultySink(memory, write=[hang])
    options = {"journal": tmp_path} if journal else {}
    pipeline = Pipeline(
        published.source(), [sink], reconnect=QUICK, batches=SMALL, buffer_bytes=128 * 1024, **options
    )
    async with pipeline:
        # More than the socket buffers hold.
        await published.execute(
            "INSERT INTO items SELECT i, repeat('x', 1900) FROM generate_series(0, 14999) i"
        )
        capture = pipeline._fan_out._capture
        if journal:
            await until(lambda: capture._progress.partial, lambda lsn: lsn is not None)
        else:
            await hang.reached.wait()
        capture.source = replace(capture.source, publication="q")
        await disturb()
        hang.release()
        await published.execute("INSERT INTO others VALUES (1)")
        await until(lambda: keys(memory), lambda found: ("others", 1) in found)
        assert 1 == pipeline.statistics().reconnects
    found = parts(memory)
    assert [True, True] == [found[0].first, found[-1].last]
    assert [part.last for part in found[:-1]] == [part.first for part in found[1:]]
    return keys(memory)


@VERSIONS
@pytest.mark.parametrize("journal", [True, False], ids=["journal", "direct"])
async def test_received_in_part(published, tmp_path, journal):
    """The transaction ends with what was received; what follows is delivered."""

    async def disturb():
        await published.connection.fetchval("SELECT pg_terminate_backend($1)", await published.walsender())

    found = await of_part(published, tmp_path, disturb, journal=journal)

    assert [*(("items", number) for number in range(len(found) - 1)), ("others", 1)] == found
    assert 1 < len(found) < 15_000


@pytest.mark.parametrize("version", [15, 16, 18])
async def test_received_in_part_before_a_restart(publish, servers, tmp_path, version):
    """After a restart of the server, its WAL proves that it has not lost the transaction."""
    with servers.new(version) as server:
        published = await publish(server.dsn)
        await published.execute(
            "CREATE TABLE others (id int PRIMARY KEY)", "CREATE PUBLICATION q FOR TABLE others"
        )
        await prepare(published)

        async def disturb():
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            published.connection = await asyncpg.connect(server.dsn)

        found = await of_part(published, tmp_path, disturb, journal=False)
        published.connection.terminate()

    assert [*(("items", number) for number in range(len(found) - 1)), ("others", 1)] == found


async def delivered_and_not_confirmed(published, monkeypatch, **options) -> MemorySink:
    """A sink with two transactions that the slot was not confirmed with."""
    sink = MemorySink(keeps_position=True)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "confirmable", property(lambda _: LSN(0)))
        await published.execute("INSERT INTO others VALUES (1)", "INSERT INTO items VALUES (2)")
        await Pipeline(published.source(), [sink], until="now", **options).run()
    return sink


@VERSIONS
@pytest.mark.parametrize("journal", [True, False], ids=["journal", "direct"])
@pytest.mark.parametrize("streaming", ["off", "on"])
async def test_the_last_one_of_a_position(published, monkeypatch, tmp_path, journal, streaming):
    """A position holds although the server sends nothing of its last transaction, because the WAL has the transaction."""
    options = {"journal": tmp_path} if journal else {}
    sink = await delivered_and_not_confirmed(published, monkeypatch, **options)
    await published.execute("INSERT INTO others VALUES (3)")
    source = replace(published.source(streaming=streaming), publication="q")

    await Pipeline(source, [sink], until="now", **options).run()

    assert [("others", 1), ("items", 2), ("others", 3)] == keys(sink)


@pytest.mark.parametrize("server", [15], indirect=True)
@pytest.mark.parametrize("lacking", ["extension", "privilege"])
async def test_what_a_proof_needs(published, slot_name, monkeypatch, lacking):
    """On PostgreSQL 15 the error names the extension and the privilege that make the proof possible; then the position holds."""
    sink = await delivered_and_not_confirmed(published, monkeypatch)
    source = replace(published.source(), publication="q")
    if lacking == "extension":
        await published.execute("DROP EXTENSION pg_walinspect")
    else:
        await published.execute(f"CREATE ROLE \"{slot_name}\" LOGIN REPLICATION PASSWORD 'secret'")
        source = replace(source, connect={"user": slot_name, "password": "secret"}, create_slot=False)
        await published.execute(f'GRANT USAGE ON SCHEMA wal TO "{slot_name}"')

    with pytest.raises(SlotError, match=r"is not in the slot.*CREATE EXTENSION pg_walinspect, GRANT EXECUTE"):
        await Pipeline(source, [sink], until="now").run()

    if lacking == "extension":
        await published.execute("CREATE EXTENSION pg_walinspect SCHEMA wal")
    else:
        await published.execute(
            f'GRANT EXECUTE ON FUNCTION wal.pg_get_wal_record_info TO "{slot_name}"',
            f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{slot_name}"',
        )
    await Pipeline(source, [sink], until="now").run()
    assert [("others", 1), ("items", 2)] == keys(sink)
    if lacking == "privilege":
        await published.execute(f'DROP OWNED BY "{slot_name}"', f'DROP ROLE "{slot_name}"')


@VERSIONS
async def test_another_transaction_than_that_of_the_position(published, monkeypatch):
    """A position is refused if the WAL has another transaction than its last one."""
    sink = await delivered_and_not_confirmed(published, monkeypatch)
    position = sink.position
    sink.position = sink._durable_position = replace(
        position, last=replace(position.last, xid=position.last.xid + 1)
    )
    source = replace(published.source(), publication="q")
    await published.execute("INSERT INTO others VALUES (3)")

    with pytest.raises(SlotError, match=r"its last transaction, xid .* is not in the slot"):
        await Pipeline(source, [sink], until="now").run()


@VERSIONS
async def test_one_more_transaction_than_the_position_has(published, monkeypatch):
    """A position is refused if the server sends a transaction between its last one and itself, although the WAL has the last one."""
    sink = await delivered_and_not_confirmed(published, monkeypatch)
    await published.execute("INSERT INTO others VALUES (3)")
    sink.position = sink._durable_position = replace(sink.position, lsn=await published.wal())
    await published.execute("INSERT INTO others VALUES (4)")
    source = replace(published.source(), publication="q")

    with pytest.raises(SlotError, match=r"its last transaction, xid .* is not in the slot"):
        await Pipeline(source, [sink], until="now").run()


@VERSIONS
async def test_what_the_wal_has(published, monkeypatch):
    """A transaction is found by all of its xid, LSN and time, and only on the same server process."""
    await published.execute("INSERT INTO items VALUES (1)")
    sink = MemorySink()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "confirmable", property(lambda _: LSN(0)))
        await Pipeline(published.source(), [sink], until="now").run()
    source, commit = published.source(), Commit.of(sink.changes[0].transaction)
    connection = await source.open()
    started = (await read_process(connection)).started
    await connection.close()

    assert await is_logged(source, commit, started)
    assert not await is_logged(source, commit, "another")
    for wrong in (
        replace(commit, xid=commit.xid + 1),
        replace(commit, commit_lsn=LSN(commit.commit_lsn + 8)),
        replace(commit, commit_timestamp=commit.commit_timestamp + 1),
    ):
        assert not await is_logged(source, wrong, started)
