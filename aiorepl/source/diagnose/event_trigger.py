"""Checks the optional event trigger, whose messages make the watch on the publications look at once."""

from __future__ import annotations

from typing import Final

from aiorepl.source.diagnose.finding import Finding
from aiorepl.source.source import Source
from aiorepl.wire.interface import Connection

_NAME: Final = "aiorepl_publication"
_SENDS_MESSAGES: Final = 14
# Each column is true if the trigger is as documented. Otherwise the column's name says what is wrong.
_TRIGGER: Final = """
SELECT (e.evtenabled = 'A')::text AS "it is disabled, or not ENABLE ALWAYS",
       (e.evtevent = 'ddl_command_end')::text AS "it is not ON ddl_command_end",
       (e.evttags IS NULL OR NOT EXISTS (
         SELECT FROM pg_catalog.unnest(ARRAY['CREATE TABLE', 'ALTER TABLE', 'DROP TABLE', 'CREATE PUBLICATION', 'ALTER PUBLICATION',
                                             'DROP PUBLICATION']) AS tag WHERE tag <> ALL (e.evttags)))::text AS "its tags lack statements",
       (f.prosecdef AND coalesce('search_path=pg_catalog, pg_temp' = ANY (f.proconfig), false))::text
         AS "its function is not SECURITY DEFINER with the documented search_path",
       (pg_catalog.strpos(f.prosrc, 'aiorepl.publication') > 0)::text AS "its function writes other messages, or none",
       (f.proowner = e.evtowner)::text AS "its function belongs to another role, which could replace it"
  FROM pg_catalog.pg_event_trigger e JOIN pg_catalog.pg_proc f ON f.oid = e.evtfoid WHERE e.evtname = 'aiorepl_publication'
"""


async def event_trigger(connection: Connection, source: Source) -> list[Finding]:
    """Compare the event trigger, if there is one, with the documented one.

    :raises ServerError, ConnectionLost: the query failed.
    """
    rows = await connection.query(_TRIGGER)
    if not rows:
        return []
    wrong = [problem for problem, good in rows[0].items() if good != "true"]
    if connection.server_version < _SENDS_MESSAGES:
        text = f"{_NAME}: PostgreSQL 13 and earlier do not send its messages, so changes of the publications may be noticed late"
    elif wrong:
        text = f"{_NAME}: {'; '.join(wrong)}: changes of the publications may be noticed late; install it as docs/reference/source.md shows"
    else:
        return [Finding("ok", "event trigger", f"{_NAME} is as documented")]
    return [Finding("warning", "event trigger", text)]
