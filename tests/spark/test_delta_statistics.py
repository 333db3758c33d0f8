"""Delta's statistics are exact: readers skip files by them, and a merge finds every row."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.table import Commit, Layout, Mode, Run, Truncate, Upkeep
from aiorepl.spark.mirroring.reduction import reduce_changes

WIDE = [
    (20, 0, "18446744073709551615"),
    (19, 0, "1000000000000000001"),
    (18, 2, "1234567890123456.78"),
    (38, 37, "1.2345678901234567890123456789012345678"),
]
META = [
    ("_op", pa.string()),
    ("_commit_lsn", pa.int64()),
    ("_ordinal", pa.int64()),
    ("_commit_ts", pa.timestamp("us", tz="UTC")),
    ("_unchanged", pa.list_(pa.string())),
]


def apply(target: DeltaTarget, schema: pa.Schema, lsn: int, *rows: dict, keys=("k",)) -> None:
    """Apply a batch; a row with ``_op`` is another change than an insert."""
    changes = pa.Table.from_pylist(
        [{"_op": "insert", "_commit_lsn": lsn, "_ordinal": at, **row} for at, row in enumerate(rows)],
        pa.schema([*schema, *META]),
    )
    commit = Commit("query", lsn, LSN(lsn))
    parts = reduce_changes(changes, keys, target.mode).parts(1 << 20)
    target.apply(commit, [Run(keys, parts)], schema)
    target.maintain()


def statistics(target: DeltaTarget) -> list[dict]:
    """The statistics of the present files."""
    found = {}
    for file in sorted((Path(target.target) / "_delta_log").glob("*.json")):
        for action in map(json.loads, file.read_text().splitlines()):
            if "add" in action:
                found[action["add"]["path"]] = json.loads(action["add"]["stats"])
            elif "remove" in action:
                found.pop(action["remove"]["path"], None)
    return list(found.values())


@pytest.mark.parametrize("mode", ["current", "soft_delete", "history"])
@pytest.mark.parametrize(("precision", "scale", "value"), WIDE)
def test_long_numbers_are_keys(tmp_path, precision: int, scale: int, value: str, mode: Mode) -> None:
    """Updates and deletes find rows whose numeric keys a float cannot hold; every other column has statistics."""
    kind = pa.decimal128(precision, scale)
    schema = pa.schema([("k", kind), ("v", pa.int64()), ("t", pa.string()), ("s", pa.struct([("d", kind)]))])
    target = DeltaTarget(str(tmp_path / "t"), mode)
    apply(
        target,
        schema,
        1,
        {"k": Decimal(value), "v": 1, "t": "a", "s": {"d": Decimal(value)}},
        {"k": Decimal(1)},
    )
    apply(target, schema, 2, {"k": Decimal(value), "v": 2, "_op": "update"})
    for found in statistics(target):
        assert {"v", "t", "_commit_lsn"} <= found["minValues"].keys() | {"v", "t"}
        assert not {"k", "s"} & (found["minValues"].keys() | found["maxValues"].keys())
    apply(target, schema, 3, {"k": Decimal(value), "_op": "delete"})

    rows = pa.table(DeltaTable(target.target).to_pyarrow_table()).to_pylist()
    live = [row for row in rows if not row.get("_deleted") and row.get("_is_current", True)]
    assert [Decimal(1)] == [row["k"] for row in live]
    assert (3 if mode == "history" else 2 if mode == "soft_delete" else 1) == len(rows)


def test_upkeep_and_truncates_write_exact_statistics(tmp_path) -> None:
    """Compaction, truncates and altered columns leave no rounded statistics either."""
    schema = pa.schema([("k", pa.decimal128(20, 0)), ("v", pa.int32())])
    target = DeltaTarget(str(tmp_path / "t"), upkeep=Upkeep(optimize_every=2))
    for lsn in range(1, 6):
        apply(target, schema, lsn, {"k": Decimal(2**64 - lsn), "v": lsn})
    wider = pa.schema([("k", pa.decimal128(22, 2)), ("v", pa.int64())])
    apply(target, wider, 6, {"k": Decimal(2**64 - 6), "v": 6})
    target.apply(Commit("query", 7, LSN(7)), [Run(("k",), (), [Truncate(3, 0)])])

    assert not any("k" in found["minValues"] for found in statistics(target))
    assert [3, 4, 5, 6] == sorted(pa.table(DeltaTable(target.target).to_pyarrow_table())["v"].to_pylist())


def test_rounded_statistics_of_an_older_table_are_removed(tmp_path) -> None:
    """A table with rounded statistics is corrected before a merge, and keeps its rows, files and other statistics."""
    schema = pa.schema(
        [
            ("k", pa.decimal128(20, 0)),
            ("part", pa.string()),
            ("day", pa.date32()),
            ("n", pa.int64()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("old", pa.date32()),
            ("k.x", pa.int64()),
        ]
    )
    target = DeltaTarget(str(tmp_path / "t"), layout=Layout(("part", "day")))
    apply(target, schema, 1, {"k": Decimal(1), "part": "p", "n": 1})
    present = pa.schema(DeltaTable(target.target).schema())
    old = [
        {
            "k": Decimal(2**64 - at),
            "part": part,
            "day": date(2026, 1, at),
            "n": at,
            "_commit_lsn": 1,
            "_ordinal": at,
            "k.x": at,
        }
        for at, part in enumerate(["a b/c=d%", "ü", "p"], 1)
    ]
    rows = pa.Table.from_pylist(old, present)
    rows = rows.set_column(4, "at", pa.array([7_000_123] * 3).cast(pa.timestamp("us", tz="UTC")))
    rows = rows.set_column(5, "old", pa.array([-735527] * 3, pa.int32()).cast(pa.date32()))
    write_deltalake(target.target, rows, mode="append")
    assert any("k" in found["minValues"] for found in statistics(target))
    before = sorted(DeltaTable(target.target).file_uris())

    target.apply(Commit("query", 2, LSN(2)))
    corrected = sorted(DeltaTable(target.target).file_uris())
    found = [each for each in statistics(target) if each["minValues"].get("n") == 2]
    apply(
        target,
        schema,
        3,
        *({"k": row["k"], "part": row["part"], "n": -row["n"], "_op": "update"} for row in old),
    )

    assert before == corrected
    others = {"n": 2, "_commit_lsn": 1, "_ordinal": 2, "at": "1970-01-01T00:00:07.000Z", "k.x": 2}
    assert [{**others, "old": "-0044-03-13"}] == [each["minValues"] for each in found]
    assert not any("k" in each["minValues"] for each in statistics(target))
    assert [-3, -2, -1, 1] == sorted(pa.table(DeltaTable(target.target).to_pyarrow_table())["n"].to_pylist())
