"""Writing and reading back: the same changes with the same identities, however they were cut."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiorepl.errors import (
    ConfigurationError,
    JournalError,
    PermanentError,
    SinkError,
    SlotError,
    TransientError,
)
from aiorepl.journal import JournalReader, JournalSink
from aiorepl.journal.store import LocalStore
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.sink import Batch, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.transaction import Slice
from aiorepl.values.types import ARRAY, DOMAIN, ENUM, TypeInfo

INT4 = 23


def shop(transactions: int = 5, rows: int = 4, **options) -> Stream:
    """A stream in which little of what can happen is missing."""
    stream = Stream(**options)
    orders = stream.table("orders", column("id", INT4, key=True), column("note"))
    people = stream.table("people", column("id", INT4, key=True), replica_identity="f")
    for number in range(transactions):
        contents = [orders.insert(str(number * 100 + row), "x" * row) for row in range(rows)]
        contents += [
            people.insert(str(number)),
            orders.update(str(number), None, key=["1", None]),
            orders.delete(str(number), None),
        ]
        stream.transaction(*contents, origin="north" if number == 2 else None)
        stream.message("between", str(number).encode())
        stream.transaction(people.truncate())
        stream.transaction()
    return stream


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    block=st.integers(1, 2000),
    segment=st.integers(1, 5000),
    at_once=st.integers(1, 30),
    step=st.integers(1, 20),
)
def test_round_trip(tmp_path_factory, tools, block: int, segment: int, at_once: int, step: int) -> None:
    """Whatever the sizes of reads, batches, blocks and segments, what was written is what is read."""

    async def check() -> None:
        folder = tmp_path_factory.mktemp("journal")
        stream = shop()
        expected = tools.flat(stream.slices())
        slices = shop().slices(at_once)
        batches = [slices[start : start + step] for start in range(0, len(slices), step)]
        await tools.write(folder, stream.position, *batches, block_bytes=block, segment_bytes=segment)
        reader = JournalReader(folder)
        assert tools.flat(await tools.read(reader, LSN(0), stream.ends[-1])) == expected
        assert reader.end() == stream.position.at(stream.ends[-1])

    asyncio.run(check())


async def test_blocks_decode_alone(tmp_path, tools) -> None:
    """A block decoded by itself gives the messages that it gives in the sequence, and the index counts them."""
    stream = shop(rows=40)
    slices = stream.slices()
    await tools.write(tmp_path, stream.position, slices, block_bytes=300)
    reader = JournalReader(tmp_path)
    (segment,) = reader.segments()
    index = reader.index(segment)
    assert len(index.blocks) > 10
    rows = [
        change for part in slices for change in part.changes if change.kind in ("insert", "update", "delete")
    ]
    alone: list[m.RowMessage] = []
    for block in reversed(index.blocks):
        messages = list(reader.messages(segment, block))
        alone = [message for message in messages if isinstance(message, m.RowMessage)] + alone
        truncates = [message for message in messages if isinstance(message, m.Truncate)]
        found = sum(isinstance(message, m.RowMessage) for message in messages) + len(truncates)
        assert sum(block.rows.values()) == found
        if block.midway is not None:
            assert not isinstance(messages[0], m.Begin)
    assert [message.payload for message in alone] == [change.message.payload for change in rows]
    assert [message.relation.payload for message in alone] == [
        change.message.relation.payload for change in rows
    ]


async def test_midway_tells_the_ordinal(tmp_path, tools) -> None:
    """A block in the middle of a transaction says which, and which change comes first."""
    stream = Stream()
    table = stream.table("t", column("id", INT4, key=True))
    stream.transaction(*[table.insert(str(number)) for number in range(100)], origin="north")
    (part,) = stream.slices()
    await tools.write(tmp_path, stream.position, [part], block_bytes=100)
    reader = JournalReader(tmp_path)
    (segment,) = reader.segments()
    seen = 0
    for block in reader.index(segment).blocks:
        if seen:
            assert block.midway is not None
            assert (block.midway.ordinal, block.midway.origin) == (seen, "north")
            assert block.midway.commit_lsn == part.transaction.commit_lsn
        seen += sum(block.rows.values())
    assert seen == 100


async def test_altered_table(tmp_path, tools) -> None:
    """A table that is altered within a block, even within a transaction, is read as it was at each row."""
    stream = Stream()
    before = stream.table("t", column("id", INT4, key=True))
    stream.transaction(before.insert("1"))
    after = stream.table("t", column("id", INT4, key=True), column("extra"), replaces=before)
    stream.transaction(after.insert("2", "two"))
    again = stream.table("t", column("id", INT4, key=True), replaces=before)
    stream.transaction(again.insert("3"))
    slices = stream.slices()
    await tools.write(tmp_path, stream.position, slices)
    reader = JournalReader(tmp_path)
    read = await tools.read(reader, LSN(0), stream.ends[-1])
    assert [dict(change.new) for part in read for change in part.changes] == [
        {"id": 1},
        {"id": 2, "extra": "two"},
        {"id": 3},
    ]
    (segment,) = reader.segments()
    index = reader.index(segment)
    assert len(index.descriptions) == 2
    assert index.blocks[0].rows == {0: 2, 1: 1}


async def test_types_travel(tmp_path, tools) -> None:
    """Types that are not built in are read elsewhere as here, with what they are made of."""
    types = [
        TypeInfo(90001, "shop", "mood", ENUM),
        TypeInfo(90002, "shop", "_mood", ARRAY, 90001),
        TypeInfo(90003, "shop", "cents", DOMAIN, INT4),
        TypeInfo(90009, "shop", "unused", DOMAIN, INT4),
    ]
    stream = Stream(types=types)
    stream.type_(90002, "_mood", "shop")
    table = stream.table("t", column("moods", 90002), column("price", 90003))
    stream.transaction(table.insert("{happy,sad}", "250"))
    await tools.write(tmp_path, stream.position, stream.slices())
    reader = JournalReader(tmp_path)
    (read,) = await tools.read(reader, LSN(0), stream.ends[-1])
    assert dict(read.changes[0].new) == {"moods": ["happy", "sad"], "price": 250}
    assert {info.oid for info in reader.index(reader.segments()[0]).types} == {90001, 90002, 90003}


async def test_types_after_a_truncate(tmp_path, tools) -> None:
    """A truncate describes a table without its types; the rows behind it bring them all the same."""
    stream = Stream(types=[TypeInfo(90001, "shop", "cents", DOMAIN, INT4)])
    table = stream.table("t", column("price", 90001))
    stream.transaction(table.truncate(), table.insert("250"))
    await tools.write(tmp_path, stream.position, stream.slices())
    reader = JournalReader(tmp_path)
    (index,) = map(reader.index, reader.segments())
    assert [info.oid for info in index.types] == [90001]
    assert index.blocks[0].rows == {0: 2}


async def test_flush_publishes(tmp_path) -> None:
    """What was written is invisible before flush and a segment after it; a flush without news makes none."""
    stream = shop(1)
    sink = JournalSink(tmp_path)
    assert await sink.open(SinkContext("journal", stream.position)) is None
    await sink.write(Batch(tuple(stream.slices())))
    reader = JournalReader(tmp_path)
    assert reader.segments() == []
    await sink.flush()
    await sink.flush()
    (segment,) = reader.segments()
    assert (segment.first_end_lsn, segment.last_end_lsn) == (stream.ends[0], stream.ends[-1])
    await sink.close()


async def test_large_transaction_holds_nothing_back(tmp_path, tools) -> None:
    """While a transaction is coming in slices, flush makes all before it durable, and nothing of it shows."""
    stream = shop(1)
    table = stream.table("big", column("id", INT4, key=True))
    small = stream.slices()
    stream.transaction(*[table.insert(str(number)) for number in range(50)])
    big = stream.slices(10)
    assert len(big) > 3
    sink = JournalSink(tmp_path)
    await sink.open(SinkContext("journal", stream.position))
    await sink.write(Batch((*small, *big[:2])))
    await sink.flush()
    reader = JournalReader(tmp_path)
    assert reader.end().lsn == small[-1].end_lsn
    await sink.write(Batch((big[2],)))
    await sink.flush()
    assert len(reader.segments()) == 1
    await sink.write(Batch(tuple(big[3:])))
    await sink.flush()
    await sink.close()
    assert len(reader.segments()) == 2
    assert tools.flat(await tools.read(reader, LSN(0), stream.ends[-1]))[-1][-1] == stream.ends[-1]


async def test_slices_of_a_small_transaction_share_a_segment(tmp_path, tools) -> None:
    """A transaction that came in several reads but is whole in its batch begins no segment."""
    stream = shop(3)
    await tools.write(tmp_path, stream.position, stream.slices(2))
    assert len(JournalReader(tmp_path).segments()) == 1


async def test_unfinished_transaction_is_forgotten(tmp_path, tools) -> None:
    """What never ended leaves no trace, and comes again whole after a restart."""
    stream = Stream()
    table = stream.table("t", column("id", INT4, key=True))
    stream.transaction(*[table.insert(str(number)) for number in range(50)])
    slices = stream.slices(10)
    await tools.write(tmp_path, stream.position, slices[:3], block_bytes=50)
    assert JournalReader(tmp_path).segments() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.json", "journal.lock"]
    assert await tools.write(tmp_path, stream.position, slices) is None
    read = await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    assert len(tools.flat(read)) == 51


async def test_replay_after_a_crash(tmp_path, tools) -> None:
    """What the journal has is skipped when it comes again, and what it has not is kept: once each."""
    expected = tools.flat(shop().slices())
    stream = shop()
    first = stream.slices(3)[:9]
    while first[-1].end_lsn is None:
        first.pop()
    await tools.write(tmp_path, stream.position, first)
    again = shop().slices(4)
    held = await tools.write(tmp_path, stream.position, again[:5], again[5:])
    assert held == stream.position.at(first[-1].end_lsn)
    assert tools.flat(await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])) == expected


async def test_marks_move_the_position(tmp_path, tools) -> None:
    """WAL without anything for us makes no segment, yet the journal knows how far it is after a restart."""
    stream = shop(1)
    slices = stream.slices()
    end = stream.ends[-1]
    quiet = LSN(end + 0x1000)
    await tools.write(tmp_path, stream.position, [*slices, Slice(None, (), True, quiet, 0)])
    assert JournalReader(tmp_path).end().lsn == quiet
    quieter = LSN(end + 0x2000)
    held = await tools.write(tmp_path, stream.position, [Slice(None, (), True, quieter, 0)])
    assert held.lsn == quiet
    assert len(JournalReader(tmp_path).segments()) == 1
    assert (await tools.write(tmp_path, stream.position)).lsn == quieter


async def test_gap_is_refused(tmp_path, tools) -> None:
    """A transaction of which changes were left out cannot be kept, for ordinals would be lost."""
    stream = shop(1)
    (first, *_) = stream.slices()
    part = Slice(
        first.transaction, [change for change in first.changes if change.ordinal != 0], True, first.end_lsn, 0
    )
    with pytest.raises(PermanentError, match="missing"):
        await tools.write(tmp_path, stream.position, [part])


async def test_follow_waits_for_the_writer(tmp_path, tools) -> None:
    """What a writer of this process publishes comes at once to those who follow."""
    stream = shop(1)
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
    """A segment that nobody announced is found by looking."""
    stream = shop(1)
    await tools.write(tmp_path / "other", stream.position, stream.slices())
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "journal.json").write_bytes((tmp_path / "other" / "journal.json").read_bytes())
    following = JournalReader(tmp_path / "here").follow(poll=0.01)
    waiting = asyncio.create_task(anext(following))
    for ending in (".segment", ".index"):
        for path in (tmp_path / "other").glob(f"*{ending}"):
            path.rename(tmp_path / "here" / path.name)
    async with asyncio.timeout(30):
        assert (await waiting).end_lsn == stream.ends[0]
    await following.aclose()


@pytest.mark.parametrize("block_bytes", [1, 60, 200])
async def test_follow_from_the_middle(tmp_path, tools, block_bytes: int) -> None:
    """A reader that stands anywhere within a segment gets just what is behind it."""
    stream = shop()
    slices = stream.slices()
    await tools.write(tmp_path, stream.position, slices, block_bytes=block_bytes)
    reader = JournalReader(tmp_path)
    for place, part in enumerate(slices[:-1]):
        read = await tools.read(reader, part.end_lsn, stream.ends[-1])
        assert tools.flat(read) == tools.flat(slices[place + 1 :])


@pytest.mark.parametrize("part", ["segment", "index"])
async def test_damage_is_found(tmp_path, tools, part: str) -> None:
    """A flipped bit is reported with the name of the file, and where in it."""
    stream = shop()
    await tools.write(tmp_path, stream.position, stream.slices(), block_bytes=200)
    (path,) = tmp_path.glob(f"*.{part}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalError, match=path.name) as caught:
        await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    assert "x" * 3 not in str(caught.value)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(JournalError, match=path.name):
        await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    path.unlink()
    if part == "segment":
        with pytest.raises(JournalError, match=path.name):
            await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])


async def test_missing_segment_is_found(tmp_path, tools) -> None:
    """Every index names the end of the one before, so a hole in the middle cannot be read over."""
    stream = shop()
    slices = stream.slices()
    batches = [[part] for part in slices]
    await tools.write(tmp_path, stream.position, *batches, segment_bytes=1)
    reader = JournalReader(tmp_path)
    segments = reader.segments()
    assert len(segments) > 3
    for path in tmp_path.glob(f"{segments[2].name}.*"):
        path.unlink()
    with pytest.raises(JournalError, match="nothing between"):
        await tools.read(reader, LSN(0), stream.ends[-1])


async def test_foreign_source(tmp_path, tools) -> None:
    """A journal takes nothing from another slot or cluster."""
    await tools.write(tmp_path, shop().position, shop().slices())
    with pytest.raises(SlotError, match="slot 'test'"):
        await tools.write(tmp_path, shop(slot="other").position)


async def test_one_writer(tmp_path, tools) -> None:
    """A second writer is refused with the folder's name, and may come when the first has closed."""
    stream = shop(1)
    sink = JournalSink(tmp_path)
    await sink.open(SinkContext("journal", stream.position))
    with pytest.raises(JournalError, match=tmp_path.name):
        await tools.write(tmp_path, stream.position)
    await sink.close()
    await tools.write(tmp_path, stream.position)


