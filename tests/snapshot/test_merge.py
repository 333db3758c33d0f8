"""Watermarks in the stream: what takes their place, when one is lost, and how the stream is held back."""

from __future__ import annotations

import pytest

from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.snapshot.merging.merge import ChunkMerge
from aiorepl.snapshot.merging.signals import content
from aiorepl.snapshot.merging.watermarks import Watermark
from aiorepl.snapshot.merging.window import Window
from aiorepl.transactions.changes import Message
from aiorepl.transactions.control_messages import SIGNAL, WATERMARK
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction


def message(end: int, prefix: str, text: str) -> Slice:
    """A slice with a message that is not transactional."""
    sent = m.Message(False, end, prefix, text.encode(), b"", None)
    return Slice(None, (Message(None, 0, sent),), True, LSN(end), 1)


def transaction(commit_lsn: int, end: int | None) -> Slice:
    """A slice of a transaction without changes."""
    return Slice(Transaction(9, LSN(commit_lsn), 0), (), True, None if end is None else LSN(end), 1)


def idle(end: int) -> Slice:
    """The slice of a keepalive."""
    return Slice(None, (), True, LSN(end), 0)


def ends(slices: list[Slice]) -> list[int | None]:
    """The ends of slices."""
    return [part.end_lsn for part in slices]


@pytest.fixture
def merge() -> ChunkMerge:
    """The merge of slot ``s``."""
    return ChunkMerge("s")


def test_a_chunk_takes_the_place_of_its_watermark(merge):
    """A chunk is delivered after transactions that committed before its watermark, and before later ones."""
    watermark = Watermark("s")
    chunk = Slice(Transaction(0, LSN(99), 0), (), True, LSN(100), 1)
    merge.expect(watermark, lambda end: [chunk] if end == 100 else [], pytest.fail)(LSN(100))
    passed = merge.take(
        [transaction(50, 60), message(100, WATERMARK, watermark.content), transaction(100, 110)]
    )
    assert [60, 100, 110] == ends(passed)
    assert passed[1] is chunk


@pytest.mark.parametrize(
    "text",
    [
        Watermark("s").content,
        Watermark("another").content,
        "nonsense",
        "[]",
        '{"slot": 1, "token": "x"}',
        "[" * 100_000,
    ],
    # Tokens are random, and all workers must know a test by the same name.
    ids=["own", "another slot's", "no JSON", "no object", "no names", "deep"],
)
def test_unknown_watermarks(merge, text):
    """Watermarks of other pipelines, of earlier processes, and forged ones become positions without content."""
    (passed,) = merge.take([message(100, WATERMARK, text)])
    assert (None, 0, 100) == (passed.transaction, len(passed.changes), passed.end_lsn)


def test_a_token_of_another_slot(merge):
    """A watermark belongs to one slot, whatever its token."""
    watermark = Watermark("s")
    merge.expect(watermark, lambda _: pytest.fail("arrived"), pytest.fail)
    (passed,) = merge.take([message(100, WATERMARK, Watermark("another", watermark.token).content)])
    assert 100 == passed.end_lsn


def test_rewound(merge):
    """Chunks that were not delivered do not get into the ledger, and what was held back is not delivered twice."""

    async def record() -> None:
        pytest.fail("recorded")

    merge.before_delivery.append(record)
    merge.hold()
    merge.take([transaction(100, 110)])
    merge.rewound()
    assert [] == merge.before_delivery
    merge.release()
    assert [110] == ends(merge.take_released() + merge.take([transaction(100, 110)]))


def test_messages_of_users(merge):
    """Other messages pass."""
    theirs = message(100, "theirs", "x")
    assert [theirs] == merge.take([theirs])


def test_a_lost_watermark(merge):
    """If the stream is past its position without it, the watermark is lost, once; while its position is unknown, it is not."""
    lost: list[str] = []
    written = merge.expect(Watermark("s"), lambda _: pytest.fail("arrived"), lambda: lost.append("lost"))
    merge.take([transaction(100, 110)])
    assert [] == lost
    written(LSN(120))
    merge.take([idle(120)])
    assert [] == lost
    merge.take([idle(121), idle(122)])
    assert ["lost"] == lost


def test_signals(merge):
    """Signals are kept until they are taken, and removed from the stream; malformed ones are only logged."""
    passed = merge.take([message(100, SIGNAL, content("s", "pause")), message(110, SIGNAL, "nonsense")])
    assert [100, 110] == ends(passed)
    assert [("pause", 100)] == [(signal.action, signal.lsn) for signal in merge.signals]
    merge.rewound()
    assert [] == merge.signals


def test_held_back_at_a_position(merge):
    """Everything that commits before the position is delivered, then what is inserted, then the rest."""
    events: list[str] = []
    merge.on_release(lambda: events.append("released"))
    merge.hold()
    assert [] == merge.take([transaction(10, 20), transaction(100, 120)])
    assert [] == merge.take([idle(125)])
    assert merge.blocked
    merge.hold(LSN(100), lambda: events.append("reached"))
    assert [20] == ends(merge.take_released())
    assert ["released", "released", "reached"] == events
    assert merge.blocked
    chunk = Slice(Transaction(0, LSN(99), 0), (), True, LSN(100), 1)
    merge.release([chunk])
    assert [100, 120, 125] == ends(merge.take_released())
    assert not merge.blocked
    assert [130] == ends(merge.take([transaction(120, 130)]))


@pytest.mark.parametrize(
    ("part", "held"),
    [
        (transaction(99, None), False),
        (transaction(99, 105), False),
        (transaction(100, None), True),
        (idle(99), False),
        (idle(100), True),
        (message(100, "theirs", ""), True),
    ],
)
def test_what_is_held_back(merge, part, held):
    """Transactions that commit at the position or later, and positions from there on."""
    merge.hold(LSN(100))
    assert held == (merge.take([part]) == [])
    assert held == merge.blocked


def test_abandoned(merge):
    """When a table is abandoned, held slices are delivered, and watermarks are forgotten."""
    watermark = Watermark("s")
    merge.expect(watermark, lambda _: pytest.fail("arrived"), lambda: pytest.fail("lost"))(LSN(100))
    merge.window = Window(7, ("id",), 1000)
    merge.hold()
    merge.take([message(100, WATERMARK, watermark.content), transaction(100, 110)])
    merge.abandon()
    assert merge.window is None
    assert [100, 110] == ends(merge.take_released())
