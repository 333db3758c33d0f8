"""A start that ended between the creation of its slot and the first write of its ledger: the next start truncates, and reads all tables."""

from __future__ import annotations

import pytest

from aiorepl import Pipeline
from aiorepl.snapshot.ledger.file import LedgerFile
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.testing.faults import MemorySink
from tests.waiting import until


@pytest.mark.parametrize("journal", [False, True])
async def test_an_interrupted_resnapshot_begins_with_a_truncate(published, tmp_path, journal):
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
    async with Pipeline(published.source(), [sink], **way) as p:
        await p.snapshots.completed()
        await published.execute("INSERT INTO items VALUES (9, 'z')")

        async def seen():
            return [(c.kind) for b in sink.batches[before:] for c in b.changes]

        found = await until(seen, lambda f: "insert" in f)
    assert "truncate" in found
