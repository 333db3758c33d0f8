"""Prepares the session of an ordinary connection, also behind a pooler such as PgBouncer, if the pooler keeps the session together.

A pooler in transaction mode may run each transaction of a client in another server process. The client would lose its settings
and advisory locks, and other clients of the pooler would get them. The protocol does not tell the mode of a pooler, so a second
connection shows whether the two connections exchange server processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import asyncpg

from aiorepl.errors import ConnectionFailed
from aiorepl.wire import session_settings
from aiorepl.wire.session_settings import ProcessId, Rows

Open = Callable[[], Awaitable[Any]]
"""Opens an asyncpg connection."""

# In transaction mode, two clients that take turns share an idle process, or each client gets several processes.
_TURNS: Final = 3
_SECONDS: Final = 20.0
_PID: Final = "SELECT pg_catalog.pg_backend_pid()"
# The SQLSTATEs of a statement that was prepared in another server process, or by another client in the same process.
_ELSEWHERE: Final = ("26000", "42P05")


async def prepare(
    fetch: Callable[[str], Awaitable[Rows]],
    told: int,
    settings: Mapping[str, str],
    server: str,
    check_pooler: Callable[[], Awaitable[object]],
) -> ProcessId:
    """Set and verify the settings of a session; return its server process.

    :param fetch: runs a query.
    :param told: the process number that the server sent when the session began; a pooler sends an invented number.
    :param server: the server as a noun phrase.
    :param check_pooler: called behind a pooler; checks that this client keeps its server process.
    :raises ConnectionFailed: the session cannot keep the settings; the message says what to do.
    """
    rows = await fetch(session_settings.set_if_own(settings, told))
    process = session_settings.served_by(rows)
    if process.pid != told:
        await check_pooler()
        await fetch(session_settings.set_in_pool(settings))
        rows = await fetch(session_settings.read_back(settings))
        if session_settings.served_by(rows) != process:
            raise _exchanged(server)
    session_settings.require_exact(rows, server)
    return process


async def prepare_sql(connection: Any, settings: Mapping[str, str], server: str, another: Open) -> ProcessId:
    """Set and verify the settings of an asyncpg connection; return its server process.

    :param another: opens a second connection through the same pooler.
    :raises ConnectionFailed: as by ``prepare``.
    :raises asyncpg.PostgresError, asyncpg.InterfaceError, OSError: the connection cannot be used.
    """
    check = partial(_require_session, connection, server, another)
    try:
        return await prepare(connection.fetch, int(connection.get_server_pid()), settings, server, check)
    except asyncpg.PostgresError as error:
        if error.sqlstate in _ELSEWHERE:
            raise _exchanged(server) from None
        raise


async def _require_session(connection: Any, server: str, another: Open) -> None:
    """Check that each client of the pooler keeps its server process until the client disconnects."""
    other: Any = None
    try:
        async with asyncio.timeout(_SECONDS):
            other = await another()
            own, others = set(), set()
            for _ in range(_TURNS):
                own.add(await connection.fetchval(_PID))
                others.add(await other.fetchval(_PID))
    except TimeoutError:
        raise ConnectionFailed(
            f"{server} is a pooler without a server connection to spare: raise its default_pool_size, because a source needs several "
            "connections at a time"
        ) from None
    finally:
        if other is not None:
            other.terminate()
    if len(own) > 1 or len(others) > 1 or own & others:
        raise _exchanged(server)


def _exchanged(server: str) -> ConnectionFailed:
    return ConnectionFailed(
        f"{server} is a pooler in transaction mode, where the settings of a connection are lost: {session_settings.NO_POOLER}, or a "
        "pool in session mode (pool_mode = session)",
        permanent=True,
    )
