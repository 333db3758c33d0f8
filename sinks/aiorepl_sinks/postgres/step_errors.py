"""Finds the column that made a step fail, which SQLSTATE does not tell. Quotes no values."""

from __future__ import annotations

from typing import Any, Final

import asyncpg

from aiorepl_sinks.postgres.identifiers import quoted
from aiorepl_sinks.postgres.rows import arrays
from aiorepl_sinks.postgres.steps import AnyStep, Step, TruncateStep

_VALUES: Final = "22"


def describe(step: AnyStep) -> str:
    """Describe a step, for messages."""
    if isinstance(step, Step):
        rows = "1 row" if len(step) == 1 else f"{len(step)} rows"
        return f"{step.kind} of {rows} of {step.target}"
    if isinstance(step, TruncateStep):
        return f"truncate of {', '.join(map(str, step.targets))}"
    return "a logical decoding message"


async def reason(connection: Any, step: AnyStep, sqlstate: str) -> str | None:
    """Return a more exact reason for a failure than SQLSTATE, if one is found. Roll the transaction back before."""
    if isinstance(step, TruncateStep) and sqlstate == "0A000":
        return (
            "another table on the target refers to them, and the source did not truncate it, or does not publish it: truncate "
            "it first, or set cascade = true if the source used CASCADE"
        )
    if isinstance(step, Step) and sqlstate.startswith(_VALUES):
        return await _unfit_column(connection, step)
    return None


async def _unfit_column(connection: Any, step: Step) -> str | None:
    """Find the first column with a value that does not fit its type."""
    if not step.rows:
        return None
    # pg_input_is_valid also checks lengths.
    has_check = connection.get_server_version().major >= 16
    for index in step.columns or step.target.written:
        column = step.target.columns[index]
        (values,) = arrays([[row[index]] for row in step.rows], 1)
        if has_check:
            sql = "SELECT bool_and(pg_catalog.pg_input_is_valid(v, $2)) FROM unnest($1::text[]) AS s(v) WHERE v IS NOT NULL"
            fits = await connection.fetchval(sql, values, column.declared) is not False
        else:
            fits = await _casts(connection, column.cast("s.v"), values)
        if not fits:
            return f"a value of column {quoted(column.name)} does not fit its type on the target, {column.declared}"
    return None


async def _casts(connection: Any, cast: str, values: list[str | None]) -> bool:
    """Whether all values can be cast."""
    try:
        await connection.execute(f"SELECT count({cast}) FROM unnest($1::text[]) AS s(v)", values)
    except asyncpg.DataError:
        return False
    return True
