"""Ends the server process of a lost connection, which may hold locks of tables and a snapshot.

If the network drops all packets, the server does not learn that its client is gone. A process that sends rows waits for their
acknowledgement, on Linux for about 15 minutes by default, and keeps its locks until then. A session that alters the table waits
for that process.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, NamedTuple

_BACKEND: Final = (
    "SELECT pid, backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()"
)
_END: Final = "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND backend_start = $2"


class Backend(NamedTuple):
    """A server process. A later process may get the same number, so its start time identifies it, too."""

    pid: int
    started: datetime


async def backend_of(connection: Any) -> Backend:
    """Return the server process of an asyncpg connection. Behind a pooler, asyncpg's ``get_server_pid()`` may return another number.

    :raises asyncpg.PostgresError, asyncpg.InterfaceError, OSError: the connection failed.
    """
    (row,) = await connection.fetch(_BACKEND)
    return Backend(row["pid"], row["backend_start"])


async def end_backend(connection: Any, former: Backend | None) -> None:
    """End the server process of an earlier connection of the same role, if it still runs.

    :param connection: an asyncpg connection.
    :param former: the server process; ``None`` if there was no earlier connection.
    :raises asyncpg.PostgresError, asyncpg.InterfaceError, OSError: the connection failed.
    """
    if former is not None:
        await connection.fetch(_END, former.pid, former.started)
