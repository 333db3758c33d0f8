"""A database to load from, and the load as rows."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from aiorepl import LSN
from aiorepl.snapshot.initial import InitialLoad
from aiorepl.values.registry import Types
from aiorepl.wire.connection import ReplicationConnection, connect_sql


class Loaded:
    """A database, and what an initial load of its publication ``p`` brings."""

    def __init__(self, dsn: str, slot: str, connection: asyncpg.Connection) -> None:
        self.dsn = dsn
        self.slot = slot
        self.connection = connection

    async def load(self, *publications: str, meanwhile: str | None = None) -> list[Any]:
        """The slices of a load under a slot's snapshot; ``meanwhile`` is run once the slot is there."""
        exporter = await ReplicationConnection.open(self.dsn)
        reader = await connect_sql(self.dsn)
        slices: list[Any] = []

        async def emit(parts):
            slices.extend(parts)

        try:
            created = await exporter.create_slot(self.slot, temporary=True, snapshot="export")
            if meanwhile is not None:
                await self.connection.execute(meanwhile)
            load = InitialLoad(reader, Types(), LSN(created.consistent_point))
            await load.take_snapshot(created.snapshot_name)
            self.rows = await load.run(publications or ("p",), emit)
            self.consistent_point = created.consistent_point
        finally:
            await reader.close()
            await exporter.close()
        return slices

    async def tables(
        self, *publications: str, meanwhile: str | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """The rows by table."""
        found: dict[str, list[dict[str, Any]]] = {}
        for part in await self.load(*publications, meanwhile=meanwhile):
            for change in part.changes:
                found.setdefault(f"{change.schema}.{change.table}", []).append(dict(change.new))
        return found


@pytest.fixture
async def loaded(database, slot_name):
    """A fresh database with a publication of everything."""
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
    yield Loaded(database, slot_name, connection)
    await connection.close()
