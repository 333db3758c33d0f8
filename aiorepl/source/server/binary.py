"""Types that the server cannot send in binary form, or whose binary form cannot be read: containers of certain types, and money."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from aiorepl.errors import ConfigurationError, ServerError
from aiorepl.pgoutput.relations import Relation
from aiorepl.source.source import Source
from aiorepl.values.registry import Types
from aiorepl.values.types import MONEY
from aiorepl.wire.commands import literals
from aiorepl.wire.interface import Connection
from aiorepl.wire.opening import ANSWER_SECONDS, translated

_UNDEFINED_FUNCTION: Final = "42883"
_CENTS: Final = 100
_SHOWN: Final = 5
_REMEDY: Final = "read text columns, without binary (--binary)"

# A walsender sends a value whose type has no send function as text. The send function of a container fails instead.
_COLUMNS: Final = """
WITH RECURSIVE parts AS (
  SELECT t.oid, false AS within FROM pg_catalog.pg_type t WHERE {part}
   UNION
  SELECT w.oid, true FROM parts p JOIN LATERAL (
      SELECT t.oid FROM pg_catalog.pg_type t
       WHERE t.typelem = p.oid AND t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc
       UNION ALL
      SELECT t.oid FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.typrelid = a.attrelid
       WHERE a.atttypid = p.oid AND a.attnum > 0 AND NOT a.attisdropped
       UNION ALL
      SELECT t.oid FROM pg_catalog.pg_type t WHERE t.typtype = 'd' AND t.typbasetype = p.oid AND t.typsend <> 0) w ON true)
SELECT DISTINCT pg_catalog.format('%I.%I.%I (%s)', t.schemaname, t.tablename, a.attname,
                                  pg_catalog.format_type(a.atttypid, a.atttypmod)) AS name
  FROM parts p
  JOIN pg_catalog.pg_attribute a ON a.atttypid = p.oid AND a.attnum > 0 AND NOT a.attisdropped
  JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_publication_tables t ON t.schemaname = n.nspname AND t.tablename = c.relname
 WHERE (p.within OR {alone}) AND t.pubname IN ({names})
 ORDER BY 1 LIMIT 6
"""
_UNSENDABLE: Final = "t.typsend = 0 AND t.typtype IN ('b', 'd')"
_MONEY: Final = f"t.oid = {MONEY}"
_UNITS: Final = "SELECT pg_catalog.encode(pg_catalog.cash_send(pg_catalog.money(1)), 'hex') AS units"


async def require_cents(connection: Connection, source: Source) -> bool:
    """Return whether money has two decimals, which the reader of its binary form expects. This does not matter without money columns.

    :raises ConfigurationError: ``lc_monetary`` has another number of decimals, and a published column has money.
    :raises ServerError, ConnectionLost: a query failed.
    """
    ((units,),) = (row.values() for row in await connection.query(_UNITS))
    if units is not None and int(units, 16) == _CENTS:
        return True
    rows = await connection.query(_query(source, _MONEY, alone="true"))
    if rows:
        raise _without_cents([row["name"] for row in rows])
    return False


def require_no_money(relations: Iterable[Relation], types: Types) -> None:
    """Check that no column of tables that were described later has money.

    :raises ConfigurationError: names the columns.
    """
    names = [
        f"{relation.namespace}.{relation.name}.{column.name} ({types.info(column.type_oid)})"
        for relation in relations
        for column in relation.columns
        if types.contains(column.type_oid, MONEY)
    ]
    if names:
        raise _without_cents(names)


def _without_cents(names: Sequence[str | None]) -> ConfigurationError:
    return ConfigurationError(
        f"{_named(names)}: the server's lc_monetary does not have two decimals, and the binary form of money does not say how many "
        f"it has: {_REMEDY}"
    )


async def with_columns(source: Source, error: ServerError) -> Exception:
    """Return the error that names the columns whose values the server cannot send in binary form; other errors unchanged.

    :raises ConnectionFailed, ConnectionLost, ServerError: the columns cannot be looked up.
    """
    if not source.binary or error.sqlstate != _UNDEFINED_FUNCTION:
        return error
    connection = await source.connect_sql()
    try:
        rows = await connection.fetch(_query(source, _UNSENDABLE, alone="false"), timeout=ANSWER_SECONDS)
    except Exception as failed:  # noqa: BLE001 - asyncpg's errors
        raise translated(failed) from None
    finally:
        connection.terminate()
    if not rows:
        return error
    names = _named([row["name"] for row in rows])
    return ConfigurationError(f"{names}: {error.message}, so the server cannot send its values: {_REMEDY}")


def _query(source: Source, part: str, *, alone: str) -> str:
    names = literals(source.options().publications)
    return _COLUMNS.format(part=part, alone=alone, names=names)


def _named(names: Sequence[str | None]) -> str:
    return f"{', '.join(map(str, names[:_SHOWN]))}{' and others' if len(names) > _SHOWN else ''}"
