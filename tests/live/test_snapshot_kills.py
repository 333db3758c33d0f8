"""A process is killed after the journal has tables that the chunk ledger's file lacks."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path

from aiorepl import Pipeline
from aiorepl.testing.faults import MemorySink

PROCESS = Path(__file__).with_name("snapshot_process.py")
# The file is written once for a sixteenth of the tables.
TABLES = 100


async def test_a_kill_between_the_journal_and_the_ledger(published, tmp_path):
    """The next start reads the other tables: a reader that appends gets each row once, and each table once complete."""
    await published.execute(
        f"""DO $$ BEGIN FOR i IN 1..{TABLES} LOOP
            EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY)', i);
            EXECUTE format('INSERT INTO t%s VALUES (1), (2)', i);
        END LOOP; END $$"""
    )
    await published.create_slot()

    async def read(end: str) -> int:
        arguments = published.dsn, published.slot, tmp_path / "journal", end
        process = await asyncio.create_subprocess_exec(sys.executable, PROCESS, *arguments)
        return await process.wait()

    assert -signal.SIGKILL == await read("kill")
    assert -signal.SIGKILL == await read("kill")
    assert 0 == await read("complete")

    sink = MemorySink()
    await Pipeline(published.source(), [sink], journal=tmp_path / "journal", until="now").run()
    rows = Counter((change.kind, change.table, change.key["id"]) for change in sink.changes)
    assert {("read", f"t{number}", key): 1 for number in range(1, TABLES + 1) for key in (1, 2)} == rows
    chunks = [
        part.transaction.snapshot for batch in sink.batches for part in batch.slices if part.transaction
    ]
    complete = Counter(chunk.table for chunk in chunks if chunk and chunk.last_of_table)
    assert {*complete.values()} == {1}
    assert len(complete) == TABLES + 1  # with ``items``, which is empty
