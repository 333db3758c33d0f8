"""Connections are cut, and client or server restart, while transactions are streamed or prepared."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import asyncpg
import pytest

from aiorepl import LSN, Pipeline, Source
from aiorepl.delivery.batching import BatchPolicy
from aiorepl.retry import RetryPolicy
from aiorepl.testing import EmbeddedServer
from aiorepl.testing.faults import MemorySink

pytestmark = [pytest.mark.by_day, pytest.mark.server]

SOON = RetryPolicy(timeout=None, wait_initial=0.01, wait_max=0.2)


@pytest.mark.parametrize("server", [16, 18], indirect=True)
@pytest.mark.parametrize("streaming", ["off", "on", "parallel"])
async def test_cut_at_random(
    server, tables, connections, slot_name, database, tmp_path, load, plain, events, streaming
):
    """However often the server ends the connection, every change is delivered once and in order."""
    seed = secrets.randbelow(1_000_000)
    dice = Random(seed)
    (watcher,) = await connections(1)
    statement = "SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, $2)"
    await tables.execute(statement, slot_name, True)
    await tables.execute(statement, slot_name[-8:], False)
    name = await tables.fetchval("SELECT current_database()")
    await tables.execute(f'ALTER DATABASE "{name}" SET debug_logical_replication_streaming = immediate')
    source = Source(
        database,
        slot=slot_name,
        publication="p",
        streaming=streaming,
        two_phase=True,
        messages=True,
        transaction_buffer_bytes=50_000,
        spill_dir=tmp_path,
    )
    sink = MemorySink()
    pipeline = Pipeline(source, [sink], reconnect=SOON)

    async def cut() -> None:
        ended = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active"
        while True:
            await asyncio.sleep(dice.uniform(0.0, 0.2))
            await watcher.execute(ended, slot_name)

    async with pipeline:
        cutting = asyncio.create_task(cut())
        await load(seed, 250)
        while pipeline.statistics().reconnects < 5:
            await asyncio.sleep(0.05)
        cutting.cancel()
        await asyncio.gather(cutting, return_exceptions=True)
        expected = events(await plain(slot_name[-8:]))
        async with asyncio.timeout(90):
            await sink.wait_for_changes(len(expected))

    assert expected == events(part for batch in sink.batches for part in batch.slices), f"seed {seed}"


class Scenario:
    """A prepared transaction, others beside it, and a consumer that may restart at any point."""

    def __init__(
        self, server: EmbeddedServer, database: str, slot: str, sink: MemorySink, streaming: str
    ) -> None:
        self.server = server
        self.dsn = server.dsn_for(database)
        self.slot = slot
        self.sink = sink
        self._streaming = streaming
        self._stack = contextlib.AsyncExitStack()

    async def execute(self, *statements: str) -> None:
        """Run statements in one session."""
        connection = await asyncpg.connect(self.dsn)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    async def fetch(self, query: str) -> LSN:
        """Return one LSN."""
        connection = await asyncpg.connect(self.dsn)
        lsn = LSN.parse(await connection.fetchval(query))
        await connection.close()
        return lsn

    async def wal(self) -> LSN:
        return await self.fetch("SELECT pg_current_wal_insert_lsn()::text")

    async def holds(self, prepared: LSN) -> bool:
        """Whether the slot was not and will not be told of the PREPARE that ended there."""
        return self._pipeline.statistics().flushed < prepared and await self.confirmed() < prepared

    async def confirmed(self) -> LSN:
        where = f"WHERE slot_name = '{self.slot}'"
        return await self.fetch(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots {where}")

    async def start(self) -> None:
        """Start a consumer."""
        source = Source(
            self.dsn,
            slot=self.slot,
            publication="p",
            streaming=self._streaming,
            two_phase=True,
            transaction_buffer_bytes=1,
        )
        self._pipeline = Pipeline(
            source, [self.sink], reconnect=SOON, batches=BatchPolicy(flush_seconds=0.05)
        )
        await self._stack.enter_async_context(self._pipeline)

    async def stop(self) -> None:
        """Stop the consumer in order."""
        await self._stack.aclose()

    async def restart(self, who: str) -> None:
        """Restart the consumer, the server by a crash, or both."""
        if who == "us":
            await self.stop()
            await self.start()
        elif who == "server":
            await asyncio.to_thread(self.server.kill)
            await asyncio.to_thread(self.server.start)
        else:
            await self.stop()
            await asyncio.to_thread(self.server.restart)
            await self.start()

    async def other(self, number: int) -> None:
        """Commit another transaction, and wait until it is durable in the sink."""
        await self.execute(f"INSERT INTO items VALUES ({number})")
        end = await self.wal()
        async with asyncio.timeout(90):
            while number not in self.rows():
                await self.sink.wait_for_changes(len(self.sink.changes) + 1)
            await self.sink.wait_until_durable(self.sink.batches[-1].end_lsn or end)

    def rows(self) -> list[int]:
        """Return the delivered rows, in order and with duplicates."""
        return [change.new["id"] for change in self.sink.changes]


@pytest.fixture(scope="module")
def own_server(servers: Any) -> Iterator[EmbeddedServer]:
    """A server that the test may stop."""
    with servers.new(18, debug_logical_replication_streaming="immediate") as server:
        yield server


@pytest.fixture
async def story(own_server: EmbeddedServer, slot_name: str) -> AsyncIterator:
    """A database with a two-phase slot; the test starts the consumer."""
    stories: list[Scenario] = []
    database = f"story_{slot_name[-8:]}"

    async def story(*, keeps_position: bool, streaming: str) -> Scenario:
        connection = await asyncpg.connect(own_server.dsn)
        await connection.execute(f"CREATE DATABASE {database}")
        await connection.close()
        sink = MemorySink(keeps_position=keeps_position)
        stories.append(Scenario(own_server, database, slot_name, sink, streaming))
        await stories[0].execute(
            "CREATE TABLE items (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE items",
            f"SELECT pg_create_logical_replication_slot('{slot_name}', 'pgoutput', false, true)",
        )
        return stories[0]

    yield story
    for each in stories:
        await each.stop()
        await each.execute(f"SELECT pg_drop_replication_slot('{slot_name}')")


POINTS = ["prepared", "others committed", "decided", "committed"]


@pytest.mark.parametrize("keeps_position", [True, False], ids=["position", "no position"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("who", ["us", "server", "both"])
async def test_prepared_before_committed_after(story, slot_name, who, point, keeps_position):
    """The rows are delivered once, at the commit, wherever the restart is; until then the PREPARE is not confirmed."""
    story = await story(
        keeps_position=keeps_position, streaming=Random(f"{who}{point}").choice(["off", "on"])
    )

    async def at(name: str) -> None:
        if point == name:
            await story.restart(who)

    await story.start()
    await story.other(1)
    gid = slot_name[-8:]
    await story.execute(
        "BEGIN", "INSERT INTO items SELECT generate_series(100, 102)", f"PREPARE TRANSACTION '{gid}'"
    )
    prepared = await story.wal()
    await at("prepared")
    await story.other(2)
    assert await story.holds(prepared)
    await at("others committed")
    await story.other(3)
    assert await story.holds(prepared)
    if point == "decided":
        await story.stop()
    await story.execute(f"COMMIT PREPARED '{gid}'")
    if point == "decided":
        assert await story.holds(prepared)
        if who != "us":
            await asyncio.to_thread(story.server.kill)
            await asyncio.to_thread(story.server.start)
        await story.start()
    await story.other(4)
    await at("committed")
    await story.other(5)

    # Without a position of its own a sink is given again what the slot was not told of.
    first = list(dict.fromkeys(story.rows()))
    assert [1, 2, 3, 100, 101, 102, 4, 5] == first
    assert (first == story.rows()) or not keeps_position
    async with asyncio.timeout(90):
        while await story.confirmed() < prepared:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("keeps_position", [True, False], ids=["position", "no position"])
async def test_a_gid_again_after_a_restart(story, slot_name, keeps_position):
    """A gid that was committed and prepared again is held from its new PREPARE on."""
    story = await story(keeps_position=keeps_position, streaming="on")
    gid = slot_name[-8:]
    await story.start()
    for turn in range(3):
        await story.execute(
            "BEGIN", f"INSERT INTO items VALUES ({100 + turn})", f"PREPARE TRANSACTION '{gid}'"
        )
        prepared = await story.wal()
        await story.other(10 + turn)
        await story.restart("us")
        assert await story.holds(prepared)
        await story.execute(f"COMMIT PREPARED '{gid}'")
    await story.other(1)

    assert [10, 100, 11, 101, 12, 102, 1] == list(dict.fromkeys(story.rows()))
    assert len(set(story.rows())) == len(story.rows()) or not keeps_position


async def test_rolled_back_after_a_restart(story, slot_name):
    """A transaction that is rolled back after a restart is never delivered, and holds nothing."""
    story = await story(keeps_position=True, streaming="on")
    gid = slot_name[-8:]
    await story.start()
    await story.execute("BEGIN", "INSERT INTO items VALUES (100)", f"PREPARE TRANSACTION '{gid}'")
    prepared = await story.wal()
    await story.other(1)
    await story.restart("us")
    assert await story.holds(prepared)

    await story.execute(f"ROLLBACK PREPARED '{gid}'")
    await story.other(2)

    assert [1, 2] == story.rows()
    async with asyncio.timeout(90):
        while await story.confirmed() < prepared:
            await asyncio.sleep(0.05)
