"""The statistics of a snapshot, and how they are shown."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from aiorepl.cli.snapshot_progress import SnapshotProgress
from aiorepl.snapshot.chunks import SnapshotPlan, TablePlan
from aiorepl.snapshot.initial.snapshot import counters
from aiorepl.snapshot.statistics import (
    Repeated,
    SnapshotStatistics,
    TableCounters,
    TableStatistics,
    WalRetention,
    describe,
)

GIB = 1 << 30


def table(name: str, state: str = "reading", **fields: object) -> TableStatistics:
    return TableStatistics(f"public.{name}", state, **fields)


@pytest.mark.parametrize(
    ("found", "done"),
    [
        (table("t"), 0.0),
        (table("t", chunks=4, chunks_done=1, rows=90, estimated_rows=100), 0.25),
        (table("t", chunks=1, rows=25, estimated_rows=100), 0.25),
        # The estimate is too low: it is not complete before it is.
        (table("t", chunks=1, rows=900, estimated_rows=100), 0.99),
        (table("t", "delivered", chunks=1, rows=1, estimated_rows=100), 1.0),
        (table("t", "queued"), 0.0),
    ],
)
def test_part_of_a_table(found, done):
    """Chunks show the progress of a table of several, rows that of a table of one."""
    assert done == found.done


def test_counters_of_a_plan():
    """Chunks that an earlier process has delivered count as done."""
    plan = SnapshotPlan(tuple(TablePlan(oid, "public", f"t{oid}", 10, 0, (None,) * 2) for oid in (1, 2, 3)))
    found = [each.statistics() for each in counters(plan, 3).values()]
    assert [("delivered", 2), ("queued", 1), ("queued", 0)] == [
        (each.state, each.chunks_done) for each in found
    ]


def test_a_table_that_is_read_again():
    """A bar goes back only with a word: from the first chunk that is read again until the table is delivered once more."""
    repeated, other = Repeated(), table("other", chunks=2, chunks_done=1)

    def again(**fields: object) -> bool:
        found = repeated.marked([table("t", **fields), other])
        assert not found[1].again
        return found[0].again

    assert not again(chunks=4, chunks_done=2)
    assert not again(chunks=4, chunks_done=3)
    assert again(chunks=4, chunks_done=1)
    assert again(chunks=4, chunks_done=3)
    assert again(state="queued")
    assert not again(state="delivered", chunks=4, chunks_done=4)
    assert again(chunks=2, chunks_done=0)
    shown = SnapshotStatistics((table("t", again=True), other))
    assert "1 read again" in describe(shown, 0.0)


def test_counting():
    """Rows per second count from the beginning, and a failure names its reason."""
    counted = TableCounters("public.t", estimated_rows=100, chunks=2)
    counted.begin(50.0)
    counted.add(10, 1000, 51.0)
    counted.add(30, 3000, 52.0)
    counted.end_chunk(last=False)
    expected = table(
        "t", rows=40, bytes=4000, estimated_rows=100, chunks=2, chunks_done=1, rows_per_second=20.0, planned=2
    )
    assert expected == counted.statistics()
    counted.end_chunk(last=True)
    assert "delivered" == counted.statistics().state
    counted.fail("it was dropped")
    assert ("failed", "it was dropped") == (counted.statistics().state, counted.statistics().error)


SOME = SnapshotStatistics(
    (
        table("a", "complete", chunks=3, planned=3, chunks_done=3, rows=5000, bytes=5 * GIB),
        table("b", chunks=3, planned=3, chunks_done=1, rows=1000, bytes=1024, estimated_rows=3000),
        table("c", "queued", chunks=2, planned=2),
        table("d", "failed", planned=1, error="it was dropped"),
    ),
    wal=WalRetention(3 * GIB // 2, "reserved", None),
)


@pytest.mark.parametrize(
    ("planned", "done"), [((3, 50), [0, 3 / 53, 3 / 53, 28 / 53, 1]), ((None, None), [0, 0.5, 0.5, 0.75, 1])]
)
def test_all_tables(planned, done):
    """Together they never go back, although the chunks of a table may be planned only when its turn comes."""
    a, b = (TableCounters(name, chunks=chunks) for name, chunks in zip("ab", planned, strict=True))

    def now() -> float:
        return SnapshotStatistics((a.statistics(), b.statistics())).done

    seen = [now()]
    a.state = "complete"
    seen.append(now())
    b.chunks = 50
    seen.append(now())
    b.chunks_done = 25
    seen.append(now())
    b.state = "complete"
    assert done == pytest.approx([*seen, now()])


def test_one_line():
    """A line has the progress of all tables, and the WAL that is kept."""
    assert "44%, 1 of 4 tables, 6,000 rows, 500 rows/s, 1 failed, the slot keeps 1.5 GiB of WAL" == describe(
        SOME, 500.0
    )


def shown(statistics: list[SnapshotStatistics | None], *, terminal: bool) -> str:
    """Return what is written while these statistics are shown, each a minute after the one before."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=140, color_system=None)
    times = iter(range(0, 100_000, 30))
    now = SnapshotProgress(iter(statistics).__next__, console, lambda: next(times))
    for _ in statistics:
        now.show()
    return out.getvalue()


def test_bars_in_a_terminal():
    """There is a bar for all tables and one for each that is read; they vanish when everything was delivered."""
    ended = SnapshotStatistics((table("a", "complete"),))
    text = shown([None, SOME, ended, ended], terminal=True)
    assert "all tables" in text
    assert "2/4 tables  6,000 rows  5.0 GiB  WAL kept: 1.5 GiB" in text
    assert "public.b" in text
    assert "1,000/~3,000 rows" in text
    assert "public.c" not in text


def test_lines_elsewhere(caplog):
    """Without a terminal a line is logged now and then, and none without a snapshot."""
    with caplog.at_level(logging.INFO, "aiorepl.progress"):
        assert "" == shown([SOME, SOME], terminal=False)
        assert "" == shown([None, SnapshotStatistics(())], terminal=False)
    assert ["snapshot: 44%, 1 of 4 tables"] * 2 == [message[:28] for message in caplog.messages]


def test_many_tables():
    """Only some of the tables that are read at the same time have a bar."""
    text = shown([SnapshotStatistics(tuple(table(f"t{n}") for n in range(1000)))], terminal=True)
    assert "public.t7" in text
    assert "public.t8" not in text
