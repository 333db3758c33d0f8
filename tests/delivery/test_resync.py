"""The delivery of a ``Resync``: no option drops it, and an unfinished transaction ends."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import (
    LSN,
    BatchPolicy,
    ConfigurationError,
    Insert,
    PermanentError,
    Pipeline,
    Resync,
    RetryPolicy,
    Router,
    Selection,
    Sink,
    SinkError,
    Source,
    SyncSink,
    event_id,
)
from aiorepl.delivery.batching import Batcher
from aiorepl.delivery.partitioning import by_key, by_table, order, stages
from aiorepl.errors import ServerError
from aiorepl.formats import named, names
from aiorepl.sink import Batch
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.source.ledger import Ledger
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction
from aiorepl.wire.server_errors import slot_problem


class Taking(MemorySink):
    """A sink that takes a Resync."""

    takes_resync = True


def seen(sink):
    return ["resync" if isinstance(each, Resync) else each.new["id"] for each in sink.changes]


@pytest.mark.parametrize("max_rows", [None, 2])
async def test_the_rest_of_an_unfinished_transaction_is_dropped(harness, max_rows):
    """Slices that wait for their transaction's end are dropped and released; later LSNs may be lower."""
    sink = Taking()
    work = harness(sink, batches=BatchPolicy(max_rows=max_rows, flush_seconds=0.01))
    begin = work.stream.lsn
    work.commit(1)
    work.commit(2)
    work.stream.transaction(*(work.table.insert(str(number), "x") for number in (3, 4, 5)))
    half = work.stream.slices(1)[:-1]
    work.buffer.extend(part for part in half if not part.last)
    work.buffer.extend([Resync(begin, "lost", LSN(7)).slice()])
    work.ledger.restart(begin)
    again = Stream()
    table = again.table("items", column("id", 23, key=True), column("note"))
    for number in (6, 7):
        again.transaction(table.insert(str(number), "x"))
    slices = again.slices()
    assert slices[0].end_lsn <= begin + 0x1000
    for part in slices:
        if part.end_lsn is not None:
            work.ledger.complete(part.end_lsn)
    work.buffer.extend(slices)
    await work.finish()
    assert ["resync", 6, 7] == seen(sink)[-3:]
    assert [1, 2] == seen(sink)[:2]
    if max_rows is None:
        assert 5 == len(sink.changes)
    # With a limit of rows, a part of the transaction may have been delivered before; its last slice never is.
    assert not any(
        part.last for batch in sink.batches for part in batch.slices if len(part.changes) and 3 in _ids(part)
    )
    assert slices[-1].end_lsn == work.ledger.flushed
    assert 0 == work.buffer.statistics().bytes == work.buffer.statistics().slices


def _ids(part):
    return [change.new["id"] for change in part.changes if isinstance(change, Insert)]


async def test_neither_selection_nor_transform_drops_it(harness):
    """A sink gets the Resync although its selection has no table and its transform drops every change."""

    def nothing(change):
        raise AssertionError

    sink = Taking()
    selection = Selection(tables=("public.other?",), kinds=("delete",))
    work = harness(sink, selection=selection, transform=nothing)
    work.commit(1)
    work.buffer.extend([Resync(LSN(work.stream.lsn + 8)).slice()])
    await work.finish()
    assert ["resync"] == seen(sink)


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
async def test_a_rejected_one_stops_the_sink(harness, on_error):
    """A rejected Resync becomes no dead letter, because the sink would keep outdated state."""

    class Rejecting(Taking):
        async def write(self, batch):
            raise PermanentError("no")

    work = harness(Rejecting(), on_error=on_error, dead_letters=MemorySink())
    work.buffer.extend([Resync(LSN(work.stream.lsn + 8)).slice()])
    with pytest.raises(SinkError, match="sink s rejects a Resync: no"):
        await work.finish()


@pytest.mark.parametrize("keys", [by_key, by_table, order("routing_key", lambda change: (change.table,))])
def test_concurrent_writes(keys):
    """A Resync is written alone."""
    stream = Stream()
    table = stream.table("items", column("id", 23, key=True))
    stream.transaction(table.insert("1"), table.insert("2"))
    (before,) = stream.slices()
    batch = Batch((before, Resync(LSN(before.end_lsn + 8)).slice()))
    found = list(stages(batch, 4, keys(TableCatalog())))
    assert ["resync"] == [each.kind for part in found[-1] for each in part.changes]
    assert 1 == len(found[-1])


def test_partial_slices_of_a_batcher():
    """Each dropped slice counts once, even if a part of the slice was taken before."""
    header = Transaction.__new__(Transaction)
    batcher = Batcher(1 << 20, 2)
    batcher.add(Slice(header, (1,), True, LSN(1), 10))
    batcher.add(Slice(header, (1, 2, 3), True, None, 10))
    batcher.add(Slice(header, (4,), False, None, 10))
    assert 1 == batcher.added(batcher.take())
    assert 0 == batcher.added(batcher.take())
    assert 2 == batcher.drop_partial() == 2
    assert batcher.take() is None
    batcher.add(Slice(header, (1,), True, LSN(9), 10))
    assert 1 == batcher.added(batcher.take())


