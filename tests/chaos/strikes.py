"""Faults from outside the process under test: in its connections, server and network, and signals to the process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import asyncpg
from broker import CUT, RESTARTED, Broker
from bucket import FailingLayer
from cluster import Cluster
from kafka_broker import FROZEN, LOST, WIDENED
from processes import Process

from aiorepl.verify.tables import SCHEMA
from tests.live.dropping_proxy import drop_packets

# The weight of each. ``resnapshot`` is not a fault, but may happen at any time as well.
KINDS = {
    "walsender": 4,
    "backends": 3,
    "cut": 3,
    "cut after": 3,
    "stall": 1,
    "hold": 1,
    "drip": 2,
    **({"dropped packets": 1} if sys.platform == "linux" else {}),
    "refuse": 2,
    "freeze": 1,
    "restart": 1,
    "crash": 1,
    "resnapshot": 4,
}
# Only in some programs: with a standby, an object store, a journal, or a target that has a standby.
PROMOTE, OUTAGE, SECOND, PROMOTE_TARGET = "promote", "outage", "second pipeline", "promote the target"
# These also strike while no process runs: the next process finds a server that was restarted or replaced.
OF_SERVERS = ("restart", "crash", PROMOTE, PROMOTE_TARGET)
# Only in programs that write to a broker.
BROKERS = {RESTARTED: 2, CUT: 3}
# Only in programs that write to Kafka.
KAFKA = {FROZEN: 2, LOST: 2, WIDENED: 2}
# From this size on, a target's standby receives nothing for some time before it is promoted.
_BEHIND = 0.3
# The time within which a commit should begin to wait for the synchronous standby, in seconds.
_WAITING = 3.0


class Striker:
    """Strikes at one database.

    :param database: its name, which is also the slot's.
    :param target: the server and the standby of a ``postgres`` sink; ``None`` if they are not its own.
    :param forget: called while the server is down, because it may have lost confirmed positions.
    :param struck: called with each fault.
    :param tables: the tables that are read again.
    :param brokers: those to which the program writes.
    :param second: runs a second pipeline on the same slot and journal, for some seconds; returns whether it got the slot.
    :ivar restarting: held while the server restarts. Who reads positions holds it, too, because those of before and after a restart
        cannot be compared.
    """

    def __init__(
        self,
        cluster: Cluster,
        target: Cluster | None,
        layer: FailingLayer | None,
        database: str,
        tables: Sequence[str],
        brokers: Sequence[Broker],
        forget: Callable[[], None],
        struck: Callable[[str], None],
        second: Callable[[float], Awaitable[bool]],
    ) -> None:
        self._layer = layer
        self._target = target
        self._tables = tables
        self._brokers = brokers
        self._second = second
        self._cluster = cluster
        self._proxy = cluster.proxy
        self._database = database
        self._forget = forget
        self._struck = struck
        self.restarting = asyncio.Lock()

    async def strike(self, kind: str, size: float, process: Process) -> None:
        """Strike once.

        :param size: the length or amount, from 0 to 1.
        """
        if kind == PROMOTE:
            await self._promote(early=size > 0.5)
            return
        if kind == PROMOTE_TARGET:
            await self._promote_target(behind=size >= _BEHIND)
            return
        self._struck(kind)
        if kind in ("walsender", "backends"):
            await self._terminate(self._cluster, kind)
        elif kind == "cut":
            self._proxy.cut()
        elif kind == "cut after":
            self._proxy.cut_after(int(size * 20_000))
        elif kind == "dropped packets":
            drop_packets(end for link in self._proxy._links for end in (link._client, link._server))
        elif kind == "drip":
            self._proxy.drip(int(size * 5_000))
        elif kind == "resnapshot":
            await self._resnapshot(self._tables[min(int(size * len(self._tables)), len(self._tables) - 1)])
        elif kind in BROKERS or kind in KAFKA:
            for broker in self._brokers:
                await broker.strike(kind, size)
        elif kind == SECOND:
            await self._run_second(size, process)
        elif kind == OUTAGE:
            assert self._layer is not None
            self._layer.away = True
            await asyncio.sleep(size * 2)
            self._layer.away = False
        elif kind in ("restart", "crash"):
            server = self._cluster.server
            async with self.restarting:
                await asyncio.to_thread(server.restart if kind == "restart" else server.kill)
                # Before version 17, even an orderly shutdown may lose confirmed positions.
                self._forget()
            if kind == "crash":
                await asyncio.to_thread(server.start)
        else:
            await self._for_a_while(kind, size, process)

    async def _promote(self, *, early: bool) -> None:
        # A standby without the slot cannot replace the server; that is a damage, see ``aftermath``.
        if self._cluster.standby is not None and await self._cluster.synchronized(self._database):
            self._struck(PROMOTE)
            await self._cluster.promote(self._forget, early=early)

    async def _run_second(self, size: float, process: Process) -> None:
        """Run a second pipeline. Usually the first one is stopped meanwhile, and continues with data that it must not write any more."""
        sleeps = size > 0.3
        if sleeps:
            process.send_signal(signal.SIGSTOP)
        try:
            running = asyncio.create_task(self._second(0.5 + size))
            await asyncio.sleep(0.2)
            await self._terminate(self._cluster, "walsender")
            if await running:
                self._struck("second pipeline: it got the slot")
        finally:
            if sleeps:
                process.send_signal(signal.SIGCONT)

    async def _promote_target(self, *, behind: bool) -> None:
        """Replace the target's server by its standby.

        :param behind: whether the standby receives nothing more before that. Then commits that wait for a synchronous standby lose
            their connections; an asynchronous one lacks these commits.
        """
        target = self._target
        if target is None or target.standby is None:
            return
        self._struck(PROMOTE_TARGET)
        if behind:
            await target.hold_back()
            waited = await _waiting(target)
            await self._terminate(target, "backends")
            await _waiting(target, waited)
        await target.promote(lambda: None)

    async def _terminate(self, cluster: Cluster, kind: str) -> None:
        only = "AND backend_type = 'walsender'" if kind == "walsender" else ""
        connection = await asyncpg.connect(cluster.dsn_for())
        # The connections of the writers and the verifier have no application name.
        await connection.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname LIKE $1 || '%' AND application_name LIKE 'aiorepl%' {only}",
            self._database,
        )
        connection.terminate()

    async def _resnapshot(self, table: str) -> None:
        signalled = {"slot": self._database, "snapshot": [f"{SCHEMA}.{table}"]}
        connection = await asyncpg.connect(self._cluster.dsn_for(self._database))
        emit = "SELECT pg_logical_emit_message(false, 'aiorepl.signal', $1)"
        await connection.fetch(emit, json.dumps(signalled))
        connection.terminate()

    async def _for_a_while(self, kind: str, size: float, process: Process) -> None:
        begin, end = {
            "stall": (self._proxy.stall, self._proxy.resume),
            "hold": (self._proxy.hold, self._proxy.resume),
            "refuse": (self._proxy.refuse, self._proxy.accept),
            "freeze": (
                partial(process.send_signal, signal.SIGSTOP),
                partial(process.send_signal, signal.SIGCONT),
            ),
        }[kind]
        begin()
        try:
            await asyncio.sleep(size * 1.5)
        finally:
            end()


async def _waiting(cluster: Cluster, earlier: int = 0) -> int:
    """Return the pid of a backend that waits for the synchronous standby; 0 if none does within ``_WAITING``.

    :param earlier: the pid of a backend that does not count.
    """
    query = "SELECT max(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> $1"
    connection = await asyncpg.connect(cluster.dsn_for())
    found: int | None = None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAITING):
                while found is None:
                    found = await connection.fetchval(query, earlier)
                    await asyncio.sleep(0.02)
    finally:
        connection.terminate()
    return found or 0
