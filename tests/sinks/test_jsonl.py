"""Rotating files of lines: their content, when they are durable, and what a crash or a full disk leaves."""

from __future__ import annotations

import asyncio
import errno
import functools
import io
import json
import os
import threading

import pytest

from aiorepl import ConfigurationError, PermanentError, TransientError
from aiorepl_sinks.jsonl import JsonLinesSink


def ids(folder):
    """The ids in each file, by the files' order; every line has to be whole."""
    found = {}
    for path in sorted(folder.iterdir()):
        text = path.read_text()
        assert text == "" or text.endswith("\n")
        found[path.name] = [json.loads(line)["new"]["id"] for line in text.splitlines()]
    return found


async def test_a_file_and_its_name(tmp_path, source):
    """Lines go to a part file, called by the first commit LSN, which loses its suffix at the end."""
    sink = JsonLinesSink(tmp_path / "new" / "folder")
    assert await sink.open(source.context) is None
    batch = source.batch([1, 2], [3])
    await sink.write(batch)
    name = f"{batch.slices[0].transaction.commit_lsn:016X}.jsonl"
    assert {f"{name}.part": [1, 2, 3]} == ids(tmp_path / "new" / "folder")
    await sink.close()
    assert {name: [1, 2, 3]} == ids(tmp_path / "new" / "folder")


async def test_rotation(tmp_path, source):
    """A file that is large enough is followed by another, at a transaction's boundary."""
    sink = JsonLinesSink(tmp_path, rotate_bytes=1)
    await sink.open(source.context)
    for number in range(3):
        await sink.write(source.batch([number, number + 10]))
    await sink.close()
    assert [[0, 10], [1, 11], [2, 12]] == list(ids(tmp_path).values())
    assert all(name.endswith(".jsonl") for name in ids(tmp_path))


async def test_a_transaction_in_parts_stays_in_its_file(tmp_path, source):
    """A transaction of any size stays in one file; its end, which may come alone, allows rotation."""
    sink = JsonLinesSink(tmp_path, rotate_bytes=1)
    await sink.open(source.context)
    for batch in source.parts([1, 2, 3]):
        await sink.write(batch)
    await sink.write(source.batch([4]))
    await sink.close()
    assert [[1, 2, 3], [4]] == list(ids(tmp_path).values())


async def test_boundaries(tmp_path, source):
    """Boundaries are written, even if a commit is in a batch of its own."""
    sink = JsonLinesSink(tmp_path, boundaries=True)
    await sink.open(source.context)
    for batch in source.parts([1, 2]):
        await sink.write(batch)
    await sink.close()
    (path,) = tmp_path.iterdir()
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert ["begin", "insert", "insert", "commit"] == kinds


async def test_a_message_between_transactions_can_begin_a_file(tmp_path, source):
    """The file is called by the message's LSN."""
    sink = JsonLinesSink(tmp_path)
    await sink.open(source.context)
    source.batch()
    lsn = source.stream.message("prefix", b"content")
    await sink.write(source.batch())
    await sink.close()
    assert [f"{lsn:016X}.jsonl"] == [path.name for path in tmp_path.iterdir()]


async def test_nothing_to_write_makes_no_file(tmp_path, source):
    """Batches without changes, flushes and the end."""
    sink = JsonLinesSink(tmp_path)
    await sink.open(source.context)
    await sink.write(source.batch([]))
    await sink.flush()
    await sink.close()
    assert {} == ids(tmp_path)


async def test_flush_returns_after_fsync(tmp_path, source, monkeypatch):
    """Both the file and its folder are fsynced, and so is each rotated file."""
    synced = []
    fsync = os.fsync

    def record(handle):
        fsync(handle)
        synced.append((os.fstat(handle).st_ino, os.fstat(handle).st_size))

    monkeypatch.setattr(os, "fsync", record)
    sink = JsonLinesSink(tmp_path, rotate_bytes=1)
    await sink.open(source.context)
    for number in range(2):
        await sink.write(source.batch([number]))
    await sink.flush()
    files = {(path.stat().st_ino, path.stat().st_size) for path in tmp_path.iterdir()}
    assert 2 == len(files)
    assert files <= set(synced)
    await sink.close()


