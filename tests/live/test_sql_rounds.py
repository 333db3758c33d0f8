"""Polls of the SQL interface: each reads a limited number of messages from the slot's position."""

from __future__ import annotations

from aiorepl import BatchPolicy, Pipeline
from aiorepl.testing.faults import MemorySink
from aiorepl.wire import sql


async def test_more_than_a_round_behind_an_undecided_prepare(published, monkeypatch):
    """The slot stays before the PREPARE, so polls grow until they reach COMMIT PREPARED."""
    monkeypatch.setattr(sql, "_ROUND_ROWS", 20)
    sink = MemorySink()
    source = published.source(interface="sql", two_phase=True)
    async with Pipeline(source, [sink], batches=BatchPolicy(flush_seconds=0.1)):
        await published.execute("BEGIN", "INSERT INTO items VALUES (1)", "PREPARE TRANSACTION 'p'")
        for begin in range(100, 200, 10):
            await published.execute(f"INSERT INTO items SELECT generate_series({begin}, {begin + 9})")
        await published.execute("COMMIT PREPARED 'p'")
        await published.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(102, durable=True)

    assert [*range(100, 200), 1, 2] == [change.key["id"] for change in sink.changes]
