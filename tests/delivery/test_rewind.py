"""A sink that has lost accepted data is opened again and gets it again; other sinks get no duplicates."""

from __future__ import annotations

import asyncio
import random

import pytest

from aiorepl import (
    LSN,
    BatchPolicy,
    Delivery,
    PermanentError,
    Pipeline,
    RetryPolicy,
    SchemaChange,
    Sink,
    SinkError,
    SlotError,
    TransientError,
)
from aiorepl.retry import Backoff
from aiorepl.testing.faults import FaultySink, MemorySink, Reject
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

pytestmark = pytest.mark.by_day

SMALL = BatchPolicy(max_bytes=2000, flush_seconds=0.01)
QUICK = RetryPolicy(timeout=60, wait_initial=0.001, wait_max=0.005)
LOST = TransientError("the connection was lost", rewind=True)


class Target:
    """A database: rows, and the position that is committed with them."""

    def __init__(self):
        self.rows = []
        self.position = None

    @property
    def lsn(self):
        """The LSN up to which it has everything."""
        return LSN(0) if self.position is None else self.position.lsn


class Holding(Sink):
    """Writes slices in a transaction of the target's, which it loses where it is told to.

    :param lose: asked at each write whether the connection is lost there.
    """

    def __init__(self, target, lose=lambda batch: False):
        self.target = target
        self.lose = lose
        self.opened = 0
        self.begun = []
        self.seen = []

    async def open(self, context):
        self.opened += 1
        self.begun = []
        if self.target.position is None:
            self.target.position = context.position
        return self.target.position

    async def write(self, batch):
        await asyncio.sleep(0)
        if self.lose(batch):
            raise LOST
        for part in batch.slices:
            if part.first:
                self.begun = self.begun if batch.slices[0] is not part else []
            self.begun += [(change.transaction.commit_lsn, change.ordinal) for change in part.changes]
            self.seen.append(part)
        if batch.slices[-1].last:
            self.target.rows += self.begun
            self.target.position = self.target.position.at(batch.end_lsn)
            self.begun = []


def at_writes(*numbers):
    """Return a function that loses the connection at these writes."""
    count = iter(range(1, 10**6))
    return lambda batch: next(count) in numbers


class Told:
    """A source in memory with a table."""

    def __init__(self, **options):
        self.stream = Stream()
        self.table = self.stream.table("items", column("id", 23, key=True), column("note"))
        # Two rows a read: nearly every one is a slice.
        self.source = MemorySource(stream=self.stream, read_bytes=50, **options)

    def commit(self, rows):
        """Commit a transaction with this number of rows."""
        return self.stream.transaction(*(self.table.insert(str(row), "note") for row in range(rows)))

    @property
    def identities(self):
        """The identities of all changes, in order."""
        return [
            (part.transaction.commit_lsn, change.ordinal)
            for part in self.stream.again()
            for change in part.changes
        ]

    def pipeline(self, *sinks, **options):
        """Return a pipeline with a small buffer that ends at the end of the stream."""
        options = {
            "until": "now",
            "batches": SMALL,
            "buffer_bytes": 8000,
            "retry": QUICK,
            "reconnect": QUICK,
            **options,
        }
        return Pipeline(self.source, sinks, **options)


async def ended(pipeline):
    """Run the pipeline to its end, with a timeout."""
    async with asyncio.timeout(60):
        await pipeline.run()


def identities_of(sink):
    """Return the identities of the changes that the sink got."""
    return [(change.transaction.commit_lsn, change.ordinal) for change in sink.changes]


@pytest.mark.parametrize("write", range(1, 12))
async def test_lost_at_any_slice(write):
    """The sink gets everything again, once, even if reading had already ended."""
    told = Told()
    told.commit(3)
    told.commit(60)
    target, beside = Target(), MemorySink()
    sink = Holding(target, at_writes(write))
    pipeline = told.pipeline(sink, beside)
    await ended(pipeline)
    assert told.identities == target.rows == identities_of(beside)
    assert (2, 1) == (sink.opened, pipeline.statistics().sinks["holding"].rewinds)
    assert pipeline.statistics().flushed == told.stream.lsn == told.source.confirmed
    assert (0, None) == (pipeline.statistics().reconnects, pipeline.statistics().last_error)


