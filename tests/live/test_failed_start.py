"""A start that fails or is cancelled drops the slot that it has created."""

from __future__ import annotations

import asyncio
import errno
from urllib.parse import urlsplit

import asyncpg
import pytest

import aiorepl
from aiorepl import AioreplError, BatchPolicy, Delivery, Pipeline
from aiorepl.errors import PermanentError, ServerError
from aiorepl.snapshot.initial.snapshot import InitialSnapshot
from aiorepl.storage.local import LocalStore
from aiorepl.testing.faults import FaultySink, Hang, MemorySink, Reject
from aiorepl.wire.connection import ReplicationConnection
from aiorepl_sinks.jsonl import JsonLinesSink
from tests.waiting import until

SOON = BatchPolicy(flush_seconds=0.1)


async def slots(published):
    """The number of slots with the test's name."""
    query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"
    return await published.connection.fetchval(query, published.slot)


def refusing():
    """A sink that cannot be opened."""
    return FaultySink(open=[Reject(PermanentError("no"))])


@pytest.fixture
def unusable(tmp_path):
    """A path where no folder or file can be created."""
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file" / "below"


@pytest.fixture
async def without_select(published):
    """The DSN of a role that may replicate and cannot read tables."""
    name = f"r_{published.slot[-20:]}"
    await published.execute(f"CREATE ROLE {name} LOGIN REPLICATION PASSWORD 'right'")
    parts = urlsplit(published.dsn)
    yield parts._replace(netloc=f"{name}:right@{parts.netloc.rpartition('@')[2]}").geturl()
    await published.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@pytest.mark.parametrize("way", ["walsender", "sql"])
@pytest.mark.parametrize("what", ["sink", "jsonl", "dead letters"])
async def test_a_sink_that_cannot_open(published, unusable, what, way):
    """Without a journal the slot is dropped if a sink or its dead letters cannot be opened."""
    sink = {
        "sink": refusing(),
        "jsonl": JsonLinesSink(unusable),
        "dead letters": Delivery(MemorySink(), on_error="dead_letter", dead_letters=unusable),
    }[what]
    with pytest.raises(AioreplError):
        await Pipeline(published.source(interface=way), [sink]).run()
    assert 0 == await slots(published)


async def test_a_journal_that_cannot_open(published, unusable):
    """The slot is dropped if the journal cannot be opened."""
    with pytest.raises(AioreplError):
        await Pipeline(published.source(), [MemorySink()], journal=str(unusable)).run()
    assert 0 == await slots(published)


async def test_an_initial_load_without_select(published, without_select, tmp_path):
    """The slot is dropped if a table cannot be read; with the privilege the same start loads everything."""
    await published.execute("INSERT INTO items VALUES (1)")
    sink, source = MemorySink(), published.source(without_select)
    options = {"journal": str(tmp_path), "snapshot": True, "batches": SOON, "until": "now"}
    with pytest.raises((AioreplError, asyncpg.InsufficientPrivilegeError)):
        await Pipeline(source, [sink], **options).run()
    assert 0 == await slots(published)

    await published.execute(f"GRANT SELECT ON items TO {urlsplit(without_select).username}")
    await Pipeline(source, [sink], **options).run()
    assert [1] == [change.key["id"] for change in sink.changes]


async def test_a_stop_during_the_initial_load(published, tmp_path, monkeypatch):
    """The slot is dropped if the load is not in the journal yet, and the next start loads."""
    await published.execute("INSERT INTO items VALUES (1)")
    sink, hang = MemorySink(), Hang()
    options = {"journal": str(tmp_path), "snapshot": True, "batches": SOON}
    with monkeypatch.context() as patched:
        patched.setattr(InitialSnapshot, "run", lambda *_, **__: hang.strike(asyncio.sleep))
        async with Pipeline(published.source(), [sink], **options):
            await hang.reached.wait()
    assert 0 == await slots(published)

    await Pipeline(published.source(), [sink], until="now", **options).run()
    assert [1] == [change.key["id"] for change in sink.changes]


@pytest.mark.parametrize("resnapshot", [False, True])
async def test_a_full_disk(published, way, monkeypatch, resnapshot):
    """The start waits until its ledger can be written, and keeps its slot."""
    await published.execute("INSERT INTO items VALUES (1), (2)")
    sink, left, replace = MemorySink(), iter(range(2)), LocalStore.replace
    if resnapshot:
        await Pipeline(published.source(), [sink], until="now", **way).run()

    def failing(store, name, data, version):
        if name.endswith(".snapshot") and next(left, None) is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(store, name, data, version)

    monkeypatch.setattr(LocalStore, "replace", failing)
    await Pipeline(published.source(), [sink], until="now", resnapshot=resnapshot, **way).run()
    assert next(left, None) is None
    read = [change.key["id"] for change in sink.changes if change.kind == "read"]
    assert (1 + resnapshot) * [1, 2] == read


async def test_a_start_that_is_cancelled(published):
    """The slot is dropped if the start is cancelled while a sink opens."""
    hang = Hang()
    work = asyncio.create_task(Pipeline(published.source(), [FaultySink(open=[hang])]).run())
    await hang.reached.wait()
    assert 1 == await slots(published)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert 0 == await slots(published)


@pytest.mark.parametrize("way", ["walsender", "sql"])
async def test_a_start_that_is_cancelled_while_the_slot_is_created(published, way):
    """The slot is dropped although the server waits for a transaction and would create it later."""
    writer = await asyncpg.connect(published.dsn)
    await writer.execute("BEGIN; INSERT INTO items VALUES (1)")
    work = asyncio.create_task(Pipeline(published.source(interface=way), [MemorySink()]).run())
    await until(lambda: slots(published))
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert 0 == await slots(published)
    await writer.close()


async def test_a_stream_that_does_not_begin(published, monkeypatch):
    """``connect`` drops the slot that it has created, too."""

    async def refuse(*_, **__):
        raise ServerError({"M": "no"})

    monkeypatch.setattr(ReplicationConnection, "start_replication", refuse)
    with pytest.raises(ServerError):
        async with aiorepl.connect(published.source()):
            pass
    assert 0 == await slots(published)


async def test_a_slot_that_was_there_stays(published):
    """A slot that existed before the start is kept."""
    await published.create_slot()
    with pytest.raises(PermanentError):
        await Pipeline(published.source(), [refusing()]).run()
    assert 1 == await slots(published)


async def test_a_slot_that_a_sink_has_begun_with_stays(published, caplog):
    """The slot is kept if a sink already stores its position; the next start continues from there."""
    sink = MemorySink(keeps_position=True)
    with pytest.raises(PermanentError):
        await Pipeline(published.source(), {"holds": sink, "bad": refusing()}).run()
    assert 1 == await slots(published)
    assert f"slot {published.slot} is kept" in caplog.text

    await published.execute("INSERT INTO items VALUES (1)")
    await Pipeline(published.source(), {"holds": sink}, until="now").run()
    assert [1] == [change.key["id"] for change in sink.changes]
