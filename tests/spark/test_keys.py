"""Key columns in memory find the same rows as the files, and have a bound."""

from __future__ import annotations

import datetime as dt
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.delta_scan import DeltaScan
from aiorepl.spark.lake.find import matches
from aiorepl.spark.lake.iceberg import IcebergLake
from aiorepl.spark.lake.iceberg_scan import IcebergScan
from aiorepl.spark.lake.keys import KeyCache, KeyColumns
from aiorepl.spark.lake.table import Commit, Run
from aiorepl.spark.mirroring.reduction import reduce_changes

META = [
    ("_op", pa.string()),
    ("_commit_lsn", pa.int64()),
    ("_ordinal", pa.int64()),
    ("_xid", pa.int64()),
    ("_commit_ts", pa.timestamp("us", tz="UTC")),
    ("_unchanged", pa.list_(pa.string())),
]
TEXTS = st.one_of(
    st.text("ab\0é", max_size=12),
    st.tuples(st.text("ab", max_size=2), st.just("the same end")).map("".join),
)
VALUES = {
    pa.int16(): st.integers(-3, 3),
    pa.string(): TEXTS,
    pa.date32(): st.dates(dt.date(2000, 1, 1), dt.date(2000, 1, 5)),
    pa.decimal128(20, 0): st.integers(0, 5).map(lambda number: number + 10**18),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.0, 1.5, float("inf")]),
    pa.timestamp("us"): st.sampled_from(
        [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31), dt.datetime(1970, 1, 1)]
    ),
    pa.int64(): st.sampled_from([-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]),
}


@st.composite
def columns(draw):
    """Return a schema, rows (with nulls), and distinct keys to look for."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=2))
    schema = pa.schema([(f"k{number}", kind) for number, kind in enumerate(kinds)])
    wanted = draw(st.lists(st.tuples(*(VALUES[kind] for kind in kinds)), max_size=8, unique=True))
    values = [st.one_of(VALUES[kind], *([st.none()] if draw(st.booleans()) else [])) for kind in kinds]
    rows = draw(st.lists(st.tuples(*values), max_size=30))
    return tuple(
        pa.Table.from_arrays(
            [pa.array([row[at] for row in some], kind) for at, kind in enumerate(kinds)], schema=schema
        )
        for some in (rows, wanted)
    )


@given(columns())
def test_candidates_include_every_row_that_is_wanted(given) -> None:
    """Rows that are no candidates have other keys, whatever the types, and candidates ascend."""
    rows, wanted = given
    candidates = KeyColumns(rows).candidates(wanted)
    if candidates is not None:
        assert candidates.tolist() == sorted(set(candidates.tolist()))
        found, _ = matches(rows, wanted, rows.column_names)
        assert set(found.tolist()) <= set(candidates.tolist())


def test_few_rows_are_candidates() -> None:
    """Of many different keys, only those that are wanted are compared."""
    numbers = np.random.default_rng(1).permutation(10_000)
    for array in (pa.array(numbers), pa.array([f"{number:036x}" for number in numbers])):
        found = KeyColumns(pa.table({"k": array})).candidates(pa.table({"k": array.slice(50, 3)}))
        assert found.tolist() == [50, 51, 52]


@pytest.fixture(params=["delta", "iceberg"])
def target(request, tmp_path):
    """An empty table whose rows are marked."""
    if request.param == "delta":
        return DeltaTarget(str(tmp_path / "lake"), deletion_vectors=True)
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}")
    return IcebergLake(catalog).table(("public", "t"))


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_a_file_is_read_twice_at_most(target, kind, monkeypatch) -> None:
    """From the third batch on, the rows of a file are found without reading it."""
    source, lsns = pa.schema([("id", kind), ("x", pa.string())]), itertools.count(1)

    def apply(keys: list[int], op: str) -> None:
        lsn = next(lsns)
        count = len(keys)
        arrays = [
            pa.array(keys, pa.int64()).cast(kind),
            pa.array([f"{op} {lsn}"] * count),
            pa.array([op] * count),
            pa.array([lsn] * count),
            pa.array(range(count)),
            pa.array([1] * count),
            pa.array([lsn] * count).cast(pa.timestamp("us", tz="UTC")),
            pa.nulls(count, pa.list_(pa.string())),
        ]
        changes = pa.table(arrays, schema=pa.schema([*source, *META]))
        run = Run(("id",), reduce_changes(changes, ("id",), "current").parts(2**25))
        target.apply(Commit("test", lsn, LSN(lsn)), [run], source)

    keys = np.random.default_rng(1).permutation(200).tolist()
    apply(keys, "insert")
    opened = []
    for scan in (DeltaScan, IcebergScan):
        monkeypatch.setattr(scan, "open", lambda self, real=scan.open: opened.append(self.path) or real(self))
    for number in range(4):
        apply(keys[number * 10 : number * 10 + 7], "update")
        apply([keys[number * 10 + 8]], "delete")
    assert max(map(opened.count, set(opened))) == 2
    found = pa.Table.from_batches(target.newest().batches(["id", "x"])).to_pylist()
    updated = {key for number in range(4) for key in keys[number * 10 : number * 10 + 7]}
    deleted = {keys[number * 10 + 8] for number in range(4)}
    assert sorted(row["id"] for row in found) == sorted(
        key if kind == pa.int64() else str(key) for key in range(200) if key not in deleted
    )
    assert {int(row["id"]) for row in found if row["x"].startswith("update")} == updated


def test_the_memory_has_a_bound() -> None:
    """Files that do not fit are read each time, until others were idle; a file that is searched once takes no memory."""
    now, reads = [0.0], []
    cache = KeyCache(20_000, clock=lambda: now[0])

    def find(name: str) -> bool:
        def read() -> pa.Table:
            reads.append(name)
            return pa.table({"id": pa.array(range(1000))})

        return cache.columns(name, read) is not None

    assert [find("a"), find("b"), find("c")] == [False] * 3
    assert not reads
    assert [find("a"), find("b"), find("a"), find("b")] == [True] * 4
    assert reads == ["a", "b"]
    find("c")
    assert [find("c"), find("c")] == [False] * 2, "there is no room, and this is known without reading"
    assert reads == ["a", "b", "c"]
    now[0] += 500
    find("a")
    now[0] += 500
    assert [find("c"), find("a"), find("b")] == [True, True, False]
    assert reads == ["a", "b", "c", "c"]
