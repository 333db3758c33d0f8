"""The journal returns the same changes with the same identities, however they were cut."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiorepl.errors import (
    JournalError,
    PermanentError,
    SlotError,
)
from aiorepl.journal import JournalReader, JournalSink
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Attribute, Relation
from aiorepl.position import Timelines
from aiorepl.sink import Batch, SinkContext
from aiorepl.testing.messages import column, truncate
from aiorepl.testing.stream import Stream
from aiorepl.transactions.slices import Slice
from aiorepl.values.types import ARRAY, DOMAIN, ENUM, TypeInfo

INT4 = 23


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    block=st.integers(1, 2000),
    segment=st.integers(1, 5000),
    at_once=st.integers(1, 30),
    step=st.integers(1, 20),
)
def test_round_trip(tmp_path_factory, tools, block: int, segment: int, at_once: int, step: int) -> None:
    """Whatever the sizes of reads, batches, blocks and segments, the changes are read as they were written."""

    async def check() -> None:
        folder = tmp_path_factory.mktemp("journal")
        stream = tools.shop()
        expected = tools.flat(stream.slices())
        slices = tools.shop().slices(at_once)
        batches = [slices[start : start + step] for start in range(0, len(slices), step)]
        await tools.write(folder, stream.position, *batches, block_bytes=block, segment_bytes=segment)
        reader = JournalReader(folder)
        assert tools.flat(await tools.read(reader, LSN(0), stream.ends[-1])) == expected
        assert reader.end() == stream.position.at(stream.ends[-1])

    asyncio.run(check())


async def test_blocks_decode_alone(tmp_path, tools) -> None:
    """A block that is decoded alone gives the same messages as in sequence, and the index has their number."""
    stream = tools.shop(rows=40)
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
        if block.continuation is not None:
            assert not isinstance(messages[0], m.Begin)
    assert [message.payload for message in alone] == [change.message.payload for change in rows]
    assert [message.relation.payload for message in alone] == [
        change.message.relation.payload for change in rows
    ]


async def test_midway_tells_the_ordinal(tmp_path, tools) -> None:
    """A block in the middle of a transaction names the transaction and its first ordinal."""
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
            assert block.continuation is not None
            assert (block.continuation.ordinal, block.continuation.origin) == (seen, "north")
            assert block.continuation.commit_lsn == part.transaction.commit_lsn
        seen += sum(block.rows.values())
    assert seen == 100


async def test_altered_table(tmp_path, tools) -> None:
    """If a table is altered within a block or a transaction, each row keeps its description."""
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
    """Types that are not built in are read on another machine, with their components."""
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


async def test_an_altered_type_begins_a_segment(tmp_path, tools) -> None:
    """A segment describes a type once, so rows of an altered type are in the next one, and each row is read by its own."""
    fields = (("a", INT4), ("b", INT4))
    slices, lsn = [], None
    for count, value in ((1, "(1)"), (2, "(1,2)")):
        pair = TypeInfo(90001, "shop", "pair", "c", fields=fields[:count])
        stream = Stream(types=[pair]) if lsn is None else Stream(types=[pair], start=lsn)
        stream.transaction(stream.table("t", column("pair", 90001)).insert(value))
        slices += stream.slices()
        lsn = stream.lsn
    await tools.write(tmp_path, Stream().position, slices)
    reader = JournalReader(tmp_path)
    read = await tools.read(reader, LSN(0), lsn)
    assert [{"a": 1}, {"a": 1, "b": 2}] == [part.changes[0].new["pair"] for part in read]
    assert 2 == len(reader.segments())


async def test_a_promotion_begins_a_segment(tmp_path, tools) -> None:
    """A segment has one timeline, so transactions from after a promotion are in the next one."""
    stream = Stream()
    table = stream.table("t", column("id", INT4, key=True))
    position = stream.position
    stream.transaction(table.insert("1"))
    promoted = Timelines(2, [(1, stream.lsn)])
    stream.transaction(table.insert("2"))
    await tools.write(tmp_path, replace(position, timelines=promoted), stream.slices())
    reader = JournalReader(tmp_path)
    assert [1, 2] == [reader.index(segment).end.timeline for segment in reader.segments()]


async def test_types_after_a_truncate(tmp_path, tools) -> None:
    """A truncate describes a table without its types; later rows bring them."""
    stream = Stream(types=[TypeInfo(90001, "shop", "cents", DOMAIN, INT4)])
    table = stream.table("t", column("price", 90001))
    stream.transaction(table.truncate(), table.insert("250"))
    await tools.write(tmp_path, stream.position, stream.slices())
    reader = JournalReader(tmp_path)
    (index,) = map(reader.index, reader.segments())
    assert [info.oid for info in index.types] == [90001]
    assert index.blocks[0].rows == {0: 2}


async def test_flush_publishes(tmp_path, tools) -> None:
    """Data is invisible before flush, and a segment after it; a flush without new data makes none."""
    stream = tools.shop(1)
    sink = JournalSink(tmp_path)
    assert await sink.open(SinkContext("journal", stream.position)) is None
    await sink.write(Batch(tuple(stream.slices())))
    reader = JournalReader(tmp_path)
    assert reader.segments() == []
    await sink.flush()
    await sink.flush()
    (segment,) = reader.segments()
    assert (segment.after, segment.last_end_lsn) == (LSN(0), stream.ends[-1])
    await sink.close()


async def test_large_transaction_holds_nothing_back(tmp_path, tools) -> None:
    """While slices of a transaction arrive, flush makes earlier ones durable, and shows nothing of it."""
    stream = tools.shop(1)
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


@pytest.mark.parametrize("together", [True, False])
async def test_a_large_transaction_after_a_mark(tmp_path, tools, together: bool) -> None:
    """WAL without published changes is durable after a flush, even if a part of the next transaction was written after it."""
    stream = Stream()
    table = stream.table("big", column("id", INT4, key=True))
    mark = Slice(None, (), True, LSN(stream.position.lsn + 0x10), 0)
    stream.transaction(*[table.insert(str(number)) for number in range(50)])
    part = stream.slices(10)[0]
    sink = JournalSink(tmp_path)
    await sink.open(SinkContext("journal", stream.position))
    for batch in [(mark, part)] if together else [(mark,), (part,)]:
        await sink.write(Batch(batch))
    await sink.flush()
    assert JournalReader(tmp_path).position().lsn == mark.end_lsn
    await sink.close()


async def test_slices_of_a_small_transaction_share_a_segment(tmp_path, tools) -> None:
    """A transaction of several slices that is whole in its batch shares a segment."""
    stream = tools.shop(3)
    await tools.write(tmp_path, stream.position, stream.slices(2))
    assert len(JournalReader(tmp_path).segments()) == 1


async def test_batches_share_a_segment(tmp_path, tools) -> None:
    """Batches between two flushes are one segment, even if each is one transaction."""
    stream = Stream()
    table = stream.table("t", column("id", INT4, key=True))
    for number in range(3):
        stream.transaction(table.insert(str(number)))
    await tools.write(tmp_path, stream.position, *([part] for part in stream.slices()))
    assert 1 == len(JournalReader(tmp_path).segments())


async def test_unfinished_transaction_is_forgotten(tmp_path, tools) -> None:
    """A transaction without an end leaves nothing, and arrives whole after a restart."""
    stream = Stream()
    table = stream.table("t", column("id", INT4, key=True))
    stream.transaction(*[table.insert(str(number)) for number in range(50)])
    slices = stream.slices(10)
    await tools.write(tmp_path, stream.position, slices[:3], block_bytes=50)
    assert JournalReader(tmp_path).segments() == []
    assert ["journal.json", "journal.lock", "position.json", "replace.lock"] == sorted(
        path.name for path in tmp_path.rglob("*") if path.is_file()
    )
    assert await tools.write(tmp_path, stream.position, slices) is None
    read = await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    assert len(tools.flat(read)) == 51


async def test_replay_after_a_crash(tmp_path, tools) -> None:
    """After a crash each change is in the journal once, whatever is sent again."""
    expected = tools.flat(tools.shop().slices())
    stream = tools.shop()
    first = stream.slices(3)[:9]
    while first[-1].end_lsn is None:
        first.pop()
    await tools.write(tmp_path, stream.position, first)
    again = tools.shop().slices(4)
    held = await tools.write(tmp_path, stream.position, again[:5], again[5:])
    assert held == stream.position.at(first[-1].end_lsn)
    assert tools.flat(await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])) == expected


async def test_marks_move_the_position(tmp_path, tools) -> None:
    """WAL without published changes makes no segment, and the journal's position follows it."""
    stream = tools.shop(1)
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
    """A transaction with left-out changes is rejected, because ordinals would be lost."""
    stream = tools.shop(1)
    (first, *_) = stream.slices()
    part = Slice(
        first.transaction, [change for change in first.changes if change.ordinal != 0], True, first.end_lsn, 0
    )
    with pytest.raises(PermanentError, match="missing"):
        await tools.write(tmp_path, stream.position, [part])


