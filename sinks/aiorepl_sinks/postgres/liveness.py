"""Distinguishes a slow target from a dead one, and closes the connection to a target that no longer answers. Names awaited locks.

Keepalives detect a lost host. A proxy or a frozen server keeps the connection open without answering. So if an answer takes
long, the sink looks up the state of the connection's backend over another connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

import asyncpg

from aiorepl import ConnectionFailed
from aiorepl.cancellation import cancel_and_wait
from aiorepl.loggers import logger
from aiorepl.waits import telling
from aiorepl_sinks.postgres.errors import ERRORS
from aiorepl_sinks.postgres.lock_wait import blocking

_log = logger("aiorepl.sink")


LOCK_SECONDS: Final = 10.0
"""How long a call may wait for a lock before that is told, and how often."""


class BackendState(NamedTuple):
    """A backend's row in pg_stat_activity: whether it waits for the next command, since when, and its wait event.

    With ``track_activities = off`` a backend never counts as idle, because a finished call looks like a slow one.
    """

    idle: bool
    since: datetime
    wait_event: str | None


class Liveness:
    """Watches the calls on one connection, and terminates the connection if the target no longer answers.

    :param connect: opens another connection to the target, with asyncpg's errors.
    :param name: the sink's name.
    :param connection: the connection.
    :param backend: the process ID and start time of the connection's backend.
    :param timeout: seconds that an answer may take before the backend's state is looked up.
    :param own: the prefix of the GIDs of the sink's prepared transactions.
    :param waits: called with what a call waits for, every ten seconds, and with ``None`` at its end.
    :ivar problem: why the connection was terminated; ``None`` before.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        name: str,
        connection: Any,
        backend: tuple[int, datetime],
        timeout: float,
        own: str,
        waits: Callable[[str | None], None],
    ) -> None:
        self._connect = connect
        self._name = name
        self._connection = connection
        self._backend = backend
        self._timeout = timeout
        self._own = own
        self._waits = waits
        self.problem: str | None = None

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Watch the calls that are made within."""
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        # Most calls take less than the timeout, and a timer costs less than a task.
        timer = loop.call_later(self._timeout, lambda: tasks.append(loop.create_task(self._check())))
        waiting = telling(
            self._blocking,
            self._tell,
            f"aiorepl locks of {self._name}",
            first=LOCK_SECONDS,
            seconds=LOCK_SECONDS,
        )
        try:
            with waiting:
                yield
        finally:
            timer.cancel()
            await cancel_and_wait(*tasks)

    async def _blocking(self) -> str | None:
        connection = await self._connect()
        try:
            return await blocking(connection, self._backend[0], self._own)
        finally:
            connection.terminate()

    def _tell(self, found: str | None) -> None:
        self._waits(found)
        if found is not None:
            _log.warning("sink %s waits for %s", self._name, found)

    async def _check(self) -> None:
        previous: BackendState | None = None
        logged = False
        while True:
            try:
                current = await self._look_up()
            except (asyncpg.PostgresError, ConnectionFailed):
                # The target answers, or the current password cannot be read.
                await asyncio.sleep(self._timeout)
                continue
            except (OSError, *ERRORS):
                self._terminate(
                    f"the target has not answered for {self._timeout:g} s, and not on another connection either"
                )
                return
            if current is None:
                self._terminate("the connection's backend no longer exists on the target")
                return
            if current.idle and current == previous:
                self._terminate(
                    f"the target has finished the call, but its answer has not arrived for {self._timeout:g} s"
                )
                return
            if not current.idle and not logged:
                logged = True
                _log.warning(
                    "sink %s: a call on the target has been running for more than %g s%s",
                    self._name,
                    self._timeout,
                    "" if current.wait_event is None else f", waiting for {current.wait_event}",
                )
            previous = current
            await asyncio.sleep(self._timeout)

    async def _look_up(self) -> BackendState | None:
        async with asyncio.timeout(self._timeout):
            connection = await self._connect()
            try:
                row = await connection.fetchrow(
                    "SELECT coalesce(state LIKE 'idle%', false) AS idle, coalesce(state_change, backend_start) AS since, "
                    "wait_event_type || ' ' || wait_event AS wait_event "
                    "FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND backend_start = $2",
                    *self._backend,
                )
            finally:
                connection.terminate()
        return None if row is None else BackendState(*row)

    def _terminate(self, problem: str) -> None:
        self.problem = problem
        self._connection.terminate()
