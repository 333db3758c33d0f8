"""Watches for sessions that wait for the locks of a snapshot.

A snapshot locks tables with ACCESS SHARE, which blocks neither readers nor writers. But a session that alters or truncates one of
these tables waits for the snapshot, and all later readers and writers of the table wait behind that session. So the snapshot has
to end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from aiorepl.errors import loggable, printable
from aiorepl.loggers import logger
from aiorepl.snapshot.reading_transaction import TableLocked
from aiorepl.wire.kept_connection import KeptConnection

_log = logger("aiorepl.snapshot")

_LOOK_SECONDS: Final = 1.0
# Only ACCESS EXCLUSIVE conflicts with ACCESS SHARE.
_WAITING: Final = """
SELECT DISTINCT w.pid, c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname) AS name
  FROM pg_catalog.pg_locks w
  JOIN pg_catalog.pg_locks h ON h.database = w.database AND h.relation = w.relation
  JOIN pg_catalog.pg_class c ON c.oid = w.relation
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE w.locktype = 'relation' AND w.mode = 'AccessExclusiveLock' AND NOT w.granted
   AND h.locktype = 'relation' AND h.granted AND h.pid = ANY ($1)
   AND w.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
 ORDER BY w.pid, c.oid
"""


# A server process that runs a command does not notice that its client is gone, and would keep its locks until the command ends.
_END: Final = """
SELECT pg_catalog.pg_terminate_backend(l.pid) FROM pg_catalog.pg_locks l
 WHERE l.pid = ANY ($1) AND l.relation = $2 AND l.granted
   AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
"""


async def watch_waiters(
    connect: Callable[[], Awaitable[Any]],
    holders: Callable[[], Collection[int]],
    seconds: float | None,
    blocked: Callable[[TableLocked], Awaitable[bool]],
    *,
    remedy: str = "",
) -> None:
    """Call ``blocked`` whenever another session has waited too long for a lock of a snapshot. Once ``blocked`` returns true, end the
    server processes that still hold the lock, and return.

    An error of the server, or of ``connect``, is logged, and the watch goes on.

    :param connect: opens an asyncpg connection.
    :param holders: returns the server processes that hold the locks.
    :param seconds: how long a session may wait; ``None``: no limit, so this returns at once.
    :param blocked: gets the error that names the process and the table. Returns false if the snapshot cannot end yet.
    :param remedy: what the user can do; the end of the error's message.
    """
    if seconds is None:
        return
    connection, clock = KeptConnection(connect), asyncio.get_running_loop().time
    since: dict[tuple[int, int], float] = {}
    failing = False
    try:
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, seconds))
            holding = list(holders())
            try:
                rows = await connection.fetch(_WAITING, holding)
                failing = False
            except Exception as failed:  # noqa: BLE001 - the snapshot does not depend on it
                if not failing:
                    _log.warning(
                        "cannot look for sessions that wait for the snapshot's locks: %s", loggable(failed)
                    )
                rows, failing = [], True
            now = clock()
            since = {(row["pid"], row["oid"]): since.get((row["pid"], row["oid"]), now) for row in rows}
            for row in rows:
                if now - since[row["pid"], row["oid"]] >= seconds:
                    error = TableLocked(
                        f"process {row['pid']} has waited for {seconds:g} s to alter or truncate table {printable(row['name'])}, which "
                        f"the snapshot has locked{f': {remedy}' if remedy else ''}"
                    )
                    if await blocked(error):
                        with contextlib.suppress(Exception):
                            await connection.fetch(_END, holding, row["oid"])
                        return
                    break
    finally:
        connection.drop()
