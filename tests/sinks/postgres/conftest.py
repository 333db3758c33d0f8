"""A source and a target on real servers, and short ways to change the one, deliver to the other, and compare them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from aiorepl import LSN, BatchPolicy, Delivery, Pipeline, RetryPolicy, Source
from aiorepl_sinks.postgres import PostgresSink

SETTINGS = {"TimeZone": "UTC", "extra_float_digits": "3", "IntervalStyle": "postgres"}
QUICK = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)


class Pair:
    """A published source (publication ``p`` of all tables) and a target."""

    def __init__(self, source_dsn: str, target_dsn: str, slot: str) -> None:
        self.source_dsn = source_dsn
        self.target_dsn = target_dsn
        self.slot = slot
        self.source: asyncpg.Connection
        self.target: asyncpg.Connection

    async def connect(self) -> None:
        self.source = await asyncpg.connect(self.source_dsn, server_settings=SETTINGS)
        self.target = await asyncpg.connect(self.target_dsn, server_settings=SETTINGS)
        await self.source.execute("CREATE PUBLICATION p FOR ALL TABLES")

    async def both(self, *statements: str) -> None:
        """Run DDL on both sides."""
        for statement in statements:
            await self.source.execute(statement)
            await self.target.execute(statement)

    async def slotted(self, *, two_phase: bool = False) -> None:
        """Create the slot: later commits are delivered."""
        await self.source.execute(
            "SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, $2)", self.slot, two_phase
        )

    async def commit(self, *statements: str) -> None:
        """Run all in one transaction of the source."""
        async with self.source.transaction():
            for statement in statements:
                await self.source.execute(statement)

    @staticmethod
    def kilobytes(number: int, note: str = "x") -> str:
        """A statement that brings ``log`` so many rows of a kilobyte: a few thousand are several slices, whatever cuts them."""
        return f"INSERT INTO log SELECT i, repeat('{note}', 1000) FROM generate_series(1, {number}) i"

    def sink(self, **options: Any) -> PostgresSink:
        return PostgresSink(options.pop("dsn", self.target_dsn), **options)

    def pipeline(
        self,
        sink: Any = None,
        *,
        until: LSN | str | None = "now",
        batches: BatchPolicy | None = None,
        journal: str | None = None,
        snapshot: bool = False,
        source: dict[str, Any] | None = None,
        **options: Any,
    ) -> Pipeline:
        """A pipeline into the target; options are the sink's."""
        sink = sink or self.sink(**options)
        return Pipeline(
            Source(self.source_dsn, slot=self.slot, publication="p", **(source or {})),
            {"mirror": sink if isinstance(sink, Delivery) else Delivery(sink, retry=QUICK)},
            until=until,
            batches=batches or BatchPolicy(),
            journal=journal,
            snapshot=snapshot,
        )

    async def deliver(self, sink: Any = None, **options: Any) -> Pipeline:
        """Deliver everything there is."""
        pipeline = self.pipeline(sink, **options)
        await pipeline.run()
        return pipeline

    async def rows(self, connection: asyncpg.Connection, table: str) -> list[str]:
        """A table's rows as text, sorted."""
        found = await connection.fetch(f"SELECT the_row::text AS row FROM {table} the_row")
        return sorted(row["row"] for row in found)

    async def require_equal(self, *tables: str) -> None:
        """Compare tables, duplicates included."""
        for table in tables:
            assert await self.rows(self.source, table) == await self.rows(self.target, table), table

    async def position(self) -> LSN:
        """Return the target's position."""
        lsn = await self.target.fetchval("SELECT lsn::text FROM aiorepl.positions WHERE sink = 'mirror'")
        return LSN.parse(lsn)

    async def wal(self) -> LSN:
        """The end of the source's WAL."""
        return LSN.parse(await self.source.fetchval("SELECT pg_current_wal_insert_lsn()::text"))

    async def free(self) -> None:
        """Wait until the slot is inactive: the server needs a moment to notice a killed process."""
        async with asyncio.timeout(90):
            while await self.source.fetchval(
                "SELECT active FROM pg_replication_slots WHERE slot_name = $1", self.slot
            ):
                await asyncio.sleep(0.01)

    async def reached(self, lsn: LSN) -> None:
        """Wait until the target has everything up to there."""
        async with asyncio.timeout(90):
            while await self.position() < lsn:
                await asyncio.sleep(0.02)


@pytest.fixture
async def pairs(
    server: Any, servers: Any, new_database: Callable[[Any], str], slot_name: str
) -> AsyncIterator[Callable[..., Any]]:
    """Makes pairs: call it with the versions of source and target, or without for the usual server."""
    opened: list[Pair] = []

    async def make(source_version: int | None = None, target_version: int | None = None) -> Pair:
        versions = (source_version, target_version)
        dsns = [new_database(server if version is None else servers(version)) for version in versions]
        pair = Pair(*dsns, slot_name)
        opened.append(pair)
        await pair.connect()
        return pair

    yield make
    for pair in opened:
        await pair.source.close()
        await pair.target.close()


@pytest.fixture
async def pair(pairs: Callable[..., Any]) -> Pair:
    """A source and a target on the usual server."""
    return await pairs()
