"""A stream that is cut at any message and requested again delivers each change once."""

from __future__ import annotations

from random import Random

import pytest

from aiorepl.lsn import LSN
from aiorepl.pgoutput.options import Streaming
from aiorepl.transactions.replay import ReplayFilter

pytestmark = pytest.mark.by_day


class Consumer:
    """A pipeline's memory of the received slices, and of the LSN that it may confirm."""

    def __init__(self) -> None:
        self.slices = []
        self.after = LSN(0)
        self.partial = None
        self.held: dict[str, LSN] = {}

    def take(self, slices) -> None:
        for part in slices:
            name = type(part.two_phase).__name__
            if name in ("Prepare", "StreamPrepare"):
                self.held.setdefault(part.two_phase.gid, self.after)
            elif part.two_phase is not None:
                self.held.pop(part.two_phase.gid, None)
            if part.end_lsn is not None:
                self.after = max(self.after, part.end_lsn)
                self.partial = None
            elif part.transaction is not None:
                known = self.partial[1] if self.partial else 0
                self.partial = part.transaction.commit_lsn, known + len(part.changes)
            if part.changes or part.last:
                self.slices.append(part)

    def resume(self) -> ReplayFilter:
        """The received part of the stream."""
        return ReplayFilter(self.after, *(self.partial or (None, 0)))


@pytest.fixture
def read_all(sender, reader, tmp_path):
    """Let a consumer read all of the WAL, again without streaming if a streamed transaction has doubtful messages."""

    def read_all(
        consumer: Consumer, wal, dice: Random, streaming: Streaming, *, sent=None, read=None
    ) -> None:
        for now in (streaming, Streaming.OFF):
            frames = sender(dice, streaming=now, **(sent or {})).send(wal)
            reading = reader(now, tmp_path, resume=consumer.resume(), **(read or {}))
            consumer.take(reading.read(frames, dice))
            if not reading.doubtful:
                return

    return read_all


@pytest.fixture
def turned(world):
    """Return a world with every kind of transaction, by its seed."""

    def turned(seed: int):
        dice, turned = Random(seed), world()
        for _ in range(60):
            turned.step(dice)
        turned.end()
        return turned

    return turned


@pytest.fixture(params=list(Streaming), ids=lambda streaming: streaming.value)
def streaming(request) -> Streaming:
    """The option."""
    return request.param


def test_at_every_message(turned, sender, reader, read_all, units, streaming, tmp_path):
    """If the stream is cut after any message, each change is delivered once and in order."""
    for seed in range(4):
        world = turned(seed)
        whole = sender(Random(seed), streaming=streaming, two_phase=True).send(world.wal)
        for cut in range(len(whole) + 1):
            dice, consumer = Random(seed + cut), Consumer()
            first = reader(streaming, tmp_path, budget=dice.choice((1, 1500)), slice_bytes=60)
            consumer.take(first.read(whole[:cut], dice))
            least = min((consumer.after, *consumer.held.values()))
            sent = {"two_phase": True, "start": dice.choice((0, least))}
            read = {"budget": dice.choice((1, 1500)), "begins": LSN(0), "slice_bytes": 60}
            read_all(consumer, world.wal, dice, streaming, sent=sent, read=read)

            assert world.expected() == units(consumer.slices), f"seed {seed}, cut at {cut} of {len(whole)}"
            assert {} == consumer.held


def test_at_every_message_delivered_when_prepared(
    turned, sender, reader, read_all, units, streaming, tmp_path
):
    """The same holds if prepared transactions are delivered at their PREPARE, after which the server begins then."""
    for seed in range(4, 8):
        world = turned(seed)
        whole = sender(Random(seed), streaming=streaming, two_phase=True).send(world.wal)
        for cut in range(len(whole) + 1):
            dice, consumer = Random(seed + cut), Consumer()
            first = reader(streaming, tmp_path, budget=dice.choice((1, 1500)), deliver_prepared=True)
            consumer.take(first.read(whole[:cut], dice))

            sent = {"two_phase": True, "start": consumer.after}
            read = {"budget": 1500, "begins": consumer.after, "deliver_prepared": True}
            read_all(consumer, world.wal, dice, streaming, sent=sent, read=read)

            expected = world.expected(delivered=True)
            assert expected == units(consumer.slices), f"seed {seed}, cut at {cut} of {len(whole)}"


def test_many_cuts(turned, sender, reader, units, streaming, tmp_path):
    """A connection that breaks again and again delivers each change once."""
    for seed in range(100, 140):
        world, dice, consumer, now = turned(seed), Random(seed), Consumer(), streaming
        while True:
            sent = sender(dice, streaming=now, two_phase=True).send(world.wal)
            cut = dice.randrange(len(sent) + len(sent) // 4)
            read = reader(now, tmp_path, budget=1000, resume=consumer.resume(), begins=LSN(0))
            consumer.take(read.read(sent[:cut], dice))
            now = Streaming.OFF if read.doubtful else now
            if cut >= len(sent) and not read.doubtful:
                break

        assert world.expected() == units(consumer.slices), f"seed {seed}"


def test_two_phase_switched_on(turned, read_all, units, streaming):
    """If a slot becomes two-phase, transactions that were prepared before are delivered when they commit."""
    for seed in range(200, 240):
        world, dice = turned(seed), Random(seed)
        records = world.wal
        at = dice.choice([record.lsn for record in records])
        first = [record for record in records if record.lsn < at]
        for delivered in (False, True):
            consumer = Consumer()
            read_all(consumer, first, dice, streaming)
            at = consumer.after = LSN(max(at, consumer.after))
            sent = {"two_phase": True, "start": at, "two_phase_at": at}
            read = {"begins": at, "deliver_prepared": delivered}
            read_all(consumer, records, dice, streaming, sent=sent, read=read)

            rows = [change for unit in units(consumer.slices) for change in unit[4]]
            told = world.told if delivered else world.expected()
            assert _rows_of(told, at, delivered) == rows, f"seed {seed}"


def _rows_of(told, at: int, delivered: bool) -> list:
    """The changes in the order in which they come when the slot became two-phase at ``at``."""
    if not delivered:
        return [change for unit in told for change in unit[4]]
    early = {(xid, gid) for kind, xid, lsn, gid, _ in told if kind == "prepare" and lsn < at}
    rows = []
    for kind, xid, lsn, gid, changes in told:
        if kind == "commit prepared" and (xid, gid) not in early:
            continue
        if kind != "prepare" or lsn >= at:
            rows += changes
    return rows


def test_known_by_the_consumer_alone(turned, read_all, units, streaming):
    """Known changes are dropped, however much the server sends again; all others are delivered."""
    world, dice = turned(300), Random(300)
    everything = world.expected()
    ends = [0, *(lsn + (0 if kind == "message" else 16) for kind, _, lsn, _, _ in everything)]
    for known, after in enumerate(ends):
        consumer = Consumer()
        consumer.after = LSN(after)
        read_all(consumer, world.wal, dice, streaming, sent={"two_phase": True})

        assert everything[known:] == units(consumer.slices)
    assert ReplayFilter().after == ends[0]
