"""The budget counts the memory that transactions in progress need beside their content."""

from __future__ import annotations

import tracemalloc

import pytest

from aiorepl.errors import SpoolError
from aiorepl.testing import messages as build
from aiorepl.transactions.in_progress import TRANSACTION


class Measured:
    """Measures the memory that Python has allocated since."""

    def __init__(self) -> None:
        tracemalloc.start()
        self._before = tracemalloc.get_traced_memory()[0]

    def bytes(self) -> int:
        return tracemalloc.get_traced_memory()[0] - self._before


@pytest.fixture
def measured():
    """A measurement that begins now."""
    yield Measured()
    tracemalloc.stop()


@pytest.fixture
def wide():
    """Return the description of a table of 100 columns, sent in a stream block."""
    columns = [build.column(f"column_{number}") for number in range(100)]
    return lambda xid: build.relation(oid=7, name="wide", columns=columns, xid=xid)


def test_empty_transactions(wired, say, measured):
    """A thousand transactions without changes count with the memory that they need."""
    wire = wired()
    for xid in range(5, 1005):
        wire.feed(say.block(xid))
    assert 0 < measured.bytes() <= wire.in_progress.memory <= 3 * measured.bytes()

    for xid in range(5, 1005):
        wire.feed(say.abort(xid))
    assert 0 == wire.in_progress.memory


def test_descriptions(wired, say, wide, measured):
    """The descriptions within a transaction count until it ends."""
    wire = wired()
    for xid in range(5, 55):
        wire.feed(say.block(xid, wide(xid)))
    assert 0 < measured.bytes() <= wire.in_progress.memory <= 3 * measured.bytes()

    for xid in range(5, 55):
        wire.feed(say.commit(xid, 0x10 * xid))
    assert 0 == wire.in_progress.memory


def test_subtransactions(wired, say, measured):
    """A transaction of 20,000 subtransactions stays within the budget, in memory and in the spool."""
    wire = wired(budget=300_000)
    most = 0
    for first in range(6, 20_006, 1000):
        rows = [say.row("x", xid) for xid in range(first, first + 1000)]
        wire.feed(say.block(5, *rows, first=first == 6))
        most = max(most, wire.in_progress.memory)
        del rows
    assert most <= 300_000
    assert measured.bytes() < 600_000


@pytest.mark.parametrize("what", ["transactions", "descriptions"])
def test_too_much(wired, say, wide, what):
    """Data that cannot be spooled has a limit, too, and the error says what to do."""
    wire = wired(budget=20_000_000)
    with pytest.raises(
        SpoolError, match=r"\d+ transactions in progress take \d+ bytes .* raise transaction_buffer_bytes"
    ):
        for xid in range(5, 50_000):
            wire.feed(say.block(xid, *([wide(xid)] if what == "descriptions" else [])))
    assert 10_000_000 < wire.in_progress.memory < 11_000_000


@pytest.mark.parametrize(
    "xids", [(5, 6, 7, 8), (0xFFFF_FFFD, 0xFFFF_FFFF, 3, 4)], ids=["in order", "counted round"]
)
@pytest.mark.parametrize("budget", [1, 2000, 1_000_000])
def test_a_subtransaction_that_comes_back(wired, say, told, small_slices, xids, budget):
    """One that wrote before and after others rolls back to its first change, wherever that has gone meanwhile; so does one
    whose number was given out before another's that wrote earlier.
    """
    top, outer, inner, late = xids
    wire = wired(**small_slices, budget=budget)
    wire.feed(
        say.block(
            top, *(say.row(f"a{n}", top) for n in range(3)), *(say.row(f"l{n}", late) for n in range(2))
        ),
        say.block(top, *(say.row(f"o{n}", outer) for n in range(3)), first=False),
        say.block(top, *(say.row(f"i{n}", inner) for n in range(3)), first=False),
        say.block(top, *(say.row(f"p{n}", outer) for n in range(3)), first=False),
    )
    wire.feed(say.abort(top, inner))
    wire.feed(say.block(top, say.row("q", outer), say.row("r", inner), first=False))
    wire.feed(say.abort(top, inner), say.abort(top, 99), say.abort(top, outer))
    wire.feed(say.block(top, say.row("s", top), first=False))

    assert [(top, 0x18, ["a0", "a1", "a2", "l0", "l1", "s"])] == told(wire.feed(say.commit(top, 0x10)))


def test_exactly(wired, say, small_slices):
    """Each transaction, description and chunk is counted exactly from its arrival to its end."""
    wire = wired(**small_slices, budget=1)
    table = say.table(xid=5)
    wire.feed(say.block(5, table, *[say.row("a", 5)] * 4, *[say.row("b", 6)] * 6), say.prepare("g", 7, 0x10))
    in_progress = wire.in_progress
    content = [len(say.row("a", 5))] * 10
    before = in_progress.fixed
    chunks, rest = divmod(before - 2 * TRANSACTION - 16 * len(table), 400)

    assert 2 == len(in_progress)
    assert (0, True, True) == (rest, chunks > 1, in_progress.spooled > sum(content))
    wire.feed(say.abort(5, 6))
    dropped, rest = divmod(before - in_progress.fixed, 400)
    assert (0, True) == (rest, 0 < dropped < chunks)
    assert in_progress.memory == in_progress.fixed
    wire.feed(say.block(9, say.row("c", 9)))
    assert 3 == len(in_progress)
    in_progress.clear()
    assert (0, 0, 0, 0) == (len(in_progress), in_progress.memory, in_progress.fixed, in_progress.spooled)
