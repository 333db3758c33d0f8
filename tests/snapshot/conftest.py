"""A database to load from, and the load as rows; and loaded by a pipeline, beside what the stream says of the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from aiorepl import LSN, Pipeline, Source
from aiorepl.formats.native import NativeFormat
from aiorepl.snapshot.initial.snapshot import InitialSnapshot
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.testing.faults import MemorySink
from aiorepl.values.registry import Types
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.opening import connect_sql


class Loaded:
    """A database, and what an initial snapshot of its publication ``p`` brings."""

    def __init__(self, dsn: str, slot: str, connection: asyncpg.Connection) -> None:
        self.dsn = dsn
        self.reader = dsn
        """As whom it is loaded."""
        self.slot = slot
        self.connection = connection

    async def load(
        self,
        *publications: str,
        meanwhile: str | None = None,
        before: Callable[[], Awaitable[Any]] | None = None,
        during: Callable[[], Awaitable[Any]] | None = None,
        delivering: Callable[[], Awaitable[Any]] | None = None,
        options: SnapshotOptions | None = None,
        binary: bool = False,
        **how: Any,
    ) -> list[Any]:
        """The slices of a load under a slot's snapshot; ``meanwhile`` is run once the slot is there, ``during`` when the
        load has begun and no table is read yet, and ``delivering`` before each delivery.
        """
        exporter = await ReplicationConnection.open(self.reader)
        slices: list[Any] = []
        self.slices = slices
        load: InitialSnapshot | None = None

        async def emit(parts):
            if delivering is not None:
                await delivering()
            slices.extend(parts)

        try:
            # The server drops the temporary slot of an earlier load when it notices that the connection has ended.
            held = "SELECT count(*) FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND temporary"
            async with asyncio.timeout(60):
                while await self.connection.fetchval(held, self.slot):
                    await asyncio.sleep(0.01)
            created = await exporter.create_slot(self.slot, temporary=True, snapshot="export")
            if meanwhile is not None:
                await self.connection.execute(meanwhile)
            self.consistent_point = LSN(created.consistent_point)
            load = self.snapshot = InitialSnapshot(
                partial(connect_sql, self.reader),
                Types(),
                publications or ("p",),
                self.consistent_point,
                options,
                binary=binary,
            )
            if before is not None:
                await before()
            await load.begin(created.snapshot_name, exporter)
            self.plan = await load.plan(histories=True)
            if during is not None:
                await during()
            self.rows = await load.run(emit, self.plan, **how)
        finally:
            if load is not None:
                await load.close()
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


class Published:
    """A database with a publication ``p``."""

    def __init__(self, dsn: str, slot: str, journal: Path, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self._source = Source(dsn, slot=slot, publication="p", create_slot=True)
        self._journal = journal

    async def execute(self, *statements: str) -> None:
        """Run each in a transaction of its own."""
        for statement in statements:
            await self.connection.execute(statement)

    async def deliver(self) -> list[dict[str, Any]]:
        """The events up to now; the first time those of the initial snapshot."""
        sink = MemorySink()
        await Pipeline(self._source, [sink], journal=str(self._journal), snapshot=True, until="now").run()
        native = NativeFormat()
        return [json.loads(line) for batch in sink.batches for line in native.events(batch.slices)]

    async def load_and_stream(self, *statements: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The events of the initial snapshot, and those of ``statements`` after it, less what tells them apart."""
        loaded = await self.deliver()
        await self.execute(*statements)
        return _plain(loaded), _plain(await self.deliver())


def _plain(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            # A row of a snapshot is otherwise like one that was inserted.
            name: "insert" if (name, value) == ("kind", "read") else value
            for name, value in event.items()
            if name not in ("xid", "commit_lsn", "commit_time", "ordinal")
        }
        for event in events
    ]


@pytest.fixture
def server(request: pytest.FixtureRequest, server: Any, servers: Any) -> Any:
    """The usual server; with an indirect parameter one of that version."""
    version = getattr(request, "param", None)
    return server if version is None else servers(version)


@pytest.fixture
async def published(database: str, slot_name: str, tmp_path: Path) -> AsyncIterator[Published]:
    """The test's database; the test creates tables and publication."""
    connection = await asyncpg.connect(database)
    yield Published(database, slot_name, tmp_path / "journal", connection)
    await connection.close()
