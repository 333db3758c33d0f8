"""Parses the names of requested tables, and looks up the published tables that they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from aiorepl.errors import ConfigurationError
from aiorepl.snapshot.tables import PublishedTable, fetch_published, published_tables
from aiorepl.suggestions import suggestion
from aiorepl.wire.commands import identifier

_NAME: Final = re.compile(r'(?:(?P<schema>"(?:[^"]|"")+"|[^".]+)\.)?(?P<table>"(?:[^"]|"")+"|[^".]+)')

# A query for the tables with these names, and for their partitions, which may be published instead.
_PARTS: Final = """
WITH RECURSIVE tree(schema, name, part) AS (
  SELECT n.nspname::text, c.relname::text, c.oid
    FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) AS named(schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = named.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = named.name
   UNION SELECT tree.schema, tree.name, i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.part
     JOIN pg_catalog.pg_class p ON p.oid = i.inhrelid AND p.relispartition)
SELECT schema, name, part FROM tree
"""

_EXISTING: Final = """
SELECT n.nspname::text AS schema, c.relname::text AS name
  FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) AS named(schema, name)
  JOIN pg_catalog.pg_namespace n ON n.nspname = named.schema
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = named.name
"""
_PUBLISHED: Final = """
SELECT DISTINCT schemaname::text AS schema, tablename::text AS name
  FROM pg_catalog.pg_publication_tables WHERE pubname = ANY ($1)
"""

Name = tuple[str, str]
"""Schema and table."""


def parse_name(table: str) -> Name:
    """Split ``schema.table``; the schema is ``public`` by default, and names with dots are quoted as in SQL.

    :raises ConfigurationError: the text is not the name of a table.
    """
    match = _NAME.fullmatch(table)
    if match is None or not is_text(table):
        raise ConfigurationError(f"{table!r} is not the name of a table: write schema.table")
    schema, name = (_unquoted(match[part] or "public") for part in ("schema", "table"))
    return schema, name


def is_text(text: str) -> bool:
    """Whether a server and the ledger accept the text: it has neither NUL nor unpaired surrogates."""
    return not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text)


async def look_up(
    connection: Any, publications: tuple[str, ...], names: Iterable[Name]
) -> dict[Name, list[PublishedTable]]:
    """Return the published tables of each name: the table itself, or the partitions that are published instead.

    :param connection: an asyncpg connection.
    :raises asyncpg.PostgresError: the server failed.
    """
    wanted = list(dict.fromkeys(names))
    rows = await connection.fetch(_PARTS, [schema for schema, _ in wanted], [name for _, name in wanted])
    tables = await published_tables(connection, publications, {row["part"] for row in rows})
    parts: dict[Name, set[int]] = {name: set() for name in wanted}
    for row in rows:
        parts[row["schema"], row["name"]].add(row["part"])
    return {name: [table for table in tables if table.oid in found] for name, found in parts.items()}


async def unpublished(
    connection: Any, publications: tuple[str, ...], names: Sequence[Name]
) -> dict[Name, ConfigurationError]:
    """Return, for each name without a published table, an error that gives the reason.

    :param connection: an asyncpg connection.
    :raises asyncpg.PostgresError: the server failed.
    """
    if not names:
        return {}
    rows = await connection.fetch(_EXISTING, [schema for schema, _ in names], [name for _, name in names])
    existing = {(row["schema"], row["name"]) for row in rows}
    rows = await fetch_published(connection, _PUBLISHED, list(publications))
    published = [f"{row['schema']}.{row['name']}" for row in rows]
    listed = ", ".join(publications) or "any publication"
    errors = {}
    for name in names:
        table = ".".join(name)
        if name in existing:
            target = identifier(publications[0]) if publications else "…"
            added = ".".join(map(identifier, name))
            problem = f"is not published by {listed}: ALTER PUBLICATION {target} ADD TABLE {added}"
        elif published:
            problem = f"does not exist: {suggestion(table, published)}"
        else:
            problem = f"does not exist, and no table is published by {listed}"
        errors[name] = ConfigurationError(f"table {table} {problem}")
    return errors


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
