"""Where queries begin, and which journals they reject: Spark verifies the same chain as every other reader."""

from __future__ import annotations

import asyncio
import re
import shutil
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import IntegerType, StructType

from aiorepl.journal import Cursors, JournalReader, JournalSink, prune
from aiorepl.lsn import LSN
from aiorepl.sink import SinkContext
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.spark.reading.stream_reader import StreamReader
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

pytestmark = pytest.mark.xdist_group("spark")

ID = column("id", 23, key=True)


@pytest.fixture
def five(journal) -> Any:
    """Five segments with one row each."""
    table = journal.stream.table("t", ID)
    for key in range(5):
        journal.stream.transaction(table.insert(str(key)))
        journal.write()
    return journal


def batch(spark: Any, journal: Any, **options: str) -> list[int]:
    return [row["id"] for row in journal.rows(spark, **options)]


def stream(spark: Any, journal: Any, checkpoint: Any = None, **options: str) -> list[int]:
    """Return the rows of a query that ends at the journal's end."""
    seen: list[int] = []
    query = journal.read(spark, stream=True, **options).writeStream.foreachBatch(
        lambda frame, number: seen.extend(row["id"] for row in frame.collect())
    )
    if checkpoint is not None:
        query = query.option("checkpointLocation", str(checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(240)
    return seen


def links(journal: Any) -> list[str]:
    return [segment.file for segment in JournalReader(journal.folder).segments()]


def pruned(journal: Any, segments: int) -> None:
    position = journal.stream.position.at(journal.stream.ends[segments - 1])
    Cursors(journal.folder).advance("all", position)
    assert len(prune(journal.folder)) == segments
    Cursors(journal.folder).remove("all")


@pytest.mark.parametrize("read", [batch, stream])
def test_a_pruned_beginning(spark, five, read) -> None:
    """A new query begins after the pruned part only if it is told to."""
    pruned(five, 2)
    with pytest.raises(Exception, match="startingPosition: earliest") as caught:
        read(spark, five)
    assert "were pruned" in str(caught.value)
    assert read(spark, five, startingPosition="earliest") == [2, 3, 4]
    assert read(spark, five, startingPosition=str(five.stream.ends[2])) == [3, 4]
    with pytest.raises(Exception, match="were pruned"):
        read(spark, five, startingPosition=str(five.stream.ends[0]))


def test_latest(spark, five, tmp_path) -> None:
    """A stream that begins at the end receives later rows; a batch would be empty, and is rejected."""
    assert stream(spark, five, tmp_path / "c", startingPosition="latest") == []
    five.stream.transaction(five.stream.table("t", ID).insert("9"))
    five.write()
    # A checkpoint counts, and not the option.
    assert stream(spark, five, tmp_path / "c", startingPosition="earliest") == [9]
    with pytest.raises(Exception, match="cannot be latest"):
        batch(spark, five, startingPosition="latest")


@pytest.mark.parametrize("table", ["public.t", None])
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
@pytest.mark.by_day
def test_within_a_segment(spark, journal, table, block_bytes) -> None:
    """A query may begin after any transaction or message."""
    rows = journal.stream.table("t", ID)
    ends = []
    for key in range(4):
        ends.append(journal.stream.transaction(rows.insert(str(key)), rows.insert(str(key + 10))))
        ends.append(journal.stream.message("between"))
    journal.write(block_bytes=block_bytes)
    assert journal.segments == 1
    whole = journal.rows(spark, table)
    position = "_commit_lsn" if table else "commit_lsn"
    for end in (ends[0], ends[1], ends[4], ends[-1]):
        expected = [
            row
            for row in whole
            if row[position] > end or (row[position] == end and row.get("op") != "message")
        ]
        assert journal.rows(spark, table, startingPosition=str(end)) == expected
    assert len(whole) == (8 if table else 12)


@pytest.mark.parametrize("read", [batch, stream])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_lost_segment(spark, five, read, number) -> None:
    """A missing segment, in the middle or at the end, ends the query with its name."""
    lost = links(five)[number]
    (five.folder / lost).unlink()
    with pytest.raises(Exception, match=lost):
        read(spark, five)


@pytest.mark.parametrize("place", [20, -200], ids=["block", "index"])
def test_a_flipped_bit(spark, five, place) -> None:
    """A damaged file ends the query with its name, wherever it is read."""
    path = five.folder / links(five)[3]
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=path.name):
        batch(spark, five)


def test_a_lost_segment_under_a_checkpoint(spark, five, tmp_path) -> None:
    """A query that continues from its checkpoint verifies all segments, not only the first."""
    assert stream(spark, five, tmp_path / "c") == [0, 1, 2, 3, 4]
    table = five.stream.table("t", ID)
    for key in range(5, 8):
        five.stream.transaction(table.insert(str(key)))
        five.write()
    lost = links(five)[6]
    (five.folder / lost).unlink()
    with pytest.raises(Exception, match=lost):
        stream(spark, five, tmp_path / "c")


def test_a_checkpoint_ahead_of_the_journal(spark, five, tmp_path) -> None:
    """A journal that was restored from an older copy is rejected, because it lacks what the checkpoint has."""
    shutil.copytree(five.folder, tmp_path / "copy")
    table = five.stream.table("t", ID)
    five.stream.transaction(table.insert("5"))
    five.write()
    assert len(stream(spark, five, tmp_path / "c")) == 6
    shutil.rmtree(five.folder)
    (tmp_path / "copy").rename(five.folder)
    with pytest.raises(Exception, match=r"the query's checkpoint is at .* after the end of the journal"):
        stream(spark, five, tmp_path / "c")


def test_a_checkpoint_in_the_pruned_part(spark, five, tmp_path) -> None:
    """A query without a cursor whose position was pruned is rejected, whatever its options say."""
    assert stream(spark, five, tmp_path / "c", consumer="") == [0, 1, 2, 3, 4]
    table = five.stream.table("t", ID)
    for key in (5, 6, 7):
        five.stream.transaction(table.insert(str(key)))
        five.write()
    pruned(five, 7)
    with pytest.raises(Exception, match="the query's checkpoint is before that"):
        stream(spark, five, tmp_path / "c", startingPosition="earliest", consumer="")


@pytest.mark.parametrize("read", [batch, stream])
def test_an_accepted_gap(spark, five, read) -> None:
    """A gap that was accepted into the journal is skipped; a query cannot begin inside it."""
    end = five.stream.ends[-1]
    until = five.stream.position.at(LSN(end + 0x5000))

    async def skip() -> None:
        sink = JournalSink(five.folder)
        await sink.open(SinkContext("journal", five.stream.position))
        await sink.skip(end, until)
        await sink.close()

    asyncio.run(skip())
    five.stream = Stream(start=until.lsn)
    five.stream.transaction(five.stream.table("t", ID).insert("9"))
    five.write()
    assert read(spark, five) == [0, 1, 2, 3, 4, 9]
    with pytest.raises(Exception, match="inside the gap"):
        read(spark, five, startingPosition=str(LSN(end + 0x10)))


def test_a_query_is_told_what_it_lacks(journal, caplog) -> None:
    """A new query is told once why its table is not whole, and not of other tables; one that goes on, when its table is replaced."""
    reader = StreamReader(
        ReadOptions.parse({"journal": str(journal.folder), "table": "public.t"}),
        StructType().add("id", IntegerType()),
    )
    table, other = journal.stream.table("t", ID), journal.stream.table("other", ID)
    journal.stream.transaction(table.insert("1"), other.insert("1"))
    journal.write()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.partitions(start, end)
    assert [
        f"public.t (it has been in the stream since {journal.stream.position.lsn}, without a snapshot)"
    ] == told(caplog)
    journal.stream.transaction(
        journal.stream.table("t", ID).insert("2"), journal.stream.table("u", ID).insert("1")
    )
    journal.write()
    reader.partitions(end, reader.latestOffset(end, ReadAllAvailable()))
    again = f"public.t (another table has this name since {journal.stream.ends[0]}, without a snapshot)"
    assert [again] == told(caplog)


def told(caplog: Any) -> list[str]:
    """Return the tables that were warned of since the last call."""
    found = [re.search(r"all rows of ([^:]*)", record.getMessage()) for record in caplog.records]
    caplog.clear()
    return [each[1] for each in found if each]


def test_a_new_query_with_an_old_cursor(spark, five, tmp_path) -> None:
    """After its cursor was dropped, a new query of the same name starts at the beginning."""
    assert len(stream(spark, five, tmp_path / "one", consumer="q")) == 5
    with pytest.raises(Exception, match=r"belongs to another Spark query.* journal drop"):
        stream(spark, five, tmp_path / "two", consumer="q")
    Cursors(five.folder).remove("q")
    query = five.read(spark, stream=True, consumer="q", maxBytesPerTrigger="1")
    seen: list[Any] = []
    writer = query.writeStream.foreachBatch(
        lambda frame, number: seen.append(Cursors(five.folder).get("q").lsn)
    )
    assert writer.trigger(availableNow=True).start().awaitTermination(240)
    assert seen[0] < five.stream.ends[0]
