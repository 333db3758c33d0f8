"""The statements of docs/how-to/embedding.md about pipelines inside other programs, on a real server."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import anyio
import asyncpg
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

import aiorepl
from aiorepl.testing import FaultySink, MemorySink
from aiorepl.testing.faults import Hang, Reject
from tests.waiting import DEADLINE

# Slots belong to the whole server, and an example's name is in the example.
pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("examples")]


@pytest.fixture
async def items(connection):
    """A published table."""
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
    return connection


@pytest.fixture
def pipeline(database):
    """``pipeline("slot", sink, …)``."""

    def make(slot, *sinks, **options):
        source = aiorepl.Source(database, slot=slot, publication="p", create_slot=True)
        options.setdefault("batches", aiorepl.BatchPolicy(flush_seconds=0.05))
        return aiorepl.Pipeline(source, list(sinks), **options)

    return make


class Blocking(aiorepl.SyncSink):
    """A sink that blocks its thread until it is released."""

    def __init__(self):
        self.writing, self.go_on = threading.Event(), threading.Event()
        self.closed = False

    def write(self, batch):
        self.writing.set()
        assert self.go_on.wait(DEADLINE)

    def close(self):
        self.closed = True


async def insert(connection, *ids):
    """Commit rows, and say where WAL ends then."""
    await connection.executemany("INSERT INTO items VALUES ($1)", [(number,) for number in ids])


def others():
    """The tasks beside this one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.both_loops
async def test_a_context_ends_in_order(items, pipeline, slot):
    """Leaving it finishes what was received and tells the slot."""
    sink = MemorySink()
    before = others()
    async with pipeline("context", sink, batches=aiorepl.BatchPolicy(flush_seconds=60)):
        await insert(items, 1, 2)
        await sink.wait_for_changes(2)
        assert 0 == sink.durable
    assert before == others()
    assert 0 == await slot("context", "p")
    assert sink.closed


@pytest.mark.both_loops
async def test_a_cancelled_body_ends_in_order(items, pipeline, slot):
    """If the body is cancelled, as by Ctrl-C under asyncio.run, the pipeline shuts down in order."""
    sink = MemorySink()
    entered = asyncio.Event()

    async def body():
        async with pipeline("body", sink, batches=aiorepl.BatchPolicy(flush_seconds=60)):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await entered.wait()
    await insert(items, 1)
    await sink.wait_for_changes(1)
    before = others() - {task}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 == await slot("body", "p")
    assert sink.closed
    assert others() <= before


@pytest.mark.both_loops
@pytest.mark.parametrize("busy", [False, True])
async def test_a_cancelled_task_group_leaves_nothing(items, pipeline, slot, busy):
    """No task, a closed sink and a free slot; what was not flushed comes again."""
    hang = Hang()
    sink = FaultySink(write=[hang] if busy else [])
    async with asyncio.timeout(DEADLINE):
        before = others()
        async with anyio.create_task_group() as group:
            running = pipeline("group", sink, batches=aiorepl.BatchPolicy(flush_seconds=60))
            group.start_soon(running.run)
            await running.started()
            await insert(items, 1)
            await (hang.reached.wait() if busy else sink.inner.wait_for_changes(1))
            group.cancel_scope.cancel()
        assert before == others()
        assert sink.inner.closed
        assert 0 < await slot("group", "p")
        again = MemorySink()
        async with pipeline("group", again):
            await again.wait_for_changes(1)


@pytest.mark.both_loops
async def test_a_second_cancellation_interrupts_the_cleanup(items, pipeline, slot):
    """A second cancellation interrupts a sink that cannot be closed, and all tasks end."""
    hang = Hang()
    sink = FaultySink(close=[hang])
    before = others()
    running = pipeline("twice", sink)
    task = asyncio.create_task(running.run())
    await running.started()
    task.cancel()
    await asyncio.wait_for(hang.reached.wait(), DEADLINE)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, DEADLINE)
    assert before == others()
    await slot("twice", "p")


@pytest.mark.both_loops
async def test_a_cancelled_consumer_ends_in_order(items, database, slot):
    """A cancelled consumer confirms what it acknowledged, and releases the slot."""
    acknowledged = anyio.Event()

    async def consume():
        async with aiorepl.connect(database, slot="consumer", publication="p", create_slot=True) as stream:
            await insert(items, 1)
            async for transaction in stream:
                await transaction.skip()
                await stream.ack(transaction)
                acknowledged.set()

    before = others()
    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        await acknowledged.wait()
        group.cancel_scope.cancel()
    assert before == others()
    assert 0 == await slot("consumer", "p")


