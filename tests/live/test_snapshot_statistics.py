"""How far snapshots are, as a running pipeline reports it."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest

from aiorepl import Batch, BatchPolicy, Pipeline, SnapshotOptions
from aiorepl.pipeline import snapshot_monitor
from aiorepl.snapshot.statistics import TableStatistics
from aiorepl.snapshot.wal_watch import WalWatch
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

SOON = BatchPolicy(flush_seconds=0.1)


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_an_initial_snapshot(published, tmp_path, journal):
    """Each table counts its rows and chunks, and is complete once they are durable."""
    await published.execute(
        "INSERT INTO items SELECT n, repeat('x', 200) FROM generate_series(1, 1000) AS n",
        "CREATE TABLE none (id int)",
        "ANALYZE items",
    )
    state = str(tmp_path / "state")
    pipeline = Pipeline(
        published.source(),
        [MemorySink()],
        snapshot=SnapshotOptions(chunk_bytes=65536, state=None if journal else state),
        journal=state if journal else None,
        until="now",
        batches=SOON,
    )
    assert pipeline.statistics().snapshot is None
    await pipeline.run()
    statistics = pipeline.statistics().snapshot
    items, none = statistics.tables
    assert ("public.items", "complete", 1000, 1000, None) == (
        items.table,
        items.state,
        items.rows,
        items.estimated_rows,
        items.error,
    )
    assert items.chunks == items.chunks_done > 1
    assert items.bytes > 200_000
    assert ("public.none", "complete", 0, 1, 1) == (
        none.table,
        none.state,
        none.rows,
        none.chunks,
        none.chunks_done,
    )
    assert (1000, 1.0, False) == (statistics.rows, statistics.done, statistics.active)


async def test_rows_count_as_they_arrive(published, tmp_path):
    """The rows of a chunk that is not complete are counted."""
    await published.execute(
        "INSERT INTO items SELECT n, repeat('x', 200) FROM generate_series(1, 20000) AS n"
    )
    # After its first rows, the chunk waits for the limit longer than any test.
    options = SnapshotOptions(max_rows_per_second=1, state=str(tmp_path))
    pipeline = Pipeline(published.source(), [MemorySink()], snapshot=options, shutdown_timeout=0)

    async def table() -> TableStatistics | None:
        statistics = pipeline.statistics().snapshot
        return None if statistics is None or not statistics.tables else statistics.tables[0]

    async with pipeline:
        found = await until(table, lambda found: found is not None and found.rows > 0)
        pipeline.stop()
    assert ("reading", 0) == (found.state, found.chunks_done)
    assert found.bytes > 200 * found.rows


class WaitingSink(MemorySink):
    """Waits before its first batch until the test goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def write(self, batch: Batch) -> None:
        """Wait, then keep the batch."""
        await self.go.wait()
        await super().write(batch)


@pytest.mark.by_day
async def test_a_slot_that_keeps_too_much_wal(published, tmp_path, monkeypatch, caplog):
    """Past max_wal_bytes the stream begins, and the rest of the rows is read beside it once less WAL is kept."""
    monkeypatch.setattr(snapshot_monitor, "WalWatch", partial(WalWatch, seconds=0.02))
    monkeypatch.setattr(snapshot_monitor, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(snapshot_monitor, "_LOG_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "aiorepl.snapshot")
    await published.execute("INSERT INTO items SELECT n, repeat('x', 200) FROM generate_series(1, 1000) AS n")
    sink = WaitingSink()
    options = SnapshotOptions(connections=1, chunk_bytes=8192, max_wal_bytes=1 << 20, state=str(tmp_path))
    pipeline = Pipeline(published.source(), [sink], snapshot=options, buffer_bytes=1, batches=SOON)

    async def kept() -> int:
        statistics = pipeline.statistics().snapshot
        return 0 if statistics is None or statistics.wal is None else statistics.wal.bytes

    async def states() -> list[str]:
        return [table.state for table in pipeline.statistics().snapshot.tables]

    async with pipeline:
        await until(kept, lambda size: size > 0)
        await published.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 2 * 1024 * 1024))")
        await until(kept, lambda size: size > 1 << 20)
        await until(lambda: warned(caplog))
        sink.go.set()
        await until(states, lambda found: found == ["complete"])
    assert {*range(1, 1001)} == {change.new["id"] for change in sink.changes if change.kind == "read"}
    snapshots = {change.transaction.snapshot.snapshot_lsn for change in sink.changes}
    assert len(snapshots) == 2
    assert any("snapshot: 0%, 0 of 1 tables" in message for message in caplog.messages)


async def warned(caplog) -> bool:
    """Whether the log says that the initial snapshot ends."""
    return any("the initial snapshot ends after this chunk" in message for message in caplog.messages)
