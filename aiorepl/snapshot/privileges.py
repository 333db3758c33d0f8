"""Checks that a role may read the tables of an initial snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from aiorepl.errors import ConfigurationError
from aiorepl.snapshot.tables import PublishedTable, published_tables
from aiorepl.wire.commands import identifier

# Settings for a check outside of a transaction: row_security as in the load, and no long wait for an ALTER TABLE.
_SETTINGS = "SET row_security = off; SET lock_timeout = '2s'"
_MOST_NAMED: Final = 20


async def require_readable(connection: Any, table: PublishedTable, role: str) -> None:
    """Run the load's query with LIMIT 0, which locks the table and its partitions for the transaction.

    This needs exactly the load's privileges. LOCK TABLE would need SELECT on the whole table even if only some columns are
    published.

    :param role: the connection's role.
    :raises ConfigurationError: the role may not read all rows of the table; says what to grant.
    :raises asyncpg.PostgresError: the table cannot be read for another reason.
    """
    if table.secured:
        raise ConfigurationError(
            f"row-level security would hide rows of {table} from {role}, and a snapshot takes all rows: "
            f"ALTER ROLE {identifier(role)} BYPASSRLS, or connect as the table's owner (without FORCE ROW LEVEL SECURITY)"
        )
    try:
        await connection.execute(f"{table.query} LIMIT 0")
    except asyncpg.InsufficientPrivilegeError as error:
        raise denied([table], role, error.args[0]) from None


def denied(tables: Sequence[PublishedTable], role: str, reason: str) -> ConfigurationError:
    """Make the error for a role that lacks a privilege for these tables, of which at most twenty are named.

    :param reason: the server's message.
    """
    named, more = tables[:_MOST_NAMED], len(tables) - _MOST_NAMED
    schemas = ", ".join(dict.fromkeys(identifier(table.schema) for table in named))
    others = f", and so on for {more} more tables" if more > 0 else ""
    return ConfigurationError(
        f"a snapshot cannot read {', '.join(map(str, named))}: {reason}: GRANT USAGE ON SCHEMA {schemas} TO {identifier(role)}; "
        f"GRANT SELECT ON {', '.join(table.identifier for table in named)} TO {identifier(role)}{others}"
    )


async def unreadable(connection: Any, publications: tuple[str, ...]) -> tuple[int, list[ConfigurationError]]:
    """Check whether an initial snapshot could read its tables, without loading them.

    :returns: the number of tables, and an error for each one that the load could not read.
    :raises asyncpg.PostgresError: a table cannot be read for another reason.
    """
    await connection.execute(_SETTINGS)
    tables = await published_tables(connection, publications)
    role = await connection.fetchval("SELECT current_user::text")
    found = []
    for table in tables:
        try:
            await require_readable(connection, table, role)
        except ConfigurationError as error:
            found.append(error)
    return len(tables), found
