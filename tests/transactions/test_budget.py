"""The byte budget: what it counts, what is spooled, and what happens when the disk is full."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from aiorepl.errors import SpoolError
from aiorepl.testing import messages as build
from aiorepl.transactions.spool import BLOCK, Spool

ENDS = {
    "commit": lambda say: [say.commit(5, 0x10)],
    "abort": lambda say: [say.abort(5)],
    "prepared and committed": lambda say: [
        say.stream_prepare("g", 5, 0x10),
        say.commit_prepared("g", 5, 0x20),
    ],
    "prepared and rolled back": lambda say: [
        say.stream_prepare("g", 5, 0x10),
        say.rollback_prepared("g", 5, 0x20, 0x10),
    ],
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_nothing_is_left(cramped, say, end):
    """However a transaction ends, the counts of memory and spool return to zero."""
    rows = [say.row(f"row {place}", 5 + place % 3) for place in range(12)]
    cramped.feed(say.block(5, *rows), say.abort(5, 7), say.block(5, say.row("last", 5), first=False))
    assert cramped.in_progress.memory + cramped.in_progress.spooled

    cramped.feed(end(say))

    assert (0, 0, 0) == (cramped.in_progress.memory, cramped.in_progress.spooled, len(cramped.in_progress))


def test_clear(cramped, say):
    """``clear`` forgets transactions that are streamed, prepared or being prepared, in memory and on disk."""
    rows = [say.row(f"row {number}", 5) for number in range(4)]
    begin, row, _ = say.prepare("h", 6, 0x10, say.row("a"))
    cramped.feed(say.block(5, *rows), say.stream_prepare("g", 5, 0x8), say.block(7, say.row("b", 7)))
    cramped.feed(begin, row)
    assert 2 == len(cramped.in_progress)
    assert cramped.in_progress.memory

    cramped.in_progress.clear()

    assert (0, 0, 0) == (cramped.in_progress.memory, cramped.in_progress.spooled, len(cramped.in_progress))


def test_memory_follows_an_abort(wire, say):
    """The memory of a subtransaction is free after it rolled back."""
    wire.feed(say.block(5, say.row("a", 5)))
    before = wire.in_progress.memory

    wire.feed(say.block(5, say.row("b", 6), say.row("c", 7), first=False))
    assert before < wire.in_progress.memory
    wire.feed(say.abort(5, 6))

    assert before == wire.in_progress.memory


def test_memory_follows_an_abort_after_a_spill(wired, say, small_slices):
    """The same holds if the beginning of the transaction is in the spool."""
    wire = wired(**small_slices, budget=3000)
    wire.feed(say.block(5))
    while not wire.in_progress.spooled:
        wire.feed(say.block(5, say.row("a", 5), first=False))
    before = wire.in_progress.memory

    wire.feed(say.block(5, say.row("b", 6), first=False))
    assert before < wire.in_progress.memory
    wire.feed(say.abort(5, 6))

    assert before == wire.in_progress.memory


def test_within_the_budget(wired, say):
    """Memory never exceeds the budget: for streams, prepared transactions, and one that is being prepared."""
    wire = wired(budget=100_000)
    most = 0
    for number in range(30):
        for each in (
            say.block(100 + number % 3, say.row("x" * 200 * number, 5), first=number < 3),
            say.prepare(f"g{number}", 200 + number, 0x1000 + number, say.row("y" * 200 * number)),
        ):
            for payload in each:
                wire.feed(payload)
                most = max(most, wire.in_progress.memory)

    assert 0 < most <= 100_000
    assert wire.in_progress.spooled


def test_the_largest_goes(wired, say):
    """The transaction that frees the most memory is spilled, and the small ones stay."""
    wire = wired(budget=10_000)
    small = say.block(5, say.row("a", 5)), say.block(6, say.row("b", 6))
    wire.feed(*small)
    before = wire.in_progress.memory

    wire.feed(say.block(7, *(say.row("c", 7) for _ in range(10))))
    assert not wire.in_progress.spooled
    wire.feed(say.block(7, *(say.row("d", 7) for _ in range(10)), first=False))

    assert wire.in_progress.spooled
    assert before < wire.in_progress.memory < 10_000
    wire.feed(say.commit(7, 0x10))
    assert before == wire.in_progress.memory


def test_twice(wired, say, small_slices):
    """Spooled changes can be iterated any number of times, in any slices, with the same result."""
    wire = wired(**small_slices, budget=1000)
    wire.feed(say.block(5, *(say.row(f"{place}", 5) for place in range(10))))

    slices = wire.feed(say.commit(5, 0x10))

    def walk() -> list:
        return [
            (change.ordinal, change.kind, dict(change.new), change.transaction.commit_lsn)
            for part in slices
            for change in part.changes
        ]

    first = walk()
    assert [f"{place}" for place in range(10)] == [row["id"] for _, _, row, _ in first]
    assert first == walk()
    spooled = slices[0].changes
    assert len(spooled) == len(list(spooled)) > 1
    assert [change.ordinal for change in spooled[:2]] == [0, spooled[1].ordinal]


def test_slices_of_a_large_one(wired, say, small_slices):
    """A spilled transaction is delivered in slices in the order of its rows; the first and the last are marked."""
    wire = wired(**small_slices, budget=1000)
    wire.feed(say.block(5, *(say.row(f"{place}", 5) for place in range(10))))

    slices = wire.feed(say.commit(5, 0x10))

    assert 3 < len(slices)
    assert [True] + [False] * (len(slices) - 1) == [part.first for part in slices]
    assert [None] * (len(slices) - 1) + [0x18] == [part.end_lsn for part in slices]
    assert list(range(10)) == [change.ordinal for part in slices for change in part.changes]


@pytest.mark.parametrize("budget", [1 << 30, 1, 1000], ids=["memory", "spool", "mixed"])
def test_sizes_of_slices(wired, say, small_slices, budget):
    """A row has the same size in memory, in the spool and in a plain transaction, but for its xid."""
    (plain,) = wired().feed(say.plain(5, 0x10, say.row("0")))
    wire = wired(**small_slices, budget=budget)
    wire.feed(say.block(5, *(say.row(f"{number}", 5) for number in range(10))))

    slices = wire.feed(say.commit(5, 0x10))

    assert 3 < len(slices)
    assert [(plain.size + 4) * len(part.changes) for part in slices] == [part.size for part in slices]


@pytest.fixture(params=["nearly full", "full", "full half-way"])
def full(request, monkeypatch):
    """A function that makes the disk appear full."""
    usage, pwrite, written = shutil.disk_usage, os.pwrite, []

    def little(folder):
        return usage(folder)._replace(free=1)

    def refuse(handle, data, at):
        if request.param == "full half-way" and not written:
            written.append(at)
            return pwrite(handle, data[: len(data) // 2], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    def make_room():
        monkeypatch.setattr(shutil, "disk_usage", usage)
        monkeypatch.setattr(os, "pwrite", pwrite)

    def fill():
        if request.param == "nearly full":
            monkeypatch.setattr(shutil, "disk_usage", little)
        else:
            monkeypatch.setattr(os, "pwrite", refuse)

    fill.over = make_room
    return fill


def test_a_full_disk(wired, say, told, full, small_slices):
    """The error says what to do; nothing is lost, and the stream continues once there is space."""
    wire = wired(**small_slices, budget=2400)
    wire.feed(say.block(5, *(say.row(f"a{place}", 5) for place in range(4))))
    on_disk = wire.in_progress.spooled
    assert on_disk
    wire.feed(say.block(5, say.row("b0", 5), say.row("b1", 6), first=False)[:-1])
    full()

    with pytest.raises(SpoolError, match=r"out of space .* make room there"):
        for place in range(4):
            wire.feed(say.row(f"c{place}", 6))
    assert on_disk == wire.in_progress.spooled
    held = wire.in_progress.memory
    assert held > 1500
    full.over()

    wire.feed(build.stream_stop(), say.block(5, say.row("d", 5), first=False))
    assert on_disk < wire.in_progress.spooled
    ((_, _, words),) = told(wire.feed(say.commit(5, 0x10)))
    assert 0 == wire.in_progress.memory
    kept = len(words) - 7
    assert 0 < kept < 4
    assert [*(f"a{i}" for i in range(4)), "b0", "b1", *(f"c{i}" for i in range(kept)), "d"] == words


def test_abort_after_a_full_disk(wired, say, told, full, small_slices):
    """After a failed spill each subtransaction is in memory, and can be aborted."""
    wire = wired(**small_slices, budget=2600)
    wire.feed(say.block(5, say.row("a", 5), say.row("b", 6), say.row("c", 6))[:-1])
    full()
    with pytest.raises(SpoolError):
        wire.feed(say.row("d", 7))
    full.over()

    wire.feed(build.stream_stop(), say.abort(5, 7), say.abort(5, 6))

    assert [(5, 0x18, ["a"])] == told(wire.feed(say.commit(5, 0x10)))
    assert 0 == wire.in_progress.memory


def test_no_folder(wired, say, tmp_path):
    """The error names a spool folder that cannot be created or was deleted."""
    wire = wired(budget=900)
    tmp_path.rmdir()
    tmp_path.touch()
    with pytest.raises(SpoolError, match=f"no spool file can be created in {tmp_path}"):
        wire.feed(say.block(5, say.row("a", 5), say.row("b", 5), say.row("c", 5))[:-1])

    tmp_path.unlink()
    wire.feed(say.row("d", 5))
    tmp_path.rmdir()
    with pytest.raises(SpoolError, match=f"the spool folder {tmp_path} no longer exists"):
        wire.feed(say.row("e", 5), say.row("f", 5), say.row("g", 5))
    tmp_path.mkdir()


def test_changes_by_their_places(wired, say):
    """Changes of a spooled transaction can be read by index and by slice, without iterating over all."""
    wire = wired(budget=1)
    wire.feed(say.block(5, say.row("a", 5), say.row("b", 5), say.row("c", 6)))
    slices = [part for part in wire.feed(say.commit(5, 0x10)) if part.changes]
    changes = [part.changes[place] for part in slices for place in range(len(part.changes))]

    assert ["a", "b", "c"] == [change.new["id"] for change in changes]
    assert [0, 1, 2] == [change.ordinal for change in changes]
    last = slices[-1].changes
    assert changes[-1].ordinal == last[-1].ordinal == last[-1:][0].ordinal
    with pytest.raises(IndexError):
        last[len(last)]


@pytest.mark.parametrize("again", [False, True], ids=["as it was", "described again"])
def test_descriptions_of_another_kind_of_transaction(wired, say, again):
    """A description from a stream block, with its xid, serves rows that are spooled without one, and vice versa."""
    wire = wired(budget=1)
    wire.feed(say.block(5, say.table(xid=5), say.row("streamed", 5, note="n")), say.commit(5, 0x10))
    described = [say.table()] if again else []

    wire.feed(say.prepare("g", 6, 0x20, *described, say.row("prepared", note="n")))
    assert wire.in_progress.spooled
    (prepared,) = wire.feed(say.commit_prepared("g", 6, 0x30))
    wire.feed(say.block(7, say.row("again", 7, note="n")))
    assert wire.in_progress.spooled
    (streamed,) = wire.feed(say.commit(7, 0x40))

    rows = [change.new for part in (prepared, streamed) for change in part.changes]
    assert [("prepared", "n"), ("again", "n")] == [tuple(row.values()) for row in rows]


def test_one_file_for_all(wired, say, told, small_slices, tmp_path):
    """All transactions are spilled to one file, which reuses the space of those that ended."""
    wire = wired(**small_slices, budget=1)
    handles = Path("/proc/self/fd")
    largest = 0
    for turn in range(20):
        xids = range(100 * turn + 5, 100 * turn + 35)
        wire.feed(*(say.block(xid, *(say.row(f"{xid} {n}", xid) for n in range(4))) for xid in xids))
        files = [each.name for each in handles.iterdir() if str(tmp_path) in _target(each)]
        assert 1 == len(files)
        largest = max(largest, (handles / files[0]).stat().st_size)
        wire.feed(*(say.abort(xid) for xid in xids[::2]))
        for xid in xids[1::2]:
            assert [(xid, 0x18 + xid, [f"{xid} {n}" for n in range(4)])] == told(
                wire.feed(say.commit(xid, 0x10 + xid))
            )
        if not turn:
            first = largest
    assert first <= largest < first + BLOCK
    assert 0 == (handles / files[0]).stat().st_size


def test_savepoints_again_and_again(wired, say, small_slices, tmp_path):
    """A transaction that rolls back to a savepoint repeatedly uses no more disk than its current changes."""
    spool = Spool(tmp_path)
    wire = wired(**small_slices, budget=1, spool=spool)
    wire.feed(say.block(5, say.row("a", 5)))
    for subxid in range(6, 206):
        wire.feed(say.block(5, *(say.row("x" * 5000, subxid) for _ in range(5)), first=False))
        wire.feed(say.abort(5, subxid))
        assert spool.size < 100_000


def _target(handle: Path) -> str:
    try:
        return str(handle.readlink())
    except FileNotFoundError:
        return ""
