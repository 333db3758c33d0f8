"""The watch reads the state of the slot from the server."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiorepl import Pipeline
from aiorepl.cancellation import cancel_and_wait
from aiorepl.monitoring import Watch
from aiorepl.testing import MemorySink


async def test_the_slot(published):
    """A slot is in use or not, keeps WAL, and may be missing; without a connection the last state stays, with the reason."""
    source = published.source()
    pipeline = Pipeline(source, [MemorySink()])
    watch = Watch(pipeline, seconds=0.05)
    watching = asyncio.create_task(watch.run())
    try:

        async def until(good):
            async with asyncio.timeout(60):
                while watch.slot is None or not good(watch.slot):
                    await asyncio.sleep(0.02)
            return watch.slot

        assert (await until(lambda status: True)).retained_bytes is None
        async with pipeline:
            status = await until(lambda status: status.active)
        assert status.retained_bytes > 0
        assert "reserved" == status.wal_status
        assert (await until(lambda status: not status.active)).server_lsn >= status.server_lsn
        watch._connection.drop()
        watch._connection._connect = replace(source, dsn="postgresql://nobody@127.0.0.1:1/x").connect_sql
        lost = await until(lambda status: status.error)
        assert "cannot reach the server at 127.0.0.1:1" in lost.error
        assert lost.retained_bytes == replace(lost, error=None).retained_bytes is not None
    finally:
        await cancel_and_wait(watching)
