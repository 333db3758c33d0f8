"""Tells what the creation of a slot waits for: the transactions that were in progress when it began, prepared ones too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import asyncpg

from aiorepl.errors import AioreplError
from aiorepl.loggers import logger

_log = logger("aiorepl.capture")

Connect = Callable[[], Awaitable[Any]]
Waits = Callable[[str | None], None]
"""Takes the description of the transaction that the creation waits for; ``None`` once the creation waits no longer."""

FIRST_SECONDS: Final = 2.0
SECONDS: Final = 10.0
# The first word of a command only, because the rest may quote rows.
_WAITED_FOR: Final = """
SELECT l.transactionid::text AS xid, a.pid, a.usename::text AS role, a.application_name AS application, a.state,
       pg_catalog.substring(a.query, '^\\s*(\\w+)') AS command, p.gid,
       (pg_catalog.now() - coalesce(a.xact_start, p.prepared))::interval(0)::text AS age
  FROM pg_catalog.pg_replication_slots s
  JOIN pg_catalog.pg_locks l ON l.pid = s.active_pid AND l.locktype = 'transactionid' AND NOT l.granted
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = ANY (pg_catalog.pg_blocking_pids(s.active_pid))
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = l.transactionid
 WHERE s.slot_name = $1
"""


@contextlib.contextmanager
def telling(connect: Connect, slot: str, waits: Waits | None = None) -> Iterator[None]:
    """While the block creates a slot, log every ten seconds which transaction it waits for.

    :param connect: opens an asyncpg connection.
    :param waits: called with the logged transaction, too.
    """
    task = asyncio.create_task(_tell(connect, slot, waits or (lambda _: None)), name=f"aiorepl slot {slot}")
    try:
        yield
    finally:
        # Not awaited: a cancellation of this await would lose the slot that the block has just created.
        task.cancel()
        if waits is not None:
            waits(None)


async def _tell(connect: Connect, slot: str, waits: Waits) -> None:
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        with contextlib.suppress(AioreplError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            found = await _look(connect, slot)
            waits(found)
            if found is not None:
                _log.warning("the creation of slot %s waits for %s", slot, found)
        await asyncio.sleep(SECONDS)


async def _look(connect: Connect, slot: str) -> str | None:
    connection = await connect()
    try:
        rows = await connection.fetch(_WAITED_FOR, slot)
    finally:
        connection.terminate()
    return "; ".join(map(_name, rows)) or None


def _name(row: Any) -> str:
    if row["gid"] is not None:
        return f"prepared transaction {row['xid']}, {row['gid']!r}, of {row['age']} ago: COMMIT PREPARED or ROLLBACK PREPARED ends it"
    if row["pid"] is None:
        return f"transaction {row['xid']}"
    does = (
        " ".join(filter(None, (row["state"], row["command"])))
        or "its command is visible to pg_read_all_stats only"
    )
    return (
        f"transaction {row['xid']} of process {row['pid']} ({does}), role {row['role']!r}, application "
        f"{row['application']!r}, begun {row['age']} ago"
    )
