"""The SQL statements for one target table. Pure.

The parameters are one array of text for each column, in the order in which a statement lists the columns. The statement casts
them to the target's types. It is the same for any number of rows, so it is prepared once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from aiorepl_sinks.postgres.identifiers import qualified, quoted
from aiorepl_sinks.postgres.target import Target, TargetColumn


@lru_cache(1024)
def insert(target: Target, *, upsert: bool) -> str:
    """Insert whole rows; with ``upsert``, overwrite rows with the same key."""
    columns = [target.columns[index] for index in target.written]
    if not columns:
        return f"INSERT INTO {qualified(target.name)} SELECT FROM pg_catalog.generate_series(1, $1::int4)"
    text = (
        f"INSERT INTO {qualified(target.name)} ({_names(columns)}) OVERRIDING SYSTEM VALUE "
        f"SELECT {', '.join(column.cast(f's.n{column.index}') for column in columns)} "
        f"FROM {_rows('n', target.written)}"
    )
    if upsert and target.unique and target.key is not None:
        key = [target.columns[index] for index in target.key]
        rest = [column for column in columns if column.index not in target.key]
        sets = ", ".join(f"{quoted(column.name)} = EXCLUDED.{quoted(column.name)}" for column in rest)
        text += f" ON CONFLICT ({_names(key)}) DO {f'UPDATE SET {sets}' if rest else 'NOTHING'}"
    return text


@lru_cache(1024)
def update(target: Target, columns: tuple[int, ...]) -> str:
    """Update columns of rows by key; the arrays of the key's values come first."""
    assert target.key is not None
    return (
        f"UPDATE {target.table} AS t SET {_sets(target, columns)} "
        f"FROM {_rows('k', target.key, 'n', columns)} WHERE {_same_key(target)}"
    )


@lru_cache(1024)
def delete(target: Target) -> str:
    """Delete rows by key."""
    assert target.key is not None
    return f"DELETE FROM {target.table} AS t USING {_rows('k', target.key)} WHERE {_same_key(target)}"


@lru_cache(1024)
def update_by_row(target: Target, columns: tuple[int, ...]) -> str:
    """For each old row, update columns of one row that equals it. The arrays of the old rows come first."""
    return (
        _matched(
            target,
            ", ".join(f"s.n{index}" for index in columns),
            _rows("o", target.written, "n", columns, numbered=True),
        )
        + f" UPDATE {target.table} AS t SET {_sets(target, columns)} "
        "FROM f JOIN s USING (r, n) WHERE t.tableoid = f.o AND t.ctid = f.c"
    )


@lru_cache(1024)
def delete_by_row(target: Target) -> str:
    """For each old row, delete one row that equals it."""
    return (
        _matched(target, "", _rows("o", target.written, numbered=True))
        + f" DELETE FROM {target.table} AS t USING f JOIN s USING (r, n) WHERE t.tableoid = f.o AND t.ctid = f.c"
    )


def truncate(tables: Sequence[Target], *, restart_identity: bool, cascade: bool) -> str:
    """Truncate tables in one statement."""
    return (
        f"TRUNCATE {', '.join(target.table for target in tables)} "
        f"{'RESTART' if restart_identity else 'CONTINUE'} IDENTITY {'CASCADE' if cascade else 'RESTRICT'}"
    )


def _matched(target: Target, new: str, rows: str) -> str:
    """Match old rows (s) with rows of the table (f): the n-th of several equal old rows with the n-th equal row.

    Rows are compared as text, because not all types have an equality operator, and as one array, so that a single scan of the
    table finds all of them.
    """
    columns = [target.columns[index] for index in target.written]
    # The target's type may print a value differently (1 as 1.00), so old values go through it as well.
    sent = ", ".join(
        f"CASE WHEN s.o{column.index} IS NOT NULL THEN concat({column.cast(f's.o{column.index}')}::{column.declared}) END"
        for column in columns
    )
    stored = ", ".join(
        f"CASE WHEN t.{quoted(column.name)} IS DISTINCT FROM NULL THEN concat(t.{quoted(column.name)}) END"
        for column in columns
    )
    return (
        f"WITH s AS MATERIALIZED (SELECT s.*, row_number() OVER (PARTITION BY s.r ORDER BY s.i) AS n FROM "
        f"(SELECT ARRAY[{sent}]::text[] AS r, s.i{', ' + new if new else ''} FROM {rows}) s), "
        f"f AS MATERIALIZED (SELECT t.tableoid AS o, t.ctid AS c, d.r, "
        f"row_number() OVER (PARTITION BY d.r ORDER BY t.tableoid, t.ctid) AS n "
        f"FROM {target.table} AS t JOIN (SELECT DISTINCT r FROM s) d ON ARRAY[{stored}]::text[] = d.r)"
    )


def _sets(target: Target, columns: Sequence[int]) -> str:
    chosen = (target.columns[index] for index in columns)
    return ", ".join(f"{quoted(column.name)} = {column.cast(f's.n{column.index}')}" for column in chosen)


def _same_key(target: Target) -> str:
    columns = (target.columns[index] for index in target.key or ())
    return " AND ".join(
        f"t.{quoted(column.name)} {column.equal} {column.cast(f's.k{column.index}')}" for column in columns
    )


def _names(columns: Sequence[TargetColumn]) -> str:
    return ", ".join(quoted(column.name) for column in columns)


def _rows(*groups: str | Sequence[int], numbered: bool = False) -> str:
    """Unnest arrays into rows.

    :param groups: pairs of a letter and column indexes; the two form a column's name.
    :param numbered: add the row's number as column ``i``.
    """
    names = [
        f"{letter}{index}"
        for letter, columns in zip(groups[::2], groups[1::2], strict=True)
        for index in columns
    ]
    # Not pg_catalog.unnest: with several arrays, unnest is special syntax.
    arrays = f"unnest({', '.join(f'${number}::text[]' for number in range(1, len(names) + 1))})"
    if numbered:
        return f"{arrays} WITH ORDINALITY AS s({', '.join([*names, 'i'])})"
    return f"{arrays} AS s({', '.join(names)})"
