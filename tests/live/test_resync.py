"""Temporary slots: a lost connection gives a ``Resync`` and a new slot, and nothing of an unfinished transaction looks committed."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest

import aiorepl
from aiorepl import (
    BatchPolicy,
    ConfigurationError,
    Insert,
    Pipeline,
    Resync,
    RetryPolicy,
    Router,
    SlotError,
)
from aiorepl.cli.pipeline_file import load
from aiorepl.testing.faults import FaultySink, Hang, MemorySink
from tests.waiting import until

QUICK = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)
SMALL = BatchPolicy(max_bytes=32 * 1024, flush_seconds=0.05)
VERSIONS = pytest.mark.parametrize("server", [13, 16, 18], indirect=True)
LARGE = "INSERT INTO items SELECT i, repeat('x', 1900) FROM generate_series(0, 14999) i"
COUNT = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"


class Ephemeral(MemorySink):
    """Keeps its batches, and takes a ``Resync``."""

    takes_resync = True

    async def resyncs(self, count: int) -> list[Resync]:
        """Wait until the sink has this number, and return all."""
        await self._wait(lambda: len(self.found) >= count)
        return self.found

    @property
    def found(self) -> list[Resync]:
        return [change for change in self.changes if isinstance(change, Resync)]

    @property
    def kinds(self) -> list[object]:
        return ["resync" if isinstance(each, Resync) else each.key["id"] for each in self.changes]


@pytest.fixture
async def other(published):
    """A second connection."""
    connection = await asyncpg.connect(published.dsn)
    yield connection
    connection.terminate()


def connect(published, **options):
    options = {"create_slot": True, "temporary": True, "reconnect": QUICK} | options
    return aiorepl.connect(published.dsn, slot=published.slot, publication="p", **options)


def pipeline(published, *sinks, dsn=None, reconnect=QUICK, batches=SMALL, **options):
    source = published.source(dsn, temporary=True, **options)
    return Pipeline(source, list(sinks), reconnect=reconnect, batches=batches, buffer_bytes=256 * 1024)


async def terminate(published):
    """Kill the walsender, and return once the slot is gone or belongs to another walsender."""
    pid = await published.walsender()
    await published.connection.fetchval("SELECT pg_terminate_backend($1)", pid)
    await until(published.walsender, lambda found: found != pid)


@VERSIONS
@pytest.mark.both_loops
async def test_the_stream_goes_on_with_a_new_slot(published):
    """A stream begins with a Resync, and has another Resync at each gap."""
    async with connect(published) as stream:
        await published.execute("INSERT INTO items VALUES (1)")
        first = await anext(stream)
        (start,) = [change async for change in first]
        one = await anext(stream)
        (change,) = [change async for change in one]
        assert (None, None, None) == (first.transaction, first.xid, start.after)
        assert ("start", 1) == (start.reason, change.key["id"])
        await stream.ack(first)
        await stream.ack(one)

        pid = await published.walsender()
        await published.execute(f"SELECT pg_terminate_backend({pid})", "INSERT INTO items VALUES (2)")
        (again,) = [change async for change in await anext(stream)]
        assert isinstance(again, Resync)
        assert one.end_lsn <= again.after <= again.lsn
        assert "terminat" in again.reason
        assert pid != await published.walsender()

        await published.execute("INSERT INTO items VALUES (3)")
        three = await anext(stream)
        assert [3] == [change.key["id"] async for change in three]
        await stream.ack(three)
        await published.confirmed_past(three.end_lsn)
    await until(lambda: published.connection.fetchval(COUNT, published.slot), lambda found: not found)


@pytest.mark.parametrize("reads", [True, False])
async def test_lost_within_a_transaction(published, reads):
    """One Resync comes instead of the transaction's end, whether the changes are read or skipped; the transaction is void."""
    async with connect(published) as stream:
        assert isinstance(await anext(await anext(stream)), Resync)
        await published.execute(LARGE)
        half = await anext(stream)
        assert 0 == (await anext(half)).key["id"]
        await terminate(published)
        if reads:
            changes = [change async for change in half]
            assert isinstance(changes.pop(), Resync)
            assert list(range(1, len(changes) + 1)) == [change.key["id"] for change in changes]
            assert len(changes) < 14_999
            assert [] == [change async for change in half]
        else:
            (resync,) = [change async for change in await anext(stream)]
            assert isinstance(resync, Resync)
        assert half.void
        assert half.end_lsn is None
        confirmed = stream.confirmed
        await stream.ack(half)
        assert confirmed == stream.confirmed
        await published.execute("INSERT INTO items VALUES (99999)")
        assert [99999] == [change.key["id"] async for change in await anext(stream)]


