"""A transaction that is larger than a segment is uploaded in parts, and published whole."""

from __future__ import annotations

import pytest

from aiorepl.journal import JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.journal.verification import problems
from aiorepl.lsn import LSN
from aiorepl.sink import Batch
from aiorepl.spark.reading.blocks import latest, plan
from aiorepl.spark.reading.generic import changes
from aiorepl.table_name import TableName
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

ROWS = 100


@pytest.fixture
def stream() -> Stream:
    """Three transactions, of which the second is large and has rows of two tables."""
    stream = Stream()
    small = stream.table("small", column("id", 23, key=True))
    large = stream.table("large", column("id", 23, key=True), column("note"))
    stream.transaction(small.insert("0"))
    rows = [large.insert(str(number), "x" * 20) for number in range(ROWS)]
    stream.transaction(*rows, small.insert("1"), origin="north")
    stream.transaction(small.insert("2"))
    return stream


@pytest.fixture
async def parts(tmp_path, tools, stream) -> JournalReader:
    """A journal whose second segment has several parts of several blocks."""
    slices = stream.slices(7)
    batches = [slices[start : start + 3] for start in range(0, len(slices), 3)]
    await tools.write(tmp_path, stream.position, *batches, block_bytes=200, segment_bytes=600)
    reader = JournalReader(tmp_path)
    assert max(segment.parts for segment in reader.segments()) > 4
    return reader


async def test_parts_are_published_together(tmp_path, tools, stream) -> None:
    """Parts are uploaded as they become full, and no reader sees one before the commit."""
    slices = stream.slices(7)
    sink = tools.sink(tmp_path, block_bytes=200, segment_bytes=600)
    await tools.opened(sink, stream.position)
    seen = set()
    for part in slices[:-2]:
        await sink.write(Batch((part,)))
        await sink.flush()
        seen.add((len(list(tmp_path.glob("segments/*"))), len(JournalReader(tmp_path).segments())))
    assert (5, 1) in seen
    assert {1} == {published for _, published in seen}
    await sink.write(Batch(tuple(slices[-2:])))
    await sink.flush()
    await sink.close()
    reader = JournalReader(tmp_path)
    read = await tools.read(reader, LSN(0), stream.ends[-1])
    assert tools.flat(slices) == tools.flat(read)
    assert list(problems(tmp_path)) == []


async def test_readers_get_whole_transactions(parts, tools, stream) -> None:
    """A reader gets all changes with their ordinals from any position, and only the last slice has the end."""
    slices = stream.again()
    assert tools.flat(slices) == tools.flat(await tools.read(parts, LSN(0), stream.ends[-1]))
    for number, end in enumerate(stream.ends[:-1], 1):
        read = await tools.read(parts, end, stream.ends[-1])
        assert tools.flat(slices[number:]) == tools.flat(read)


async def test_a_transaction_that_was_left_in_the_middle(tmp_path, tools, stream) -> None:
    """Parts of a transaction that a writer did not finish are not read; the next writer makes its own."""
    slices = stream.slices(7)
    options = {"block_bytes": 200, "segment_bytes": 600}
    await tools.write(tmp_path, stream.position, *([part] for part in slices[:10]), **options)
    assert [] != list(tmp_path.glob("segments/*"))
    assert 1 == len(JournalReader(tmp_path).segments())
    await tools.write(tmp_path, stream.position, *([part] for part in slices), **options)
    reader = JournalReader(tmp_path)
    assert tools.flat(slices) == tools.flat(await tools.read(reader, LSN(0), stream.ends[-1]))
    files = {path.name for path in tmp_path.glob("segments/*")}
    assert files == {f"{segment.name}.segment" for segment in reader.segments()}


def rows(reader: JournalReader, table: TableName | None, start: BlockPosition, end: BlockPosition) -> list:
    """Return LSN and ordinal of every row between two positions, as Spark's tasks read them."""
    found = []
    for spans in plan(reader, reader.chain(), table, 500, start, end):
        for span in spans:
            for header, ordinal, message in changes(reader, span):
                relation = getattr(message, "relation", None)
                if table is None or relation is None or table.is_of(relation):
                    found.append((header.commit_lsn, ordinal))
    return found


@pytest.mark.parametrize("max_bytes", [1, 450, 1000, 10**6])
@pytest.mark.parametrize("table", [None, "small", "large"])
async def test_batches_within_a_transaction(parts, stream, table, max_bytes: int) -> None:
    """Batches of bounded size have every row once, in order, and are planned again as they were."""
    name = None if table is None else TableName.parse(table)
    chain = parts.chain()
    position, end, seen, sizes = BlockPosition(LSN(0)), BlockPosition(chain.last_segment_end), [], []
    while position != end:
        after = latest(parts, chain, position, max_bytes)
        assert after > position
        found = rows(parts, name, position, after)
        assert found == rows(parts, name, position, after)
        seen += found
        sizes.append(len(found))
        position = after
    assert seen == rows(parts, name, BlockPosition(LSN(0)), end)
    assert sorted(set(seen)) == seen
    assert {"small": 3, "large": ROWS}.get(table, ROWS + 3) == len(seen)
    if max_bytes < 10**6 and table != "small":
        assert max(sizes) < ROWS
