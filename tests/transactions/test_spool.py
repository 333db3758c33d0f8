"""The spool returns what was written, from one file that is no larger than its content at any time."""

from __future__ import annotations

import os
import queue
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl.errors import SpoolError
from aiorepl.transactions.spool import BLOCK, Spool

SIZES = st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 10 * BLOCK])


def handles(folder: Path) -> list[str]:
    """Return the unnamed files that this process has open in a folder."""
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            target = str(handle.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(f"{folder}/"):
            found.append(f"/proc/self/fd/{handle.name}")
    return found


def blocks(size: int) -> int:
    """Return how many blocks hold so many bytes."""
    return -(-size // BLOCK)


@settings(deadline=None, max_examples=100)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["write", "write", "free", "shorten"]), SIZES, st.integers(0, 99)),
        max_size=40,
    )
)
def test_what_goes_in_comes_out(steps):
    """Whatever is let go of or shortened in between; and the file holds no more than there was at one time."""
    spool, kept, most = Spool(), [], 0
    for number, (step, size, which) in enumerate(steps):
        if step == "write":
            data = bytes([number]) * size
            kept.append((spool.write(data), data))
        elif kept:
            extent, data = kept.pop(which % len(kept))
            if step == "shorten" and size <= len(data):
                extent.shorten(data[:size])
                kept.append((extent, data[:size]))
            del extent
        now = sum(blocks(len(data)) for _, data in kept)
        most = max(most, now)
        assert now * BLOCK <= spool.size <= most * BLOCK
        assert [data for _, data in kept] == [extent.read() for extent, _ in kept]
    kept.clear()
    extent = None
    assert 0 == spool.size


def test_one_file_without_a_name(tmp_path):
    """The file has no name; its space is free once it is empty, and it is closed with the last extent."""
    spool = Spool(tmp_path)
    assert [] == handles(tmp_path)
    extents = [spool.write(b"x" * 10 * BLOCK) for _ in range(50)]
    (handle,) = handles(tmp_path)
    assert [] == list(tmp_path.iterdir())
    assert 500 * BLOCK == Path(handle).stat().st_size

    del extents[1:]
    assert 10 * BLOCK == Path(handle).stat().st_size
    del spool
    assert b"x" * 10 * BLOCK == extents.pop().read()
    assert [] == handles(tmp_path)


def test_extents_that_other_threads_let_go_of(tmp_path):
    """Nothing is lost or used twice while one thread writes and others free."""
    spool, failures = Spool(tmp_path), []
    given_out = [queue.SimpleQueue() for _ in range(4)]

    def work(mine):
        while (given := mine.get()) is not None:
            extent, data = given
            if extent.read() != data:
                failures.append(data[:1])

    threads = [threading.Thread(target=work, args=(mine,)) for mine in given_out]
    for thread in threads:
        thread.start()
    for number in range(3000):
        data = bytes([number % 256]) * (number % 5 * BLOCK + 1)
        given_out[number % 4].put((spool.write(data), data))
    for mine in given_out:
        mine.put(None)
    for thread in threads:
        thread.join()
    assert [] == failures
    assert 0 == spool.size


def test_a_collection_within_the_spool(tmp_path, monkeypatch):
    """An extent that is garbage-collected while the same thread allocates blocks is free afterwards."""
    spool = Spool(tmp_path)
    held = [spool.write(b"a" * BLOCK), spool.write(b"b" * BLOCK)]
    usage = shutil.disk_usage

    def collecting(folder):
        held.clear()
        return usage(folder)

    monkeypatch.setattr(shutil, "disk_usage", collecting)
    last = spool.write(b"c" * BLOCK)
    assert [] == held
    assert (3 * BLOCK, b"c" * BLOCK) == (spool.size, last.read())
    again = [spool.write(b"d" * BLOCK) for _ in range(2)]
    assert 3 * BLOCK == spool.size
    del last, again
    assert 0 == spool.size


def test_content_that_the_disk_lost(tmp_path):
    """A truncated file is an error, not shorter content."""
    spool = Spool(tmp_path)
    extent = spool.write(b"x" * 100)
    os.truncate(handles(tmp_path)[0], 10)
    with pytest.raises(SpoolError, match="shorter than what was written"):
        extent.read()


@pytest.mark.parametrize("bit", [0, 399, 799])
def test_content_that_the_disk_changed(tmp_path, bit):
    """A changed byte is an error, not other content."""
    spool = Spool(tmp_path)
    extent = spool.write(bytes(100))
    with Path(handles(tmp_path)[0]).open("r+b") as file:
        file.seek(bit // 8)
        file.write(bytes([1 << bit % 8]))
    with pytest.raises(SpoolError, match="does not contain what was written"):
        extent.read()


def test_reserve(tmp_path, monkeypatch):
    """Some space of the disk is left to others; blocks that exist already need none."""
    usage = shutil.disk_usage(tmp_path)
    spool = Spool(tmp_path)
    kept = [spool.write(b"a"), spool.write(b"b")]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=64 * 1024 * 1024 + BLOCK - 1))
    with pytest.raises(SpoolError, match="out of space"):
        spool.write(b"c")
    assert 2 * BLOCK == spool.size

    del kept[0]
    kept.append(spool.write(b"d"))
    assert [b"b", b"d"] == [extent.read() for extent in kept]


def test_a_missing_folder(tmp_path: Path) -> None:
    """The folder is created with the file."""
    spool = Spool(tmp_path / "a" / "b")
    assert b"x" == spool.write(b"x").read()
    assert [] == list((tmp_path / "a" / "b").iterdir())
