"""A statement that waits for a lock of the target says for what, and what to do."""

from __future__ import annotations

import asyncio
import contextlib

import asyncpg
import pytest

from aiorepl import PipelineState
from aiorepl_sinks.postgres import liveness
from tests.waiting import until

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, note text)"
TWO_PHASE = {"two_phase": True}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Look for locks at once, and often."""
    monkeypatch.setattr(liveness, "LOCK_SECONDS", 0.05)


async def blocked(pair, backend: int) -> None:
    """Wait until a process of the target waits for a lock."""
    async with asyncio.timeout(90):
        while not await pair.target.fetchval("SELECT pg_blocking_pids($1) <> '{}'", backend):
            await asyncio.sleep(0.01)


async def test_an_alter_table_between_two_phases(pair, caplog):
    """The message names the ALTER TABLE, and the prepared transaction that it waits for. Once it is cancelled, all goes on."""
    await pair.both(ITEMS)
    await pair.slotted(two_phase=True)
    other = await asyncpg.connect(pair.target_dsn, server_settings={"application_name": "a migration"})
    pid = other.get_server_pid()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(other.close)
        pipeline = await stack.enter_async_context(
            pair.pipeline(until=None, two_phase=True, source=TWO_PHASE)
        )
        await pair.source.execute("BEGIN; INSERT INTO items VALUES (1, 'secret'); PREPARE TRANSACTION 'g'")
        await pair.reached(await pair.wal())
        altering = asyncio.create_task(other.execute("ALTER TABLE items ADD secret int"))
        await blocked(pair, pid)
        await pair.source.execute("INSERT INTO items VALUES (2, 'secret')")
        await pair.source.execute("COMMIT PREPARED 'g'")

        waiting = await until(lambda: pipeline.statistics().sinks["mirror"].waiting_for)
        gid = await pair.target.fetchval(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        )
        assert waiting.startswith(
            f"a lock of table public.items on the target: process {pid} (active ALTER), "
        )
        assert "'a migration'" in waiting
        assert f"waits itself for the sink's prepared transaction '{gid}'" in waiting
        assert f"SELECT pg_cancel_backend({pid})" in waiting
        assert "Do not end the prepared transaction" in waiting
        assert "secret" not in waiting
        assert any(
            "sink mirror waits for a lock of table public.items" in record.getMessage()
            for record in caplog.records
        )
        assert PipelineState.RUNNING is pipeline.state

        await pair.target.execute("SELECT pg_cancel_backend($1)", pid)
        with pytest.raises(asyncpg.QueryCanceledError):
            await altering
        await pair.reached(await pair.wal())
        assert pipeline.statistics().sinks["mirror"].waiting_for is None
    await pair.require_equal("items")


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "session"])
async def test_a_transaction_of_others(pair, prepared):
    """A transaction of another client is named, too, with what ends it."""
    await pair.both(ITEMS)
    await pair.slotted()
    other = await asyncpg.connect(pair.target_dsn)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(other.close)
        await other.execute("BEGIN; LOCK TABLE items")
        if prepared:
            await other.execute("PREPARE TRANSACTION 'theirs'")
        pipeline = await stack.enter_async_context(pair.pipeline(until=None))
        await pair.source.execute("INSERT INTO items VALUES (1)")
        waiting = await until(lambda: pipeline.statistics().sinks["mirror"].waiting_for)
        if prepared:
            assert (
                "prepared transaction 'theirs' has it: COMMIT PREPARED or ROLLBACK PREPARED ends it"
                in waiting
            )
        else:
            assert f"process {other.get_server_pid()} (idle in transaction" in waiting
            assert "comes before it: end its transaction" in waiting
        await other.execute("ROLLBACK PREPARED 'theirs'" if prepared else "ROLLBACK")
        await pair.reached(await pair.wal())
    await pair.require_equal("items")
