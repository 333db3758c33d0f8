"""A source with the publication ``p`` of all tables, and a target, on servers of two versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from aiorepl.migration.comparison import Comparison, TableResult
from aiorepl.wire.opening import connect_sql


class Two:
    """Connections to both servers."""

    def __init__(self, dsns: tuple[str, str]) -> None:
        self.dsns = dsns
        self.source: asyncpg.Connection
        self.target: asyncpg.Connection

    async def both(self, *statements: str) -> None:
        """Run statements on both sides."""
        for statement in statements:
            await self.source.execute(statement)
            await self.target.execute(statement)

    async def compare(self, *only: str, settle: Any = None, **options: Any) -> dict[str, TableResult]:
        """Compare, by default without any pause between two looks."""
        ours, theirs = await connect_sql(self.dsns[0]), await connect_sql(self.dsns[1])
        try:
            comparison = Comparison(ours, theirs, settle or (lambda: asyncio.sleep(0)), **options)
            return {result.name: result async for result in comparison.run(("p",), only)}
        finally:
            ours.terminate()
            theirs.terminate()


@pytest.fixture
async def two(servers: Any, new_database: Callable[[Any], str]) -> AsyncIterator[Callable[[int, int], Any]]:
    """Call it with the versions of source and target."""
    opened: list[Two] = []

    async def make(source: int, target: int) -> Two:
        pair = Two((new_database(servers(source)), new_database(servers(target))))
        pair.source, pair.target = [await asyncpg.connect(dsn) for dsn in pair.dsns]
        opened.append(pair)
        await pair.source.execute("CREATE PUBLICATION p FOR ALL TABLES")
        return pair

    yield make
    for pair in opened:
        await pair.source.close()
        await pair.target.close()
