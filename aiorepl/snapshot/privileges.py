"""What the role of an initial load may not read."""

from __future__ import annotations

from typing import Any

import asyncpg

from aiorepl.errors import ConfigurationError
from aiorepl.snapshot.tables import PublishedTable, published_tables
from aiorepl.wire.commands import identifier

# For looking without a transaction: as the load itself has it, and not waiting behind an ALTER TABLE.
_SETTINGS = "SET row_security = off; SET lock_timeout = '2s'"


async def require_readable(connection: Any, table: PublishedTable, role: str) -> None:
    """Read nothing of a table, which locks what the load will read, partitions included, for the transaction.

    It asks for the privileges that the load needs and no more: LOCK TABLE wants SELECT on the whole table, also where only
    some columns are published.

    :param role: as whom the connection reads.
    :raises ConfigurationError: the role may not read all rows of the table; says what to grant.
    :raises asyncpg.PostgresError: the table cannot be read for another reason.
    """
    if table.secured:
        raise ConfigurationError(
            f"row-level security would hide rows of {table} from {role}, and an initial load takes all rows: "
            f"ALTER ROLE {identifier(role)} BYPASSRLS, or connect as the table's owner (without FORCE ROW LEVEL SECURITY)"
        )
    try:
        await connection.execute(f"{table.query} LIMIT 0")
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigurationError(
            f"the initial load cannot read {table}: {error.args[0]}: GRANT USAGE ON SCHEMA {identifier(table.schema)} "
            f"TO {identifier(role)}; GRANT SELECT ON {table.identifier} TO {identifier(role)}"
        ) from None


async def unreadable(connection: Any, publications: tuple[str, ...]) -> tuple[int, list[ConfigurationError]]:
    """Look whether an initial load could read its tables, without one.

    :returns: how many tables there are, and what keeps the load from reading some of them.
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
