"""Compare the source with the copies, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

Rows = dict[Any, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A comparison of one table.

    :param rows: the number of rows in the source.
    :param differing: the number of missing, surplus and different rows in the copy.
    """

    table: str
    rows: int
    differing: int


async def source_rows(connection: Any, table: str) -> Rows:
    """Read a table: rows by id, with values as ``_plain`` returns them."""
    columns = await connection.fetch(
        "SELECT attname, atttypid::regtype::text AS type FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 "
        "AND NOT attisdropped ORDER BY attnum",
        table,
    )
    structured = {column["attname"] for column in columns if column["type"] in ("jsonb", "text[]")}
    selected = ", ".join(
        f'to_json("{c["attname"]}")::text AS "{c["attname"]}"'
        if c["attname"] in structured
        else f'"{c["attname"]}"::text'
        for c in columns
    )
    rows: Rows = {}
    for record in await connection.fetch(f"SELECT {selected} FROM {table}"):
        row = dict(record)
        for name in structured:
            row[name] = None if row[name] is None else orjson.loads(row[name])
        rows[row["id"]] = row
    return rows


def jsonl_rows(folder: Path) -> dict[str, Rows]:
    """Apply the events in a folder of JSON lines, and return the resulting rows by table."""
    tables: dict[str, Rows] = {}
    seen: set[tuple[str, int]] = set()
    for path in sorted(folder.glob("*.jsonl*")):
        with path.open("rb") as lines:
            for line in lines:
                event = orjson.loads(line)
                identity = (event["commit_lsn"], event["ordinal"])
                if identity not in seen:
                    seen.add(identity)
                    _apply(tables, event)
    return tables


def mirror_rows(records: Iterable[dict[str, Any]]) -> Rows:
    """Return the rows of a mirror, without the columns that ``apply_changes`` adds."""
    rows: Rows = {}
    for record in records:
        row = {name: _plain(value) for name, value in record.items() if not name.startswith("_")}
        for name in ("profile", "attributes"):
            if row.get(name) is not None:
                row[name] = orjson.loads(row[name])
        rows[row["id"]] = row
    return rows


def compare(table: str, source: Rows, copy: Rows) -> Verdict:
    """Compare two tables by key."""
    differing = sum(copy.get(key) != row for key, row in source.items()) + len(copy.keys() - source.keys())
    return Verdict(table, len(source), differing)


def _apply(tables: dict[str, Rows], event: dict[str, Any]) -> None:
    if event["kind"] == "truncate":
        for truncated in event["tables"]:
            tables[truncated["table"]] = {}
        return
    rows = tables.setdefault(event["table"], {})
    before = rows.pop(str(event["key"]["id"]), {})
    if event["new"] is not None:
        row = {name: _plain(value) for name, value in event["new"].items()}
        for name in event["unchanged"]:
            row[name] = before.get(name)
        rows[row["id"]] = row


def _plain(value: Any) -> Any:
    """Return scalars as PostgreSQL's text, lists and objects unchanged."""
    if value is None or isinstance(value, (str, list, dict)):
        return value
    if hasattr(value, "isoformat"):
        # timestamptz in UTC, without trailing zeros in the fraction, as PostgreSQL prints it.
        text = value.strftime("%Y-%m-%d %H:%M:%S")
        fraction = f"{value.microsecond:06}".rstrip("0")
        return f"{text}.{fraction}+00" if fraction else f"{text}+00"
    return str(value)
