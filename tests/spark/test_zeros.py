"""0 and -0 are one key, wherever a -0 comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.iceberg import IcebergLake
from aiorepl.spark.lake.table import Commit, Run
from aiorepl.spark.mirroring.reduction import reduce_changes
from aiorepl.spark.mirroring.shuffle import Routes

META = [
    ("_op", pa.string()),
    ("_commit_lsn", pa.int64()),
    ("_ordinal", pa.int64()),
    ("_xid", pa.int64()),
    ("_commit_ts", pa.timestamp("us", tz="UTC")),
    ("_unchanged", pa.list_(pa.string())),
]


@pytest.fixture(params=["delta", "iceberg"])
def table(request, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that opens the table with a mode."""
    if request.param == "delta":
        return lambda mode: DeltaTarget(str(tmp_path / "t"), mode)
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}")
    lake = IcebergLake(catalog)
    return lambda mode: lake.table(("n", "t"), mode)


def apply(
    target: Any, key: str, kind: pa.DataType, lsn: int, *changes: tuple[str, list[str], dict[str, Any]]
) -> None:
    schema = pa.schema([("id", pa.int32()), ("f", kind), ("note", pa.string())])
    rows = [
        {"_op": op, "_commit_lsn": lsn, "_ordinal": number, "_unchanged": unsent or None, **values}
        for number, (op, unsent, values) in enumerate(changes)
    ]
    for row, before in zip(rows[1:], rows, strict=False):
        if row["_op"] == "insert" and row["_unchanged"]:
            row["_ordinal"] = before["_ordinal"]
    given = pa.Table.from_pylist(rows, pa.schema([*schema, *META]))
    reduced = reduce_changes(given, (key,), target.mode)
    target.apply(Commit("query", lsn, LSN(lsn)), [Run((key,), reduced.parts(2**20), ())], schema)


def rows(target: Any) -> list[dict[str, Any]]:
    version = target.newest()
    names = [
        "id",
        "f",
        "note",
        *({"history": ["_is_current"], "soft_delete": ["_deleted"]}.get(target.mode, [])),
    ]
    return pa.Table.from_batches(version.batches(names)).to_pylist()


@pytest.mark.parametrize("mode", ["current", "soft_delete", "history"])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_column_becomes_the_key(table, kind, mode) -> None:
    """A column that had -0 as a value becomes the key: the rows are changed, moved and deleted."""
    target = table(mode)
    values = {1: -0.0, 2: 1.5}
    apply(
        target,
        "id",
        kind,
        1,
        *(("insert", [], {"id": key, "f": f, "note": "a"}) for key, f in values.items()),
    )
    apply(target, "f", kind, 2, ("update", ["note"], {"id": 3, "f": -0.0}))

    def live() -> dict[float, tuple[int, str]]:
        found = (row for row in rows(target) if row.get("_is_current", True) and not row.get("_deleted"))
        return {row["f"]: (row["id"], row["note"]) for row in found}

    assert live() == {0.0: (3, "a"), 1.5: (2, "a")}
    apply(target, "f", kind, 3, ("delete", [], {"f": 1.5}))
    assert live() == {0.0: (3, "a")}


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_move_from_zero(table, kind) -> None:
    """A row whose column was -0 before the column was the key moves with its value that was not sent."""
    target = table("current")
    apply(target, "id", kind, 1, ("insert", [], {"id": 1, "f": -0.0, "note": "kept"}))
    apply(target, "f", kind, 2, ("delete", [], {"f": -0.0}), ("insert", ["note"], {"id": 1, "f": 2.5}))
    assert rows(target) == [{"id": 1, "f": 2.5, "note": "kept"}]


def test_soft_deleted_rows(table) -> None:
    """After a change of the key, one deleted row is left of 0 and -0."""
    target = table("soft_delete")
    kind = pa.float64()
    apply(
        target,
        "id",
        kind,
        1,
        *(("insert", [], {"id": key, "f": f, "note": "a"}) for key, f in ((1, 0.0), (2, -0.0), (3, 4.0))),
    )
    apply(target, "id", kind, 2, *(("delete", [], {"id": key}) for key in (1, 2)))
    apply(target, "f", kind, 3, ("update", [], {"id": 3, "f": 4.0, "note": "b"}))
    assert sorted((row["f"], row["_deleted"]) for row in rows(target)) == [(0.0, True), (4.0, False)]


def test_routes() -> None:
    """A move of a row between keys sends the changes of 0 and of -0 to one executor."""
    schema = pa.schema([("f", pa.float64()), ("_commit_lsn", pa.int64()), ("_ordinal", pa.int64())])
    for one, other in ((0.0, 2.5), (2.5, 0.0), (-0.0, 2.5), (2.5, -0.0)):
        link = pa.Table.from_pylist(
            [{"f": one, "_commit_lsn": 1, "_ordinal": 1}, {"f": other, "_commit_lsn": 1, "_ordinal": 1}],
            schema,
        )
        found = Routes.of([link], ["f"]).column(pa.record_batch({"f": [0.0, -0.0, 2.5]}), ["f"]).to_pylist()
        assert len(set(found)) == 1, (one, other, found)
