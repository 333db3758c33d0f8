"""The byte budget: what is counted, what goes to disk when it is spent, and what happens when the disk is full too."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from aiorepl.errors import SpoolError
from aiorepl.testing import messages as build
from aiorepl.transactions import spool

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
    """However a transaction ends, it is counted no longer, neither in memory nor on disk."""
    rows = [say.row(f"row {place}", 5 + place % 3) for place in range(12)]
    cramped.feed(say.block(5, *rows), say.abort(5, 7), say.block(5, say.row("last", 5), first=False))
    assert cramped.waiting.memory + cramped.waiting.spooled

    cramped.feed(end(say))

    assert (0, 0, 0) == (cramped.waiting.memory, cramped.waiting.spooled, len(cramped.waiting))


def test_memory_follows_an_abort(wire, say):
    """What a subtransaction held is free again once it rolled back."""
    wire.feed(say.block(5, say.row("a", 5)))
    before = wire.waiting.memory

    wire.feed(say.block(5, say.row("b", 6), say.row("c", 7), first=False))
    assert before < wire.waiting.memory
    wire.feed(say.abort(5, 6))

    assert before == wire.waiting.memory


def test_within_the_budget(wired, say):
    """Memory never exceeds the budget, whoever adds to it: streams, prepared ones, one that is being prepared."""
    wire = wired(budget=2500)
    most = 0
    for number in range(30):
        for each in (
            say.block(100 + number % 3, say.row("x" * number, 5), first=number < 3),
            say.prepare(f"g{number}", 200 + number, 0x1000 + number, say.row("y" * number)),
        ):
            for payload in each:
                wire.feed(payload)
                most = max(most, wire.waiting.memory)

    assert 0 < most <= 2500
    assert wire.waiting.spooled


def test_the_largest_goes(wired, say):
    """The transaction that frees the most memory is spilled, and the small ones stay."""
    wire = wired(budget=5000)
    small = say.block(5, say.row("a", 5)), say.block(6, say.row("b", 6))
    wire.feed(*small)
    before = wire.waiting.memory

    wire.feed(say.block(7, *(say.row("c", 7) for _ in range(8))))
    assert not wire.waiting.spooled
    wire.feed(say.block(7, *(say.row("d", 7) for _ in range(8)), first=False))

    assert wire.waiting.spooled
    assert before < wire.waiting.memory < 5000
    wire.feed(say.commit(7, 0x10))
    assert before == wire.waiting.memory


def test_twice(wired, say, small_slices):
    """Spooled content can be walked any number of times, cut anywhere, and is the same each time."""
    wire = wired(budget=1000)
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
    """A spilled transaction comes in slices, the first and the last of them marked, in the order of its rows."""
    wire = wired(budget=1000)
    wire.feed(say.block(5, *(say.row(f"{place}", 5) for place in range(10))))

    slices = wire.feed(say.commit(5, 0x10))

    assert 3 < len(slices)
    assert [True] + [False] * (len(slices) - 1) == [part.first for part in slices]
    assert [None] * (len(slices) - 1) + [0x18] == [part.end_lsn for part in slices]
    assert list(range(10)) == [change.ordinal for part in slices for change in part.changes]


def test_nothing_in_the_folder(wired, say, tmp_path):
    """A spool file has no name, so that no end of the process leaves one behind, and its space comes back."""
    wire = wired(budget=1)
    wire.feed(say.block(5, say.row("a", 5)))
    (held,) = [handle for handle in Path("/proc/self/fd").iterdir() if _is_spool(handle, tmp_path)]

    assert [] == list(tmp_path.iterdir())
    wire.feed(say.abort(5))
    assert not _is_spool(held, tmp_path)


def _is_spool(handle: Path, folder: Path) -> bool:
    try:
        return str(handle.readlink()).startswith(f"{folder}/aiorepl-spool-")
    except FileNotFoundError:
        return False


@pytest.fixture(params=["nearly full", "full", "full half-way"])
def full(request, monkeypatch):
    """A disk without room, until it is called."""
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
    """The error says what to do; nothing is lost, and with room again the stream goes on where it stopped."""
    wire = wired(budget=1500)
    wire.feed(say.block(5, *(say.row(f"a{place}", 5) for place in range(4))))
    on_disk = wire.waiting.spooled
    assert on_disk
    wire.feed(say.block(5, say.row("b0", 5), say.row("b1", 6), first=False)[:-1])
    full()

    with pytest.raises(SpoolError, match=r"out of space .* make room there"):
        for place in range(4):
            wire.feed(say.row(f"c{place}", 6))
    assert on_disk == wire.waiting.spooled
    held = wire.waiting.memory
    assert held > 1500
    full.over()

    wire.feed(build.stream_stop(), say.block(5, say.row("d", 5), first=False))
    assert on_disk < wire.waiting.spooled
    ((_, _, words),) = told(wire.feed(say.commit(5, 0x10)))
    assert 0 == wire.waiting.memory
    kept = len(words) - 7
    assert 0 < kept < 4
    assert [*(f"a{i}" for i in range(4)), "b0", "b1", *(f"c{i}" for i in range(kept)), "d"] == words


def test_abort_after_a_full_disk(wired, say, told, full, small_slices):
    """A spill that was undone leaves every subtransaction where it was, in memory."""
    wire = wired(budget=1300)
    wire.feed(say.block(5, say.row("a", 5), say.row("b", 6), say.row("c", 6))[:-1])
    full()
    with pytest.raises(SpoolError):
        wire.feed(say.row("d", 7))
    full.over()

    wire.feed(build.stream_stop(), say.abort(5, 7), say.abort(5, 6))

    assert [(5, 0x18, ["a"])] == told(wire.feed(say.commit(5, 0x10)))
    assert 0 == wire.waiting.memory


def test_no_folder(wired, say, tmp_path):
    """A spool folder that is not there, or is gone, is named in the error."""
    wire = wired(budget=900)
    tmp_path.rmdir()
    with pytest.raises(SpoolError, match=f"no spool can be made in {tmp_path}"):
        wire.feed(say.block(5, say.row("a", 5), say.row("b", 5), say.row("c", 5))[:-1])

    tmp_path.mkdir()
    wire.feed(say.row("d", 5))
    tmp_path.rmdir()
    with pytest.raises(SpoolError, match=f"the spool folder {tmp_path} is gone"):
        wire.feed(say.row("e", 5), say.row("f", 5), say.row("g", 5))
    tmp_path.mkdir()


def test_a_spool_that_is_cut_short(wired, say):
    """Content that the disk lost is an error, never fewer rows."""
    wire = wired(budget=1)
    wire.feed(say.block(5, say.row("a", 5)))
    (part,) = wire.feed(say.commit(5, 0x10))
    os.ftruncate(part.changes._spool._handle, 10)

    with pytest.raises(SpoolError, match="shorter than what was written"):
        list(part.changes)


def test_a_spool_that_is_damaged(wired, say):
    """Lengths that do not add up are an error, never other rows."""
    wire = wired(budget=1)
    wire.feed(say.block(5, say.row("a", 5)))
    (part,) = wire.feed(say.commit(5, 0x10))
    os.pwrite(part.changes._spool._handle, b"\x00\xff\xff\xff", 0)

    with pytest.raises(SpoolError, match="something else than what was written"):
        list(part.changes)


def test_changes_by_their_places(wired, say):
    """One change of a spooled transaction, or some, without a walk over all."""
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
    """What a stream block described, with its xid, describes rows that are spooled without one, and the other way round."""
    wire = wired(budget=1)
    wire.feed(say.block(5, say.table(xid=5), say.row("streamed", 5, note="n")), say.commit(5, 0x10))
    described = [say.table()] if again else []

    wire.feed(say.prepare("g", 6, 0x20, *described, say.row("prepared", note="n")))
    assert wire.waiting.spooled
    (prepared,) = wire.feed(say.commit_prepared("g", 6, 0x30))
    wire.feed(say.block(7, say.row("again", 7, note="n")))
    assert wire.waiting.spooled
    (streamed,) = wire.feed(say.commit(7, 0x40))

    rows = [change.new for part in (prepared, streamed) for change in part.changes]
    assert [("prepared", "n"), ("again", "n")] == [tuple(row.values()) for row in rows]


def test_reserve(tmp_path, monkeypatch):
    """Some space is left for others on the same disk."""
    usage = shutil.disk_usage(tmp_path)
    file = spool.SpoolFile(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=64 * 1024 * 1024 + 3))

    file.append(b"abc")
    with pytest.raises(SpoolError):
        file.append(b"defg")

    assert (3, b"abc") == (file.size, file.read(0, 3))
