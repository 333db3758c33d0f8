"""Checks a request to read tables before the request is written to the stream: once the request is in the stream, no caller waits for an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from aiorepl.errors import ConfigurationError
from aiorepl.snapshot.conditions import condition
from aiorepl.snapshot.incremental.table_names import Name, look_up, unpublished
from aiorepl.snapshot.tables import PublishedTable


async def require_possible(
    connection: Any, publications: tuple[str, ...], names: Sequence[Name], where: str | None
) -> None:
    """Check that the tables are published, and that the condition applies to them. No row is read.

    :param connection: an asyncpg connection.
    :param where: a condition that a signal can have.
    :raises ConfigurationError: a pipeline would reject the request; the message says what to do.
    :raises asyncpg.PostgresError: the server failed.
    """
    found = await look_up(connection, publications, names)
    errors = await unpublished(
        connection, publications, [name for name, tables in found.items() if not tables]
    )
    for error in errors.values():
        raise error
    if where is not None:
        for tables in found.values():
            for table in tables:
                require_key(table)
                await _require_condition(connection, table, where)


def require_key(table: PublishedTable) -> None:
    """Check that some rows of a table can be read without the others.

    :raises ConfigurationError: the table has no key.
    """
    if not table.key:
        raise ConfigurationError(
            f"table {table} has no replica identity with a key, so it can only be read as a whole: leave out where"
        )


async def _require_condition(connection: Any, table: PublishedTable, where: str) -> None:
    selected = await condition(connection, table, where)
    try:
        # Parsed, and not executed.
        await connection.prepare(f"SELECT FROM {table.origin} WHERE {selected}")
    except asyncpg.InsufficientPrivilegeError:
        pass  # the pipeline's role may have the privilege
    except (asyncpg.SyntaxOrAccessError, asyncpg.DataError) as error:
        raise ConfigurationError(f"where does not fit table {table}: {error.args[0]}") from None