async def test_no_journal(tmp_path) -> None:
    """A folder that is no journal is said to be none."""
    with pytest.raises(JournalError, match="no journal"):
        await anext(JournalReader(tmp_path).follow())


@pytest.mark.parametrize("url", ["s3://bucket/journal", "file://elsewhere/journal"])
def test_unknown_url(url: str) -> None:
    """Only folders of this machine, so far."""
    with pytest.raises(ConfigurationError, match="no path"):
        JournalReader(url)


def test_urls_of_one_folder(tmp_path) -> None:
    """However a folder is spelled, it is the same journal."""
    assert JournalReader(f"file://{tmp_path}/a%20b").url == JournalReader(tmp_path / "x" / ".." / "a b").url


class FailingStore(LocalStore):
    """Fails at every step once, then lets it pass."""

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
    """Each step fails once for want of space; the engine calls again; nothing is lost or there twice."""
    store = FailingStore(tmp_path, errno.ENOSPC)
    stream = shop(8, 10)
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
    assert tools.flat(read) == tools.flat(shop(8, 10).slices())


@pytest.mark.parametrize(
    ("code", "step"), [(errno.EIO, "write"), (errno.EROFS, "rename"), (errno.EIO, "fsync")]
)
async def test_broken_disk_does_not(tmp_path, code: int, step: str) -> None:
    """An error that does not pass is permanent, says which, and publishes nothing."""
    store = FailingStore(tmp_path, code, step)
    stream = shop(1)
    sink = JournalSink(tmp_path, store=store)
    await sink.open(SinkContext("journal", stream.position))
    store.armed = True
    with pytest.raises(SinkError, match=os.strerror(code)) as caught:
        await sink.write(Batch(tuple(stream.slices())))
        await sink.flush()
    assert isinstance(caught.value, PermanentError)
    await sink.close()
    assert JournalReader(tmp_path).segments() == []


async def test_failed_fsync_is_permanent(tmp_path, monkeypatch) -> None:
    """After an fsync failed nothing is known, so even a full disk is no reason to try it again."""
    stream = shop(1)
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
