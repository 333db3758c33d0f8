"""The server's process of a connection. Other connections can cancel its command, end it, and look up what it waits for.

TCP keepalives detect a lost host. A proxy or a network that forwards nothing may keep a connection open, and a command without a
time limit, such as COPY or CREATE_REPLICATION_SLOT, would wait for its answer for ever. So while such a command waits for data, another
connection looks up what the server's process waits for. A process that waits for its client has answered, or cannot send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from aiorepl import waits
from aiorepl.errors import ConnectionFailed, ConnectionLost
from aiorepl.wire.opening import ANSWER_SECONDS, ASYNCPG_ERRORS, translated
from aiorepl.wire.session_settings import ProcessId

Connect = Callable[[], Awaitable[Any]]
"""Opens another connection to the same server, with ``connect_sql``."""

SECONDS: Final = 30.0
"""Seconds of waiting before the first look at the process, and between two looks."""
_CLIENT: Final = ("ClientRead", "ClientWrite")
_CANCEL: Final = "SELECT pg_catalog.pg_cancel_backend($1)"
# Only while the process uses the slot, because another process may have got the pid of a lost connection.
_END_USER: Final = "SELECT pg_catalog.pg_terminate_backend(active_pid) FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND active_pid = $2"
_WAITS_FOR: Final = "SELECT wait_event, state_change::text FROM pg_catalog.pg_stat_activity WHERE pid = $1"


class ServerProcess:
    """The server's process of a connection.

    :param transport: the connection's transport. Another connection must reach the same server, because the DSN or a proxy may have
        several servers.
    :param connect: opens another connection.
    :param pooled: whether the process is behind a pooler. A pooler without a free server connection does not answer.
    """

    def __init__(self, process: ProcessId, transport: Any, connect: Connect, *, pooled: bool) -> None:
        self._pid, self._server = process
        self._pooled = pooled
        self._peer = transport.get_extra_info("peername")
        self._connect = connect

    async def cancel(self) -> None:
        """Cancel the command of the process.

        :raises ConnectionFailed, ConnectionLost, ServerError: the request failed.
        """
        await self._fetch(_CANCEL, self._pid)

    async def end(self, slot: str) -> None:
        """End the process if it uses this slot.

        :raises ConnectionFailed, ConnectionLost, ServerError: the request failed.
        """
        await self._fetch(_END_USER, slot, self._pid)

    def watch(
        self, heard: Callable[[], int], fail: Callable[[Exception], None]
    ) -> AbstractContextManager[None]:
        """While the block waits for data, look up what the process waits for, and call ``fail`` once nothing can arrive any more.

        :param heard: returns a number that grows with the received data.
        :param fail: drops the connection; takes a ConnectionLost.
        """
        previous: tuple[object, ...] | None = None

        async def look() -> str | None:
            nonlocal previous
            current = await self._look()
            if current is None:
                return "the server's process no longer exists"
            state, problem = current
            lost = problem is not None and (state, heard()) == previous
            previous = state, heard()
            return problem if lost else None

        def tell(problem: str | None) -> None:
            if problem is not None:
                fail(ConnectionLost(f"nothing arrives on the connection: {problem}"))

        return waits.telling(look, tell, "aiorepl silent connection", first=SECONDS, seconds=SECONDS)

    async def _look(self) -> tuple[object, str | None] | None:
        """Return the state of the process, and the problem if the next look finds the same state; ``None`` if the process is gone."""
        try:
            rows = await self._fetch(_WAITS_FOR, self._pid)
        except (ConnectionFailed, ConnectionLost) as error:
            # A connection that failed before its time was over may have had an answer.
            answered = isinstance(error, ConnectionFailed) and not isinstance(error.__context__, TimeoutError)
            if self._pooled or answered:
                raise
            return "silent", "the server does not answer on another connection either"
        if not rows:
            return None
        waited_for, since = rows[0]
        does = "has answered" if waited_for == "ClientRead" else "cannot send"
        return (waited_for, since), f"the server's process {does}" if waited_for in _CLIENT else None

    async def _fetch(self, query: str, *arguments: Any) -> list[Any]:
        connection = await self._connect()
        try:
            peer = connection.socket_transport.get_extra_info("peername")
            if (peer, connection.server) != (self._peer, self._server):
                raise ConnectionFailed("another server of the DSN or the proxy has answered")
            return list(await connection.fetch(query, *arguments, timeout=ANSWER_SECONDS))
        except ASYNCPG_ERRORS as error:
            raise translated(error) from None
        finally:
            connection.terminate()


def process_of(connection: Any) -> ServerProcess:
    """Return the server's process of a connection of ``connect_sql``."""
    pid = connection.server_pid
    return ServerProcess(
        ProcessId(pid, connection.server),
        connection.socket_transport,
        connection.open_another,
        pooled=pid != connection.get_server_pid(),
    )


def watch_calls(connection: Any) -> AbstractContextManager[None]:
    """While the block makes calls on a connection of ``connect_sql``, drop the connection once no answer can arrive any more."""
    return process_of(connection).watch(lambda: 0, lambda _: connection.terminate())
