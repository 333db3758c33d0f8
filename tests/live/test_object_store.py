"""Pipelines whose journal is in an object store."""

from __future__ import annotations

import asyncio
import functools

import pytest

from aiorepl import (
    LSN,
    Batch,
    BatchPolicy,
    JournalError,
    Pipeline,
    RetryPolicy,
    SinkContext,
    Slice,
    SnapshotOptions,
)
from aiorepl.journal import Cursors, JournalReader, JournalSink
from aiorepl.storage.objects import client
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

SOON = BatchPolicy(flush_seconds=0.1)
SECRET = "test-secret"


def keys(sink):
    return [change.key["id"] for change in sink.changes]


async def test_a_snapshot_the_stream_and_a_restart(published, bucket, caplog, tmp_path, monkeypatch):
    """The journal, the chunk ledger and the cursors are in the bucket alone, and a restart goes on from there."""
    monkeypatch.chdir(tmp_path)
    await published.execute("INSERT INTO items SELECT i, 'old' FROM generate_series(1, 500) i")
    place, sink = bucket.location(), MemorySink()
    async with Pipeline(
        published.source(),
        {"sink": sink},
        journal=place,
        snapshot=SnapshotOptions(chunk_bytes=8192),
        batches=SOON,
    ):
        await published.execute("INSERT INTO items VALUES (501)")
        end = await published.wal()
        await sink.wait_for_changes(501, durable=True)
        await published.confirmed_past(end)
        cursor = functools.partial(asyncio.to_thread, Cursors(place).get, "sink")
        await until(cursor, lambda kept: kept.lsn >= sink.durable)
    await published.execute("INSERT INTO items VALUES (502)")
    await Pipeline(published.source(), {"sink": sink}, journal=place, until="now").run()

    assert list(range(1, 503)) == sorted(keys(sink))
    assert [] == list(tmp_path.iterdir())
    assert {f"{published.slot}.snapshot", "cursors/sink.json", "position.json"} <= set(bucket.names())
    assert SECRET not in f"{caplog.text} {place!r}"


async def test_an_outage(published, bucket, layer):
    """While the store is away nothing is confirmed; then everything is delivered once."""
    await published.create_slot()
    sink, place = MemorySink(), bucket.location(endpoint=layer.endpoint)
    options = {
        "journal": place,
        "batches": SOON,
        "retry": RetryPolicy(attempts=None, wait_initial=0.01, wait_max=0.05),
    }
    async with Pipeline(published.source(), {"sink": sink}, **options):
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1)
        before = await published.wal()
        await published.confirmed_past(before)
        with layer.outage():
            await published.execute("INSERT INTO items VALUES (2)")
            asked = len(layer.requests)
            await until(lambda: _soon(len(layer.requests)), lambda seen: seen > asked + 2)
            assert await published.confirmed() < await published.wal()
        await sink.wait_for_changes(2)
        await published.confirmed_past(await published.wal())
    assert [1, 2] == keys(sink)


async def test_reads_that_fail_for_a_while(published, bucket, layer, fault, monkeypatch):
    """If the journal or a cursor cannot be read for a while, neither the pipeline nor a sink stops."""
    monkeypatch.setattr(client, "RETRIES", 0)
    await published.create_slot()
    sink, place = MemorySink(), bucket.location(endpoint=layer.endpoint)
    kinds = ("journal.json", "position.json", "start.json", "cursors/sink.json", "list-type", "segments/")
    faults = [fault("GET", path, status=503, times=2) for path in kinds]
    layer.faults += faults
    options = {
        "journal": place,
        "batches": SOON,
        "retry": RetryPolicy(attempts=None, wait_initial=0.01, wait_max=0.05),
    }
    async with Pipeline(published.source(), {"sink": sink}, **options) as pipeline:
        await published.execute("INSERT INTO items VALUES (1)")
        await sink.wait_for_changes(1)
        again = fault("GET", "cursors/sink.json", status=503, times=3)
        layer.faults.append(again)
        await published.execute("INSERT INTO items VALUES (2)")
        await sink.wait_for_changes(2, durable=True)
        cursor = functools.partial(asyncio.to_thread, Cursors(bucket.location()).get, "sink")
        await until(cursor, lambda kept: kept.lsn >= sink.durable)
        assert pipeline.statistics().sinks["sink"].failed is None
    assert [1, 2] == keys(sink)
    assert {"cursors/sink.json", "position.json", "list-type"} <= {
        one.path for one in faults if one.hits == 2
    }
    assert 3 == again.hits


async def _soon(value):
    await asyncio.sleep(0)
    return value


async def test_a_pipeline_that_was_superseded(published, bucket):
    """A pipeline whose journal another writer has taken over ends with that error, and confirms nothing more."""
    await published.create_slot()
    sink, place = MemorySink(), bucket.location()
    pipeline = Pipeline(published.source(), {"sink": sink}, journal=place, batches=SOON)
    running = asyncio.create_task(pipeline.run())
    await published.execute("INSERT INTO items VALUES (1)")
    await sink.wait_for_changes(1)
    await published.confirmed_past(await published.wal())
    end = await asyncio.to_thread(JournalReader(place).end)
    other = JournalSink(place)
    await other.open(SinkContext("journal", end))
    await other.write(Batch((Slice(None, (), True, LSN(end.lsn + 1), 0),)))
    await other.flush()
    await other.close()
    before = await published.wal()
    await published.execute("INSERT INTO items VALUES (2)")
    with pytest.raises(JournalError, match="another writer has taken over the journal"):
        await running
    assert await published.confirmed() <= before
    assert [1] == keys(sink)
