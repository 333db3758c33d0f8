"""If a start ends after the creation of its slot, and before the first write of its ledger, the next start truncates and reads all tables."""

from __future__ import annotations

import pytest

from aiorepl import Pipeline
from aiorepl.snapshot.ledger.file import LedgerFile
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.testing.faults import MemorySink
from tests.waiting import until


@pytest.mark.parametrize("journal", [False, True])
async def test_an_interrupted_resnapshot_begins_with_a_truncate(published, tmp_path, journal):
    """A row that was deleted while there was no slot does not stay in the sink."""
    folder = str(tmp_path / "folder")
    way = {"journal": folder} if journal else {"snapshot": SnapshotOptions(state=folder)}
    sink = MemorySink()
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    await Pipeline(published.source(), [sink], until="now", **way).run()
    await published.execute(
        "DELETE FROM items WHERE id = 1", f"SELECT pg_drop_replication_slot('{published.slot}')"
    )
    await LedgerFile(folder, published.slot).intend(truncates=True)
    await published.create_slot()
    before = len(sink.batches)
    async with Pipeline(published.source(), [sink], **way) as pipeline:
        await pipeline.snapshots.completed()
        await published.execute("INSERT INTO items VALUES (9, 'z')")

        def kinds():
            return [change.kind for batch in sink.batches[before:] for change in batch.changes]

        found = await until(kinds, lambda found: "insert" in found)
    assert "truncate" in found
