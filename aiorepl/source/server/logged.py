"""Whether the server's WAL has a transaction that the server does not send.

From PostgreSQL 15 on, pgoutput sends nothing of a transaction without published changes. But of a transaction that it streams, it
always sends the commit. So the WAL is decoded again, and every transaction is streamed. PostgreSQL 15 cannot be made to stream every
transaction; its extension pg_walinspect shows the record of the commit.
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
from aiorepl.transactions.transaction import to_datetime
from aiorepl.wire.commands import identifier
from aiorepl.wire.opening import translated

_log = logger("aiorepl.capture")

# The first version with the setting that makes the server stream every transaction, and the first one with pg_walinspect.
_STREAMS: Final = 16
_INSPECTS: Final = 15
UNPROVEN: Final = (
    "If publications were altered while the transaction was in progress, PostgreSQL 15 may have it and not send it. The extension "
    "pg_walinspect proves that: CREATE EXTENSION pg_walinspect, GRANT EXECUTE ON FUNCTION pg_get_wal_record_info TO the role of this "
    "source, and start again"
)
"""What makes the proof possible on PostgreSQL 15, for errors."""
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

# Only a superuser can create the extension, so no other function has this name and these arguments in its schema.
_FUNCTION: Final = """
SELECT n.nspname
  FROM pg_catalog.pg_extension e
  JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.refobjid = e.oid
       AND d.deptype = 'e' AND d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
  JOIN pg_catalog.pg_proc p ON p.oid = d.objid
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
 WHERE e.extname = 'pg_walinspect' AND p.proname = 'pg_get_wal_record_info'
"""
# The description of a commit begins with its time. That of a COMMIT PREPARED has the transaction's xid before it.
_RECORD: Final = """
SELECT EXISTS (
  SELECT FROM {schema}.pg_get_wal_record_info($1::pg_catalog.text::pg_catalog.pg_lsn) r
   WHERE r.start_lsn = $1::pg_catalog.text::pg_catalog.pg_lsn AND r.resource_manager = 'Transaction'
     AND CASE r.record_type
           WHEN 'COMMIT' THEN r.xid::pg_catalog.text = $2 AND pg_catalog.split_part(r.description, ';', 1) = $3
           WHEN 'COMMIT_PREPARED' THEN pg_catalog.split_part(r.description, ';', 1) = $2 || ': ' || $3 END)
   AND pg_catalog.pg_postmaster_start_time()::pg_catalog.text = $4
"""


async def is_logged(source: Source, commit: Commit, started: str | None) -> bool | None:
    """Return whether the WAL that the slot keeps has this transaction, at the same LSN and with the same time.

    Nobody may read the slot meanwhile. False if this cannot be found out because the server cannot decode the WAL, or because all
    changes of the transaction are before the slot's confirmed position. Before PostgreSQL 15, the server sends every transaction.
    ``None`` on PostgreSQL 15 without pg_walinspect, or without the privilege to use it (``UNPROVEN``).

    :param started: when the server was started, so that another server's answer does not count.
    :raises SlotError: somebody reads the slot.
    :raises ConnectionFailed, ConnectionLost, ServerError: the server failed; the same request may succeed later.
    """
    _log.warning("looking for transaction %s, which commits at %s, in the WAL", commit.xid, commit.commit_lsn)
    connection: Any = await source.connect_sql()
    try:
        version = connection.get_server_version().major
        if version < _STREAMS:
            return await _is_recorded(connection, commit, started or "") if version >= _INSPECTS else False
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


async def _is_recorded(connection: Any, commit: Commit, started: str) -> bool | None:
    """Whether the WAL has the record of the commit; ``None`` if pg_walinspect is not installed, or the role may not use it."""
    schema = await connection.fetchval(_FUNCTION)
    if schema is None:
        return None
    try:
        moment = to_datetime(commit.commit_timestamp)
    except OverflowError:
        return False
    fraction = f".{moment.microsecond:06}".rstrip("0").rstrip(".")
    time = f"{moment:%Y-%m-%d %H:%M:%S}{fraction}+00"
    query = _RECORD.format(schema=identifier(schema))
    try:
        return bool(await connection.fetchval(query, str(commit.commit_lsn), str(commit.xid), time, started))
    except asyncpg.InsufficientPrivilegeError:
        return None
