"""``jsonl``: rotation, what a flush means, what a crash leaves, and a disk that is full for a while."""

from __future__ import annotations

import errno
import json
import os

import pytest

from aiorepl.errors import PermanentError, TransientError
from aiorepl.sink import Batch, SinkContext
from aiorepl.testing import messages as build
from aiorepl.testing.stream import Stream
from aiorepl_sinks.jsonl import JsonLines


@pytest.fixture
def stream():
    """A stream with one table."""
    return Stream()


@pytest.fixture
def table(stream):
    """Its table."""
    return stream.table("items", build.column("id", 23, key=True), build.column("note"))


def events(folder):
    """Every event of the folder, file by file."""
    return {
        path.name: [json.loads(line) for line in path.read_bytes().splitlines()]
        for path in sorted(folder.iterdir())
    }


async def opened(folder, stream, **options):
    """A sink at work in the folder."""
    sink = JsonLines(folder, **options)
    await sink.open(SinkContext("jsonl", stream.position))
    return sink


def batch(stream, table, *keys, at_once=None):
    """One transaction that inserts these."""
    stream.transaction(*(table.insert(str(key), "x" * 50) for key in keys))
    return Batch(tuple(stream.slices(at_once)))


async def test_lines_are_native_events_in_a_file_named_by_the_first_commit(tmp_path, stream, table):
    """One JSON object a line; the file is called after the first commit LSN once it is closed."""
    sink = await opened(tmp_path / "new" / "folder", stream)
    written = batch(stream, table, 1, 2)
    await sink.write(written)
    await sink.close()
    first = written.transactions[0].transaction.commit_lsn
    ((name, lines),) = events(tmp_path / "new" / "folder").items()
    assert f"{first:016X}.jsonl" == name
    assert [("insert", {"id": 1}, 0), ("insert", {"id": 2}, 1)] == [
        (line["kind"], line["key"], line["ordinal"]) for line in lines
    ]


async def test_flush_returns_after_fsync(tmp_path, stream, table, monkeypatch):
    """What was written is synced by flush, and by nothing before it."""
    synced = []
    fsync = os.fsync
    sink = await opened(tmp_path, stream)
    await sink.write(batch(stream, table, 1))
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_size), fsync(handle)))
    await sink.flush()
    (path,) = tmp_path.iterdir()
    assert [path.stat().st_size] == synced
    await sink.close()


async def test_files_rotate_between_transactions(tmp_path, stream, table):
    """A transaction never spans two files, also when it is larger than a file is meant to be."""
    sink = await opened(tmp_path, stream, rotate_bytes=500)
    for first in range(0, 30, 10):
        await sink.write(batch(stream, table, *range(first, first + 10)))
    await sink.close()
    assert [list(range(first, first + 10)) for first in range(0, 30, 10)] == [
        [line["key"]["id"] for line in lines] for lines in events(tmp_path).values()
    ]


async def test_slices_of_one_transaction_stay_in_one_file(tmp_path, stream, table):
    """Rotation waits for the end of a transaction that comes in batches of slices."""
    sink = await opened(tmp_path, stream, rotate_bytes=200)
    for part in batch(stream, table, *range(20), at_once=4).transactions:
        await sink.write(Batch((part,)))
    await sink.write(batch(stream, table, 100))
    await sink.close()
    assert [list(range(20)), [100]] == [
        [line["key"]["id"] for line in lines] for lines in events(tmp_path).values()
    ]


async def test_what_a_crash_left_is_closed_and_kept(tmp_path, stream, table):
    """The next start gives the open file its name, and what comes again goes into another."""
    crashed = await opened(tmp_path, stream)
    again = batch(stream, table, 1)
    await crashed.write(again)
    await crashed.flush()
    sink = await opened(tmp_path, stream)
    await sink.write(again)
    await sink.close()
    lsn = f"{again.transactions[0].transaction.commit_lsn:016X}"
    assert [f"{lsn}-2.jsonl", f"{lsn}.jsonl"] == sorted(events(tmp_path))
    first, second = events(tmp_path).values()
    assert first == second
    crashed._file.close()


async def test_a_full_disk_passes_and_leaves_no_torn_line(tmp_path, stream, table):
    """ENOSPC in the middle of a batch is transient; written again the batch stands there once."""
    sink = await opened(tmp_path, stream)
    await sink.write(batch(stream, table, 1))
    real = sink._file

    class Full:
        """Takes some bytes, then none."""

        def __init__(self):
            self.left = 30

        def __getattr__(self, name):
            return getattr(real, name)

        def write(self, data):
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            count, self.left = real.write(data[: self.left]), 0
            return count

    sink._file = Full()
    second = batch(stream, table, 2, 3)
    with pytest.raises(TransientError, match="No space left"):
        await sink.write(second)
    sink._file = real
    await sink.write(second)
    await sink.close()
    ((_, lines),) = events(tmp_path).items()
    assert [1, 2, 3] == [line["key"]["id"] for line in lines]


async def test_a_folder_that_cannot_be_made_is_said(tmp_path, stream):
    """A path below a file is refused when the sink is opened, by name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PermanentError, match="file/below: Not a directory"):
        await opened(tmp_path / "file" / "below", stream)


async def test_nothing_written_leaves_nothing(tmp_path, stream):
    """Opening, flushing and closing make no file."""
    sink = await opened(tmp_path, stream)
    await sink.flush()
    await sink.close()
    assert [] == list(tmp_path.iterdir())
