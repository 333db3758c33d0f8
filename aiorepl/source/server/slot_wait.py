"""Reports the transactions that the creation of a slot waits for: all transactions in progress at its beginning, also prepared ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from aiorepl import waits as waiting
from aiorepl.loggers import logger
from aiorepl.wire.opening import ANSWER_SECONDS

_log = logger("aiorepl.capture")

Connect = Callable[[], Awaitable[Any]]
Waits = Callable[[str | None], None]
"""Takes the description of the transaction that the creation waits for; ``None`` once the creation waits no longer."""

FIRST_SECONDS: Final = 2.0
SECONDS: Final = 10.0
_WAITED_FOR: Final = f"""
SELECT l.transactionid::text AS xid, {waiting.SESSION}, p.gid,
       (pg_catalog.now() - coalesce(a.xact_start, p.prepared))::interval(0)::text AS age
  FROM pg_catalog.pg_replication_slots s
  JOIN pg_catalog.pg_locks l ON l.pid = s.active_pid AND l.locktype = 'transactionid' AND NOT l.granted
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = ANY (pg_catalog.pg_blocking_pids(s.active_pid))
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = l.transactionid
 WHERE s.slot_name = $1
"""


def telling(connect: Connect, slot: str, waits: Waits | None = None) -> AbstractContextManager[None]:
    """While the block creates a slot, log every ten seconds which transaction it waits for.

    :param connect: opens an asyncpg connection.
    :param waits: called with the logged transaction, too.
    """

    def tell(found: str | None) -> None:
        if waits is not None:
            waits(found)
        if found is not None:
            _log.warning("the creation of slot %s waits for %s", slot, found)

    look = partial(_look, connect, slot)
    return waiting.telling(look, tell, f"aiorepl slot {slot}", first=FIRST_SECONDS, seconds=SECONDS)


async def _look(connect: Connect, slot: str) -> str | None:
    connection = await connect()
    try:
        rows = await connection.fetch(_WAITED_FOR, slot, timeout=ANSWER_SECONDS)
    finally:
        connection.terminate()
    return "; ".join(map(_name, rows)) or None


def _name(row: Any) -> str:
    if row["gid"] is not None:
        return f"prepared transaction {row['xid']}, {row['gid']!r}, of {row['age']} ago: COMMIT PREPARED or ROLLBACK PREPARED ends it"
    if row["pid"] is None:
        return f"transaction {row['xid']}"
    return f"transaction {row['xid']} of {waiting.session(row)}"
