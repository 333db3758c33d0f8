"""The SQL that reads chunks, and that finds the bounds of key ranges. Pure.

A column is selected as it is, in binary, or by the output function of its type, as text. ``format`` calls that function; a
cast to text may be another one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from aiorepl.pgoutput.tuples import BINARY, TEXT
from aiorepl.snapshot.chunks import BlockRange, KeyRange, Range, Sweep
from aiorepl.snapshot.tables import PublishedColumn, PublishedTable
from aiorepl.values.registry import Types
from aiorepl.wire.commands import identifier

_SURROGATE: Final = re.compile("[\udc80-\udcff]")
# The number of blocks that are sampled to find the bounds of a chunk.
_SAMPLED_BLOCKS: Final = 20


def column_kinds(
    table: PublishedTable, types: Types, without_send: Collection[int], *, binary: bool
) -> bytes:
    """Return the kind of each column: binary if that form is known here and to the server, else text.

    :param binary: whether the stream is binary. A binary stream has numbers of the reg* types instead of names.
    :param without_send: the types without a binary form on the server, or with a component without one.
    """
    return bytes(
        BINARY
        if types.binary(column.type_oid, numbers=binary) and column.type_oid not in without_send
        else TEXT
        for column in table.columns
    )


def copy_statement(
    table: PublishedTable,
    kinds: bytes,
    rows: Range,
    key: Iterable[str] = (),
    conditions: Iterable[str] = (),
) -> str:
    """Return the COPY command of a chunk.

    :param kinds: the kind of each column.
    :param key: the columns to which the bounds of a KeyRange belong.
    :param conditions: further conditions, in SQL.
    """
    expressions = [
        identifier(column.name) if kind == BINARY else as_text(identifier(column.name))
        for column, kind in zip(table.columns, kinds, strict=True)
    ]
    query = table.select(expressions, *_conditions(rows, key), *conditions)
    return f"COPY ({query}) TO STDOUT (FORMAT binary)"


def keys_condition(table: PublishedTable, rows: Iterable[Sequence[bytes]]) -> str:
    """Return the condition that selects rows by their keys.

    Keys that are not ``comparable`` are compared as text, which no index helps.

    :param rows: PostgreSQL's text of the key's columns, for each row.
    """
    names = [identifier(column.name) for column in table.key]
    if not table.comparable:
        names = [_formatted(name) for name in names]
    # Surrogates stand for bytes that are not UTF-8, from an SQL_ASCII database.
    listed = ", ".join(_row(value.decode("utf-8", "surrogateescape") for value in row) for row in rows)
    return f"ROW({', '.join(names)}) IN ({listed})"


def as_text(name: str) -> str:
    """Return the SQL of a column's value as text, by the output function of its type; NULL for NULL.

    :param name: the column, in SQL.
    """
    return f"CASE WHEN {name} IS NOT DISTINCT FROM NULL THEN NULL ELSE {_formatted(name)} END"


def bounds_query(table: PublishedTable, key: Iterable[PublishedColumn], parts: int, blocks: int) -> str:
    """Return the query for the keys at which a table is cut, from a sample of its blocks.

    :param parts: the wanted number of ranges, at least two.
    :param blocks: the number of blocks in a range.
    """
    names = [identifier(column.name) for column in key]
    listed = ", ".join(names)
    texts = ", ".join(f"pg_catalog.format('%s', k{number})" for number in range(len(names)))
    keys = ", ".join(f"{name} AS k{number}" for number, name in enumerate(names))
    percent = min(100.0, max(100 * _SAMPLED_BLOCKS / blocks, 0.01))
    return (
        f"SELECT ARRAY[{texts}] FROM (SELECT {keys}, row_number() OVER (ORDER BY {listed}) AS number, "
        f"count(*) OVER () AS total FROM {table.identifier} TABLESAMPLE SYSTEM ({percent:.4f}) REPEATABLE (0)) sample "
        f"WHERE number < total AND number % greatest(total / {parts}, 1) = 0 ORDER BY number"
    )


def _conditions(rows: Range, key: Iterable[str]) -> list[str]:
    match rows:
        case BlockRange(first, end):
            lower = [f"ctid >= '({first},0)'"] if first else []
            return lower if end is None else [*lower, f"ctid < '({end},0)'"]
        case KeyRange(after, until):
            names = f"ROW({', '.join(identifier(name) for name in key)})"
            lower = [] if after is None else [f"{names} > {_row(after)}"]
            return lower if until is None else [*lower, f"{names} <= {_row(until)}"]
        case Sweep(int(xmin)):
            return [written_since(xmin)]
    return []


def written_since(xmin: int) -> str:
    """Return the condition that selects the rows written by a transaction with this xid or a later one.

    :param xmin: with its epoch; at most two billion transactions ago.
    """
    return f"pg_catalog.age(xmin) <= pg_catalog.age('{xmin % 2**32}'::pg_catalog.xid)"


def _formatted(name: str) -> str:
    return f"pg_catalog.format('%s', {name})"


def _row(values: Iterable[str]) -> str:
    return f"ROW({', '.join(map(_literal, values))})"


def _literal(value: str) -> str:
    # An E'' literal does not depend on standard_conforming_strings.
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    escaped = _SURROGATE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", escaped)
    return f"E'{escaped}'"
