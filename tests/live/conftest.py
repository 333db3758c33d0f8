"""A published database on a real server, and methods to change it, deliver from it and look at its slot."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import LSN, Pipeline, SnapshotOptions, Source
from aiorepl.formats.native import NativeFormat
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.proxy import CuttingProxy
from tests.waiting import until


class Published:
    """A database with a publication ``p`` of all tables and, at first, a table ``items``."""

    def __init__(self, dsn: str, slot: str, connection: asyncpg.Connection) -> None:
        self.dsn = dsn
        self.slot = slot
        self.connection = connection

    def source(self, dsn: str | None = None, **options: Any) -> Source:
        """A source with the test's slot, created if it is missing."""
        return Source(dsn or self.dsn, slot=self.slot, **{"publication": "p", "create_slot": True} | options)

    async def execute(self, *statements: str) -> None:
        """Run each statement in a transaction of its own."""
        for statement in statements:
            await self.connection.execute(statement)

    async def commit(self, *statements: str) -> None:
        """Run all statements in one transaction."""
        async with self.connection.transaction():
            await self.execute(*statements)

    async def create_slot(self, *, two_phase: bool = False) -> None:
        """Create the slot before any consumer."""
        # The function has this parameter since PostgreSQL 14.
        option = ", twophase => true" if two_phase else ""
        await self.connection.fetchval(
            f"SELECT pg_create_logical_replication_slot($1, 'pgoutput'{option})", self.slot
        )

    async def wal(self) -> LSN:
        """The end of WAL."""
        return LSN.parse(await self.connection.fetchval("SELECT pg_current_wal_insert_lsn()::text"))

    async def confirmed(self) -> LSN:
        """The LSN that the slot is confirmed with."""
        return LSN.parse(
            await self.connection.fetchval(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", self.slot
            )
        )

    async def confirmed_past(self, lsn: int) -> LSN:
        """Wait until the slot is confirmed with ``lsn`` or more, and return that LSN."""
        return await until(self.confirmed, lambda found: found >= lsn)

    async def walsender(self) -> int | None:
        """The pid of the process that streams from the slot."""
        return await self.connection.fetchval(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1", self.slot
        )

    async def lose_slot(self) -> None:
        """Write WAL until the server of ``limited`` has removed what the slot needs."""

        async def status() -> str | None:
            await self.execute(
                "SELECT pg_switch_wal()",
                "INSERT INTO items VALUES (2)",
                "DELETE FROM items WHERE id = 2",
                "CHECKPOINT",
            )
            return await self.connection.fetchval(
                "SELECT wal_status FROM pg_replication_slots WHERE slot_name = $1", self.slot
            )

        await until(status, lambda found: found == "lost")

    async def deliver(self, *, until: LSN | str = "now", **options: Any) -> list[dict[str, Any]]:
        """The parsed events up to ``until``, which are confirmed then; options are those of the source and of the format."""
        form = {name: options.pop(name) for name in ("values", "boundaries") if name in options}
        return [json.loads(line) for line in await self.lines(until=until, form=form, **options)]

    async def lines(
        self, *, until: LSN | str = "now", form: dict[str, Any] | None = None, **options: Any
    ) -> list[bytes]:
        """The events as they are written."""
        sink = MemorySink()
        await Pipeline(self.source(**options), [sink], until=until).run()
        native = NativeFormat(**form or {})
        return [line for batch in sink.batches for line in native.events(batch.slices)]

    async def headers(self) -> list[dict[str, Any]]:
        """The headers of the unconfirmed transactions, from the server's own SQL function."""
        begins = [struct.unpack("!xqqI", data) for data in await self._peek(b"B")]
        epoch = datetime(2000, 1, 1, tzinfo=UTC)
        return [
            {
                "xid": xid,
                "commit_lsn": str(LSN(lsn)),
                "commit_time": (epoch + timedelta(microseconds=time)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            }
            for lsn, time, xid in begins
        ]

    async def ends(self) -> list[LSN]:
        """The end LSNs of these transactions."""
        return [LSN(struct.unpack("!xxqqq", data)[1]) for data in await self._peek(b"C")]

    async def _peek(self, kind: bytes) -> list[bytes]:
        rows = await self.connection.fetch(
            "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', "
            "'publication_names', 'p', 'messages', 'true')",
            self.slot,
        )
        return [row["data"] for row in rows if row["data"][:1] == kind]


@pytest.fixture
def server(request: pytest.FixtureRequest, server: Any, servers: Any) -> Any:
    """The default server; with an indirect parameter, one of that version."""
    version = getattr(request, "param", None)
    return server if version is None else servers(version)


@pytest.fixture
async def publish(slot_name: str) -> AsyncIterator[Callable[[str], Awaitable[Published]]]:
    """Publishes a database that a test has created itself, by its DSN."""
    connections = []

    async def publish(dsn: str) -> Published:
        connection = await asyncpg.connect(dsn)
        connections.append(connection)
        await connection.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        return Published(dsn, slot_name, connection)

    yield publish
    for connection in connections:
        connection.terminate()


@pytest.fixture
async def limited(publish: Callable[[str], Awaitable[Published]], servers: Any) -> AsyncIterator[Published]:
    """A published database on a server of its own, which soon removes WAL that a slot needs."""
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with servers.new(18, **settings) as server:
        yield await publish(server.dsn)


@pytest.fixture
async def published(database: str, publish: Callable[[str], Awaitable[Published]]) -> Published:
    """The test's database, published."""
    return await publish(database)


@pytest.fixture
def small(tmp_path: Path) -> SnapshotOptions:
    """Chunks of one block, whose ledger survives a restart."""
    return SnapshotOptions(chunk_bytes=8192, state=str(tmp_path / "state"))


@pytest.fixture
async def proxy(database):
    """A proxy in front of the server."""
    parts = urlsplit(database)
    async with CuttingProxy(parts.hostname, parts.port) as proxy:
        yield proxy


@pytest.fixture(params=["direct", "journal"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Options of a pipeline that reads all tables, with and without a journal."""
    folder = str(tmp_path / "folder")
    if request.param == "journal":
        return {"journal": folder, "snapshot": True}
    return {"snapshot": SnapshotOptions(state=folder, chunk_bytes=8192)}