@pytest.mark.parametrize("write", [3, 9, 10])
async def test_the_end_comes_again(write):
    """The end of the stream is repeated for a sink that has lost data."""
    told = Told()
    until = LSN(told.commit(60) + 8)
    told.commit(1)
    target = Target()
    pipeline = told.pipeline(Holding(target, at_writes(write)), until=until)
    await ended(pipeline)
    assert (60, 1) == (len(target.rows), pipeline.statistics().sinks["holding"].rewinds)
    assert (until, until) == (target.lsn, pipeline.statistics().flushed)


@pytest.mark.parametrize("seed", range(12))
async def test_lost_at_random(seed):
    """Several sinks, small and large transactions and lost connections: exactly once, and never confirmed too far."""
    chance = random.Random(seed)
    told = Told()
    targets, beside = [Target() for _ in range(3)], MemorySink()
    begin = told.source.confirmed
    wrong = []

    def lose(batch):
        durable = min(begin if target.position is None else target.lsn for target in targets)
        if told.source.confirmed > durable:
            wrong.append((told.source.confirmed, durable))
        if chance.random() < 0.01:
            told.source.disconnect(chance.randrange(3))
        return chance.random() < 0.06

    sinks = [Holding(target, lose) for target in targets]
    pipeline = told.pipeline(*sinks, beside, until=None)
    largest = 0
    async with asyncio.timeout(120), pipeline:
        for _ in range(25):
            told.commit(chance.choice([0, 1, 2, 10, 60]))
            await asyncio.sleep(chance.choice([0, 0, 0.002]))
            largest = max(largest, pipeline.statistics().buffers["source"].bytes)
        await told.source.acknowledged()
    for target in targets:
        assert told.identities == target.rows
    assert told.identities == identities_of(beside)
    assert [] == wrong
    assert sum(sink.rewinds for sink in pipeline.statistics().sinks.values()) > 0
    # The limit, and what one read brings.
    assert largest < 8000 + 2000


async def test_without_reconnecting_it_is_read_again_all_the_same():
    """A rewind reconnects even with ``reconnect=None``."""
    told = Told()
    told.commit(40)
    target = Target()
    await ended(told.pipeline(Holding(target, at_writes(3)), reconnect=None))
    assert told.identities == target.rows


async def test_prepared_transactions_come_again():
    """A prepared transaction is delivered again when the sink loses it, whether or not the sinks support prepared transactions."""
    for supports_prepared in (True, False):
        told = Told()
        told.stream.prepare("gid", *(told.table.insert(str(row), "note") for row in range(40)))
        told.commit(2)
        told.stream.commit_prepared("gid")
        told.commit(1)
        target = Target()
        sink = Holding(target, at_writes(2, 5, 9))
        sink.supports_prepared = supports_prepared
        pipeline = told.pipeline(sink)
        await ended(pipeline)
        held = [] if supports_prepared else [(target.rows[2][0], number) for number in range(40)]
        plain = sorted(told.identities)
        prepared = [at for at in plain if at[0] == plain[0][0]]
        rest = [at for at in plain if at not in prepared]
        assert (prepared + rest if supports_prepared else [*rest[:2], *held, *rest[2:]]) == target.rows
        assert told.stream.lsn == told.source.confirmed


async def test_the_end_comes_while_it_is_away():
    """A pipeline that is stopped during a rewind ends at once; the next start delivers what was not confirmed."""
    told = Told()
    end = told.commit(2)
    target = Target()
    lost = asyncio.Event()

    def lose(batch):
        if target.rows:
            lost.set()
        return lost.is_set()

    slow = RetryPolicy(timeout=None, wait_initial=60, wait_max=60)
    pipeline = told.pipeline(Holding(target, lose), until=None, retry=slow, shutdown_timeout=60)
    async with asyncio.timeout(30), pipeline:
        await told.source.acknowledged(end)
        told.commit(40)
        await lost.wait()
    assert end <= told.source.confirmed < told.stream.lsn
    await ended(told.pipeline(Holding(target)))
    assert told.identities == target.rows


