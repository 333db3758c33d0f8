"""Waits until the transactions that were writing to a table have ended, as CREATE INDEX CONCURRENTLY does.

A transaction's commit record is in the WAL a moment before other sessions see its changes, and with synchronous replication a
long moment. It holds its locks until then. So a snapshot that is taken after this wait sees every transaction that committed
before the wait began.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiorepl.errors import SlotError

_WRITERS: Final = """
WITH RECURSIVE tree(part) AS (
  SELECT $1::oid UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.part)
SELECT DISTINCT l.virtualtransaction, l.pid
  FROM pg_catalog.pg_locks l JOIN tree ON tree.part = l.relation
 WHERE l.locktype = 'relation' AND l.granted
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
   AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 1.0


async def wait_for_writers(connection: Any, oid: int, name: str, timeout: float | None) -> None:
    """Wait until every transaction that has a write lock on the table now, or on a partition, has ended.

    :param connection: an asyncpg connection outside of a transaction.
    :param name: the table's name, for the error.
    :param timeout: in seconds; ``None``: no limit.
    :raises SlotError: the wait took longer than ``timeout``; the message names the process.
    :raises asyncpg.PostgresError: the server failed.
    """
    clock = asyncio.get_running_loop().time
    deadline = None if timeout is None else clock() + timeout
    pause = _FIRST_PAUSE
    waiting = await _writers(connection, oid)
    while waiting:
        if deadline is not None and clock() >= deadline:
            pid = next(iter(waiting.values()))
            who = "a prepared transaction" if pid is None else f"process {pid}"
            raise SlotError(
                f"{who} has been writing to {name} for more than {timeout:g} s, and its changes are not visible yet: end "
                "that transaction, or set a longer lock_timeout"
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        now = await _writers(connection, oid)
        waiting = {who: pid for who, pid in waiting.items() if who in now}


async def _writers(connection: Any, oid: int) -> dict[str, int | None]:
    return {row["virtualtransaction"]: row["pid"] for row in await connection.fetch(_WRITERS, oid)}
