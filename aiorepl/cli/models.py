"""``aiorepl models``: print Python classes for the tables of publications."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import click

from aiorepl.cli import options
from aiorepl.errors import ConfigurationError

if TYPE_CHECKING:
    from aiorepl.cli.model_source import Style, TableOfModel
    from aiorepl.values.registry import Types

# PostgreSQL 15 and later list the published columns; earlier servers publish all but generated ones.
_COLUMNS: Final = """
SELECT DISTINCT n.nspname::pg_catalog.text AS schema, c.relname::pg_catalog.text AS name, a.attname::pg_catalog.text AS column,
       a.atttypid AS type_oid, NOT a.attnotnull AS nullable, a.attnum
  FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE t.pubname = ANY ($1::pg_catalog.text[])
   AND CASE WHEN pg_catalog.to_jsonb(t) ? 'attnames' THEN pg_catalog.to_jsonb(t) -> 'attnames' ? a.attname::pg_catalog.text
            ELSE coalesce(pg_catalog.to_jsonb(a) ->> 'attgenerated', '') = '' END
 ORDER BY 1, 2, a.attnum
"""


@click.command(short_help="Print Python classes for the tables of publications.")
@options.dsn
@options.publication(required=True)
@click.option(
    "--style",
    type=click.Choice(["dataclass", "pydantic", "msgspec"]),
    default="dataclass",
    help="The kind of the classes.",
)
def models(dsn: str | None, publication: tuple[str, ...], style: Style) -> None:
    """Print a Python module with a class for each published table, for RowChange.into and Router.on.

    A class has the columns that the server sends. A field whose column's name is not an identifier in Python, or is
    reserved by pydantic, gets another name and an alias. Types without an equivalent in Python's standard library are Any.
    """
    from aiorepl.cli.event_loop import run_async
    from aiorepl.cli.model_source import write_models

    tables, types = run_async(_look_up(dsn, publication))
    if not tables:
        raise ConfigurationError(
            f"no table is published by {', '.join(publication)}: add one with ALTER PUBLICATION"
        )
    click.echo(write_models(tables, types, style), nl=False)


async def _look_up(dsn: str | None, publications: tuple[str, ...]) -> tuple[list[TableOfModel], Types]:
    from aiorepl.cli.model_source import ColumnOfModel, TableOfModel
    from aiorepl.source.server.queries import ALL_PUBLICATIONS
    from aiorepl.source.server.requirements import require_publications
    from aiorepl.values import catalog
    from aiorepl.values.registry import Types
    from aiorepl.wire.opening import connect_sql

    connection = await connect_sql(dsn)
    try:
        existing = await connection.fetch(ALL_PUBLICATIONS)
        require_publications([row[0] for row in existing], publications)
        columns = await connection.fetch(_COLUMNS, publications)
        oids = {row["type_oid"] for row in columns}
        types = Types(catalog.parse(await connection.fetch(catalog.QUERY, oids)))
    finally:
        connection.terminate()
    tables = [
        TableOfModel(*key, [ColumnOfModel(row["column"], row["type_oid"], row["nullable"]) for row in rows])
        for key, rows in groupby(columns, lambda row: (row["schema"], row["name"]))
    ]
    return tables, types
