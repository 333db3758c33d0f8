"""Position deletes of Iceberg tables: who reads them, which files and manifests have them, and what upkeep does with them."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyroaring import BitMap64

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.spark.lake.iceberg import IcebergTarget
from aiorepl.spark.lake.iceberg_transaction import IcebergTransaction
from aiorepl.spark.lake.table import DEFAULT_LAYOUT, Commit, Layout, Run, TableUnavailable, Upkeep
from aiorepl.spark.mirroring.reduction import reduce_changes

from .readers import READERS, rows_by

pytestmark = pytest.mark.by_day

SOURCE = pa.schema([("id", pa.int64()), ("note", pa.string())])
META = [
    ("_op", pa.string()),
    ("_commit_lsn", pa.int64()),
    ("_ordinal", pa.int64()),
    ("_commit_ts", pa.timestamp("us", tz="UTC")),
    ("_unchanged", pa.list_(pa.string())),
]
NEVER = Upkeep(optimize_every=0, vacuum_every=0)


def opened(
    tmp_path: Path, layout: Layout = DEFAULT_LAYOUT, upkeep: Upkeep = NEVER, **properties: str
) -> IcebergTarget:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}")
    if properties:
        catalog.create_namespace_if_not_exists("n")
        columns = pa.schema([*SOURCE, ("_commit_lsn", pa.int64()), ("_ordinal", pa.int64())])
        catalog.create_table(
            "n.t", columns, properties={name.replace("_", "-"): value for name, value in properties.items()}
        )
    return IcebergTarget(catalog, ("n", "t"), "current", layout, upkeep=upkeep)


def apply(
    target: Any, lsn: int, ids: Any, op: str = "update", schema: pa.Schema = SOURCE, **values: Any
) -> None:
    """Apply a batch that changes the rows with these ids."""
    rows = [
        {"id": key, "note": f"{key} {lsn}", "_op": op, "_commit_lsn": lsn, "_ordinal": number}
        | {name: find(key) for name, find in values.items()}
        for number, key in enumerate(ids)
    ]
    changes = reduce_changes(pa.Table.from_pylist(rows, pa.schema([*schema, *META])), ("id",), target.mode)
    target.apply(Commit("query", lsn, LSN(lsn)), [Run(("id",), changes.parts(2**20))], schema)


def rows(target: IcebergTarget) -> dict[int, str]:
    """Return the rows, which all readers must find."""
    version = target.newest()
    assert version is not None
    found = pa.Table.from_batches(version.batches(["id", "note"])).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    ours = {row["id"]: row["note"] for row in found}
    for reader in READERS:
        theirs = rows_by(reader, target._open()).select(["id", "note"]).to_pylist()
        assert len(theirs) == len(ours), reader
        assert {row["id"]: row["note"] for row in theirs} == ours, reader
    return ours


def entries(target: IcebergTarget, content: ManifestContent) -> list[DataFile]:
    table = target._open()
    return [
        entry.data_file
        for manifest in table.current_snapshot().manifests(table.io)
        if manifest.content == content
        for entry in manifest.fetch_manifest_entry(table.io)
    ]


def files(target: IcebergTarget) -> set[str]:
    folder = Path(target._open().location().removeprefix("file://"))
    return {path.name for path in folder.rglob("*") if path.suffix in (".parquet", ".avro")}


EXPECTED = {
    key: f"{key} {3 if key in (8, 9, 10) else 2 if key == 7 else 1}" for key in range(100) if key != 11
}


def marked(tmp_path: Path, **given: Any) -> IcebergTarget:
    """Return a table of 100 rows, 4 of which changed in two batches, and one of which was deleted."""
    target = opened(tmp_path, **given)
    apply(target, 1, range(100), "insert")
    apply(target, 2, (7, 8))
    apply(target, 3, (8, 9, 10))
    apply(target, 4, (11,), "delete")
    return target


def test_readers(tmp_path) -> None:
    """Each batch is one snapshot with new rows and position deletes, which all readers apply; nothing is written again."""
    target = marked(tmp_path)
    assert rows(target) == EXPECTED
    first = target._open().snapshots()[0]
    assert len(target._open().snapshots()) == 4
    assert [each.record_count for each in entries(target, ManifestContent.DATA)].count(100) == 1
    assert target._open().scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 100
    summary = target._open().current_snapshot().summary
    assert summary.operation == Operation.OVERWRITE
    assert summary["total-position-deletes"] == "6"
    assert summary["aiorepl.batch"] == "4"


def test_a_file_without_rows_is_removed(tmp_path) -> None:
    """A file whose rows are all gone leaves the table, with the position deletes that are for it alone."""
    target = marked(tmp_path)
    apply(target, 5, (8, 9, 10))
    assert rows(target) == EXPECTED | {8: "8 5", 9: "9 5", 10: "10 5"}
    assert sorted(each.record_count for each in entries(target, ManifestContent.DATA)) == [2, 3, 100]
    apply(target, 6, range(100))
    assert rows(target) == {key: f"{key} 6" for key in range(100)}
    assert [each.record_count for each in entries(target, ManifestContent.DATA)] == [100]


def test_partitions(tmp_path) -> None:
    """Data files and position deletes have the partition of their rows, also after the table's partitions have changed."""
    schema = pa.schema([*SOURCE, ("part", pa.string())])
    target = opened(tmp_path, Layout(partition_by=("part",)))
    apply(target, 1, range(20), "insert", schema, part=lambda key: "ab"[key % 2])
    with target._open().update_spec() as spec:
        spec.add_field("note", IdentityTransform(), "by_note")
    apply(target, 2, (1, 2, 3), "update", schema, part=lambda key: "b" if key == 2 else None)
    expected = {key: f"{key} {2 if key in (1, 2, 3) else 1}" for key in range(20)}
    assert rows(target) == expected
    deletes = entries(target, ManifestContent.DELETES)
    assert sorted((each.spec_id, each.partition[0]) for each in deletes) == [(1, "a"), (1, "b")]
    data = {(each.spec_id, *each.partition._data) for each in entries(target, ManifestContent.DATA)}
    assert data == {(1, "a"), (1, "b"), (2, "b", "2 2"), (2, None, "1 2"), (2, None, "3 2")}
    apply(target, 3, (2, 4), "delete", schema)
    assert rows(target) == {key: note for key, note in expected.items() if key not in (2, 4)}
    assert target._open().scan(EqualTo("part", "b")).to_arrow().num_rows == 8


