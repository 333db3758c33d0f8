"""From which position a table is complete: whatever a reader lacks, it is told."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import orjson
import pytest

from aiorepl.errors import DamagedJournal
from aiorepl.journal import Cursors, JournalReader, prune
from aiorepl.journal.completeness import (
    Completeness,
    Gap,
    PublishedChunk,
    completeness_name,
    dump_completeness,
    load_completeness,
)
from aiorepl.lsn import LSN
from aiorepl.storage.checked_json import seal
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.transaction import SnapshotChunk

A, B = ("public", "a"), ("public", "b")


def chunk(oid, table, snapshot_lsn=1000, **flags):
    """The only chunk of a table."""
    return SnapshotChunk(LSN(snapshot_lsn), oid, *table, 1, **{"last_of_table": True, **flags})


def reasons(completeness, begins, table=None):
    """The tables that a reader lacks, with reasons; the same once they were written and read."""
    data = dump_completeness(completeness)
    read = load_completeness(completeness_name(1, 2, data), data, "a file")
    assert completeness == read
    return {(each.schema, each.table): each.reason for each in read.incomplete(LSN(begins), table)}


def snapshots():
    """Snapshots of two tables, at 50 and 60."""
    both = Completeness().with_chunk(chunk(1, A), LSN(50), LSN(51))
    return both.with_chunk(chunk(2, B), LSN(60), LSN(61))


def test_a_reader_after_the_snapshot():
    """It lacks the tables whose snapshots are before it, and is told of all, or of the one that it reads."""
    found = snapshots()
    assert {} == reasons(found, 50)
    assert [A] == list(reasons(found, 51))
    assert {A: "its snapshot is before that, at 0/32"} == reasons(found, 51, A)
    assert {} == reasons(found, 51, B)
    assert (LSN(50), LSN(60)) == (found.complete_from(A), found.complete_from(B))
    assert "neither a snapshot nor a change" in reasons(found, 0, ("public", "c"))["public", "c"]


def test_readings_are_told_apart():
    """A chunk completes the reading to which it belongs, also one that an initial snapshot began, and no other one."""
    first = Completeness().with_chunk(chunk(1, A, last_of_table=False, reading="x-1"), LSN(50), LSN(51))
    assert frozenset() == first.readings

    def last(reading):
        return replace(chunk(1, A, reading=reading), number=2)

    assert first == first.with_chunk(last("x-2"), LSN(60), LSN(61))
    assert first == first.with_chunk(last(""), LSN(60), LSN(61))
    assert {"x-1"} == first.with_chunk(last("x-1"), LSN(60), LSN(61)).readings
    again = first.with_chunk(chunk(1, A, reading="x-2"), LSN(70), LSN(71))
    assert ({"x-2"}, [LSN(70)]) == (again.readings, [table.start_lsn for table in again.tables])

    initial = Completeness().with_chunk(chunk(1, A, last_of_table=False), LSN(50), LSN(51))
    continued = initial.with_chunk(last("x-1"), LSN(60), LSN(61))
    assert LSN(50) == continued.complete_from(A)
    assert {} == reasons(continued, 50)


def test_a_record_of_an_earlier_version():
    """A table without the identity of its reading is complete as before."""
    fields = orjson.loads(dump_completeness(snapshots()).splitlines()[0])
    for table in fields["tables"]:
        del table["reading"]
    data = seal(fields)
    read = load_completeness(completeness_name(1, 2, data), data, "a file")
    assert (snapshots(), frozenset()) == (read, read.readings)


def test_a_table_without_a_snapshot():
    """A table that is added later is not complete for anybody, until its snapshot is, also one that is being read."""
    found = snapshots().with_rows([(1, A), (3, ("public", "c")), (3, ("public", "c"))], LSN(200), LSN(210))
    assert {("public", "c"): "it has been in the stream since 0/C8, without a snapshot"} == reasons(found, 0)
    assert found is found.with_rows([(3, ("public", "c"))], LSN(300), LSN(310)), "only what is new is written"
    ranges = ((0, 209), (0, 210), (209, 210), (210, 300))
    counts = [len(found.appeared_between(LSN(after), LSN(until))) for after, until in ranges]
    assert [0, 1, 1, 0] == counts, "a reader may be within the segment"
    partial = found.with_chunk(chunk(3, ("public", "c"), partial=True), LSN(310), LSN(311))
    assert partial == found
    reading = found.with_chunk(chunk(3, ("public", "c"), last_of_table=False), LSN(310), LSN(311))
    assert {} == reasons(reading, 50)
    assert None is reading.complete_from(("public", "c"))
    assert {("public", "c"): "its snapshot was not completed"} == reasons(reading.abandoned(()), 50)


def test_a_table_that_is_created_again():
    """Another oid under the same name begins in the middle; so do renamed tables, under both names."""
    again = snapshots().with_rows([(9, A)], LSN(200), LSN(210))
    assert {A: "another table has this name since 0/C8, without a snapshot"} == reasons(again, 0)
    assert {} == reasons(again.with_chunk(chunk(9, A), LSN(300), LSN(301)), 60)
    swapped = snapshots().with_rows([(1, B), (2, A)], LSN(200), LSN(210))
    assert [A, B] == list(reasons(swapped, 0))
    renamed = snapshots().with_rows([(1, ("public", "c"))], LSN(200), LSN(210))
    assert [("public", "c")] == list(reasons(renamed, 0))
    assert [("public", "c")] == list(
        reasons(renamed.with_chunk(chunk(1, ("public", "c")), LSN(300), LSN(301)), 301)
    )[-1:]


def test_a_gap():
    """A table is complete after an accepted gap only with a snapshot that is later."""
    found = snapshots()
    gap = Completeness((Gap(LSN(200), LSN(300), LSN(200)),), found.tables)
    assert "transactions from 0/C8 to 0/12C are missing, after its snapshot at 0/32" == reasons(gap, 0)[A]
    assert None is gap.complete_from(A)
    assert [B] == list(reasons(gap.with_chunk(chunk(1, A), LSN(310), LSN(311)), 0))
    assert A in reasons(gap.with_chunk(chunk(1, A, 299), LSN(310), LSN(311)), 0)


async def test_the_file_of_another_journal(tmp_path, tools):
    """A file that another writer made with the same epoch and sequence number is refused, by writers and readers."""
    for name in ("a", "b"):
        stream = Stream()
        stream.transaction(stream.table(name, column("id", 23, key=True)).insert("1"))
        await tools.write(tmp_path / name, stream.position, stream.slices())
    (one,), (other,) = ((tmp_path / name / "completeness").iterdir() for name in ("a", "b"))
    assert one.name[:21] == other.name[:21]
    one.write_bytes(other.read_bytes())
    reader = JournalReader(tmp_path / "a")
    with pytest.raises(DamagedJournal, match="another journal's"):
        reader.incomplete(reader.chain(), LSN(0))
    with pytest.raises(DamagedJournal, match="another journal's"):
        await tools.write(tmp_path / "a", stream.position)


async def test_readers_of_a_stream(tmp_path, tools, caplog):
    """A new reader is told of the tables that it lacks; one that follows, of those that come later, once."""
    caplog.set_level(logging.INFO, "aiorepl.journal")
    stream = Stream()
    one = stream.table("one", column("id", 23, key=True))
    stream.transaction(one.insert("1"))
    await tools.write(tmp_path, stream.position, stream.slices())
    reader = JournalReader(tmp_path)
    await tools.read(reader, LSN(0), stream.ends[-1])
    (record,) = caplog.records
    assert logging.INFO == record.levelno, "the journal has no snapshots at all"
    assert "public.one (it has been in the stream since" in record.getMessage()
    assert 'pipeline.resnapshot("public.one")' in record.getMessage()
    caplog.clear()

    first = stream.ends[-1]
    stream.transaction(one.insert("2"))
    again = stream.table("one", column("id", 23, key=True))
    stream.transaction(again.insert("3"))
    await tools.write(tmp_path, stream.position, stream.slices())
    await tools.read(reader, first, stream.ends[-1])
    (record,) = caplog.records
    assert logging.WARNING == record.levelno
    assert "public.one (another table has this name since" in record.getMessage()
    caplog.clear()
    stream.transaction(again.insert("4"))
    await tools.write(tmp_path, stream.position, stream.slices())
    await tools.read(reader, stream.ends[-2], stream.ends[-1])
    assert [] == caplog.records
    Cursors(tmp_path).advance("c", stream.position.at(stream.ends[-1]))
    assert prune(tmp_path)
    assert "public.one (another table" in reader.incomplete(reader.chain(), LSN(0))


@pytest.mark.parametrize("rows", [0, 2])
def test_nothing_of_a_name_that_is_gone(rows):
    """A snapshot of the present table of a name replaces what is recorded of the earlier one."""
    found = (
        snapshots().with_rows([(9, A)] * rows, LSN(200), LSN(210)).with_chunk(chunk(9, A), LSN(300), LSN(301))
    )
    assert {} == reasons(found, 300, A)
    assert 2 == len(found.tables)


def test_chunks_together_as_one_by_one():
    """Chunks that are added together, to any state, record what they record one by one."""
    draw = random.Random(7)
    names = [("public", name) for name in "abcdef"]
    for _ in range(300):
        found = Completeness((Gap(LSN(1), LSN(2), LSN(1)),))
        for number in range(draw.randrange(6)):
            rows = [(draw.randrange(5), draw.choice(names))]
            found = found.with_rows(rows, LSN(number), LSN(number + 1))
        many = []
        for lsn in range(100, 100 + draw.randrange(20)):
            flags = {"last_of_table": draw.random() < 0.5, "partial": draw.random() < 0.2}
            part = SnapshotChunk(
                LSN(50), draw.randrange(5), *draw.choice(names), draw.choice((1, 2)), **flags
            )
            many.append(PublishedChunk(part, LSN(lsn), LSN(lsn + 1)))
        at = draw.randrange(len(many) + 1)
        together = found.with_chunks(many[:at]).with_chunks(many[at:])
        for each in many:
            found = found.with_chunk(*each) if each.decisive else found
        assert found.gaps == together.gaps
        assert set(found.tables) == set(together.tables)
        assert set(found.appeared) == set(together.appeared)
        assert len(found.tables) == len(together.tables)
        assert all(reasons(found, begins) == reasons(together, begins) for begins in (0, 60, 110))
