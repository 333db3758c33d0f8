"""``visible``: a transaction is delivered once new snapshots see it, with a synchronous standby that does not answer."""

from __future__ import annotations

import asyncio
import contextlib

import asyncpg
import pytest

import aiorepl
from aiorepl import Pipeline, SlotError, Source
from aiorepl.source import visibility
from aiorepl.source.visibility import Visibility
from aiorepl.testing.faults import MemorySink

pytestmark = pytest.mark.server


class Waiting:
    """A server on which commits of the writer wait for a standby that is not there, until ``answer``; those of the reader do not."""

    def __init__(self, server, writer, reader):
        self.server, self.writer, self.reader = server, writer, reader

    def source(self, **options):
        """A source of its publication."""
        return Source(self.server.dsn, slot="s", publication="p", create_slot=True, **options)

    async def answer(self):
        """Release the commits."""
        await self.reader.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        await self.reader.execute("SELECT pg_reload_conf()")

    async def read(self):
        """What another session reads."""
        return await self.reader.fetchval("SELECT v FROM t WHERE id = 1")


@pytest.fixture
async def waiting(servers, request):
    """A server with a table and a publication."""
    with servers.new(getattr(request, "param", 18), synchronous_standby_names="nobody") as server:
        writer, reader = await asyncpg.connect(server.dsn), await asyncpg.connect(server.dsn)
        await reader.execute("SET synchronous_commit = 'local'")
        await reader.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
        await reader.execute("CREATE PUBLICATION p FOR TABLE t")
        yield Waiting(server, writer, reader)
        for connection in (writer, reader):
            connection.terminate()


class Reads(MemorySink):
    """Reads the row again for each change, as a cache does."""

    def __init__(self, waiting):
        super().__init__()
        self.dsn, self.read = waiting.server.dsn, []

    async def write(self, batch):
        connection = await asyncpg.connect(self.dsn)
        found = await connection.fetchval("SELECT v FROM t WHERE id = 1")
        await connection.close()
        self.read += [(change.new["v"], found) for change in batch.changes]
        await super().write(batch)


@pytest.fixture(autouse=True)
def told_at_once(monkeypatch):
    """What the stream waits for is told without the delay."""
    monkeypatch.setattr(visibility, "_WARNING_SECONDS", 0.0)


async def held(pipeline):
    """Wait until the pipeline has received a transaction, and holds it."""
    async with asyncio.timeout(60):
        while "to become visible" not in (pipeline.statistics().waiting_for or ""):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("waiting", [13, 18], indirect=True)
@pytest.mark.parametrize("interface", ["walsender", "sql"])
@pytest.mark.parametrize("journaled", [False, True], ids=["direct", "journal"])
async def test_a_standby_that_does_not_answer(waiting, interface, journaled, tmp_path):
    """A change is delivered, and is in the journal, only when a sink that reads the row again reads the new one."""
    sink = Reads(waiting)
    journal = {"journal": str(tmp_path / "journal")} if journaled else {}
    async with (
        asyncio.timeout(90),
        Pipeline(waiting.source(visible=True, interface=interface), [sink], **journal) as pipeline,
    ):
        committing = asyncio.create_task(waiting.writer.execute("UPDATE t SET v = 2"))
        await held(pipeline)
        assert 1 == await waiting.read()
        assert not sink.changes
        await waiting.answer()
        await committing
        await sink.wait_for_changes(1)

    assert [(2, 2)] == sink.read


async def test_without_it(waiting):
    """By default a change is delivered before other sessions see it."""
    sink = Reads(waiting)
    async with asyncio.timeout(90), Pipeline(waiting.source(), [sink]):
        committing = asyncio.create_task(waiting.writer.execute("UPDATE t SET v = 2"))
        await sink.wait_for_changes(1)
        await waiting.answer()
        await committing

    assert [(2, 1)] == sink.read


async def test_the_limit(waiting):
    """A transaction that does not become visible ends the stream with an error that names it, and is delivered by a later start."""
    sink = MemorySink()
    committing = None
    with pytest.raises(SlotError, match=r"transaction \d+, .* is not visible to new snapshots after 0\.5 s"):
        async with (
            asyncio.timeout(90),
            Pipeline(waiting.source(visible=True, visible_timeout=0.5), [sink]) as pipeline,
        ):
            committing = asyncio.create_task(waiting.writer.execute("UPDATE t SET v = 2"))
            await pipeline.wait()
    assert not sink.changes
    await waiting.answer()
    await committing
    await Pipeline(waiting.source(visible=True), [sink], until="now").run()
    assert [2] == [change.new["v"] for change in sink.changes]


