"""The SQL of one target. Pure: texts in, texts out.

Rows come as one array of text for each column, in the order of the places that a statement is made for, and are cast to
the target's own types there. A statement stays the same for any number of rows, so it is prepared once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from aiorepl_sinks.postgres.identifiers import qualified, quoted
from aiorepl_sinks.postgres.target import Target, TargetColumn


@lru_cache(1024)
def insert(target: Target, *, upsert: bool) -> str:
    """Write whole rows; with ``upsert`` over those that are there under the same key."""
    columns = [target.columns[place] for place in target.written]
    if not columns:
        return f"INSERT INTO {qualified(target.name)} SELECT FROM pg_catalog.generate_series(1, $1::int4)"
    text = (
        f"INSERT INTO {qualified(target.name)} ({_names(columns)}) OVERRIDING SYSTEM VALUE "
        f"SELECT {', '.join(column.cast(f's.n{column.place}') for column in columns)} "
        f"FROM {_rows('n', target.written)}"
    )
    if upsert and target.unique and target.key is not None:
        key = [target.columns[place] for place in target.key]
        rest = [column for column in columns if column.place not in target.key]
        sets = ", ".join(f"{quoted(column.name)} = EXCLUDED.{quoted(column.name)}" for column in rest)
        text += f" ON CONFLICT ({_names(key)}) DO {f'UPDATE SET {sets}' if rest else 'NOTHING'}"
    return text


@lru_cache(1024)
def update(target: Target, places: tuple[int, ...]) -> str:
    """Set the columns at ``places``; arrays of the key's values come first."""
    assert target.key is not None
    return (
        f"UPDATE {target.table} AS t SET {_sets(target, places)} "
        f"FROM {_rows('k', target.key, 'n', places)} WHERE {_same_key(target)}"
    )


@lru_cache(1024)
def delete(target: Target) -> str:
    """Delete by key."""
    assert target.key is not None
    return f"DELETE FROM {target.table} AS t USING {_rows('k', target.key)} WHERE {_same_key(target)}"


@lru_cache(1024)
def update_whole(target: Target, places: tuple[int, ...]) -> str:
    """Set the columns at ``places`` in one row each that looks like the old row, whose columns come first."""
    return (
        _matched(
            target,
            ", ".join(f"s.n{place}" for place in places),
            _rows("o", target.written, "n", places, numbered=True),
        )
        + f" UPDATE {target.table} AS t SET {_sets(target, places)} "
        "FROM f JOIN s USING (r, n) WHERE t.tableoid = f.o AND t.ctid = f.c"
    )


@lru_cache(1024)
def delete_whole(target: Target) -> str:
    """Delete one row for each old row that looks like it."""
    return (
        _matched(target, "", _rows("o", target.written, numbered=True))
        + f" DELETE FROM {target.table} AS t USING f JOIN s USING (r, n) WHERE t.tableoid = f.o AND t.ctid = f.c"
    )


def truncate(tables: Sequence[Target], *, restart_identity: bool, cascade: bool) -> str:
    """Empty tables together."""
    return (
        f"TRUNCATE {', '.join(target.table for target in tables)} "
        f"{'RESTART' if restart_identity else 'CONTINUE'} IDENTITY {'CASCADE' if cascade else 'RESTRICT'}"
    )


def _matched(target: Target, new: str, rows: str) -> str:
    """Old rows (s) and the rows they are (f): the n-th of those that are the same is the n-th there.

    Compared as text, which all types have and not all have an equality; as one array, so that a scan of the table is
    enough for all of them.
    """
    columns = [target.columns[place] for place in target.written]
    # A text that the target's type prints otherwise (1 as 1.00) has to be printed by it to be found.
    sent = ", ".join(
        f"CASE WHEN s.o{column.place} IS NOT NULL THEN concat({column.cast(f's.o{column.place}')}::{column.declared}) END"
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


def _sets(target: Target, places: Sequence[int]) -> str:
    columns = (target.columns[place] for place in places)
    return ", ".join(f"{quoted(column.name)} = {column.cast(f's.n{column.place}')}" for column in columns)


def _same_key(target: Target) -> str:
    columns = (target.columns[place] for place in target.key or ())
    return " AND ".join(
        f"t.{quoted(column.name)} = {column.cast(f's.k{column.place}')}" for column in columns
    )


def _names(columns: Sequence[TargetColumn]) -> str:
    return ", ".join(quoted(column.name) for column in columns)


def _rows(*groups: str | Sequence[int], numbered: bool = False) -> str:
    """Arrays as rows: pairs of a letter and places, whose columns are called by both, and ``i`` if they are numbered."""
    names = [
        f"{letter}{place}"
        for letter, places in zip(groups[::2], groups[1::2], strict=True)
        for place in places
    ]
    # Not pg_catalog.unnest: of several arrays it is syntax more than a function.
    arrays = f"unnest({', '.join(f'${number}::text[]' for number in range(1, len(names) + 1))})"
    if numbered:
        return f"{arrays} WITH ORDINALITY AS s({', '.join([*names, 'i'])})"
    return f"{arrays} AS s({', '.join(names)})"
