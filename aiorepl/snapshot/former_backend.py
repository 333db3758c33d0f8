"""Ends the server process of a lost connection, which may hold locks of tables and a snapshot.

If the network drops all packets, the server does not learn that its client is gone. A process that sends rows waits for their
acknowledgement, by default for a quarter of an hour, and keeps its locks until then. Who alters the table waits for that process.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

_BACKEND: Final = (
    "SELECT pid, backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()"
)
_END: Final = "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND backend_start = $2"


class Backend(NamedTuple):
    """A server process. Another process may get the same number later, but not at the same time."""

    pid: int
    started: datetime


async def backend_of(connection: Any) -> Backend:
    """Return the server process of an asyncpg connection. Behind a pooler, asyncpg's own number may be another one.

    :raises asyncpg.PostgresError, asyncpg.InterfaceError, OSError: the connection failed.
    """
    (row,) = await connection.fetch(_BACKEND)
    return Backend(row["pid"], row["backend_start"])


async def end_backend(connection: Any, former: Backend | None) -> None:
    """End a server process of the same role, if it is still there.

    :param connection: an asyncpg connection.
    :param former: ``None``: there is none.
    :raises asyncpg.PostgresError, asyncpg.InterfaceError, OSError: the connection failed.
    """
    if former is not None:
        await connection.fetch(_END, former.pid, former.started)
