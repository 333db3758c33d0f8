"""How far snapshots are, as a running pipeline reports it."""

from __future__ import annotations

import pytest

from aiorepl import BatchPolicy, Pipeline, SnapshotOptions
from aiorepl.testing.faults import MemorySink

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