@VERSIONS
async def test_lost_while_a_sink_is_within_a_batch(published):
    """A sink that has a part of a transaction gets a Resync instead of the rest, and then the new slot's changes."""
    memory, hang = Ephemeral(), Hang()
    sink = FaultySink(memory, write=[None, hang])
    sink.takes_resync = True
    async with pipeline(published, sink) as running:
        await memory.resyncs(1)
        await published.execute(LARGE)
        await hang.reached.wait()
        await terminate(published)
        hang.release()
        await memory.resyncs(2)
        await published.execute("INSERT INTO items VALUES (99999)")
        while 99999 not in memory.kinds:
            await memory.wait_for_changes(len(memory.changes) + 1)
        assert 1 == running.statistics().reconnects
        assert "running" == running.state.value
    kinds = memory.kinds
    assert ["resync", "resync", 99999] == [kinds[0], *kinds[-2:]]
    assert list(range(len(kinds) - 3)) == kinds[1:-2]
    slices = [part for batch in memory.batches for part in batch.slices]
    (large,) = {part.transaction.commit_lsn for part in slices if part.transaction} - {
        slices[-1].transaction.commit_lsn
    }
    parts = [part for part in slices if part.transaction and part.transaction.commit_lsn == large]
    assert parts
    assert not any(part.last for part in parts)


@VERSIONS
async def test_lost_while_a_transaction_is_streamed(published, other):
    """A transaction in progress is not delivered; the creation of the new slot waits for its end, and the new stream does not have it."""
    sink = Ephemeral()
    streaming = "on" if published.connection.get_server_version().major >= 14 else "off"
    name = published.dsn.rpartition("/")[2]
    await published.execute(f"ALTER DATABASE \"{name}\" SET logical_decoding_work_mem = '64kB'")
    async with pipeline(published, sink, streaming=streaming) as running:
        await sink.resyncs(1)
        async with published.connection.transaction():
            await published.execute(LARGE)
            if streaming == "on":
                await until(buffered(running), lambda size: size > 0)
            await other.fetchval("SELECT pg_terminate_backend($1)", await published.walsender())
            await until(waiting(running), lambda found: found is not None)
            assert ["resync"] == sink.kinds
        await sink.resyncs(2)
        await published.execute("INSERT INTO items VALUES (99999)")
        await sink.wait_for_changes(3)
    assert ["resync", "resync", 99999] == sink.kinds


def buffered(running):
    async def look():
        buffer = running.statistics().transaction_buffer
        return buffer.memory + buffer.spooled

    return look


def waiting(running):
    async def look():
        return running.statistics().waiting_for

    return look


def last_error(running):
    async def look():
        return running.statistics().last_error or ""

    return look


async def test_cancelled_while_the_new_slot_is_created(published, other):
    """The creation waits for an open transaction. A cancelled pipeline leaves no slot behind, though the transaction stays open."""
    sink = Ephemeral()
    running = pipeline(published, sink)
    work = asyncio.create_task(running.run())
    await sink.resyncs(1)
    async with published.connection.transaction():
        await published.execute("INSERT INTO items VALUES (1)")
        await other.fetchval("SELECT pg_terminate_backend($1)", await published.walsender())
        await until(waiting(running), lambda found: found is not None)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await until(lambda: other.fetchval(COUNT, published.slot), lambda found: not found)
    assert ["resync"] == sink.kinds


async def test_the_name_is_taken_for_a_while(published, proxy):
    """While the server still has the lost slot, the attempts are repeated; then the slot gets its name back."""
    sink = Ephemeral()
    async with pipeline(published, sink, dsn=proxy.dsn_for(published.dsn)) as running:
        await sink.resyncs(1)
        proxy.refuse()
        proxy.cut()
        await until(published.walsender, lambda pid: pid is None)
        await published.connection.fetchval(
            "SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)", published.slot
        )
        proxy.accept()
        await until(last_error(running), lambda text: "is in use by process" in text)
        assert "degraded" == running.state.value
        await published.connection.fetchval("SELECT pg_drop_replication_slot($1)", published.slot)
        await sink.resyncs(2)
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(3)
    assert ["resync", "resync", 1] == sink.kinds
    assert "in use" not in sink.found[1].reason


class Mirror(aiorepl.Sink):
    """The ids of a table; each Resync reads the table again."""

    takes_resync = True

    def __init__(self, connection) -> None:
        self.connection = connection
        self.ids: set[int] = set()
        self.resyncs = 0

    async def write(self, batch):
        for change in batch.changes:
            if isinstance(change, Resync):
                self.resyncs += 1
                self.ids = {row["id"] for row in await self.connection.fetch("SELECT id FROM items")}
            elif isinstance(change, Insert):
                self.ids.add(change.key["id"])
            else:
                self.ids.discard(change.key["id"])


