"""The WAL that a slot keeps is read, warned about, and compared with a limit."""

from __future__ import annotations

import asyncio
import logging

import asyncpg

from aiorepl.cancellation import cancel_and_wait
from aiorepl.snapshot.statistics import WalRetention
from aiorepl.snapshot.wal_watch import WalWatch
from aiorepl.wire.opening import connect_sql

MIB, GIB = 1 << 20, 1 << 30


async def connect() -> None:
    """Never called."""
    raise AssertionError


def test_the_limit_has_a_margin():
    """Reading continues once a quarter of the limit is free again."""
    told: list[bool] = []
    watch = WalWatch(connect, "s", 100, told.append)
    for size in (100, 101, 150, 100, 76, 75, 100, 101):
        watch.take(WalRetention(size, "reserved", None))
    assert [True, False, True] == told
    assert 101 == watch.retention.bytes


def test_warnings(caplog):
    """A warning comes with the first GiB and whenever it has doubled, and once when the slot may be lost."""
    watch = WalWatch(connect, "s", None, lambda _: None)
    with caplog.at_level(logging.WARNING, "aiorepl.snapshot"):
        for size in (0.5, 1, 1.5, 3, 3.5, 5):
            watch.take(WalRetention(int(size * GIB), "extended", 100 * MIB))
        watch.take(WalRetention(6 * GIB, "unreserved", -1))
        watch.take(WalRetention(6 * GIB, "unreserved", -1))
    kept = "slot s keeps {} of WAL while tables are read, 100.0 MiB before it is lost"
    assert [kept.format(size) for size in ("1.0 GiB", "3.0 GiB", "5.0 GiB")] == caplog.messages[:3]
    (last,) = caplog.messages[3:]
    assert "slot s keeps 6.0 GiB of WAL, more than max_slot_wal_keep_size allows" in last


async def test_on_a_server(database, slot_name):
    """WAL that is written after the slot's position counts, also after the connection was lost."""
    connection = await asyncpg.connect(database)
    await connection.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot_name)
    exceeded: asyncio.Queue[bool] = asyncio.Queue()
    opened = []

    async def open_one():
        opened.append(await connect_sql(database))
        return opened[-1]

    watch = WalWatch(open_one, slot_name, MIB, exceeded.put_nowait, seconds=0.01)
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(60):
        while watch.retention is None:
            await asyncio.sleep(0.01)
        assert watch.retention.bytes < MIB
        assert "reserved" == watch.retention.status
        opened[0].terminate()
        await connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 2 * 1024 * 1024))")
        assert await exceeded.get()
        await connection.execute("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", slot_name)
    await cancel_and_wait(task)
    assert 2 == len(opened)
    assert all(each.is_closed() for each in opened)
    connection.terminate()
