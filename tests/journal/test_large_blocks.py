"""Blocks with a large row are read message by message, and readers share them."""

from __future__ import annotations

import gc

import pytest

from aiorepl.errors import DamagedJournal
from aiorepl.journal import JournalReader
from aiorepl.journal.large_blocks import _blocks
from aiorepl.journal.stored_blocks import LARGE_BLOCK
from aiorepl.journal.verification import problems
from aiorepl.lsn import LSN
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.slices import Slice

# Sizes of messages, around the size from which a message is read by itself.
SIZES = (10, 400_000, 600_000, 5_000_000, 20, 1_048_572, 1_048_571, 1_500_000, 30, 4)


def payloads(slices: list[Slice]) -> list[bytes]:
    """Return the messages of the changes."""
    return [change.message.payload for part in slices for change in part.changes]


@pytest.fixture
async def stream(tmp_path, tools) -> Stream:
    """A journal of one block."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True), column("note"))
    rows = [table.insert(str(number), chr(97 + number) * size) for number, size in enumerate(SIZES)]
    stream.transaction(*rows)
    await tools.write(tmp_path, stream.position, stream.slices(), block_bytes=1 << 30)
    reader = JournalReader(tmp_path)
    (segment,) = reader.segments()
    (block,) = reader.index(segment).blocks
    assert block.length > LARGE_BLOCK
    return stream


async def test_contents(tmp_path, tools, stream):
    """A reader gets the changes that were written."""
    read = await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])

    assert tools.flat(stream.again()) == tools.flat(read)
    assert list(problems(tmp_path)) == []


async def test_readers_share(tmp_path, tools, stream):
    """Readers have the same message objects, as long as one of them keeps its slices."""
    one, other = [await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1]) for _ in range(2)]

    assert [id(payload) for payload in payloads(one)] == [id(payload) for payload in payloads(other)]
    assert len(_blocks) == 1
    del one, other
    gc.collect()
    assert len(_blocks) == 0


@pytest.mark.parametrize("place", ["length", "first", "window", "large", "last"])
async def test_damage(tmp_path, tools, stream, place):
    """One changed bit anywhere in the block is an error that names the block."""
    reader = JournalReader(tmp_path)
    (segment,) = reader.segments()
    (block,) = reader.index(segment).blocks
    data = (tmp_path / segment.file).read_bytes()
    large = data.index(b"dddd")
    at = {
        "length": large - 30,
        "first": block.offset + 3,
        "window": data.index(b"bbbb") + 200_000,
        "large": large + 3_000_000,
        "last": block.offset + block.length - 1,
    }[place]
    (tmp_path / segment.file).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])

    with pytest.raises(DamagedJournal, match=f"the block at {block.offset} of .* checksum does not match"):
        await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
