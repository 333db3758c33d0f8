"""Rows that were spooled keep the numbers of their columns, so masks recognize the columns in every transaction, large or small."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import BatchPolicy, Delivery, Pipeline, Selection
from aiorepl.testing.faults import MemorySink
from aiorepl.transactions import in_progress

ROWS = 3000


@pytest.mark.parametrize("streaming", ["off", "on"])
@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("journal", [False, True])
async def test_a_large_transaction_of_a_masked_table(
    published, tmp_path, monkeypatch, streaming, two_phase, journal
):
    """The sink goes on after a transaction that was streamed or prepared, and larger than the buffer. No masked value is in the clear."""
    monkeypatch.setattr(in_progress, "_MINIMUM", 100_000)
    folder = tmp_path / "spill"
    folder.mkdir()
    await published.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET logical_decoding_work_mem = ''64kB''', current_database()); END $$"
    )
    source = published.source(
        streaming=streaming,
        proto_version=3,
        two_phase=two_phase,
        transaction_buffer_bytes=100_000,
        spill_dir=folder,
    )
    sink = MemorySink()
    kept = {"journal": str(tmp_path / "journal")} if journal else {"state_dir": tmp_path / "state"}
    pipeline = Pipeline(
        source,
        {"m": Delivery(sink, selection=Selection(mask=["public.items.note"], secret="s"))},
        batches=BatchPolicy(flush_seconds=0.05),
        **kept,
    )
    large = f"INSERT INTO items SELECT i, repeat('x', 100) FROM generate_series(1, {ROWS}) i"
    async with asyncio.timeout(120), pipeline:
        await published.execute("INSERT INTO items VALUES (0, 'secret')")
        await sink.wait_for_changes(1, durable=True)
        if two_phase:
            await published.execute("BEGIN", large, f"PREPARE TRANSACTION '{published.slot}'")
            await published.execute(f"COMMIT PREPARED '{published.slot}'")
        else:
            await published.execute("BEGIN", large, "COMMIT")
        await sink.wait_for_changes(1 + ROWS, durable=True)
    assert {"secret", "x" * 100}.isdisjoint(change.new["note"] for change in sink.changes)
