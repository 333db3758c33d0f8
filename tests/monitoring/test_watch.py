"""The slot on a real server, and the journal, as the metrics show them."""

from __future__ import annotations

import asyncio
import contextlib
import json

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from aiorepl import Pipeline, SlotError, Source
from aiorepl.monitoring import PrometheusCollector, Watch
from aiorepl.testing import MemorySink


async def test_the_slot_and_the_journal(database, slot_name, tmp_path):
    """With a watch the collector has the slot's WAL, the journal's size, the bytes kept for each consumer, and rows by table."""
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE items")
    source = Source(database, slot=slot_name, publication="p", create_slot=True)
    sink = MemorySink()
    pipeline = Pipeline(source, {"memory": sink}, journal=tmp_path / "journal")
    registry = CollectorRegistry()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"pipeline": slot_name, **labels})

    async with pipeline, Watch(pipeline, seconds=0.05) as watch:
        registry.register(PrometheusCollector(pipeline, watch=watch))
        async with connection.transaction():
            await connection.execute("INSERT INTO items VALUES (1), (2)")
            await connection.execute("DELETE FROM items WHERE id = 2")
        await sink.wait_for_changes(3)
        async with asyncio.timeout(60):
            while not (value("aiorepl_slot_active") and value("aiorepl_journal_bytes")):
                await asyncio.sleep(0.02)
        assert 0.0 == value("aiorepl_slot_unknown") == value("aiorepl_journal_unknown")
        assert value("aiorepl_slot_retained_bytes") is not None
        assert value("aiorepl_journal_consumer_bytes", consumer="memory") is not None
        assert 2.0 == value("aiorepl_table_rows_total", table="public.items", kind="insert")
        assert 1.0 == value("aiorepl_table_rows_total", table="public.items", kind="delete")
        assert (1.0, 3.0) == (value("aiorepl_transaction_rows_count"), value("aiorepl_transaction_rows_sum"))
        assert 1.0 <= (value("aiorepl_sink_write_seconds_count", sink="memory") or 0.0)
    await connection.close()


async def test_a_slot_that_is_created_later(database, slot_name):
    """A slot that does not exist at the first look is soon seen in use, however rarely the watch looks."""
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE PUBLICATION p")
    await connection.close()
    pipeline = Pipeline(
        Source(database, slot=slot_name, publication="p", create_slot=True), {"memory": MemorySink()}
    )
    async with asyncio.timeout(60), Watch(pipeline, seconds=3600.0) as watch:
        while watch.slot is None:
            await asyncio.sleep(0.02)
        assert not watch.slot.active
        async with pipeline:
            while not watch.slot.active:
                await asyncio.sleep(0.02)


async def test_after_a_lost_slot(database, slot_name, monitor):
    """The slot is read once more after the end of the pipeline. Then its state, the sinks' and the journal's count as old."""
    connection = await asyncpg.connect(database)
    pipeline = Pipeline(
        Source(database, slot=slot_name, publication="p", create_slot=True), {"s": MemorySink()}
    )
    served = monitor(pipeline)
    try:
        async with asyncio.timeout(60):
            await connection.execute("CREATE PUBLICATION p")
            task = asyncio.create_task(pipeline.run())
            await pipeline.started()
            await served.until("/status", lambda text: '"active":true' in text)
            while True:
                await connection.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1",
                    slot_name,
                )
                with contextlib.suppress(asyncpg.ObjectInUseError):
                    await connection.execute("SELECT pg_drop_replication_slot($1)", slot_name)
                    break
            with pytest.raises(SlotError):
                await task
            text = await served.until("/status", lambda text: "not read any more" in text)
    finally:
        await connection.close()
    status = json.loads(text)
    assert ("failed", ["ended"]) == (status["state"], [sink["state"] for sink in status["sinks"]])
    assert (False, None) == (status["slot"]["active"], status["slot"]["retained"])