def test_deletes_of_another_program(tmp_path) -> None:
    """Position deletes without bounds, for several data files, are applied, and stay; equality deletes are refused by name."""
    target = opened(tmp_path)
    apply(target, 1, range(5), "insert")
    apply(target, 2, range(5, 10), "insert")
    batch = IcebergTransaction("t", target._open(), target._created, "current")
    paths = sorted(entry.file.path for entry in batch.entries)
    found = batch.write_deletes((0, Record()), [(path, BitMap64([0])) for path in paths])
    found[10] = found[11] = None  # its bounds
    batch.commit({}, deletes=[found])
    assert sorted(rows(target)) == [1, 2, 3, 4, 6, 7, 8, 9]
    apply(target, 3, (1, 5))
    assert sorted(rows(target)) == list(range(1, 10))
    batch = IcebergTransaction("t", target._open(), target._created, "current")
    equality = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=paths[0],
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
        equality_ids=[1],
    )
    equality.spec_id = 0
    batch.commit({}, deletes=[equality])
    with pytest.raises(ConfigurationError, match="equality deletes"):
        apply(target, 4, (1,))


def test_format_versions(tmp_path) -> None:
    """A table of version 1, which cannot have position deletes, keeps its version: files are written again. Version 3 is refused."""
    (tmp_path / "1").mkdir()
    target = marked(tmp_path / "1", format_version="1")
    assert rows(target) == EXPECTED
    assert target._open().metadata.format_version == 1
    assert not entries(target, ManifestContent.DELETES)
    metadata = Path(target._open().metadata_location.removeprefix("file://"))
    # pyiceberg cannot create such a table.
    changed = json.loads(metadata.read_text()) | {
        "format-version": 3,
        "next-row-id": 0,
        "last-sequence-number": 1,
    }
    metadata.write_text(json.dumps(changed))
    with pytest.raises(ConfigurationError, match="format version 3"):
        apply(target, 5, (1,))


