"""Names what no publication can send: unlogged tables and large objects."""

from __future__ import annotations

from typing import Final

from aiorepl.source.diagnose.finding import Finding, shown
from aiorepl.source.source import Source
from aiorepl.wire.interface import Connection

_UNLOGGED: Final = """
SELECT c.oid::pg_catalog.regclass::text AS name
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'u' AND n.nspname !~ '^pg_'
 ORDER BY 1
"""
_LARGE_OBJECTS: Final = "SELECT count(*)::text AS objects FROM pg_catalog.pg_largeobject_metadata"


async def unreplicated(connection: Connection, source: Source) -> list[Finding]:
    """Find what of the database is never in the stream.

    :raises ServerError, ConnectionLost: a query failed.
    """
    findings = []
    if unlogged := [str(row["name"]) for row in await connection.query(_UNLOGGED)]:
        text = f"unlogged tables are not sent: {shown(unlogged)}: copy them at a switch, or ALTER TABLE … SET LOGGED"
        findings.append(Finding("ok", "not replicated", text))
    (row,) = await connection.query(_LARGE_OBJECTS)
    if count := int(row["objects"] or 0):
        text = f"large objects are not sent: the database has {count}: copy them at a switch, or store them as bytea"
        findings.append(Finding("ok", "not replicated", text))
    return findings
