"""Deletion vectors: when rows are marked, who reads the table, and what upkeep does with them."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from aiorepl.errors import DataError
from aiorepl.lsn import LSN
from aiorepl.spark.lake import delta_transaction
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.delta_log import Snapshot
from aiorepl.spark.lake.delta_upkeep import compact
from aiorepl.spark.lake.table import Commit, Run, Upkeep
from aiorepl.spark.mirroring.reduction import reduce_changes

from .readers import duckdb_with

SOURCE = pa.schema([("id", pa.int64()), ("note", pa.string())])
META = [
    ("_op", pa.string()),
    ("_commit_lsn", pa.int64()),
    ("_ordinal", pa.int64()),
    ("_commit_ts", pa.timestamp("us", tz="UTC")),
    ("_unchanged", pa.list_(pa.string())),
]


def apply(target: DeltaTarget, lsn: int, ids: Any, op: str = "update") -> None:
    """Apply a batch that changes the rows with these ids."""
    rows = [
        {"id": key, "note": f"{key} {lsn}", "_op": op, "_commit_lsn": lsn, "_ordinal": number}
        for number, key in enumerate(ids)
    ]
    changes = reduce_changes(pa.Table.from_pylist(rows, pa.schema([*SOURCE, *META])), ("id",), target.mode)
    target.apply(Commit("query", lsn, LSN(lsn)), [Run(("id",), changes.parts(2**20))], SOURCE)


def rows(target: DeltaTarget) -> dict[int, str]:
    version = target.newest()
    assert version is not None
    found = pa.Table.from_batches(version.batches(["id", "note"])).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["note"] for row in found}


def vectors(target: DeltaTarget) -> list[Path]:
    return sorted(Path(target.target).glob("deletion_vector_*.bin"))


@pytest.fixture
def marked(tmp_path: Path) -> DeltaTarget:
    """A table of 100 rows, 4 of which changed in two batches, and one of which was deleted."""
    target = DeltaTarget(str(tmp_path / "t"), deletion_vectors=True)
    apply(target, 1, range(100), "insert")
    apply(target, 2, (7, 8))
    apply(target, 3, (8, 9, 10))
    apply(target, 4, (11,), "delete")
    return target


EXPECTED = {
    key: f"{key} {3 if key in (8, 9, 10) else 2 if key == 7 else 1}" for key in range(100) if key != 11
}


def test_our_reader_and_deltalake(marked) -> None:
    """The rows are the same for this package and for deltalake's engine, also after deltalake's checkpoint and compaction."""
    assert rows(marked) == EXPECTED
    assert len(list(Path(marked.target).glob("*.parquet"))) == 3
    table = DeltaTable(marked.target)
    for step in (lambda: None, table.create_checkpoint, table.optimize.compact):
        step()
        found = QueryBuilder().register("t", DeltaTable(marked.target)).execute("SELECT id, note FROM t")
        assert {row["id"]: row["note"] for row in pa.table(found.read_all()).to_pylist()} == EXPECTED
        fresh = DeltaTarget(marked.target)
        assert rows(fresh) == EXPECTED
    apply(fresh, 5, (9,))
    assert rows(fresh) == EXPECTED | {9: "9 5"}


@pytest.fixture(params=["vectors", "folded"])
def either(marked: DeltaTarget, request: Any) -> DeltaTarget:
    """The table with its vectors, and after upkeep has applied them to the files."""
    if request.param == "folded":
        marked._upkeep = Upkeep(optimize_every=1, vacuum_every=0)
        marked.maintain()
    with_vectors = [file for file in Snapshot.load(marked._folder).files.values() if file.vector is not None]
    assert bool(with_vectors) == (request.param == "vectors")
    return marked


def test_query_builder(either) -> None:
    """Deltalake's QueryBuilder reads a table with vectors, and after they are folded."""
    found = QueryBuilder().register("t", DeltaTable(either.target)).execute("SELECT id, note FROM t")
    assert {row["id"]: row["note"] for row in pa.table(found.read_all()).to_pylist()} == EXPECTED


def test_polars(either) -> None:
    """Polars reads a table with vectors, and after they are folded."""
    polars = pytest.importorskip("polars")
    assert dict(polars.read_delta(either.target).select("id", "note").iter_rows()) == EXPECTED


def test_duckdb(either) -> None:
    """DuckDB's delta extension reads a table with vectors, and after they are folded."""
    pytest.importorskip("duckdb_extensions")
    with duckdb_with("delta") as connection:
        found = connection.execute(f"SELECT id, note FROM delta_scan('{either.target}')").fetchall()
    assert dict(found) == EXPECTED


