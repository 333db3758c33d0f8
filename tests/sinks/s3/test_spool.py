"""The spool: it returns what was written, reuses its blocks, and survives a full disk."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl import PermanentError, TransientError
from aiorepl_sinks.objects.spool import Spool

BLOCK = 64 * 1024
SIZES = st.lists(st.sampled_from([1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]), min_size=1, max_size=5)


@settings(deadline=None, max_examples=50)
@given(written=st.lists(st.tuples(SIZES, st.booleans()), max_size=12))
def test_what_goes_in_comes_out(written):
    """Chunks are read back whatever was freed in between, and the file is never larger than its content."""
    spool, kept, blocks, most = Spool(None), [], 0, 0
    for number, (sizes, freed) in enumerate(written):
        chunks = [bytes([number + 1]) * size for size in sizes]
        extent = spool.write([memoryview(chunk) for chunk in chunks])
        kept.append((extent, chunks))
        blocks += len(extent.blocks)
        most = max(most, blocks)
        if freed:
            gone, _ = kept.pop(0)
            blocks -= len(gone.blocks)
            spool.free([gone])
        assert [chunks for _, chunks in kept] == [list(spool.read(extent)) for extent, _ in kept]
    assert all(number < most for extent, _ in kept for number in extent.blocks)
    spool.close()


def test_it_has_no_name(tmp_path):
    """A missing folder is created. The file has no name, so that no end of the process leaves it."""
    folder = tmp_path / "a" / "b"
    spool = Spool(folder)
    spool.write([b"x" * BLOCK])
    assert [] == list(folder.iterdir())
    spool.close()


def test_a_disk_that_is_full(bucket, read, source, tmp_path, monkeypatch):
    """The error is transient and names the folder; the batch is delivered again, and every event is there once."""
    sink = bucket.sink(memory_bytes=0, spill_dir=tmp_path)
    first, second = source.batch([1, 2]), source.batch([3])
    sink.open(source.context)
    sink.write(first)
    with monkeypatch.context() as full:
        full.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=1000, f_frsize=4096))
        with pytest.raises(TransientError, match=f"the spool in {tmp_path} is full: make room there"):
            sink.write(second)
    sink.write(second)
    sink.flush()
    sink.close()

    assert [1, 2, 3] == [event["new"]["id"] for event in read.lines(bucket, read.listed(bucket))]


def test_a_disk_that_loses_what_it_was_given(source, bucket, read, tmp_path, monkeypatch):
    """The sink stops, and the collected events are delivered again."""
    sink = bucket.sink(memory_bytes=0, spill_dir=tmp_path)
    sink.open(source.context)
    first, second = source.batch([1, 2]), source.batch([3])
    sink.write(first)
    sink.write(second)
    with monkeypatch.context() as broken:
        broken.setattr(os, "preadv", lambda *_: 0)
        with pytest.raises(PermanentError, match="is shorter than what was written to it") as stopped:
            sink.flush()
    assert stopped.value.fatal
    sink.close()
    assert [] == read.data(bucket)
