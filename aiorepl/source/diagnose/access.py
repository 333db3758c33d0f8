"""Checks of the connection's security and of the source role's privileges."""

from __future__ import annotations

from typing import Final

from aiorepl.errors import ConnectionFailed, ServerError
from aiorepl.snapshot.privileges import unreadable
from aiorepl.source.diagnose.finding import SHOWN, Finding, error_found
from aiorepl.source.source import Source
from aiorepl.wire.interface import Connection
from aiorepl.wire.opening import translated

_INSUFFICIENT_PRIVILEGE: Final = "42501"
# The function's signature depends on the server's version.
_HEARTBEATS_DENIED: Final = """
SELECT p.oid::pg_catalog.regprocedure::text AS name FROM pg_catalog.pg_proc p
 WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace
   AND p.proargtypes[2] = 'text'::pg_catalog.regtype AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
"""
# A slot's name cannot contain capitals, so this slot never exists.
_PEEK: Final = "SELECT 1 FROM pg_catalog.pg_logical_slot_peek_binary_changes('NONE', NULL, 1)"


async def tls(connection: Connection, source: Source) -> list[Finding]:
    """Check whether TLS verified the server; a local server has no finding."""
    if connection.exposure is None:
        return []
    text = (
        f"the connection {connection.exposure}, so an attacker on the network can take the password and read or alter rows: "
        "set sslmode=verify-full and sslrootcert in the DSN (docs/reference/source.md)"
    )
    return [Finding("warning", "TLS", text)]


async def pooler(connection: Connection, source: Source) -> list[Finding]:
    """Check whether a pooler in front of the server keeps sessions.

    :raises ConnectionFailed: the pooler does not keep sessions.
    """
    if not connection.pooled:
        return []
    (await source.connect_sql()).terminate()
    text = "a pooler is in front of the server and keeps sessions; what TLS verifies ends at the pooler"
    return [Finding("ok", "pooler", text)]


async def privileges(connection: Connection, source: Source) -> list[Finding]:
    """Check for REPLICATION and for the privilege to write heartbeats.

    A replication connection proves REPLICATION. With ``interface="sql"`` a function that needs it is called.

    :raises ConnectionFailed: the role lacks REPLICATION.
    :raises ServerError, ConnectionLost: a query failed.
    """
    findings = []
    (row,) = await connection.query("SELECT pg_catalog.quote_ident(current_user) AS role")
    if source.interface == "sql":
        try:
            # The server checks the privilege before it looks for the slot.
            await connection.query(_PEEK)
        except ServerError as error:
            if error.sqlstate == _INSUFFICIENT_PRIVILEGE:
                raise ConnectionFailed(f"{error.message}: ALTER ROLE {row['role']} REPLICATION") from None
    if source.heartbeat_interval is not None:
        for function in await connection.query(_HEARTBEATS_DENIED):
            text = f"the role {row['role']} may not write heartbeats, so none are sent: a proxy may cut an idle connection, and a quiet stream looks stalled"
            sql = f"GRANT EXECUTE ON FUNCTION {function['name']} TO {row['role']};"
            findings.append(Finding("warning", "privileges", text, sql=sql))
    return findings


async def readable(connection: Connection, source: Source, about: str = "snapshot") -> list[Finding]:
    """Check whether the role can read every row of every published table.

    :param about: the subject of the findings.
    :raises AioreplError: the tables cannot be checked.
    """
    reader = await source.connect_sql()
    try:
        count, problems = await unreadable(reader, source.options().publications)
    except Exception as error:  # noqa: BLE001 - translated or raised as it is
        raise translated(error) from None
    finally:
        reader.terminate()
    if not problems:
        return [Finding("ok", about, f"the role can read all {count} tables")]
    findings = [error_found(about, problem) for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        text = f"{len(problems) - SHOWN} more tables cannot be read"
        findings.append(Finding("error", about, text, problems[0].exit_code))
    return findings