def test_a_ledger_that_begins_again():
    """Positions may move back; a report about the former stream confirms nothing beyond the new stream."""
    ledger = Ledger(LSN(10), ["a", "b"])
    ledger.complete(LSN(90))
    ledger.durable("a", LSN(90))
    ledger.hold("gid", LSN(80))
    ledger.durable("b", LSN(90))
    ledger.confirm()
    ledger.restart(LSN(50))
    assert [50] * 5 == [ledger.received, ledger.end, ledger.flushed, ledger.confirmable, ledger.confirmed]
    ledger.durable("a", LSN(95))
    assert 50 == ledger.flushed
    ledger.complete(LSN(60))
    ledger.durable("b", LSN(60))
    assert 60 == ledger.confirm()


def test_a_name_that_is_taken_may_be_free_later():
    """The error "slot exists already" is transient, so the creation is repeated."""
    assert slot_problem(ServerError({"C": "42710", "M": "exists"}), "s").busy


def source(**options):
    return Source(None, **{"slot": "s", "publication": "p", "create_slot": True, "temporary": True} | options)


class Threaded(SyncSink):
    """A sink that does not take a Resync."""

    def write(self, batch):
        """Take nothing."""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"sinks": [MemorySink()]}, "sink memory does not take a Resync"),
        ({"sinks": {"a": Taking(), "b": Threaded()}}, "sink b does not take a Resync"),
        ({"sinks": {"r": Router()}}, "sink r does not take a Resync"),
        ({"journal": "/tmp/never"}, "a journal needs a permanent slot"),
        (
            {"snapshot": True, "state_dir": "/tmp/never"},
            "a pipeline with a temporary slot cannot read tables",
        ),
        ({"on_new_table": "snapshot"}, "a pipeline with a temporary slot cannot read tables"),
        ({"on_partition_change": "resnapshot"}, "a pipeline with a temporary slot cannot read tables"),
    ],
)
def test_what_needs_a_stream_without_gaps(given, reason):
    """Such sinks and options are refused at construction; with ``until`` or without reconnects no Resync comes, so the sinks are accepted."""
    given = {"sinks": [Taking()]} | given
    with pytest.raises(ConfigurationError, match=reason):
        Pipeline(source(), **given)
    if "sinks" in given and set(given) == {"sinks"}:
        Pipeline(source(), **given, reconnect=None)
        Pipeline(source(), **given, until="now")
        Pipeline(source(temporary=False), **given)


async def test_reading_a_table_is_refused():
    """Reading tables is refused, because rows that were read before a gap would lack its changes."""
    running = Pipeline(source(), [Taking()])
    with pytest.raises(ConfigurationError, match="let the sink read the tables when it gets a Resync"):
        await running.resnapshot("public.items")


class Position(Taking):
    """A sink that takes a Resync, and wrongly keeps a position."""

    async def open(self, context):
        return context.position


async def test_a_sink_with_a_position():
    """A stored position would skip changes of the new slot."""
    memory = MemorySource(stream=Stream(), create_slot=True, temporary=True)
    with pytest.raises(
        ConfigurationError, match="sink position has takes_resync, so it cannot keep a position"
    ):
        await Pipeline(memory, [Position()]).run()


async def test_a_source_in_memory():
    """A program is tested without a server: the stream begins with a Resync, and each disconnect gives another one."""
    stream = Stream()
    table = stream.table("items", column("id", 23, key=True), column("note"))
    memory = MemorySource(stream=stream, create_slot=True, temporary=True)
    router, got = Router(), []
    arrived = asyncio.Event()

    @router.on("public.items")
    async def row(change):
        got.append(change.new["id"])
        arrived.set()

    @router.on_resync
    async def load(resync):
        got.append((resync.reason, resync.after is None))
        arrived.set()

    async def until(count):
        async with asyncio.timeout(60):
            while len(got) < count:
                arrived.clear()
                await arrived.wait()

    async with Pipeline(memory, {"r": router}, reconnect=RetryPolicy(wait_initial=0.01)):
        stream.transaction(table.insert("1", "x"))
        await until(2)
        await memory.acknowledged()
        memory.disconnect(refused_attempts=2)
        await until(3)
        stream.transaction(table.insert("2", "x"))
        await until(4)
    assert [("start", True), 1, ("the connection was cut by the test", False), 2] == got


def test_events():
    """Each format has an event for a Resync, or drops it."""
    resync = Resync(LSN(0x1A2B), "lost", LSN(0x1000))
    assert "0/1A2B-resync" == event_id(resync)
    for name in names():
        form = named(name)
        lines = form.lines([resync.slice()])
        assert bool(lines) == form.has_resync == (name not in ("debezium", "wal2json"))
    assert b'{"kind":"resync","lsn":"0/1A2B","after":"0/1000","reason":"lost"}\n' == named("native").lines(
        [resync.slice()]
    )


def test_stdout_takes_it_if_the_format_has_it():
    """A router without a handler of Resyncs is refused for a temporary slot."""
    from aiorepl.pipeline.registry import load

    stdout = load("stdout")
    assert stdout().takes_resync
    with pytest.raises(ConfigurationError, match="does not take a Resync"):
        Pipeline(source(), {"out": stdout(format="debezium")})


def test_the_default():
    """``takes_resync`` is false by default."""
    assert not Sink.takes_resync
    assert not SyncSink.takes_resync