async def test_the_end_comes_while_it_cannot_be_opened():
    """The same holds while the sink is opened again."""
    told = Told()
    told.commit(40)
    target, away = Target(), asyncio.Event()

    class Away(Holding):
        async def open(self, context):
            if self.opened:
                away.set()
                raise TransientError("not there")
            return await super().open(context)

    pipeline = told.pipeline(
        Away(target, at_writes(2)),
        until=None,
        retry=RetryPolicy(wait_initial=0.001, wait_max=60),
        shutdown_timeout=60,
    )
    async with asyncio.timeout(30), pipeline:
        await away.wait()
    assert [] == target.rows


async def test_it_is_insisted_on_as_the_policy_has_it():
    """A sink that keeps losing data fails with its own error; durable data stays confirmed."""
    told = Told()
    end = told.commit(2)
    told.commit(40)
    target = Target()
    sink = Holding(target, lambda batch: bool(target.rows))
    pipeline = told.pipeline(sink, retry=RetryPolicy(attempts=4, wait_initial=0.001))
    with pytest.raises(TransientError, match="the connection was lost"):
        await ended(pipeline)
    assert (4, 3) == (sink.opened, pipeline.statistics().sinks["holding"].rewinds)
    assert end == told.source.confirmed


async def test_opening_again_is_insisted_on_by_itself():
    """An error of ``open`` is retried as for any call, even with ``rewind``."""
    told = Told()
    told.commit(40)
    target = Target()
    sink = FaultySink(
        Holding(target, at_writes(3)), open=[None, Reject(TransientError("not yet")), Reject(LOST)]
    )
    pipeline = told.pipeline(sink)
    await ended(pipeline)
    assert told.identities == target.rows
    assert 2 == pipeline.statistics().sinks["faulty"].retries
    broken = FaultySink(
        Holding(Target(), at_writes(3)), open=[None, Reject(PermanentError("the disk is gone"))]
    )
    with pytest.raises(PermanentError, match="the disk is gone"):
        await ended(Told.pipeline(again := Told(), broken, until=again.commit(40)))


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
async def test_what_is_lost_is_no_refusal(on_error, tmp_path):
    """A rewind diverts no changes, whatever the policy."""
    told = Told()
    told.commit(1)
    told.commit(40)
    target = Target()
    letters = tmp_path if on_error == "dead_letter" else None
    await ended(
        told.pipeline(Delivery(Holding(target, at_writes(1, 4)), on_error=on_error, dead_letters=letters))
    )
    assert told.identities == target.rows
    assert [] == list(tmp_path.iterdir())


class Gathering(MemorySink):
    """Keeps no position, and loses unflushed data on request."""

    def __init__(self, *losses):
        super().__init__()
        self.losses = set(losses)
        self.flushes = 0
        self.opened = 0

    async def open(self, context):
        self.opened += 1
        self.crash()

    async def flush(self):
        self.flushes += 1
        if self.flushes in self.losses:
            raise LOST
        await super().flush()


async def test_a_sink_without_a_position():
    """Everything that was not flushed is delivered again."""
    told = Told()
    for rows in (2, 40, 3, 40):
        told.commit(rows)
    sink, beside = Gathering(1, 3), MemorySink()
    policy = BatchPolicy(max_bytes=2000, flush_bytes=6000)
    await ended(told.pipeline(sink, beside, batches=policy))
    assert 3 == sink.opened
    assert told.identities == list(dict.fromkeys(identities_of(sink)))
    assert told.identities == identities_of(beside)


async def test_concurrent_writes():
    """One of several concurrent writes may ask for a rewind; a different error at the same time wins."""

    class Wide(Gathering):
        concurrent = True
        error = LOST

        async def write(self, batch):
            await super().write(batch)
            if self.opened == 1 and len(self.changes) > 20:
                raise self.error

    told = Told()
    for _ in range(10):
        told.commit(4)
    sink = Wide()
    await ended(told.pipeline(Delivery(sink, concurrency=4)))
    assert sorted(told.identities) == sorted(set(identities_of(sink)))
    assert 2 == sink.opened
    sink = Wide()
    sink.error = PermanentError("never")
    with pytest.raises(PermanentError, match="never"):
        await ended(Told.pipeline(again := Told(), Delivery(sink, concurrency=4), until=again.commit(40)))


