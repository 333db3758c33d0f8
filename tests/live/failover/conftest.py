"""A primary, its standby, and the DSN of whichever of the two may be written to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl.testing import EmbeddedServer


def settings_of(primary: EmbeddedServer, slot: str) -> dict[str, str]:
    """The settings of a standby that gets the primary's WAL by ``slot``."""
    settings = {"primary_slot_name": slot, "hot_standby_feedback": "on"}
    if primary.version >= 17:
        settings["sync_replication_slots"] = "on"
        # Copied from the primary; a standby has no standby that it could wait for.
        settings["synchronized_standby_slots"] = ""
    return settings


@pytest.fixture
def version(request: pytest.FixtureRequest) -> int:
    """The servers' version, 18 unless parametrized."""
    return getattr(request, "param", 18)


@pytest.fixture
def waits(request: pytest.FixtureRequest) -> bool:
    """Whether the primary sends only what the standby has; not so unless parametrized."""
    return getattr(request, "param", False)


@pytest.fixture
def primary(servers: Any, version: int, waits: bool) -> Iterator[EmbeddedServer]:
    """A primary of this test's own."""
    settings = {"synchronized_standby_slots": "standby"} if waits else {}
    programs = None if version == 18 else servers(version).bin_dir
    with EmbeddedServer(version, bin_dir=programs, settings=settings) as server:
        yield server


@pytest.fixture
async def published(publish: Any, primary: EmbeddedServer) -> Any:
    """Its database, published, with a slot for the standby."""
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
    """Another standby of the primary."""
    await published.execute("SELECT pg_create_physical_replication_slot('sibling', true)")
    with EmbeddedServer(settings=settings_of(primary, "sibling"), standby_of=primary) as server:
        yield server


@pytest.fixture
async def there(standby: EmbeddedServer) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the standby, and to what becomes of it."""
    connection = await asyncpg.connect(standby.dsn)
    yield connection
    connection.terminate()


@dataclass
class Pair:
    """Both, and what is done to them."""

    primary: EmbeddedServer
    standby: EmbeddedServer
    published: Any
    there: asyncpg.Connection

    @property
    def dsn(self) -> str:
        """The DSN of whoever is the primary."""
        return self.dsn_with()

    def dsn_with(self, *others: EmbeddedServer) -> str:
        """The DSN of whoever of these and the two is the primary."""
        parts = urlsplit(self.primary.dsn)
        hosts = (f"127.0.0.1:{server.port}" for server in (self.standby, *others))
        netloc = ",".join((parts.netloc, *hosts))
        return parts._replace(netloc=netloc, query="target_session_attrs=read-write").geturl()

    async def synchronized(self, there: asyncpg.Connection | None = None) -> None:
        """Wait until the standby, or the one at the end of ``there``, has the slot for good."""
        slot, there = self.published.slot, there or self.there

        async def look() -> bool:
            # The standby's copy starts behind the slot, which has to come past it, and moves by these records alone.
            await self.published.execute("SELECT pg_log_standby_snapshot()")
            query = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = $1"
            return bool(await there.fetchval(query, slot))

        await self.published.until(look, bool)

    async def caught_up(self) -> None:
        """Wait until the standby has all that was committed."""
        query, end = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", await self.published.wal()
        await self.published.until(lambda: self.there.fetchval(query, str(end)), bool)

    async def promote(self) -> None:
        """The primary dies and the standby takes its place."""
        await asyncio.to_thread(self.primary.kill)
        await self.there.fetchval("SELECT pg_promote()")

    async def hold_back(self) -> None:
        """The standby gets nothing more."""
        # A slot may be on disk as temporary for a moment after it is said to be permanent.
        await self.there.execute("CHECKPOINT")
        await asyncio.to_thread(self.standby.kill)

    async def promote_as_it_is(self) -> None:
        """The primary dies, and the standby that was held back takes its place."""
        await asyncio.to_thread(self.primary.kill)
        await asyncio.to_thread(self.standby.start)
        self.there.terminate()
        self.there = await asyncpg.connect(self.standby.dsn)
        await self.there.fetchval("SELECT pg_promote()")

    async def wal(self) -> str:
        """The end of the promoted server's WAL."""
        return str(await self.there.fetchval("SELECT pg_current_wal_lsn()::text"))

    async def rows(self) -> list[int]:
        """The keys that the promoted server has."""
        return [row["id"] for row in await self.there.fetch("SELECT id FROM items ORDER BY id")]


@pytest.fixture
async def pair(
    primary: EmbeddedServer, standby: EmbeddedServer, published: Any, there: asyncpg.Connection
) -> AsyncIterator[Pair]:
    """A primary with its standby."""
    pair = Pair(primary, standby, published, there)
    yield pair
    pair.there.terminate()