async def test_what_a_crash_left_is_kept(tmp_path, source, new_source):
    """Unfinished files get their own names, next to files that begin with the same transaction."""
    crashed = JsonLinesSink(tmp_path)
    await crashed.open(source.context)
    await crashed.write(source.batch([1]))
    crashed._file.close()  # what the end of a process does
    for _ in range(2):
        again = new_source()
        sink = JsonLinesSink(tmp_path)
        await sink.open(again.context)
        await sink.write(again.batch([1]))
        await sink.close()
    assert [[1], [1], [1]] == list(ids(tmp_path).values())
    assert all(path.suffix == ".jsonl" for path in tmp_path.iterdir())


class Full(io.RawIOBase):
    """A file on a disk that fills up in the middle of a write, and has room again later."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if self.room is None:
            return self.file.write(data)
        if self.room == 0:
            self.room = None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.file.write(bytes(data[: self.room]))
        self.room = 0
        return written

    def truncate(self, size=None):
        return self.file.truncate(size)

    def seek(self, offset, whence=0):
        return self.file.seek(offset, whence)

    def fileno(self):
        return self.file.fileno()

    def close(self):
        self.file.close()
        super().close()


async def test_files_of_one_transaction_are_numbered_in_order(tmp_path, source):
    """No number is given twice, whether its file was finished or not, and each name has one number."""
    batch = source.batch([3])
    name = f"{batch.slices[0].transaction.commit_lsn:016X}"
    sink = JsonLinesSink(tmp_path)
    await sink.open(source.context)
    for left in (f"{name}.jsonl.part", f"{name}-2.jsonl"):
        (tmp_path / left).touch()
    await sink.write(batch)
    await sink.close()
    assert [3] == ids(tmp_path)[f"{name}-3.jsonl"]
    await JsonLinesSink(tmp_path).open(source.context)
    assert {f"{name}.jsonl", f"{name}-2.jsonl", f"{name}-3.jsonl"} == ids(tmp_path).keys()


@pytest.mark.parametrize("room", [0, 1, 300])
async def test_a_full_disk(tmp_path, source, room):
    """A full disk is transient; the repeated batch is in the file once, in whole lines."""
    sink = JsonLinesSink(tmp_path)
    await sink.open(source.context)
    await sink.write(source.batch([1]))
    sink._file = Full(sink._file, room)
    batch = source.batch([2, 3])
    with pytest.raises(TransientError, match="No space left"):
        await sink.write(batch)
    assert [[1]] == list(ids(tmp_path).values())
    await sink.write(batch)
    await sink.flush()
    await sink.close()
    assert [[1, 2, 3]] == list(ids(tmp_path).values())


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_failed_fsync_is_not_tried_again(tmp_path, source, monkeypatch, number):
    """A second fsync would succeed although the data is lost: the sink stops, and nothing is confirmed."""

    def fail(handle):
        raise OSError(number, os.strerror(number))

    sink = JsonLinesSink(tmp_path)
    await sink.open(source.context)
    await sink.write(source.batch([1]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(PermanentError, match="fsync"):
            await sink.flush()
    await sink.close()


async def test_a_file_that_cannot_be_finished_is_synced_later(tmp_path, source, monkeypatch):
    """If the end of a full file fails before its fsync, a repeated write fsyncs the file."""
    sink, synced, failures = JsonLinesSink(tmp_path, rotate_bytes=1), [], [OSError(errno.ENOSPC, "no room")]
    make_durable, fsync = JsonLinesSink._make_durable, os.fsync

    def failing(sink, file):
        if failures:
            raise failures.pop()
        make_durable(sink, file)

    def recording(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    await sink.open(source.context)
    await sink.write(source.batch([1]))
    (first,) = tmp_path.iterdir()
    inode = first.stat().st_ino
    monkeypatch.setattr(JsonLinesSink, "_make_durable", failing)
    monkeypatch.setattr(os, "fsync", recording)
    batch = source.batch([2])
    with pytest.raises(TransientError):
        await sink.write(batch)
    await sink.write(batch)
    await sink.flush()
    assert inode in synced
    await sink.close()
    assert [[1], [2]] == list(ids(tmp_path).values())


async def test_a_file_that_cannot_be_finished_is_closed(tmp_path, source, monkeypatch):
    """``close`` closes the file even if the fsync fails."""
    sink = JsonLinesSink(tmp_path)
    await sink.open(source.context)
    await sink.write(source.batch([1]))
    file = sink._file

    def failing(sink, file):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(JsonLinesSink, "_make_durable", failing)
    with pytest.raises(TransientError):
        await sink.close()
    assert file.closed


async def test_a_failed_fsync_of_a_name_is_not_tried_again(tmp_path, source, monkeypatch):
    """A failed fsync of the folder is permanent, because the file's name would be lost with its rows."""

    def fail(handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    sink = JsonLinesSink(tmp_path)
    await sink.open(source.context)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(PermanentError, match="fsync"):
            await sink.write(source.batch([1]))
    await sink.close()


async def test_folders_that_are_made_outlive_a_power_cut(tmp_path, source, monkeypatch):
    """Each is fsynced in the one that it stands in."""
    synced, fsync = set(), os.fsync

    def record(handle):
        fsync(handle)
        synced.add(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fsync", record)
    sink = JsonLinesSink(tmp_path / "new" / "folder")
    await sink.open(source.context)
    await sink.close()
    assert {path.stat().st_ino for path in (tmp_path, tmp_path / "new")} <= synced


async def test_a_folder_that_cannot_be_made(tmp_path, source):
    """The error names the file and the reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PermanentError, match=r"file: .*(exists|directory)"):
        await JsonLinesSink(tmp_path / "file").open(source.context)


async def test_close_waits_for_a_write_that_was_cancelled(tmp_path, source, monkeypatch):
    """The thread at work is not left to write to a file that is closed: its lines stand there whole."""
    writing, go_on = threading.Event(), threading.Event()
    put = JsonLinesSink._put

    def slow(self, file, lines):
        writing.set()
        assert go_on.wait(60)
        put(self, file, lines)

    monkeypatch.setattr(JsonLinesSink, "_put", slow)
    sink = JsonLinesSink(tmp_path)
    await sink.open(source.context)
    write = asyncio.create_task(sink.write(source.batch([1])))
    await asyncio.to_thread(writing.wait, 60)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    close = asyncio.create_task(sink.close())
    await asyncio.sleep(0.05)
    assert not close.done()
    go_on.set()
    await close
    assert [[1]] == list(ids(tmp_path).values())


async def test_a_cancelled_write_that_begins_behind_close(tmp_path, source, monkeypatch):
    """The thread of a cancelled call that starts late opens no file and accepts nothing."""
    calls = []

    async def late(call, *arguments):
        calls.append(functools.partial(call, *arguments))
        await asyncio.Event().wait()

    sink = JsonLinesSink(tmp_path)
    await sink.open(source.context)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "to_thread", late)
        write = asyncio.create_task(sink.write(source.batch([1])))
        await asyncio.sleep(0)
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
    await sink.close()
    (call,) = calls
    with pytest.raises(RuntimeError, match="the sink is closed"):
        await asyncio.to_thread(call)
    assert [] == list(tmp_path.iterdir())


async def test_other_formats(tmp_path, source):
    """JSON formats are accepted, one object per line; others are not."""
    sink = JsonLinesSink(tmp_path, format="cloudevents")
    await sink.open(source.context)
    await sink.write(source.batch([1, 2]))
    await sink.close()
    (file,) = tmp_path.glob("*.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert {"/postgresql/7000000000000000001/test"} == {event["source"] for event in events}
    assert [1, 2] == [event["data"]["new"]["id"] for event in events]
    with pytest.raises(ConfigurationError, match="it writes one JSON object per line"):
        JsonLinesSink(tmp_path, format="pretty")
