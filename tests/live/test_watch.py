"""The watch reads the state of the slot from the server."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiorepl import Pipeline
from aiorepl.cancellation import cancel_and_wait
from aiorepl.monitoring import Watch
from aiorepl.testing import MemorySink
from tests.waiting import until


async def test_the_slot(published):
    """A slot is in use or not, keeps WAL, and may be missing; without a connection the last state stays, with the reason."""
    source = published.source()
    pipeline = Pipeline(source, [MemorySink()])
    watch = Watch(pipeline, seconds=0.05)
    watching = asyncio.create_task(watch.run())
    try:
        assert (await until(lambda: watch.slot)).retained_bytes is None
        async with pipeline:
            await until(lambda: watch.slot, lambda status: status.active)
            await published.execute("INSERT INTO items VALUES (1, 'kept')")
            status = await until(lambda: watch.slot, lambda status: status.retained_bytes)
        assert "reserved" == status.wal_status
        assert (
            await until(lambda: watch.slot, lambda status: not status.active)
        ).server_lsn >= status.server_lsn
        watch._connection.drop()
        watch._connection._connect = replace(source, dsn="postgresql://nobody@127.0.0.1:1/x").connect_sql
        lost = await until(lambda: watch.slot, lambda status: status.error)
        assert "cannot reach the server at 127.0.0.1:1" in lost.error
        assert lost.retained_bytes == replace(lost, error=None).retained_bytes is not None
    finally:
        await cancel_and_wait(watching)