@pytest.mark.by_day
async def test_cut_anywhere(published, proxy, other):
    """A sink that reads the table at each Resync ends with the table's rows, wherever the connection is cut."""
    mirror = Mirror(other)
    async with pipeline(published, mirror, dsn=proxy.dsn_for(published.dsn)) as running:
        for number in range(12):
            before = mirror.resyncs
            await published.execute(
                f"INSERT INTO items SELECT i, repeat('x', 60) FROM generate_series({number * 5000}, {number * 5000 + 999}) i",
            )
            proxy.cut_after(1 + number * 9000)
            await published.execute(
                f"DELETE FROM items WHERE id < {number * 5000 + 500}",
                f"INSERT INTO items SELECT i, repeat('x', 60) FROM generate_series({number * 5000 + 1000}, {number * 5000 + 3999}) i",
            )
            found = await published.connection.fetch("SELECT id FROM items")
            wanted = {row["id"] for row in found}

            async def look(wanted=wanted):
                return len(mirror.ids ^ wanted)

            await until(look, lambda different: not different)
            assert mirror.resyncs - before <= 1
        assert running.statistics().reconnects == mirror.resyncs - 1 >= 3


async def test_a_missing_publication_ends_the_pipeline(published, proxy):
    """A permanent error is raised, as with a permanent slot."""
    sink = Ephemeral()
    running = pipeline(published, sink, dsn=proxy.dsn_for(published.dsn))
    work = asyncio.create_task(running.run())
    await sink.resyncs(1)
    proxy.refuse()
    proxy.cut()
    await published.execute("DROP PUBLICATION p")
    proxy.accept()
    with pytest.raises(ConfigurationError, match="no publication 'p'"):
        await work


async def test_a_permanent_slot_of_that_name(published):
    """A permanent slot of the same name is not used as the temporary slot."""
    await published.create_slot()
    with pytest.raises(SlotError, match="is permanent: use another name"):
        async with connect(published):
            pass


async def test_without_reconnects_the_loss_is_an_error(published):
    """Without reconnects no Resync comes, so every sink is accepted."""
    sink = MemorySink()
    running = pipeline(published, sink, reconnect=None)
    work = asyncio.create_task(running.run())
    await running.started()
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1)
    await published.execute(f"SELECT pg_terminate_backend({await published.walsender()})")
    with pytest.raises(aiorepl.AioreplError, match="terminat"):
        await work
    assert [Insert] == [type(change) for change in sink.changes]


@VERSIONS
async def test_a_restarted_server(server, servers, publish):
    """A restart drops the slot; the stream goes on with a new one."""
    with servers.new(server.version) as own:
        published = await publish(own.dsn)
        router, seen = Router(), asyncio.Queue()

        @router.on("public.items")
        async def row(change):
            seen.put_nowait(change.key["id"])

        @router.on_resync
        async def load(resync):
            seen.put_nowait(resync.reason)

        async with pipeline(published, router):
            assert "start" == await seen.get()
            await asyncio.to_thread(own.restart)
            assert "start" != await seen.get()
            again = await asyncpg.connect(own.dsn)
            await again.execute("INSERT INTO items VALUES (1)")
            assert 1 == await seen.get()
            again.terminate()


async def test_a_new_slot_is_no_progress(published):
    """Connections that are lost before they bring a transaction exhaust the policy, although each has a slot with a later LSN."""
    policy = RetryPolicy(attempts=3, timeout=None, wait_initial=0.01, wait_max=60)
    async with connect(published, reconnect=policy) as stream:
        with pytest.raises(aiorepl.AioreplError, match="terminat"):
            for _ in range(8):
                assert isinstance(await anext(await anext(stream)), Resync)
                await terminate(published)


async def test_from_a_file(published, tmp_path, capfdbinary):
    """A file has the option, and stdout writes an event."""
    file = tmp_path / "aiorepl.toml"
    file.write_text(
        f'[source]\ndsn = "{published.dsn}"\nslot = "{published.slot}"\npublication = "p"\n'
        'create_slot = true\ntemporary = true\n\n[[sinks]]\ntype = "stdout"\n'
    )
    written = b""

    async def events():
        nonlocal written
        written += capfdbinary.readouterr().out
        return [json.loads(line) for line in written.splitlines() if line.startswith(b"{")]

    async with load(file).pipeline:
        await until(events, lambda found: len(found) == 1)
        await terminate(published)
        await until(events, lambda found: len(found) == 2)
        await published.execute("INSERT INTO items VALUES (1)")
        start, again, row = await until(events, lambda found: len(found) == 3)
    assert ("resync", None, "start") == (start["kind"], start["after"], start["reason"])
    assert "terminat" in again["reason"]
    assert again["after"] is not None
    assert {"id": 1} == row["key"]
