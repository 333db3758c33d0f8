"""The servers of a round: one, or a primary with its standby. Two proxies lead to the present primary."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import asyncpg
from stall_timeout import stall_timeout

from aiorepl import LSN
from aiorepl.testing import CuttingProxy, EmbeddedServer
from aiorepl.verify.tables import TRAPPED

_STANDBY = "standby"
# Seconds for the standby to get the slot, and for a promotion.
_SYNCHRONIZED = 20.0
_PROMOTED = 60.0


class Cluster:
    """The servers and the proxies.

    :param server: runs; it may be restarted and killed.
    :param standby: of this server.
    """

    def __init__(self, server: EmbeddedServer, standby: EmbeddedServer | None = None) -> None:
        self.server = server
        """The primary."""
        self.standby = standby
        """The standby; ``None`` once it was promoted."""
        self.replaced: EmbeddedServer | None = None
        """The former primary, once the standby was promoted."""
        self.held_back = False
        """Whether the standby is behind."""
        self.proxy = CuttingProxy("127.0.0.1", server.port)
        """The proxy of the process under test."""
        self._front = CuttingProxy("127.0.0.1", server.port)
        self._behind = standby is not None
        # Where the servers' logs end now.
        self._logs = {
            each: (each.folder / "log").stat().st_size for each in (server, standby) if each is not None
        }

    def executed(self, database: str) -> list[str]:
        """Return what the servers' logs say about code of the schema that the pipeline has executed, once."""
        told = [
            line
            for server, begin in self._logs.items()
            for line in (server.folder / "log").read_bytes()[begin:].decode(errors="replace").splitlines()
            if TRAPPED in line and f" {database} " in line
        ]
        return [f"the pipeline has executed a function of the schema, {len(told)} times"] if told else []

    def dsn_for(self, database: str = "postgres") -> str:
        """Return the DSN of a database, which leads to the primary also after a promotion."""
        dsn = self.server.dsn_for(database)
        return self._front.dsn_for(dsn) if self._behind else dsn

    async def __aenter__(self) -> Self:
        await self.proxy.__aenter__()
        await self._front.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._front.__aexit__(*error)
        await self.proxy.__aexit__(*error)

    async def synchronized(self, slot: str, seconds: float = _SYNCHRONIZED) -> bool:
        """Wait until the standby has the slot as a persistent one. Return whether it has."""
        assert self.standby is not None
        query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND synced AND NOT temporary"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async with _connected(self.standby) as standby, _connected(self.server) as primary:
                    while not await standby.fetchval(query, slot):
                        # The standby's copy of the slot starts at a later LSN. The slot has to advance past it, and only these records let it.
                        await primary.execute("SELECT pg_log_standby_snapshot()")
                        await asyncio.sleep(0.1)
                return True
        return False

    async def hold_back(self) -> None:
        """Stop the replication to the standby."""
        assert self.standby is not None
        async with _connected(self.standby) as standby:
            # A slot on disk may still be temporary just after the view shows it as permanent.
            await standby.execute("CHECKPOINT")
        await asyncio.to_thread(self.standby.kill)
        self.held_back = True

    async def caught_up(self) -> None:
        """Wait until the standby has replayed everything."""
        assert self.standby is not None
        async with _connected(self.standby) as standby, _connected(self.server) as primary:
            end = await primary.fetchval("SELECT pg_current_wal_lsn()::text")
            async with stall_timeout(_PROMOTED):
                while not await standby.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", end):
                    await asyncio.sleep(0.02)

    async def promote(self, meanwhile: Callable[[], None], *, early: bool = False) -> None:
        """Kill the primary, promote the standby, and let the proxies lead to it.

        :param meanwhile: called while no server answers.
        :param early: let the proxies lead to the standby before it is promoted.
        """
        assert self.standby is not None
        promoted = self.standby
        await asyncio.to_thread(self.server.kill)
        meanwhile()
        await asyncio.to_thread(promoted.start)  # unless it runs
        if early:
            self._redirect(promoted)
        async with _connected(promoted) as connection:
            await connection.fetchval("SELECT pg_promote(true, 60)")
        self._redirect(promoted)
        self.server, self.standby, self.replaced = promoted, None, self.server

    async def skip_wal(self, after: LSN) -> None:
        """Move the end of WAL past an LSN."""
        async with _connected(self.server) as connection:
            while LSN.parse(await connection.fetchval("SELECT pg_current_wal_lsn()::text")) <= after:
                await connection.fetchval("SELECT pg_switch_wal()::text")
                await connection.execute("SELECT pg_logical_emit_message(false, 'verify', '')")

    def _redirect(self, server: EmbeddedServer) -> None:
        for proxy in (self.proxy, self._front):
            proxy.redirect("127.0.0.1", server.port)


@contextmanager
def pair(version: int, bin_dir: Path | None, settings: dict[str, str], *, waits: bool) -> Iterator[Cluster]:
    """Start a primary and its standby.

    :param waits: whether the primary sends nothing that the standby has not received.
    """
    settings = dict(settings)
    if waits:
        settings["synchronized_standby_slots"] = _STANDBY
    with EmbeddedServer(version, bin_dir=bin_dir, settings=settings) as primary:
        asyncio.run(_execute(primary, f"SELECT pg_create_physical_replication_slot('{_STANDBY}', true)"))
        settings |= {
            "primary_slot_name": _STANDBY,
            "hot_standby_feedback": "on",
            "wal_retrieve_retry_interval": "100ms",
        }
        if version >= 17:
            # The standby has no standby to wait for.
            settings |= {"sync_replication_slots": "on", "synchronized_standby_slots": ""}
        with EmbeddedServer(settings=settings, standby_of=primary) as standby:
            yield Cluster(primary, standby)


@contextmanager
def target_pair(
    version: int, bin_dir: Path | None, settings: dict[str, str], standby: str
) -> Iterator[Cluster]:
    """Start a target and its standby.

    :param standby: ``synchronous`` or ``asynchronous``.
    """
    with pair(version, bin_dir, settings, waits=False) as cluster:
        if standby == "synchronous":
            asyncio.run(_execute(cluster.server, "ALTER SYSTEM SET synchronous_standby_names = '*'"))
            asyncio.run(_execute(cluster.server, "SELECT pg_reload_conf()"))
        yield cluster


async def _execute(server: EmbeddedServer, statement: str) -> None:
    async with _connected(server) as connection:
        await connection.fetch(statement)


@contextlib.asynccontextmanager
async def _connected(server: EmbeddedServer) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server.dsn)
    try:
        yield connection
    finally:
        connection.terminate()