async def test_foreign_source(tmp_path, tools) -> None:
    """A journal rejects another slot and another cluster."""
    await tools.write(tmp_path, tools.shop().position, tools.shop().slices())
    with pytest.raises(SlotError, match="slot 'test'"):
        await tools.write(tmp_path, tools.shop(slot="other").position)


async def test_a_journal_begins_where_its_slot_did(tmp_path, tools) -> None:
    """A new journal can be read from the slot's position at the last start without content, and not from before it."""
    stream = Stream()
    table = stream.table("t", column("id", INT4, key=True))
    first = stream.position
    await tools.write(tmp_path, first.at(LSN(first.lsn - 1)))
    reader = JournalReader(tmp_path)
    assert first.lsn - 1 == reader.chain().first_readable
    await tools.write(tmp_path, first, [Slice(None, (), True, LSN(first.lsn + 1), 0)])
    for number in range(2):
        stream.transaction(table.insert(str(number)))
        await tools.write(tmp_path, stream.position, stream.slices())
        assert first.lsn == reader.chain().first_readable


async def test_slices_are_written_as_they_arrive(tmp_path, tools) -> None:
    """Accepted slices are in a file before flush, so that memory is bounded; the next start deletes that file."""
    stream = Stream()
    table = stream.table("t", column("id", INT4, key=True))
    stream.transaction(*[table.insert(str(number)) for number in range(100)])
    sink = tools.sink(tmp_path, block_bytes=100)
    await tools.opened(sink, stream.position)
    await sink.write(Batch(tuple(stream.slices())))
    (partial,) = tmp_path.glob("segments/*.partial")
    assert partial.stat().st_size > 1000

    left = partial.with_name(f"{partial.name}.partial")
    left.write_bytes(partial.read_bytes())
    await sink.close()
    await tools.write(tmp_path, stream.position, ())
    assert [] == list(tmp_path.rglob("*.partial"))


