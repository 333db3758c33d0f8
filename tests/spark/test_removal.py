"""Rows that a lake should not have: those that the source does not have are deleted, and a key's second row gives way to a snapshot."""

from __future__ import annotations

import datetime as dt
from copy import copy
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaLake
from aiorepl.spark.lake.iceberg import IcebergLake
from aiorepl.spark.lake.table import Commit, Run, Target
from aiorepl.spark.mirroring.reduction import reduce_changes
from aiorepl.spark.verifying.repair import removal

SOURCE = pa.schema([("k", pa.decimal128(20, 0)), ("part", pa.string()), ("v", pa.int64())])
KEYS = ("k", "part")
META = [
    ("_op", pa.string()),
    ("_commit_lsn", pa.int64()),
    ("_ordinal", pa.int64()),
    ("_xid", pa.int64()),
    ("_commit_ts", pa.timestamp("us", tz="UTC")),
    ("_unchanged", pa.list_(pa.string())),
]
TIME = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
# As large as the ids for which deltalake wrote wrong statistics.
LARGE = 2**64 - 10


@pytest.fixture(params=["delta", "iceberg"])
def lake(request, tmp_path):
    """A lake without tables, and a function that appends rows to a table as another program does."""
    if request.param == "delta":
        lake = DeltaLake(str(tmp_path))

        def append(rows):
            write_deltalake(tmp_path / "public" / "t", rows, mode="append")

        return lake, append
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    return IcebergLake(catalog), lambda rows: catalog.load_table(("public", "t")).append(rows)


def changes(*rows: tuple[str, int, str, int | None, int]) -> pa.Table:
    """Changes: the operation, the key's columns, the value and the commit LSN."""
    columns: dict[str, list[Any]] = {name: [] for name in (*SOURCE.names, *(name for name, _ in META))}
    for op, k, part, v, lsn in rows:
        values = (LARGE + k, part, v, op, lsn, 0, 1, TIME, None)
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
    return pa.table(columns, pa.schema([*SOURCE, *[pa.field(*each) for each in META]]))


def apply(table: Target, number: int, *rows: tuple[str, int, str, int | None, int]) -> None:
    reduced = reduce_changes(changes(*rows), KEYS, table.mode)
    table.apply(Commit("a", number, LSN(rows[-1][-1] + 10)), [Run(KEYS, reduced.parts(2**25))], SOURCE)


def keys_of(*given: tuple[int, str]) -> pa.Table:
    return changes(*[("delete", k, part, None, 1) for k, part in given]).select(KEYS)


def content(table: Target) -> list[tuple[Any, ...]]:
    """The rows: the key, the value, and whether the row exists in the table's mode."""
    newest = table.newest()
    assert newest is not None
    names = [*SOURCE.names]
    flag = {"soft_delete": "_deleted", "history": "_is_current"}.get(table.mode)
    rows = pa.Table.from_batches(newest.batches([*names, *([flag] if flag else [])])).to_pylist()
    exists = {"soft_delete": lambda row: not row["_deleted"], "history": lambda row: row["_is_current"]}
    there = exists.get(table.mode, lambda row: True)
    return sorted((int(row["k"]) - LARGE, row["part"], row["v"], there(row)) for row in rows)


@pytest.mark.parametrize("mode", ["current", "soft_delete", "history"])
def test_rows_without_a_source(lake, mode):
    """They are deleted as the mode deletes rows. A row that has changed since stays, and the table's position, too."""
    made, _ = lake
    table = made.table(("public", "t"), mode)
    apply(table, 1, *[("insert", k, "a", k, 100) for k in range(5)], ("insert", 1, "b", 7, 100))
    apply(table, 2, ("update", 3, "a", 30, 200))
    before = list(table.versions())
    schema = table.newest().schema()
    table.correct(removal(schema, keys_of((1, "a"), (1, "a"), (3, "a")), mode, LSN(200)))
    gone = [] if mode == "current" else [(1, "a", 1, False)]
    old = [(3, "a", 3, False)] if mode == "history" else []
    kept = [(0, "a", 0), (1, "b", 7), (2, "a", 2), (3, "a", 30), (4, "a", 4)]
    assert sorted([*gone, *old, *((*row, True) for row in kept)]) == content(table)
    assert before == list(table.versions())
    assert table.applied("a", 2)
    assert not table.applied("a", 3)
    apply(table, 3, ("insert", 1, "a", 11, 300))
    assert (1, "a", 11, True) in content(table)


@pytest.mark.parametrize("mode", ["current", "soft_delete"])
@pytest.mark.parametrize("second", [5, 99], ids=["equal", "different"])
def test_a_key_that_is_there_twice(lake, mode, second):
    """A row of a snapshot replaces all rows of its key, a delete removes them all."""
    made, append = lake
    table = made.table(("public", "t"), mode)
    apply(table, 1, *[("insert", k, "a", k, 100) for k in range(7)])
    twice = changes(("insert", 5, "a", second, 100), ("insert", 6, "a", second, 100))
    rows = twice.select([*SOURCE.names, "_commit_lsn", "_ordinal"])
    if mode == "soft_delete":
        rows = rows.append_column("_deleted", pa.array([False, False]))
    append(rows)
    assert 9 == len(content(table))
    apply(table, 2, ("read", 5, "a", 5, 200), ("delete", 6, "a", None, 200))
    existing = [row[:3] for row in content(table) if row[3]]
    assert [(k, "a", k) for k in range(6)] == existing


def test_keys_that_no_change_has(lake):
    """Rows whose key is null stay."""
    made, append = lake
    table = made.table(("public", "t"))
    apply(table, 1, ("insert", 1, "a", 1, 100))
    nothing = changes(("insert", 1, "a", 1, 100)).select([*SOURCE.names, "_commit_lsn", "_ordinal"])
    append(nothing.set_column(1, "part", pa.array([None], pa.string())))
    there = table.newest().schema()
    run = removal(
        there, pa.table([[None]] * 2, schema=there.empty_table().select(KEYS).schema), "current", LSN(200)
    )
    assert not sum(part.read().num_rows for part in run.parts)


def test_another_commit_comes_first(lake):
    """Rows are found again in the version that another program has made meanwhile."""
    made, _ = lake
    table = made.table(("public", "t"))
    other = copy(table)
    apply(table, 1, ("insert", 1, "a", 1, 100), ("insert", 2, "a", 2, 100))
    run = removal(table.newest().schema(), keys_of((1, "a"), (2, "a")), "current", LSN(200))
    (part,) = run.parts
    read = part.read

    def late() -> pa.Table:
        if not table.applied("a", 2):
            apply(other, 2, ("update", 2, "a", 20, 300))
        return read()

    table.correct(Run(run.keys, [type(part)(part.size, late)]))
    assert [(2, "a", 20, True)] == content(table)
