"""Disks that are full or broken, and a failing fsync."""

from __future__ import annotations

import errno
import os

import pytest

from aiorepl.errors import PermanentError, SinkError, TransientError
from aiorepl.journal import JournalReader, JournalSink
from aiorepl.lsn import LSN
from aiorepl.sink import Batch, SinkContext
from aiorepl.storage.local import LocalStore


class FailingStore(LocalStore):
    """A store whose every step fails once, then succeeds."""

    def __init__(self, path, code: int, only: str = "") -> None:
        super().__init__(path)
        self.code = code
        self.only = only
        self.armed = False
        self.failed: set[tuple[str, str]] = set()

    def reached(self, step: str, name: str) -> None:
        place = (step, name.rpartition(".")[2] if step != "write" else str(len(self.failed)))
        if self.armed and place not in self.failed and self.only in step and len(self.failed) < 50:
            self.failed.add(place)
            raise OSError(self.code, os.strerror(self.code))


async def test_full_disk_passes(tmp_path, tools) -> None:
    """If each step fails once with a full disk and is repeated, nothing is lost or duplicated."""
    store = FailingStore(tmp_path, errno.ENOSPC)
    stream = tools.shop(8, 10)
    slices = stream.slices(7)
    sink = JournalSink(tmp_path, block_bytes=300, segment_bytes=2000, store=store)
    await sink.open(SinkContext("journal", stream.position))
    store.armed = True
    refusals: list[str] = []

    async def insist(call, *arguments) -> None:
        while True:
            try:
                await call(*arguments)
                return
            except TransientError as error:
                refusals.append(str(error))

    for start in range(0, len(slices), 3):
        await insist(sink.write, Batch(tuple(slices[start : start + 3])))
        await insist(sink.flush)
    await sink.close()
    assert len(refusals) == len(store.failed) > 8
    assert all("No space left" in text for text in refusals)
    read = await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    assert tools.flat(read) == tools.flat(tools.shop(8, 10).slices())


@pytest.mark.parametrize(
    ("code", "step"), [(errno.EIO, "write"), (errno.EROFS, "rename"), (errno.EIO, "fsync")]
)
async def test_broken_disk_does_not(tmp_path, tools, code: int, step: str) -> None:
    """Any other error is permanent, names the problem, and publishes nothing."""
    store = FailingStore(tmp_path, code, step)
    stream = tools.shop(1)
    sink = JournalSink(tmp_path, store=store)
    await sink.open(SinkContext("journal", stream.position))
    store.armed = True
    with pytest.raises(SinkError, match=os.strerror(code)) as caught:
        await sink.write(Batch(tuple(stream.slices())))
        await sink.flush()
    assert isinstance(caught.value, PermanentError)
    await sink.close()
    assert JournalReader(tmp_path).segments() == []


async def test_failed_fsync_is_permanent(tmp_path, tools, monkeypatch) -> None:
    """A failed fsync is permanent, even with a full disk, because the state of the file is unknown."""
    stream = tools.shop(1)
    sink = JournalSink(tmp_path)
    await sink.open(SinkContext("journal", stream.position))
    await sink.write(Batch(tuple(stream.slices())))

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(PermanentError, match="No space left"):
            await sink.flush()
    await sink.close()