@pytest.mark.xdist_group("spark")
@pytest.mark.by_day
def test_spark(spark, either) -> None:
    """Spark reads the table, and marks and compacts on top; this package reads Spark's."""
    if "io.delta" not in spark.conf.get("spark.sql.extensions", ""):
        pytest.skip("Delta's jars are not there")
    table = f"delta.`{either.target}`"
    found = spark.sql(f"SELECT id, note FROM {table}").collect()
    assert {row.id: row.note for row in found} == EXPECTED
    spark.sql(f"DELETE FROM {table} WHERE id IN (20, 21)")
    expected = {key: note for key, note in EXPECTED.items() if key not in (20, 21)}
    assert rows(either) == expected
    apply(either, 5, (20, 22))
    expected |= {20: "20 5", 22: "22 5"}
    assert {row.id: row.note for row in spark.sql(f"SELECT id, note FROM {table}").collect()} == expected
    spark.sql(f"OPTIMIZE {table}")
    assert rows(either) == expected
    apply(either, 6, (23,), "delete")
    found = spark.sql(f"SELECT count(*) AS n FROM {table}").collect()
    assert found[0].n == len(expected) - 1


def test_marking_begins(tmp_path, monkeypatch) -> None:
    """Files are written again while that is cheap; from the first commit for which it is not, rows are marked."""
    target = DeltaTarget(str(tmp_path / "t"))
    apply(target, 1, range(100), "insert")
    apply(target, 2, (7,))
    assert not vectors(target)
    assert DeltaTable(target.target).to_pyarrow_table().num_rows == 100
    with monkeypatch.context() as patch:
        patch.setattr(delta_transaction, "_REWRITTEN_BYTES", 1)
        apply(target, 3, (8,))
    apply(target, 4, (9,))
    assert len(vectors(target)) == 2
    assert len(rows(target)) == 100
    never = DeltaTarget(target.target, deletion_vectors=False)
    apply(never, 5, (10,))
    assert len(vectors(target)) == 2
    assert len(rows(target)) == 100


def test_a_file_without_rows_is_removed(marked) -> None:
    """A file whose rows are all gone has no vector; it leaves the table."""
    apply(marked, 5, (8, 9, 10))
    assert len(DeltaTable(marked.target).file_uris()) == 3
    assert rows(marked) == EXPECTED | {8: "8 5", 9: "9 5", 10: "10 5"}


def test_upkeep(tmp_path) -> None:
    """A file with many deleted rows is written again; vectors that no version needs any longer are deleted, and only those."""
    upkeep = Upkeep(optimize_every=4, vacuum_every=4, retain=timedelta())
    target = DeltaTarget(str(tmp_path / "t"), upkeep=upkeep, deletion_vectors=True)
    apply(target, 0, range(100), "insert")
    for lsn in (1, 2, 3, 4):
        apply(target, lsn, range(lsn, 50))
        target.maintain()
    assert not vectors(target)
    assert len(list(Path(target.target).glob("*.parquet"))) == 1
    apply(target, 6, (1, 2))
    target._upkeep = Upkeep(optimize_every=0, vacuum_every=1, retain=timedelta())
    target.maintain()
    assert len(vectors(target)) == 1
    assert len(rows(target)) == 100


def test_a_version_that_time_travel_needs(marked) -> None:
    """A vacuum keeps the files of every version within ``retain``, and removes files that no commit has."""
    names = {path.name for path in Path(marked.target).iterdir()}
    orphan = Path(marked.target, "part-0.parquet")
    orphan.write_bytes(b"")
    snapshot = marked._snapshot()
    assert snapshot is not None
    compact(snapshot, "current")
    marked._upkeep = Upkeep(optimize_every=0, vacuum_every=1, retain=timedelta(hours=1))
    marked._maintained = 0
    marked.maintain()
    assert names <= {path.name for path in Path(marked.target).iterdir()}
    marked._upkeep = Upkeep(optimize_every=0, vacuum_every=1, retain=timedelta())
    marked._maintained = 0
    marked.maintain()
    left = [path for path in Path(marked.target).iterdir() if path.name != "_delta_log"]
    assert len(left) == 1
    assert rows(marked) == EXPECTED


def test_a_damaged_vector(marked) -> None:
    """A vector that is not what was written is refused."""
    for path in vectors(marked):
        data = bytearray(path.read_bytes())
        data[-6] ^= 1
        path.write_bytes(data)
    with pytest.raises(DataError, match=r"deletion vector .* is damaged"):
        rows(marked)


def test_a_checkpoint(tmp_path) -> None:
    """A log that begins with a checkpoint has the same rows, partitions and batches."""
    target = DeltaTarget(str(tmp_path / "t"), deletion_vectors=True)
    for lsn in range(1, 6):
        apply(target, lsn, range(lsn + 3), "update")
    DeltaTable(target.target).create_checkpoint()
    expected = rows(target)
    log = Path(target.target, "_delta_log")
    for path in log.glob("*.json"):
        if re.fullmatch(r"0{19}[0-3]\.json", path.name):
            path.unlink()
    fresh = DeltaTarget(target.target)
    assert rows(fresh) == expected
    assert fresh.applied("query", 5)
    assert not fresh.applied("query", 6)
    apply(fresh, 6, (1,))
    assert rows(fresh) == expected | {1: "1 6"}
