"""A target that does not answer: told from one that takes long, and its connection given up.

Keepalives find a host that is gone. A proxy in between, or a server that stands still, keeps the connection open and says
nothing. So where an answer takes long the target is asked on another connection what the first one's backend does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, NamedTuple

import asyncpg

from aiorepl_sinks.postgres.errors import ERRORS

_log = logging.getLogger("aiorepl.sink")


class Doing(NamedTuple):
    """What a backend does: its state, since when, and what it waits for."""

    state: str
    since: datetime
    waits: str | None


class Liveness:
    """Watches over calls on one connection, and terminates it if the target does not answer any more.

    :param dsn: the target.
    :param name: the sink's.
    :param connection: the connection that is watched over.
    :param backend: its process ID, and when that was started.
    :param seconds: how long an answer may take before the target is asked.
    :ivar lost: what is wrong, once the connection is given up.
    """

    def __init__(
        self, dsn: str, name: str, connection: Any, backend: tuple[int, datetime], seconds: float
    ) -> None:
        self._dsn = dsn
        self._name = name
        self._connection = connection
        self._backend = backend
        self._seconds = seconds
        self.lost: str | None = None

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Within it calls are made on the connection."""
        loop = asyncio.get_running_loop()
        watching: list[asyncio.Task[None]] = []
        # Most calls are over long before: a timer costs less than a task.
        timer = loop.call_later(self._seconds, lambda: watching.append(loop.create_task(self._watch())))
        try:
            yield
        finally:
            timer.cancel()
            for task in watching:
                task.cancel()
                await asyncio.wait(watching)

    async def _watch(self) -> None:
        before: Doing | None = None
        told = False
        while True:
            try:
                doing = await self._ask()
            except asyncpg.PostgresError:
                await asyncio.sleep(self._seconds)  # it answers
                continue
            except (OSError, *ERRORS):
                self._give_up(
                    f"the target answers neither here nor on another connection, for {self._seconds:g} s each"
                )
                return
            if doing is None:
                self._give_up("the target has ended the connection without a word")
                return
            if doing.state != "active" and doing == before:
                self._give_up(f"the target is done, and its answer has not come for {self._seconds:g} s")
                return
            if doing.state == "active" and not told:
                told = True
                _log.warning(
                    "sink %s: the target has been at a call for more than %g s%s",
                    self._name,
                    self._seconds,
                    "" if doing.waits is None else f", waiting for {doing.waits}",
                )
            before = doing
            await asyncio.sleep(self._seconds)

    async def _ask(self) -> Doing | None:
        async with asyncio.timeout(self._seconds):
            connection = await asyncpg.connect(self._dsn, timeout=self._seconds)
            try:
                row = await connection.fetchrow(
                    "SELECT coalesce(state, 'active') AS state, coalesce(state_change, backend_start) AS since, "
                    "wait_event_type || ' ' || wait_event AS waits "
                    "FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND backend_start = $2",
                    *self._backend,
                )
            finally:
                connection.terminate()
        return None if row is None else Doing(*row)

    def _give_up(self, problem: str) -> None:
        self.lost = problem
        self._connection.terminate()