def test_a_cancelled_task_group_leaves_no_thread(database):
    """A call of a synchronous sink that has begun is waited for, and the threads end with the loop."""
    blocking = Blocking()
    before = set(threading.enumerate())

    async def main():
        connection = await asyncpg.connect(database)
        await connection.execute("CREATE TABLE items (id int PRIMARY KEY)")
        await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        source = aiorepl.Source(database, slot="threads", publication="p", create_slot=True)
        running = aiorepl.Pipeline(source, [blocking])
        async with anyio.create_task_group() as group:
            group.start_soon(running.run)
            await running.started()
            await insert(connection, 1)
            await anyio.to_thread.run_sync(blocking.writing.wait)
            group.cancel_scope.cancel()
            asyncio.get_running_loop().call_later(0.1, blocking.go_on.set)
        assert blocking.closed
        assert not others()
        await connection.close()

    asyncio.run(main())
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE)
    assert before >= set(threading.enumerate())


@pytest.mark.both_loops
async def test_a_failed_pipeline_ends_its_group(items, pipeline):
    """Its error comes out of the group, and the tasks beside it are cancelled."""
    sink = FaultySink(write=[Reject(aiorepl.PermanentError("refused"))])
    beside = asyncio.Event()
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
            running = pipeline("failed", sink)
            group.create_task(running.run())
            group.create_task(beside.wait())
            await running.started()
            await insert(items, 1)
    assert raised.group_contains(aiorepl.SinkError, match="refused")


@pytest.mark.both_loops
async def test_a_start_that_is_given_up_leaves_nothing(items, pipeline):
    """A timeout around the start ends the start, and drops the slot that it has created."""
    hang = Hang()
    sink = FaultySink(open=[hang])
    before = others()

    async def expire(timeout):
        await hang.reached.wait()
        timeout.reschedule(0)  # long past

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(DEADLINE) as timeout:
            expiring = asyncio.create_task(expire(timeout))
            async with pipeline("given_up", sink):
                raise AssertionError("it cannot have started")
    await expiring
    assert before == others()
    assert "close" in sink.calls
    assert not await items.fetch("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'given_up'")


@pytest.mark.both_loops
async def test_several_pipelines(items, pipeline):
    """Pipelines in one process and loop, each with its slot, do not affect each other."""
    first, second, failing = MemorySink(), MemorySink(), FaultySink(write=[Reject(ValueError("no"))])
    async with asyncio.timeout(DEADLINE), pipeline("second", second):
        async with pipeline("first", first):
            broken = pipeline("third", failing)
            task = asyncio.create_task(broken.run())
            await broken.started()
            await insert(items, 1)
            await first.wait_for_changes(1)
        with pytest.raises(aiorepl.SinkError):
            await task
        await insert(items, 2)
        await second.wait_for_changes(2)
    assert [1] == [change.new["id"] for change in first.changes]


async def test_a_synchronous_sink_blocks_nobody(items, pipeline):
    """While it holds its thread, the loop, the other sinks and the status updates go on."""
    blocking, quick = Blocking(), MemorySink()
    async with asyncio.timeout(DEADLINE), pipeline("blocked", blocking, quick):
        await insert(items, 1)
        await asyncio.to_thread(blocking.writing.wait, DEADLINE)
        await insert(items, 2)
        await quick.wait_for_changes(2, durable=True)
        assert not blocking.closed
        blocking.go_on.set()


def test_a_pipeline_in_a_lifespan(database):
    """A pipeline runs in the lifespan of a Starlette application, as in FastAPI's."""
    sink = MemorySink()

    @asynccontextmanager
    async def lifespan(app):
        connection = await asyncpg.connect(database)
        await connection.execute("CREATE TABLE items (id int PRIMARY KEY)")
        await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        source = aiorepl.Source(database, slot="lifespan", publication="p", create_slot=True)
        async with aiorepl.Pipeline(source, [sink]):
            await insert(connection, 1)
            await sink.wait_for_changes(1)
            yield
        app.state.unconfirmed = await connection.fetchval(
            "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('lifespan', NULL, NULL, 'proto_version', '1', "
            "'publication_names', 'p')"
        )
        await connection.close()

    app = Starlette(lifespan=lifespan)
    with TestClient(app):
        assert not sink.closed
    assert sink.closed
    assert 0 == app.state.unconfirmed


def test_a_pipeline_beside_synchronous_code(database):
    """A pipeline runs in a thread with its own loop, and is stopped from another thread."""
    sink = MemorySink()
    started = threading.Event()
    running = {}

    async def prepare():
        connection = await asyncpg.connect(database)
        await connection.execute("CREATE TABLE items (id int PRIMARY KEY)")
        await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        await connection.close()

    async def add():
        connection = await asyncpg.connect(database)
        await insert(connection, 1)
        await connection.close()

    async def work():
        source = aiorepl.Source(database, slot="beside", publication="p", create_slot=True)
        pipeline = aiorepl.Pipeline(source, [sink])
        loop = asyncio.get_running_loop()
        running["stop"] = lambda: loop.call_soon_threadsafe(pipeline.stop)
        async with asyncio.TaskGroup() as group:
            group.create_task(pipeline.run())
            await pipeline.started()
            started.set()

    asyncio.run(prepare())
    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    assert started.wait(DEADLINE)
    asyncio.run(add())
    running["stop"]()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert sink.closed
