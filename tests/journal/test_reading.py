"""Readers follow the writer, find damage and missing files, and begin anywhere."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from aiorepl.errors import JournalError
from aiorepl.journal import JournalReader, JournalSink
from aiorepl.lsn import LSN
from aiorepl.sink import Batch, SinkContext
from aiorepl.storage.local import LocalStore
from aiorepl.transactions.slices import Slice


async def test_follow_waits_for_the_writer(tmp_path, tools) -> None:
    """Followers receive at once what a writer of this process publishes."""
    stream = tools.shop(1)
    sink = JournalSink(tmp_path)
    await sink.open(SinkContext("journal", stream.position))
    first = stream.slices()
    expected = tools.flat(first)
    reader = JournalReader(tmp_path)
    # An hour between looks: what arrives was announced.
    following = reader.follow(poll=3600)
    await sink.write(Batch(tuple(first)))
    await sink.flush()
    got = [await anext(following) for _ in first]
    assert tools.flat(got) == expected
    waiting = asyncio.create_task(anext(following))
    end = stream.message("news")
    await sink.write(Batch(tuple(stream.slices())))
    await sink.flush()
    async with asyncio.timeout(30):
        assert (await waiting).end_lsn == end
    await following.aclose()
    await sink.close()


async def test_follow_looks_for_other_processes(tmp_path, tools) -> None:
    """Followers find the segments of other processes by polling."""
    stream = tools.shop(1)
    await tools.write(tmp_path / "other", stream.position, stream.slices()[:1])
    shutil.copytree(tmp_path / "other", tmp_path / "here")
    following = JournalReader(tmp_path / "here").follow(stream.ends[0], poll=0.01)
    waiting = asyncio.create_task(anext(following))
    await tools.write(tmp_path / "other", stream.position, stream.again())
    for path in ((tmp_path / "other").glob("segments/*"), (tmp_path / "other").glob("position.json")):
        for file in path:
            file.rename(tmp_path / "here" / file.relative_to(tmp_path / "other"))
    async with asyncio.timeout(30):
        assert (await waiting).end_lsn == stream.ends[1]
    await following.aclose()


async def test_follow_comes_to_the_end(tmp_path, tools) -> None:
    """Followers receive the end of WAL without published changes, even if they begin there."""
    stream = tools.shop(1)
    slices = stream.slices()
    end = LSN(stream.lsn + 0x100)
    await tools.write(tmp_path, stream.position, [*slices, Slice(None, (), True, end, 0)])
    reader = JournalReader(tmp_path)
    assert end == reader.end().lsn
    async with asyncio.timeout(30):
        assert [*tools.flat(slices), (None, end)] == tools.flat(await tools.read(reader, LSN(0), end))
        assert [(None, end)] == tools.flat(await tools.read(reader, stream.lsn, end))


@pytest.mark.parametrize("block_bytes", [1, 60, 200])
async def test_follow_from_the_middle(tmp_path, tools, block_bytes: int) -> None:
    """A reader that begins anywhere within a segment gets exactly what comes after."""
    stream = tools.shop()
    slices = stream.slices()
    await tools.write(tmp_path, stream.position, slices, block_bytes=block_bytes)
    reader = JournalReader(tmp_path)
    for place, part in enumerate(slices[:-1]):
        read = await tools.read(reader, part.end_lsn, stream.ends[-1])
        assert tools.flat(read) == tools.flat(slices[place + 1 :])


@pytest.mark.parametrize("place", [0.3, 0.8], ids=["block", "index"])
async def test_damage_is_found(tmp_path, tools, place: float) -> None:
    """A flipped bit is reported with the name of the file, and the place in it."""
    stream = tools.shop()
    await tools.write(tmp_path, stream.position, stream.slices(), block_bytes=200)
    (path,) = tmp_path.glob("segments/*.segment")
    data = bytearray(path.read_bytes())
    at = int(len(data) * place)
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalError, match=path.name) as caught:
        await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    assert "x" * 3 not in str(caught.value)
    path.write_bytes(data[:at])
    with pytest.raises(JournalError, match=path.name):
        await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    path.unlink()
    with pytest.raises(JournalError, match=path.name):
        await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])


class Distant(LocalStore):
    """A store whose reads are worth joining."""

    most = 0
    reads = 0

    @property
    def range_bytes(self) -> int:
        return self.most

    def read(self, name: str, offset: int = 0, length: int = -1) -> bytes:
        self.reads += name.startswith("segments/") and length >= 0
        return super().read(name, offset, length)


async def test_adjacent_blocks_are_read_together(tmp_path, tools) -> None:
    """As many blocks as the store says are one read; each is verified, and some may be left out."""
    stream = tools.shop(3)
    slices = stream.slices()
    await tools.write(tmp_path, stream.position, slices, block_bytes=100)
    store = Distant(tmp_path)
    reader = JournalReader("", store=store)
    (segment,) = reader.segments()
    blocks = reader.index(segment).blocks
    alone = [reader.read(segment, block) for block in blocks]
    for most, chosen, reads in (
        (1 << 20, blocks, 1),
        (0, blocks, len(blocks)),
        (1 << 20, blocks[:2] + blocks[3:], 2),
    ):
        store.most, store.reads = most, 0
        read = list(reader.read_all(segment, chosen))
        assert ([block for block, _ in read], store.reads) == (list(chosen), reads)
        assert [data for _, data in read] == [alone[blocks.index(block)] for block in chosen]
    store.most = blocks[0].length + blocks[1].length
    assert tools.flat(await tools.read(reader, LSN(0), stream.ends[-1])) == tools.flat(slices)
    path = tmp_path / segment.file
    data = bytearray(path.read_bytes())
    data[blocks[2].offset] ^= 1
    path.write_bytes(data)
    store.most, read = 1 << 20, []
    with pytest.raises(JournalError, match=f"the block at {blocks[2].offset} of .* is damaged"):
        read.extend(block for block, _ in reader.read_all(segment, blocks))
    assert read == list(blocks[:2])


async def test_missing_segment_is_found(tmp_path, tools) -> None:
    """A missing segment is found by whoever reads it, because position.json names it."""
    stream = tools.shop()
    slices = stream.slices()
    batches = [[part] for part in slices]
    await tools.write(tmp_path, stream.position, *batches, segment_bytes=1)
    reader = JournalReader(tmp_path)
    segments = reader.segments()
    assert len(segments) > 3
    (tmp_path / segments[2].file).unlink()
    with pytest.raises(JournalError, match=segments[2].name):
        await tools.read(reader, LSN(0), stream.ends[-1])


async def test_no_journal(tmp_path) -> None:
    """A folder that is no journal is an error that says so."""
    with pytest.raises(JournalError, match="no journal"):
        await anext(JournalReader(tmp_path).follow())