async def test_a_target_that_went_back():
    """If the target has lost durable data that the slot still has, it is delivered again."""
    told = Told()
    first = told.commit(2)
    told.commit(2)
    target, held = Target(), Target()
    away = True

    def lose(batch):
        nonlocal away
        if len(target.rows) == 4 and away:
            # The other sink has not got so far, or the slot would not have it any more.
            away = False
            del target.rows[2:]
            target.position = target.position.at(first)
            return True
        return False

    waiting = asyncio.Event()

    class Late(Holding):
        async def write(self, batch):
            await waiting.wait()
            await super().write(batch)

    pipeline = told.pipeline(
        Holding(target, lose), Late(held), until=None, batches=BatchPolicy(max_bytes=500)
    )
    async with asyncio.timeout(60), pipeline:
        while len(target.rows) < 4:
            await asyncio.sleep(0.001)
        told.commit(1)
        while away or len(target.rows) < 5:
            await asyncio.sleep(0.001)
        waiting.set()
        await told.source.acknowledged()
    assert told.identities == target.rows == held.rows


async def test_a_target_that_went_back_too_far():
    """If the slot no longer has the data, the pipeline ends with instructions."""
    told = Told()
    begin = told.stream.position.lsn
    end = told.commit(2)
    target = Target()

    def lose(batch):
        if target.rows:
            target.rows.clear()
            target.position = target.position.at(begin)
            return True
        return False

    running = asyncio.create_task(ended(told.pipeline(Holding(target, lose), until=None)))
    await told.source.acknowledged(end)
    told.commit(1)
    with pytest.raises(
        SlotError, match=f"had everything up to {end}, and now only up to {begin}.*accept_gap"
    ):
        await running
    assert end == told.source.confirmed


async def test_a_sink_that_changes_its_mind():
    """A sink must not return a position at one time and None at another."""
    told = Told()
    told.commit(40)

    class Forgetful(Holding):
        async def open(self, context):
            held = await super().open(context)
            return held if self.opened == 1 else None

    with pytest.raises(SinkError, match="a position at one time and None at another"):
        await ended(told.pipeline(Forgetful(Target(), at_writes(3))))


async def test_a_temporary_slot():
    """With a temporary slot a rewind is refused, because the slot is dropped with its connection."""
    told = Told(create_slot=True, temporary=True)
    told.commit(40)
    with pytest.raises(SlotError, match="is temporary and would be dropped"):
        await ended(told.pipeline(Holding(Target(), at_writes(3))))


async def test_schema_changes_are_told_again():
    """Schema changes are repeated after a rewind, as after a start."""
    told = Told()
    told.commit(40)
    sink = Holding(Target(), at_writes(5))
    await ended(told.pipeline(Delivery(sink, schema_changes=True)))
    kinds = [isinstance(change, SchemaChange) for part in sink.seen for change in part.changes]
    assert 2 == kinds.count(True)


def test_pauses_grow_while_nothing_gets_durable():
    """Pauses grow up to wait_max, start again once more is durable, and follow the peer's Retry-After."""
    backoff = Backoff(RetryPolicy(timeout=None, wait_initial=1, wait_max=10))
    assert [1, 2, 4, 8, 10, 10] == [backoff.pause(LSN(7)) for _ in range(6)]
    assert [1, 2, 99, 8] == [backoff.pause(LSN(9), asked) for asked in (None, None, 99, None)]
    assert all(backoff.pause(LSN(9)) == 10 for _ in range(5000))


@pytest.mark.parametrize(
    ("policy", "losses"),
    [
        (RetryPolicy(attempts=1), 0),
        (RetryPolicy(attempts=4, timeout=None), 3),
        (RetryPolicy(timeout=15, wait_initial=1), 4),
        (RetryPolicy(), 17),
    ],
)
def test_patience_ends(policy, losses):
    """The back-off ends after the attempts or the total pause of the policy, and starts again once more is durable."""
    backoff = Backoff(policy)
    for durable in (LSN(1), LSN(2)):
        assert all(backoff.pause(durable) is not None for _ in range(losses))
        assert backoff.pause(durable) is None