async def test_one_writer(tmp_path, tools) -> None:
    """A second writer is rejected with the folder's name, until the first one has closed."""
    stream = tools.shop(1)
    sink = JournalSink(tmp_path)
    await sink.open(SinkContext("journal", stream.position))
    with pytest.raises(JournalError, match=tmp_path.name):
        await tools.write(tmp_path, stream.position)
    await sink.close()
    await tools.write(tmp_path, stream.position)


async def test_an_open_behind_close(tmp_path, tools) -> None:
    """A thread of a cancelled open that runs after ``close`` takes no lock."""
    stream = tools.shop()
    late, other = JournalSink(tmp_path), JournalSink(tmp_path)
    await late.close()
    with pytest.raises(JournalError, match="is closed"):
        await late.open(SinkContext("journal", stream.position))
    await other.open(SinkContext("journal", stream.position))
    await other.close()


@pytest.mark.parametrize("call", ["write", "flush"])
async def test_a_call_behind_close(tmp_path, tools, call: str) -> None:
    """A thread of a cancelled call that runs after ``close`` records nothing as durable."""
    stream = tools.shop(1)
    batch = Batch(tuple(stream.slices()))
    sink = JournalSink(tmp_path)
    await sink.open(SinkContext("journal", stream.position))
    await sink.write(batch)
    await sink.close()
    with pytest.raises(JournalError, match="is closed"):
        await (sink.write(batch) if call == "write" else sink.flush())
    assert JournalReader(tmp_path).position() is None
    await tools.write(tmp_path, stream.position, batch.slices)
    assert JournalReader(tmp_path).position().lsn == stream.ends[-1]


@pytest.mark.parametrize("rounds", [1, 2, 3])
async def test_a_close_that_is_cancelled(tmp_path, tools, rounds: int) -> None:
    """A ``close`` that is cancelled at any time releases the journal for another writer."""
    stream = tools.shop(1)
    sink = JournalSink(tmp_path)
    await sink.open(SinkContext("journal", stream.position))
    closing = asyncio.create_task(sink.close())
    for _ in range(rounds):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    async with asyncio.timeout(60):
        while True:
            try:
                await tools.write(tmp_path, stream.position)
                return
            except JournalError:
                await asyncio.sleep(0)


@pytest.mark.parametrize("block_bytes", [100, 100_000])
async def test_descriptions_that_differ_only_in_the_columns_numbers(
    tmp_path, tools, block_bytes: int
) -> None:
    """A column that was dropped and created again has the number of its time, in every block and truncate."""
    stream, table = Stream(), None
    expected = []
    for number in (1, 2, 1, 3):
        others = stream.table("other", column("id", INT4, key=True))
        table = stream.table("t", column("id", INT4, key=True), column("note"), replaces=table)
        both = truncate(relations=[others.oid, table.oid])
        stream.transaction(others.insert("1"), table.insert("1", "x"), both, table.insert("2", "y"))
        expected += [None, number, (None, number), number]
    slices = stream.slices()
    for number, part in zip((1, 2, 1, 3), slices, strict=True):
        part.changes[1].relation.attributes["note"] = Attribute(number)

    await tools.write(tmp_path, stream.position, slices, block_bytes=block_bytes)

    def noted(relation: Relation) -> int | None:
        return relation.attributes["note"].number if relation.attributes else None

    found = await tools.read(JournalReader(tmp_path), LSN(0), stream.ends[-1])
    assert expected == [
        tuple(map(noted, change.relations)) if change.kind == "truncate" else noted(change.relation)
        for part in found
        for change in part.changes
    ]
