"""Durable private files: their modes, their names, and one answer to each storage error from all that keep files."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
from pathlib import Path

import pytest

from aiorepl import Batch, DeadLetters, PermanentError, SinkContext, TransientError, durable
from aiorepl.errors import SpoolError
from aiorepl.history.opening import open_compaction
from aiorepl.journal import Cursors, JournalSink
from aiorepl.retry import may_pass
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions import spool as source_spool
from aiorepl_sinks.jsonl import JsonLinesSink
from aiorepl_sinks.objects import spool as object_spool
from aiorepl_sinks.parquet import ParquetSink
from aiorepl_sinks.s3 import S3Sink

# Each of the errors that a file system gives, and whether the same call may succeed later.
ERRORS = {
    errno.ENOSPC: True,
    errno.EDQUOT: True,
    errno.EMFILE: True,
    errno.ENFILE: True,
    errno.EAGAIN: True,
    errno.EIO: False,
    errno.EROFS: False,
    errno.EACCES: False,
    errno.EPERM: False,
    errno.EFBIG: False,
    errno.ENOTDIR: False,
}
KEEPERS = {
    "journal": JournalSink,
    "jsonl": JsonLinesSink,
    "parquet": ParquetSink,
    "objects": lambda folder: S3Sink(f"file://{folder}"),
    "dead letters": DeadLetters,
}


class Kept:
    """A sink of files that is delivered one transaction."""

    def __init__(self, sink) -> None:
        self.sink = sink
        self.stream = Stream()
        table = self.stream.table("items", column("id", 23, key=True), column("note"))
        self.stream.transaction(table.insert("1", "x"))

    async def deliver(self) -> None:
        await self.call("open", SinkContext("s", self.stream.position))
        await self.call("write", Batch(tuple(self.stream.slices())))
        await self.call("flush")
        await self.call("close")

    async def call(self, name: str, *arguments) -> None:
        made = getattr(self.sink, name)(*arguments)
        if asyncio.iscoroutine(made):
            await made


@pytest.fixture(params=KEEPERS)
def keep(request):
    """Makes a sink of each kind in a folder."""
    return lambda folder: Kept(KEEPERS[request.param](folder))


@pytest.fixture
def open_umask():
    """The usual umask, which lets everybody read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_rows_are_for_their_owner_alone(tmp_path, keep):
    """Every file has mode 0600 and every folder 0700, the folders above included that were made on the way."""
    kept = keep(tmp_path / "above" / "folder")
    await kept.deliver()
    if isinstance(kept.sink, JournalSink):
        Cursors(kept.sink.url).advance("sink", kept.stream.position)
        open_compaction(kept.sink.url).run()
    made = list(tmp_path.rglob("*"))
    assert any(path.is_file() for path in made)
    assert {(True, 0o700), (False, 0o600)} == {(path.is_dir(), path.stat().st_mode & 0o777) for path in made}


@pytest.mark.parametrize(("code", "passes"), ERRORS.items(), ids=map(errno.errorcode.get, ERRORS))
async def test_one_table_for_all(tmp_path, keep, monkeypatch, code, passes):
    """An error of the file system is retried by all that keep files, or by none, and its text is in the message."""
    kept = keep(tmp_path)
    await kept.call("open", SinkContext("s", kept.stream.position))
    monkeypatch.setattr(durable, "create", failing(code))
    with pytest.raises((TransientError, PermanentError), match=os.strerror(code)) as caught:
        await kept.call("write", Batch(tuple(kept.stream.slices())))
        await kept.call("flush")
        await kept.call("close")  # some write nothing before
    assert (TransientError if passes else PermanentError) is type(caught.value)
    monkeypatch.undo()
    await kept.call("close")


@pytest.mark.parametrize(("code", "passes"), ERRORS.items(), ids=map(errno.errorcode.get, ERRORS))
def test_spools_have_the_same_table(tmp_path, monkeypatch, code, passes):
    """The spool of the source reconnects after what may pass and after nothing else; that of objects retries it."""
    source, objects = source_spool.Spool(tmp_path), object_spool.Spool(tmp_path)
    monkeypatch.setattr(os, "pwrite", failing(code))
    with pytest.raises(SpoolError) as caught:
        source.write(b"x")
    assert passes is may_pass(caught.value)
    with pytest.raises(TransientError if passes else PermanentError):
        objects.write([b"x"])


def test_an_fsync_is_never_tried_again(tmp_path, monkeypatch):
    """After a failed fsync even a full disk is permanent, and the file does not get its name."""
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(durable.FsyncError) as caught:
        durable.write_file(tmp_path / "a", [b"x"])
    error = durable.storage_error(caught.value, "here")
    assert isinstance(error, PermanentError)
    assert "check the disk" in str(error)
    assert [] == list(tmp_path.iterdir())


def test_a_link_is_not_followed(tmp_path):
    """A symbolic link in place of a file is rejected or replaced, and its target is untouched."""
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("mine")
    link.symlink_to(victim)
    with pytest.raises(FileExistsError):
        durable.create(link)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        durable.open_or_create(link)
    durable.write_file(link, [b"new"])
    assert ("mine", "new", False) == (victim.read_text(), link.read_text(), link.is_symlink())


def test_nobody_knows_the_name_before(tmp_path, monkeypatch):
    """A file is written under a hidden name with 64 random bits."""
    target = tmp_path / "letter.json"
    names = set()
    for _ in range(2):
        new = durable.NewFile(target)
        names.add(new.path.name)
        assert new.path.name.startswith(".letter.json-")
        assert stat.S_IMODE(new.path.stat().st_mode) == 0o600
        new.discard()
    assert 2 == len(names)
    assert min(map(len, names)) >= len(".letter.json-.partial") + 16
    assert [] == list(tmp_path.iterdir())


def test_a_write_that_failed_is_made_again(tmp_path, monkeypatch):
    """Half of a write is not in the file when the same call is made once more."""
    new = durable.NewFile(tmp_path / "a")
    new.write([b"one "])

    def parts():
        yield b"half"
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        new.write(parts())
    new.write([b"2"])
    new.sync()
    new.rename(tmp_path / "a")
    new.discard()
    assert b"one 2" == (tmp_path / "a").read_bytes()


def test_what_a_killed_process_left_is_removed(tmp_path):
    """Files that a killed process left are removed, but no other file's, whatever the name is."""
    target, other = tmp_path / "a[1]*.json", tmp_path / "a1.json"
    for path in (target, other):
        path.with_name(f".{path.name}-0123{durable.PARTIAL}").touch()
    durable.remove_partials(target)
    assert [".a1.json"] == [path.name.partition("-")[0] for path in tmp_path.iterdir()]


def failing(code: int):
    """A function that raises this error."""

    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(("code", "fatal"), [(errno.EIO, True), (errno.EACCES, True), (errno.EFBIG, False)])
def test_what_stops_a_sink_whatever_its_policy(code, fatal):
    """An error that every batch would meet stops the sink; a batch that is too large for a file can be a dead letter."""
    error = durable.storage_error(OSError(code, os.strerror(code)), "here")

    assert isinstance(error, PermanentError)
    assert fatal is error.fatal


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_file_system_without_new_folders():
    """A folder in /proc, whose answer is that it does not exist, is refused with advice."""
    with pytest.raises(PermissionError) as caught:
        durable.make_folder(Path("/proc/aiorepl"))
    assert durable.reason(caught.value).endswith("choose another folder")
