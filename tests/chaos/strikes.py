"""Faults from outside the process under test: in its connections, server and network, and signals to the process."""

from __future__ import annotations

import asyncio
import json
import signal
from functools import partial
from typing import Any

import asyncpg
from processes import Process

from aiorepl.testing import CuttingProxy, EmbeddedServer
from aiorepl.testing.verify.tables import SCHEMA

# The weight of each. ``resnapshot`` is not a fault, but may happen at any time as well.
KINDS = {
    "walsender": 4,
    "backends": 3,
    "cut": 3,
    "cut after": 3,
    "stall": 1,
    "hold": 1,
    "drip": 2,
    "refuse": 2,
    "freeze": 1,
    "restart": 1,
    "crash": 1,
    "resnapshot": 4,
}
_TABLES = ("accounts", "entries", "parts_0", "notes")


class Striker:
    """Strikes at one database.

    :param database: its name, which is also the slot's.
    :param dsn: of the database.
    :param forget: called while the server is down, because it may have lost confirmed positions.
    """

    def __init__(
        self, server: EmbeddedServer, proxy: CuttingProxy, database: str, dsn: str, forget: Any
    ) -> None:
        self._server = server
        self._proxy = proxy
        self._database = database
        self._dsn = dsn
        self._forget = forget

    async def strike(self, kind: str, size: float, process: Process) -> None:
        """Strike once.

        :param size: the length or amount, from 0 to 1.
        """
        if kind in ("walsender", "backends"):
            await self._terminate(kind)
        elif kind == "cut":
            self._proxy.cut()
        elif kind == "cut after":
            self._proxy.cut_after(int(size * 20_000))
        elif kind == "drip":
            self._proxy.drip(int(size * 5_000))
        elif kind == "resnapshot":
            await self._resnapshot(_TABLES[int(size * len(_TABLES))])
        elif kind in ("restart", "crash"):
            await asyncio.to_thread(self._server.restart if kind == "restart" else self._server.kill)
            # Before version 17, even an orderly shutdown may lose confirmed positions.
            self._forget()
            if kind == "crash":
                await asyncio.to_thread(self._server.start)
        else:
            await self._for_a_while(kind, size, process)

    async def _terminate(self, kind: str) -> None:
        only = "AND backend_type = 'walsender'" if kind == "walsender" else ""
        connection = await asyncpg.connect(self._server.dsn)
        # The connections of the writers and the verifier have no application name.
        await connection.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname LIKE $1 || '%' AND application_name LIKE 'aiorepl%' {only}",
            self._database,
        )
        connection.terminate()

    async def _resnapshot(self, table: str) -> None:
        signalled = {"slot": self._database, "snapshot": [f"{SCHEMA}.{table}"]}
        connection = await asyncpg.connect(self._dsn)
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
