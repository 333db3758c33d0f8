"""Whether the server's WAL has a transaction that the server does not send.

From PostgreSQL 15 on, pgoutput sends nothing of a transaction without published changes. But of a transaction that it streams, it
always sends the commit. So the WAL is decoded again, and every transaction is streamed.
"""

from __future__ import annotations

from struct import pack
from typing import Any, Final

import asyncpg

from aiorepl.errors import AioreplError, SlotError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.position import Commit
from aiorepl.retry import may_pass
from aiorepl.source.source import Source
from aiorepl.wire.opening import translated

_log = logger("aiorepl.capture")

# The setting that makes the server stream every transaction.
_FIRST_VERSION: Final = 16
# The setting ends with the statement. The function is called with it, because the slot's name depends on it.
_FOUND: Final = """
SELECT EXISTS (
  SELECT FROM (SELECT pg_catalog.set_config('debug_logical_replication_streaming', 'immediate', true) AS mode) s,
       LATERAL pg_catalog.pg_logical_slot_peek_binary_changes(
         CASE s.mode WHEN 'immediate' THEN $1::pg_catalog.text END, $2::pg_catalog.text::pg_catalog.pg_lsn, NULL,
         VARIADIC ARRAY['proto_version', '2', 'publication_names', $7, 'streaming', 'on']) c
   WHERE pg_catalog.substring(c.data, 1, 5) = $3 AND pg_catalog.substring(c.data, 7, 8) = $4
     AND pg_catalog.substring(c.data, 23, 8) = $5)
   AND pg_catalog.pg_postmaster_start_time()::pg_catalog.text = $6
"""


async def is_logged(source: Source, commit: Commit, started: str | None) -> bool:
    """Return whether the WAL that the slot keeps has this transaction, at the same LSN and with the same time.

    Nobody may read the slot meanwhile. False if this cannot be found out: before PostgreSQL 16, if the server cannot decode the
    WAL, or if all changes of the transaction are before the slot's confirmed position.

    :param started: when the server was started, so that another server's answer does not count.
    :raises SlotError: somebody reads the slot.
    :raises ConnectionFailed, ConnectionLost, ServerError: the server failed; the same request may succeed later.
    """
    _log.warning("looking for transaction %s, which commits at %s, in the WAL", commit.xid, commit.commit_lsn)
    connection: Any = await source.connect_sql()
    try:
        version = connection.get_server_version().major
        if version < _FIRST_VERSION:
            return False
        return bool(
            await connection.fetchval(
                _FOUND,
                source.slot,
                str(LSN(commit.commit_lsn + 1)),
                b"c" + pack(">I", commit.xid),
                pack(">Q", commit.commit_lsn),
                pack(">q", commit.commit_timestamp),
                started or "",
                source.options().negotiate(version)["publication_names"],
            )
        )
    except asyncpg.ObjectInUseError:
        raise SlotError(f"slot {source.slot!r} is in use: stop the other consumer", busy=True) from None
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as failure:
        error = translated(failure)
        if not isinstance(error, AioreplError) or may_pass(error):
            raise error from None
        _log.warning("the WAL cannot be decoded: %s", error)
        return False
    finally:
        connection.terminate()
