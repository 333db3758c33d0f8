"""Why a step was refused, where SQLSTATE does not tell enough: which column it was, without quoting its values."""

from __future__ import annotations

from typing import Any, Final

import asyncpg

from aiorepl_sinks.postgres.identifiers import quoted
from aiorepl_sinks.postgres.plan import AnyStep, Step, TruncateStep
from aiorepl_sinks.postgres.rows import arrays

_VALUES: Final = "22"


def told(step: AnyStep) -> str:
    """What a step is about, in words."""
    if isinstance(step, Step):
        rows = "1 row" if len(step) == 1 else f"{len(step)} rows"
        return f"{step.kind} of {rows} of {step.target}"
    if isinstance(step, TruncateStep):
        return f"truncate of {', '.join(map(str, step.targets))}"
    return "a logical decoding message"


async def reason(connection: Any, step: AnyStep, sqlstate: str) -> str | None:
    """More than the SQLSTATE says, in words, if there is more. Asked outside of the transaction that failed."""
    if isinstance(step, TruncateStep) and sqlstate == "0A000":
        return (
            "a table refers to them that was not emptied with them on the source, or is not published: empty it first, or "
            "set cascade = true if the source said CASCADE"
        )
    if isinstance(step, Step) and sqlstate.startswith(_VALUES):
        return await _misfit(connection, step)
    return None


async def _misfit(connection: Any, step: Step) -> str | None:
    if not step.rows:
        return None
    # pg_input_is_valid knows lengths as well.
    checks = connection.get_server_version().major >= 16
    for place in step.places or step.target.written:
        column = step.target.columns[place]
        (values,) = arrays([[row[place]] for row in step.rows], 1)
        if checks:
            sql = "SELECT bool_and(pg_catalog.pg_input_is_valid(v, $2)) FROM unnest($1::text[]) AS s(v) WHERE v IS NOT NULL"
            fits = await connection.fetchval(sql, values, column.declared) is not False
        else:
            fits = await _casts(connection, column.cast("s.v"), values)
        if not fits:
            return f"a value of column {quoted(column.name)} does not fit its type on the target, {column.declared}"
    return None


async def _casts(connection: Any, cast: str, values: list[str | None]) -> bool:
    try:
        await connection.execute(f"SELECT count({cast}) FROM unnest($1::text[]) AS s(v)", values)
    except asyncpg.DataError:
        return False
    return True
