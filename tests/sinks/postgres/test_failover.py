"""The target's primary is lost, and a standby without its latest commits is promoted."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from aiorepl import LSN, BatchPolicy, Delivery, Pipeline, RetryPolicy, SlotError, Source
from aiorepl.testing import EmbeddedServer

LOG = "CREATE TABLE log (id int, line text)"
SMALL = BatchPolicy(max_bytes=20_000, flush_seconds=0.05)
PATIENT = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_a_failover_of_the_target(pairs, servers, tmp_path, journal):
    """With a journal the missing commits are delivered again; without one the slot is past them."""
    with servers.new(18) as primary, EmbeddedServer(standby_of=primary) as standby:
        pair = await pairs()
        await pair.source.execute(LOG)
        inside = await asyncpg.connect(primary.dsn)
        await inside.execute(LOG)
        await inside.close()
        await pair.slotted()
        user = primary.dsn.partition("@")[0]
        pair.target_dsn = f"{user}@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres?target_session_attrs=read-write"
        pipeline = Pipeline(
            Source(pair.source_dsn, slot=pair.slot, publication="p"),
            {"mirror": Delivery(pair.sink(), retry=PATIENT)},
            batches=SMALL,
            journal=str(tmp_path) if journal else None,
        )
        running = asyncio.create_task(pipeline.run())
        await pair.source.execute(pair.kilobytes(10))
        behind = await asyncpg.connect(standby.dsn)
        async with asyncio.timeout(60):
            while await behind.fetchval("SELECT count(*) FROM pg_class WHERE relname = 'log'") == 0 or (
                await behind.fetchval("SELECT count(*) FROM log") < 10
            ):
                await asyncio.sleep(0.02)
        await behind.execute("ALTER SYSTEM SET primary_conninfo = ''")
        await behind.execute("SELECT pg_reload_conf()")
        async with asyncio.timeout(60):
            while await behind.fetchval("SELECT count(*) FROM pg_stat_wal_receiver"):
                await asyncio.sleep(0.02)
        await pair.source.execute(pair.kilobytes(20, "y"))
        await pair.source.execute("SELECT pg_logical_emit_message(true, 'nobody', 'x')")
        end = await pair.wal()
        async with asyncio.timeout(60):
            while (
                LSN.parse(
                    await pair.source.fetchval(
                        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1",
                        pair.slot,
                    )
                )
                < end
                or pipeline.statistics().sinks["mirror"].changes < 30
            ):
                await asyncio.sleep(0.02)
        await asyncio.to_thread(primary.kill)
        await behind.execute("SELECT pg_promote()")
        assert 10 == await behind.fetchval("SELECT count(*) FROM log")
        await pair.source.execute(pair.kilobytes(30, "z"))
        if journal:
            async with asyncio.timeout(60):
                while await behind.fetchval("SELECT count(*) FROM log") < 60:
                    await asyncio.sleep(0.02)
            pipeline.stop()
            await running
            assert await pair.rows(pair.source, "log") == await pair.rows(behind, "log")
        else:
            with pytest.raises(SlotError, match="its target has lost changes"):
                await running
            assert 10 == await behind.fetchval("SELECT count(*) FROM log")
        await behind.close()


async def test_a_commit_that_lost_its_connection_before_its_synchronous_standby_had_it(
    pairs, servers, caplog, commits_wait
):
    """It is visible on the target, but not confirmed before the standby has it. The log says what the sink waits for."""
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    locked = "SELECT FROM pg_locks WHERE relation = 'log'::regclass AND NOT granted"
    with servers.new(18) as target:
        pair = await pairs()
        await pair.source.execute(LOG)
        await pair.slotted()
        inside = await asyncpg.connect(target.dsn)
        await inside.execute(LOG)
        await inside.execute("SET synchronous_commit = 'local'")
        pair.target_dsn = target.dsn
        running = asyncio.create_task(pair.pipeline(until=None, batches=SMALL, timeout=2).run())
        await pair.source.execute(pair.kilobytes(1))
        async with asyncio.timeout(60):
            while not await inside.fetchval("SELECT count(*) FROM log"):
                await asyncio.sleep(0.02)
        holder = await asyncpg.connect(target.dsn)
        await holder.execute("BEGIN; LOCK TABLE log IN SHARE MODE")
        await pair.source.execute(pair.kilobytes(10))
        end = await pair.wal()
        async with asyncio.timeout(60):
            while not await inside.fetch(locked):
                await asyncio.sleep(0.02)
        await inside.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await inside.execute("SELECT pg_reload_conf()")
        await commits_wait(target.dsn)
        await holder.close()
        async with asyncio.timeout(60):
            while (first := await inside.fetchval(waiting)) is None:
                await asyncio.sleep(0.02)
            await inside.fetch("SELECT pg_terminate_backend($1)", first)
            while (await inside.fetchval(waiting) or first) == first and await confirmed(pair) < end:
                await asyncio.sleep(0.02)
            caplog.clear()
            while "waiting for IPC SyncRep" not in caplog.text:
                await asyncio.sleep(0.02)

        assert 11 == await inside.fetchval("SELECT count(*) FROM log")
        assert await confirmed(pair) < end

        await inside.execute("ALTER SYSTEM RESET synchronous_standby_names")
        await inside.execute("SELECT pg_reload_conf()")
        async with asyncio.timeout(60):
            while await confirmed(pair) < end:
                await asyncio.sleep(0.02)
        running.cancel()
        assert await pair.rows(pair.source, "log") == await pair.rows(inside, "log")
        await inside.close()


async def confirmed(pair):
    """Return the slot's confirmed position."""
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1"
    return LSN.parse(await pair.source.fetchval(query, pair.slot))
