"""The spool of a pipeline: one file descriptor, and a full disk."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import resource
import shutil

import asyncpg

from aiorepl import BatchPolicy, Pipeline, RetryPolicy
from aiorepl.testing.faults import MemorySink
from tests.waiting import until


async def test_a_full_disk_loses_nothing_and_passes(published, tmp_path, monkeypatch, caplog):
    """After a full disk the transaction in progress is sent again and delivered once."""
    await published.create_slot()
    tried = asyncio.Event()
    usage = shutil.disk_usage(tmp_path)

    def full(path):
        tried.set()
        return usage._replace(free=0)

    monkeypatch.setattr(shutil, "disk_usage", full)
    source = dataclasses.replace(
        published.source(), streaming="on", transaction_buffer_bytes=200_000, spill_dir=tmp_path
    )
    sink = MemorySink()
    quickly = RetryPolicy(timeout=None, wait_initial=0.05, wait_max=0.2)
    caplog.set_level(logging.WARNING, "aiorepl.capture")
    name = await published.connection.fetchval("SELECT current_database()")
    await published.execute(f"ALTER DATABASE \"{name}\" SET logical_decoding_work_mem = '64kB'")
    async with Pipeline(source, [sink], reconnect=quickly, batches=BatchPolicy(flush_seconds=0.1)):
        await published.execute("INSERT INTO items VALUES (0)")
        await sink.wait_for_changes(1)
        large = published.connection.transaction()
        await large.start()
        await published.execute("INSERT INTO items SELECT generate_series(1, 20000)")
        await tried.wait()
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 40))
        await large.commit()
        await sink.wait_for_changes(20_001, durable=True)
        await published.confirmed_past(await published.wal())
    assert list(range(20_001)) == [change.key["id"] for change in sink.changes]
    assert "out of space" in caplog.text


async def test_more_transactions_than_descriptors(published, tmp_path):
    """40 transactions are spooled together although only 20 files can be opened; all arrive without a reconnect."""
    await published.create_slot()
    source = dataclasses.replace(
        published.source(), streaming="on", transaction_buffer_bytes=20_000, spill_dir=tmp_path
    )
    sink = MemorySink()
    name = await published.connection.fetchval("SELECT current_database()")
    await published.execute(f"ALTER DATABASE \"{name}\" SET logical_decoding_work_mem = '64kB'")
    writers = [await asyncpg.connect(published.dsn) for _ in range(40)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))  # noqa: PTH208
    try:
        async with Pipeline(source, [sink], batches=BatchPolicy(flush_seconds=0.1)) as pipeline:
            for number, writer in enumerate(writers):
                await writer.execute("BEGIN")
                await writer.execute(
                    f"INSERT INTO items SELECT i, repeat('x', 200) FROM generate_series({number}000, {number}499) i"
                )

            async def spooled():
                return pipeline.statistics().transaction_buffer.spooled

            await until(spooled, lambda size: size > 40 * 500 * 200)
            for writer in writers:
                await writer.execute("COMMIT")
            await sink.wait_for_changes(40 * 500, durable=True)
            assert 0 == pipeline.statistics().reconnects
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for writer in writers:
            writer.terminate()
    keys = [1000 * number + row for number in range(40) for row in range(500)]
    assert keys == [change.key["id"] for change in sink.changes]
