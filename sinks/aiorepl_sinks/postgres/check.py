"""Checks of the target for ``aiorepl check``: the login, the tables, and the role's privileges. Only reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import asyncpg

from aiorepl import PermanentError, TransientError
from aiorepl_sinks.postgres.connection import SEARCH_PATH, ConnectionOptions
from aiorepl_sinks.postgres.errors import ERRORS, translate
from aiorepl_sinks.postgres.identifiers import Name, qualified, quoted

_SHOWN: Final = 5
_ROLE: Final = """
SELECT current_user::text AS role, pg_catalog.pg_is_in_recovery() AS standby,
       pg_catalog.to_regnamespace($1) IS NOT NULL AS exists,
       pg_catalog.has_database_privilege(current_database(), 'CREATE') AS may_create,
       CASE WHEN pg_catalog.to_regnamespace($1) IS NULL THEN NULL
            ELSE pg_catalog.has_schema_privilege(pg_catalog.to_regnamespace($1), 'USAGE') END AS may_use,
       current_setting('max_prepared_transactions') AS prepared
"""
_TABLES: Final = """
SELECT t.schema, t.name, c.oid IS NOT NULL AS exists,
       c.oid IS NULL OR pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS visible,
       c.oid IS NULL OR (pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT')
         AND pg_catalog.has_table_privilege(c.oid, 'UPDATE') AND pg_catalog.has_table_privilege(c.oid, 'DELETE')) AS granted,
       c.oid IS NULL OR pg_catalog.pg_has_role(c.relowner, 'USAGE') AS owned, n.oid IS NOT NULL AS has_schema,
       current_database()::text AS database, current_user::text AS role,
       CASE WHEN n.oid IS NULL THEN pg_catalog.has_database_privilege(current_database(), 'CREATE')
            ELSE pg_catalog.has_schema_privilege(n.oid, 'CREATE') END AS creatable
  FROM unnest($1::text[], $2::text[]) AS t(schema, name)
  LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = t.schema
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.name AND c.relkind IN ('r', 'p')
"""


async def check(options: ConnectionOptions, tables: Sequence[Name], *, alters: bool = False) -> None:
    """Check that the target can be reached and the role may write these tables.

    :param tables: the target's tables.
    :param alters: whether the sink creates and alters the tables.
    :raises TransientError, PermanentError: the target cannot be reached, or something is missing; says what to do.
    """
    connection = await options.connect({**SEARCH_PATH, **options.settings})
    try:
        async with asyncio.timeout(options.timeout):
            await _check(connection, options, tables, alters)
    except ERRORS as error:
        raise translate(error, "checking the target") from None
    finally:
        connection.terminate()


async def _check(
    connection: asyncpg.Connection, options: ConnectionOptions, tables: Sequence[Name], alters: bool
) -> None:
    schema = quoted(options.schema)
    found = await connection.fetchrow(_ROLE, schema)
    role = quoted(found["role"])
    if found["standby"]:
        raise TransientError(
            "postgres: the target is a standby, which cannot be written: name the primary in the DSN"
        )
    if options.two_phase and found["prepared"] == "0":
        raise PermanentError(
            "postgres: two_phase needs max_prepared_transactions above 0 on the target: raise it and restart that server"
        )
    if found["may_use"] is False or (not found["exists"] and not found["may_create"]):
        remedy = (
            f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}"
            if found["exists"]
            else f"CREATE SCHEMA {schema} AUTHORIZATION {role}"
        )
        raise PermanentError(
            f"postgres: the role {role} may not create the tables for the sink's position on the target: {remedy}"
        )
    rows = await connection.fetch(_TABLES, [name[0] for name in tables], [name[1] for name in tables])
    missing = [row for row in rows if not row["exists"]]
    if alters:
        _require_alterable(rows)
    elif names := [(row["schema"], row["name"]) for row in missing]:
        raise PermanentError(
            f"postgres: the target has no table {_shown(names)}: create it, map it to another with the option tables, remove it from the "
            'publication or by a selection, or choose ddl = "apply"'
        )
    if hidden := sorted({row["schema"] for row in rows if not row["visible"]}):
        schemas = ", ".join(map(quoted, hidden))
        raise PermanentError(
            f"postgres: the role {role} may not use the target's schema {schemas}: GRANT USAGE ON SCHEMA {schemas} TO {role}"
        )
    if denied := [(row["schema"], row["name"]) for row in rows if not row["granted"]]:
        raise PermanentError(
            f"postgres: the role {role} may not write {_shown(denied)} on the target: GRANT SELECT, INSERT, UPDATE, DELETE, "
            f"TRUNCATE ON {', '.join(map(qualified, denied[:_SHOWN]))} TO {role}"
        )


async def require_alterable(connection: asyncpg.Connection, table: Name) -> None:
    """Check that the role may create a table, or alter it if it exists.

    :raises PermanentError: the role lacks a privilege; the message has the statement that grants it.
    """
    _require_alterable(await connection.fetch(_TABLES, [table[0]], [table[1]]))


def _require_alterable(rows: Sequence[asyncpg.Record]) -> None:
    for row in rows:
        role, schema = quoted(row["role"]), quoted(row["schema"])
        if not row["exists"] and not row["creatable"]:
            on = f"SCHEMA {schema}" if row["has_schema"] else f"DATABASE {quoted(row['database'])}"
            raise PermanentError(
                f"postgres: the role {role} may not create tables in the target's schema {schema}: GRANT CREATE ON {on} TO {role}"
            )
    foreign = [(row["schema"], row["name"]) for row in rows if not row["owned"]]
    if foreign:
        raise PermanentError(
            f"postgres: the role {role} does not own {_shown(foreign)} on the target, so it may not alter them: ALTER TABLE "
            f'{qualified(foreign[0])} OWNER TO {role}{" …" * (len(foreign) > 1)} on the target, or choose ddl = "refuse"'
        )


def _shown(names: Sequence[Name]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(".".join(name) for name in names[:_SHOWN]) + more