def test_columns_that_swap_their_names(tmp_path) -> None:
    """Columns of files are found by their ids: keys are found under a swapped name, also by the statistics of row groups."""

    def schema(**numbers: str) -> pa.Schema:
        return pa.schema(
            [
                pa.field(name, SOURCE.field("id").type if name != "note" else pa.string()).with_metadata(
                    {"aiorepl.number": number}
                )
                for name, number in numbers.items()
            ]
        )

    target = opened(tmp_path)
    apply(target, 1, range(10), "insert", schema(id="1", other="2", note="3"), other=lambda key: 1000 + key)
    swapped = schema(other="1", id="2", note="3")
    apply(target, 2, (1003, 1004), "update", swapped, other=lambda key: key - 1000)
    expected = {1000 + key: f"{key} 1" for key in range(10)} | {1003: "1003 2", 1004: "1004 2"}
    assert rows(target) == expected


def test_statistics(tmp_path) -> None:
    """Bounds are exact, or there are none: readers that skip files by them find every row."""
    from decimal import Decimal

    kinds = {
        "d": (pa.decimal128(30, 5), lambda key: Decimal(f"12345678901234567890123.{key:05}")),
        "f": (pa.float64(), lambda key: float("nan") if key == 3 else float(key)),
        "z": (pa.float64(), lambda key: -0.0 if key % 2 else 0.0),
        "s": (pa.string(), lambda key: "é" * 40 + str(key)),
        "day": (pa.date32(), lambda key: 4_000_000 if key == 4 else key),
    }
    schema = pa.schema([*SOURCE, *((name, kind) for name, (kind, _) in kinds.items() if name != "day")])
    target = opened(tmp_path)
    find = {name: make for name, (_, make) in kinds.items() if name != "day"}
    for lsn in (1, 2):
        apply(target, lsn, range(5 * lsn, 5 * lsn + 5), "insert", schema, **find)
    for name, make in find.items():
        for key in (5, 9, 12):
            found = target._open().scan(EqualTo(name, make(key)), ("id",)).to_arrow()["id"].to_pylist()
            assert key in found, name
    number = {field.name: field.field_id for field in target._open().schema().fields}
    data = entries(target, ManifestContent.DATA)
    assert all(number["d"] in each.lower_bounds for each in data)
    apply(target, 3, (3, 4), "insert", schema, **find)
    newest = next(each for each in entries(target, ManifestContent.DATA) if each.record_count == 2)
    assert number["f"] not in newest.lower_bounds
    assert len(rows(target)) == 12


def test_upkeep(tmp_path) -> None:
    """Small files and deletes are joined, and files with many deleted rows written again; what no snapshot needs is deleted."""
    upkeep = Upkeep(optimize_every=4, vacuum_every=0)
    target = opened(tmp_path, upkeep=upkeep)
    apply(target, 1, range(100), "insert")
    for lsn in (2, 3, 4):
        apply(target, lsn, range(lsn, 50))
        target.maintain()
    expected = {key: f"{key} {max(1, min(4, key)) if key < 50 else 1}" for key in range(100)}
    assert rows(target) == expected
    assert [each.record_count for each in entries(target, ManifestContent.DATA)] == [100]
    assert not entries(target, ManifestContent.DELETES)
    assert [each.commit.number for each in target.versions()] == [4, 3, 2, 1]
    assert target.applied("query", 4)
    before = files(target)
    target._upkeep = Upkeep(optimize_every=0, vacuum_every=1, retain=timedelta(hours=1))
    target._maintained = 0
    target.maintain()
    assert files(target) == before
    target._upkeep = Upkeep(optimize_every=0, vacuum_every=1, retain=timedelta())
    target._maintained = 0
    target.maintain()
    assert len(files(target)) <= 4
    assert rows(target) == expected
    assert target.applied("query", 4)
    apply(target, 5, (1,))
    assert rows(target) == expected | {1: "1 5"}


