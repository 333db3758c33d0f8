"""A cursor has one owner, a sink or a query; no other consumer can use its name."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import IntegerType, StructType

from aiorepl import ConfigurationError, Pipeline
from aiorepl.errors import JournalError
from aiorepl.journal import Cursors, prune
from aiorepl.lsn import LSN
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.spark.reading.stream_reader import StreamReader
from aiorepl.storage.local import LocalStore
from aiorepl.testing import MemorySink, MemorySource
from aiorepl.testing.messages import column

pytestmark = pytest.mark.xdist_group("spark")

ID = column("id", 23, key=True)
SCHEMA = StructType().add("id", IntegerType())


def append(journal: Any, key: int) -> None:
    """Append a segment with one row."""
    journal.stream.transaction(journal.stream.table("t", ID).insert(str(key)))
    journal.write()


def stream(spark: Any, journal: Any, checkpoint: Any, *, fail: bool = False, **options: str) -> list[int]:
    """Return the rows of a query that ends at the journal's end."""
    seen: list[int] = []

    def process(frame: Any, number: int) -> None:
        seen.extend(row["id"] for row in frame.collect())
        if fail:
            raise ValueError("failed on purpose")

    query = journal.read(spark, stream=True, **options).writeStream.foreachBatch(process)
    query = query.option("checkpointLocation", str(checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(240)
    return seen


class Run:
    """One run of a query, called as Spark calls it; ``end`` is the checkpoint's offset."""

    def __init__(self, journal: Any, **options: str) -> None:
        texts = {"journal": str(journal.folder), "table": "public.t", **options}
        self.reader = StreamReader(ReadOptions.parse(texts), SCHEMA)

    def first_batch(self) -> dict[str, Any]:
        end = self.reader.latestOffset(self.reader.initialOffset(), ReadAllAvailable())
        self.reader.partitions(self.reader.initialOffset(), end)
        return end

    def next_batch(self, start: dict[str, Any]) -> dict[str, Any]:
        end = self.reader.latestOffset(start, ReadAllAvailable())
        if end != start:
            self.reader.partitions(start, end)
        self.reader.commit(start)
        return end

    def segments(self, start: dict[str, Any], end: dict[str, Any]) -> int:
        return len({span.segment for part in self.reader.partitions(start, end) for span in part.spans})


def test_names_of_sinks_and_queries(spark, tmp_path, make_journal) -> None:
    """A query cannot use the cursor of a sink, nor a sink that of a query."""
    journal = make_journal(slot="memory")
    append(journal, 1)
    assert stream(spark, journal, tmp_path / "query", consumer="query") == [1]

    def run(**sinks: MemorySink) -> None:
        asyncio.run(
            Pipeline(
                MemorySource(stream=journal.stream), sinks, journal=str(journal.folder), until="now"
            ).run()
        )

    run(sink=MemorySink())
    before = {name: Cursors(journal.folder).get(name) for name in ("sink", "query")}
    with pytest.raises(
        Exception, match=r"cursor 'sink' .* belongs to a sink: choose another name .* journal drop"
    ):
        stream(spark, journal, tmp_path / "other", consumer="sink")
    other = MemorySink()
    with pytest.raises(
        ConfigurationError, match=r"cursor 'query' .* belongs to a Spark query: give the sink another"
    ):
        run(query=MemorySink(), other=other)
    assert len(other.changes) == 1
    assert before == {name: Cursors(journal.folder).get(name) for name in before}


def test_a_second_query(spark, journal, tmp_path) -> None:
    """A query with another checkpoint is rejected until the cursor is dropped; the first one continues."""
    append(journal, 1)
    assert stream(spark, journal, tmp_path / "one", consumer="q") == [1]
    append(journal, 2)
    with pytest.raises(Exception, match="belongs to another Spark query"):
        stream(spark, journal, tmp_path / "two", consumer="q")
    assert stream(spark, journal, tmp_path / "one", consumer="q") == [2]
    Cursors(journal.folder).remove("q")
    assert stream(spark, journal, tmp_path / "two", consumer="q") == [1, 2]


@pytest.mark.parametrize("options", [{}, {"consumer": "q"}])
def test_a_failed_first_batch(spark, journal, tmp_path, options) -> None:
    """A query that begins at the end and fails in its first batch receives that batch again."""
    append(journal, 1)
    with pytest.raises(Exception, match="failed on purpose"):
        stream(spark, journal, tmp_path / "c", fail=True, **options)
    append(journal, 2)
    assert stream(spark, journal, tmp_path / "c", startingPosition="latest", **options) == [1, 2]


def test_the_end_moves_before_the_first_batch(journal) -> None:
    """A query that begins at the end keeps that position, even if the journal grows or the query restarts before its first batch."""
    append(journal, 1)
    first = Run(journal, startingPosition="latest", consumer="q")
    start = first.reader.initialOffset()
    append(journal, 2)
    assert first.reader.initialOffset() == start
    end = first.reader.latestOffset(start, ReadAllAvailable())
    assert first.segments(start, end) == 1
    append(journal, 3)
    again = Run(journal, startingPosition="latest", consumer="q")
    assert again.segments(again.reader.initialOffset(), end) == 1
    assert Cursors(journal.folder).get("q").lsn == journal.stream.ends[0]


def test_two_queries_at_once(journal) -> None:
    """Of two new queries with one name, the second one to read is rejected, and moves nothing."""
    append(journal, 1)
    one, two = Run(journal, consumer="q"), Run(journal, consumer="q")
    two.reader.initialOffset()
    start = one.first_batch()
    with pytest.raises(ConfigurationError, match="another Spark query"):
        two.first_batch()
    append(journal, 2)
    one.next_batch(start)
    assert Cursors(journal.folder).get("q").lsn == journal.stream.ends[0]


def test_a_restart_registers_before_it_reads(journal) -> None:
    """A query whose cursor was dropped registers it again at its checkpoint."""
    append(journal, 1)
    end = Run(journal, consumer="q").first_batch()
    Cursors(journal.folder).remove("q")
    Run(journal, consumer="q").reader.latestOffset(end, ReadAllAvailable())
    assert Cursors(journal.folder).get("q").lsn == journal.stream.ends[0]


@pytest.mark.parametrize("beyond", [0, 0x1000])
def test_a_refused_query_registers_nothing(journal, beyond) -> None:
    """A query whose checkpoint is before the journal's first segment, or after its end, leaves no cursor that stops retention."""
    append(journal, 1)
    end = Run(journal, consumer="").first_batch()
    append(journal, 2)
    append(journal, 3)
    Cursors(journal.folder).advance("all", journal.stream.position.at(journal.stream.ends[-1]))
    assert prune(journal.folder)
    end["lsn"] = str(LSN(LSN.parse(end["lsn"]) + beyond))
    with pytest.raises(JournalError, match="the query's checkpoint is"):
        Run(journal, consumer="q").reader.latestOffset(end, ReadAllAvailable())
    with pytest.raises(JournalError, match="the query's checkpoint is"):
        Run(journal, consumer="q").reader.partitions(end, end)
    append(journal, 4)
    Cursors(journal.folder).advance("all", journal.stream.position.at(journal.stream.ends[-1]))
    assert prune(journal.folder)


def test_a_cursor_that_cannot_be_written(journal, monkeypatch, caplog) -> None:
    """If a commit cannot write the cursor, a transient error leaves it to the next commit, and any other ends the query; a start
    fails.
    """
    append(journal, 1)
    run = Run(journal, consumer="q")
    end = run.first_batch()
    error = OSError(errno.ENOSPC, "No space left on device")

    def write(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "replace", write)
        run.reader.commit(end)
        assert "No space left on device: make room" in caplog.text
        with pytest.raises(JournalError, match=r"cannot write cursor 'p' .*: No space left"):
            Run(journal, consumer="p").first_batch()
        error = OSError(errno.EACCES, "Permission denied")
        with pytest.raises(JournalError, match=r"cannot write cursor 'q' .*: Permission denied"):
            run.reader.commit(end)
    assert Cursors(journal.folder).get("q").lsn == 0
    run.reader.commit(end)
    assert Cursors(journal.folder).get("q").lsn == journal.stream.ends[0]


def without_query(offset: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in offset.items() if name not in ("query", "start")}


def test_an_offset_without_a_query(journal) -> None:
    """An offset with a start but without a query's identity is an error that says what to do."""
    append(journal, 1)
    run = Run(journal)
    end = run.first_batch()
    del end["query"]
    with pytest.raises(JournalError, match=r"an offset without 'query'\. Start over with an empty target"):
        run.reader.latestOffset(end, ReadAllAvailable())
