"""A primary, its standby, and the DSN of the one that is the primary at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl.testing import EmbeddedServer
from tests.waiting import until


def settings_of(primary: EmbeddedServer, slot: str) -> dict[str, str]:
    """The settings of a standby that streams from the primary through ``slot``."""
    settings = {"primary_slot_name": slot, "hot_standby_feedback": "on"}
    if primary.version >= 17:
        settings["sync_replication_slots"] = "on"
        # Copied from the primary. The standby has no standby to wait for.
        settings["synchronized_standby_slots"] = ""
    return settings


@pytest.fixture
def version(request: pytest.FixtureRequest) -> int:
    """The version of the servers, 18 unless parametrized."""
    return getattr(request, "param", 18)


@pytest.fixture
def waits(request: pytest.FixtureRequest) -> bool:
    """Whether the primary sends only what the standby has received; false unless parametrized."""
    return getattr(request, "param", False)


@pytest.fixture
def primary(servers: Any, version: int, waits: bool) -> Iterator[EmbeddedServer]:
    """A primary for this test alone."""
    settings = {"synchronized_standby_slots": "standby"} if waits else {}
    with servers.new(version, **settings) as server:
        yield server


@pytest.fixture
async def published(publish: Any, primary: EmbeddedServer) -> Any:
    """The primary's database, published, with a slot for the standby."""
    published = await publish(primary.dsn)
    await published.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    return published


@pytest.fixture
def standby(published: Any, primary: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """The primary's standby, which synchronizes failover slots."""
    with EmbeddedServer(settings=settings_of(primary, "standby"), standby_of=primary) as server:
        yield server


@pytest.fixture
async def sibling(published: Any, primary: EmbeddedServer) -> AsyncIterator[EmbeddedServer]:
    """A second standby of the primary."""
    await published.execute("SELECT pg_create_physical_replication_slot('sibling', true)")
    with EmbeddedServer(settings=settings_of(primary, "sibling"), standby_of=primary) as server:
        yield server


@pytest.fixture
async def standby_client(standby: EmbeddedServer) -> AsyncIterator[asyncpg.Connection]:
    """Connects to the standby, also after its promotion."""
    connection = await asyncpg.connect(standby.dsn)
    yield connection
    connection.terminate()


@dataclass
class Pair:
    """A primary with its standby, and what a test does to them."""

    primary: EmbeddedServer
    standby: EmbeddedServer
    published: Any
    standby_client: asyncpg.Connection

    @property
    def dsn(self) -> str:
        """The DSN that leads to the primary."""
        return self.dsn_with()

    def dsn_with(self, *others: EmbeddedServer) -> str:
        """The DSN that leads to the primary among these servers and the pair."""
        parts = urlsplit(self.primary.dsn)
        hosts = (f"127.0.0.1:{server.port}" for server in (self.standby, *others))
        netloc = ",".join((parts.netloc, *hosts))
        return parts._replace(netloc=netloc, query="target_session_attrs=read-write").geturl()

    async def synchronized(self, standby_client: asyncpg.Connection | None = None) -> None:
        """Wait until the standby, or the server behind ``there``, has the slot as a persistent one."""
        slot, standby_client = self.published.slot, standby_client or self.standby_client

        async def look() -> bool:
            # The standby's copy starts after the slot. The slot has to pass it, and only these records move it.
            await self.published.execute("SELECT pg_log_standby_snapshot()")
            query = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = $1"
            return bool(await standby_client.fetchval(query, slot))

        await until(look)

    async def caught_up(self) -> None:
        """Wait until the standby has replayed everything that was committed."""
        query, end = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", await self.published.wal()
        await until(lambda: self.standby_client.fetchval(query, str(end)))

    async def promote(self) -> None:
        """Kill the primary and promote the standby."""
        await asyncio.to_thread(self.primary.kill)
        await self.standby_client.fetchval("SELECT pg_promote()")

    async def hold_back(self) -> None:
        """Stop replication to the standby."""
        # The slot on disk may still be temporary just after the view shows it as permanent.
        await self.standby_client.execute("CHECKPOINT")
        await asyncio.to_thread(self.standby.kill)

    async def promote_as_it_is(self) -> None:
        """Kill the primary and promote the standby that was held back."""
        await asyncio.to_thread(self.primary.kill)
        await asyncio.to_thread(self.standby.start)
        self.standby_client.terminate()
        self.standby_client = await asyncpg.connect(self.standby.dsn)
        await self.standby_client.fetchval("SELECT pg_promote()")

    async def wal(self) -> str:
        """The end of the promoted server's WAL."""
        return str(await self.standby_client.fetchval("SELECT pg_current_wal_lsn()::text"))

    async def rows(self) -> list[int]:
        """The keys of the promoted server's rows."""
        return [row["id"] for row in await self.standby_client.fetch("SELECT id FROM items ORDER BY id")]


@pytest.fixture
async def pair(
    primary: EmbeddedServer, standby: EmbeddedServer, published: Any, standby_client: asyncpg.Connection
) -> AsyncIterator[Pair]:
    """A primary with its standby."""
    pair = Pair(primary, standby, published, standby_client)
    yield pair
    pair.standby_client.terminate()