def test_small_deletes_are_joined(tmp_path, monkeypatch) -> None:
    """Position deletes of several batches become one file, without those of data files that have left the table."""
    from aiorepl.spark.lake import transaction

    monkeypatch.setattr(transaction, "_SMALL_BYTES", 0)
    target = marked(tmp_path)
    expected = rows(target)
    target._upkeep = Upkeep(optimize_every=1, vacuum_every=0)
    target.maintain()
    (deletes,) = entries(target, ManifestContent.DELETES)
    positions = pq.read_table(deletes.file_path.removeprefix("file://"))
    live = {each.file_path for each in entries(target, ManifestContent.DATA)}
    assert set(positions["file_path"].to_pylist()) <= live
    assert deletes.record_count == 5
    assert rows(target) == expected
    apply(target, 5, (12,))
    assert rows(target) == expected | {12: "12 5"}


def test_files_that_upkeep_deletes(tmp_path) -> None:
    """Files of failed commits are deleted once they are older than ``retain``; files of others in the folder stay."""
    target = marked(tmp_path, upkeep=Upkeep(optimize_every=0, vacuum_every=1, retain=timedelta(hours=1)))
    table = target._open()
    data = Path(table.location().removeprefix("file://"), "data")
    failed, other = data / f"{table.metadata.table_uuid}-0.parquet", data / "0.parquet"
    for path in (failed, other):
        path.write_bytes(b"")
    target.maintain()
    assert failed.exists()
    target._upkeep = Upkeep(optimize_every=0, vacuum_every=1, retain=timedelta())
    target._maintained = 0
    target.maintain()
    assert not failed.exists()
    assert other.exists()
    assert rows(target) == EXPECTED


def test_upkeep_after_another_program(tmp_path) -> None:
    """The snapshot of another program has no batch, and neither has that of the upkeep after it."""
    target = marked(tmp_path, upkeep=Upkeep(optimize_every=1, vacuum_every=0))
    expected = rows(target)
    table = target._open()
    table.append(table.scan().to_arrow().slice(0, 0))
    target.maintain()
    assert not entries(target, ManifestContent.DELETES)
    assert rows(target) == expected


def test_upkeep_beside_another_program(tmp_path, monkeypatch) -> None:
    """If another program commits first, upkeep changes nothing, and a batch is refused; both succeed later."""
    target = marked(tmp_path, upkeep=Upkeep(optimize_every=1, vacuum_every=0))
    expected = rows(target)
    with monkeypatch.context() as patch:
        patch.setattr(target._catalog, "commit_table", _refused)
        target.maintain()
        with pytest.raises(TableUnavailable):
            apply(target, 5, (1,))
    assert rows(target) == expected
    target._maintained = 0
    target.maintain()
    assert not entries(target, ManifestContent.DELETES)
    apply(target, 5, (1,))
    assert rows(target) == expected | {1: "1 5"}


def _refused(*given: object) -> None:
    raise CommitFailedException("another commit came first")


def test_a_column_of_an_earlier_partition_spec(tmp_path) -> None:
    """Another program removes the partitions, and then their column: rows are changed, and upkeep works."""
    target = opened(tmp_path, Layout(partition_by=("region",)))
    schema = pa.schema([*SOURCE, ("region", pa.string())])
    apply(target, 1, range(9), "insert", schema, region=lambda key: f"r{key % 3}")
    apply(target, 2, (4,), schema=schema, region=lambda key: "r1")
    with target._open().update_spec() as spec:
        spec.remove_field("by_region")
    with target._open().update_schema(allow_incompatible_changes=True) as columns:
        columns.delete_column("region")
    for lsn in range(3, 15):
        apply(target, lsn, (lsn % 4,))

    def found() -> dict[int, str]:
        # DuckDB ends its process when it reads such a table, whoever wrote it.
        for reader in ("pyiceberg", "polars"):
            read = rows_by(reader, target._open()).select(["id", "note"]).to_pylist()
            assert len(read) == 9
        return {row["id"]: row["note"] for row in read}

    expected = found()
    assert expected[3] == "3 11"
    target._upkeep = Upkeep(optimize_every=1, vacuum_every=0)
    target.maintain()
    assert not entries(target, ManifestContent.DELETES)
    assert found() == expected