async def test_a_server_that_crashes(waiting):
    """After a crash a transaction that was waiting is committed, so it is delivered, once."""
    sink = Reads(waiting)
    async with asyncio.timeout(90), Pipeline(waiting.source(visible=True), [sink]) as pipeline:
        committing = asyncio.create_task(waiting.writer.execute("UPDATE t SET v = 2"))
        await held(pipeline)
        await asyncio.to_thread(waiting.server.kill)
        await asyncio.gather(committing, return_exceptions=True)
        await asyncio.to_thread(waiting.server.start)
        await sink.wait_for_changes(1)

    assert [(2, 2)] == sink.read


async def test_savepoints_and_prepared_transactions(waiting):
    """Xids of subtransactions do not matter, and a prepared transaction is awaited when it commits, not before."""
    sink = Reads(waiting)
    source = waiting.source(visible=True, two_phase=True, streaming="on")
    async with asyncio.timeout(90), Pipeline(source, [sink]) as pipeline:
        await waiting.reader.execute("BEGIN; INSERT INTO t VALUES (2, 5); PREPARE TRANSACTION 'g'")
        await waiting.reader.execute("BEGIN; SAVEPOINT a; UPDATE t SET v = 2 WHERE id = 1; RELEASE a; COMMIT")
        await sink.wait_for_changes(1)
        committing = asyncio.create_task(waiting.writer.execute("COMMIT PREPARED 'g'"))
        await held(pipeline)
        assert 1 == await waiting.reader.fetchval("SELECT count(*) FROM t")
        assert 1 == len(sink.changes)
        await waiting.answer()
        await committing
        await sink.wait_for_changes(2)
        assert 2 == await waiting.reader.fetchval("SELECT count(*) FROM t")

    assert [2, 5] == [change.new["v"] for change in sink.changes]


async def test_a_backlog_needs_one_look(waiting, monkeypatch):
    """A consumer that is far behind asks the server once, however many transactions wait."""
    await Pipeline(waiting.source(), [MemorySink()], until="now").run()
    for number in range(300):
        await waiting.reader.execute("UPDATE t SET v = $1", number)
    looks = 0
    look_again = Visibility._look_again

    async def counted(self, started):
        nonlocal looks
        looks += 1
        await look_again(self, started)

    monkeypatch.setattr(Visibility, "_look_again", counted)
    sink = MemorySink()
    await Pipeline(waiting.source(visible=True), [sink], until="now").run()

    assert 300 == len(sink.changes)
    assert 1 == looks


async def test_of_a_stream(waiting):
    """``visible`` of a stream returns once other sessions see the transaction; a cancelled call may be repeated."""
    async with asyncio.timeout(90), aiorepl.connect(waiting.source()) as stream:
        committing = asyncio.create_task(waiting.writer.execute("UPDATE t SET v = 2"))
        transaction = await anext(stream)
        assert 1 == await waiting.read()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await stream.visible(transaction)
        assert 1 == await waiting.read()
        await waiting.answer()
        await stream.visible(transaction)
        assert 2 == await waiting.read()
        await committing


async def test_on_a_standby(copied_server, servers):
    """What a standby sends has been replayed there, so it is visible there."""
    with servers.new(18) as primary, aiorepl.testing.EmbeddedServer(standby_of=primary) as standby:
        writer, reader = await asyncpg.connect(primary.dsn), await asyncpg.connect(standby.dsn)
        await writer.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
        await writer.execute("CREATE PUBLICATION p FOR TABLE t")
        source = Source(standby.dsn, slot="s", publication="p", create_slot=True, visible=True)
        while not await reader.fetchval("SELECT count(*) FROM pg_publication"):
            await asyncio.sleep(0.02)

        async def keep_running():
            # The creation of a slot on a standby waits for a record of running transactions.
            while True:
                await writer.execute("SELECT pg_log_standby_snapshot()")
                await asyncio.sleep(0.2)

        running = asyncio.create_task(keep_running())
        async with asyncio.timeout(90), aiorepl.connect(source) as stream:
            running.cancel()
            await asyncio.wait({running})
            await writer.execute("UPDATE t SET v = 2")
            await anext(stream)
            assert 2 == await reader.fetchval("SELECT v FROM t")
        for connection in (writer, reader):
            await connection.close()
