"""A journal in a bucket: what its readers ask for, and what retention leaves."""

from __future__ import annotations

import pytest

from aiorepl.journal import Cursors, JournalReader, prune
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
async def place(bucket, stream, tools):
    """A journal of four segments in a bucket."""
    table = stream.table("t", column("id", 23, key=True))
    for number in range(4):
        stream.transaction(table.insert(str(number)))
        await tools.write(bucket.location(), stream.position, stream.slices())
    return bucket.location()


async def test_readers_list_nothing(place, bucket, layer, stream, tools):
    """A reader finds the segments by their names alone, and a look at an idle journal is one request."""
    reader = JournalReader(bucket.location(endpoint=layer.endpoint))
    read = await tools.read(reader, 0, stream.units[-1][0])
    assert tools.committed(stream) == tools.changes_of(tools.flat(read))
    assert not [path for _, path in layer.requests if "list-type" in path or "prefix=" in path]
    layer.requests.clear()
    reader.chain()
    assert 1 == len(layer.requests)


async def test_retention(place, bucket, stream, tools):
    """What every cursor has passed is deleted from the bucket, and readers go on from the rest."""
    ends = [end for end, _ in stream.units]
    Cursors(place).advance("c", stream.position.at(ends[1]))
    assert 2 == len(prune(place))
    assert 2 == len([name for name in bucket.names() if name.endswith(".segment")])
    assert ends[1] == JournalReader(place).chain().start_lsn
    read = await tools.read(JournalReader(place), Cursors(place).get("c").lsn, ends[-1])
    assert [2, 3] == [change.new["id"] for part in read for change in part.changes]
    assert [] == prune(place)
