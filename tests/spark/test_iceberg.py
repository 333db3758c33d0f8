"""An Iceberg target has what its mode says; its columns follow the source's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.spark.lake import iceberg, merge
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.table import Commit, Layout, Run, TableUnavailable, Truncate
from aiorepl.spark.mirroring.reduction import reduce_changes

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")  # the catalog that needs no server

pytestmark = pytest.mark.by_day

SOURCE = pa.schema([("id", pa.int16()), ("note", pa.string()), ("n", pa.int32())])
META = [
    ("_op", pa.string()),
    ("_commit_lsn", pa.int64()),
    ("_ordinal", pa.int64()),
    ("_xid", pa.int64()),
    ("_commit_ts", pa.timestamp("us", tz="UTC")),
    ("_unchanged", pa.list_(pa.string())),
]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch):
    from pyiceberg.catalog.sql import SqlCatalog

    from aiorepl.spark.lake.iceberg import IcebergLake

    monkeypatch.setattr(merge, "PART_BYTES", 1)
    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}")
    yield IcebergLake(catalog, "mirror_")
    catalog.close()


def apply(target, lsn: int, *changes: tuple, schema=SOURCE, defaults=None, keys=("id",)) -> None:
    """Apply changes as tuples: op, unsent columns, and values."""
    rows = [
        {"_op": op, "_commit_lsn": lsn, "_ordinal": number, "_unchanged": unsent or None, **values}
        for number, (op, unsent, values) in enumerate(changes)
    ]
    for row, before in zip(rows[1:], rows, strict=False):
        if row["_op"] == "insert" and row["_unchanged"]:
            row["_ordinal"] = before["_ordinal"]
    table = pa.Table.from_pylist(rows, pa.schema([*schema, *META]))
    reduced = reduce_changes(table, keys, target.mode)
    run = Run(keys, reduced.parts(100), reduced.truncates)
    target.apply(Commit("query", lsn, LSN(lsn)), [run], schema, defaults)


def rows(target, version: int | None = None) -> list[dict]:
    table = target._open().scan(snapshot_id=version).to_arrow()
    return sorted(
        (
            {name: row[name] for name in row if name[0] != "_" or name in ("_deleted", "_is_current")}
            for row in table.to_pylist()
        ),
        key=str,
    )


def data_files(target) -> list[Path]:
    """List the files in the table's data folder."""
    return sorted(Path(target._open().location().removeprefix("file://"), "data").rglob("*.parquet"))


BATCHES = (
    [("insert", [], {"id": number, "note": f"note {number}", "n": 0}) for number in range(1, 5)],
    [
        ("update", ["note"], {"id": 1, "n": 1}),
        ("delete", [], {"id": 2}),
        ("insert", ["note"], {"id": 20, "n": 2}),
        ("delete", [], {"id": 3}),
    ],
    [("truncate", [], {}), ("insert", [], {"id": 1, "note": "again", "n": 3})],
)


def source(**columns) -> pa.Schema:
    """Return columns by their attribute number and type."""
    fields = ((name, number, kind) for name, (number, kind) in columns.items())
    return pa.schema(
        [pa.field(name, kind, metadata={"aiorepl.number": number}) for name, number, kind in fields]
    )


NARROW = source(id=("1", pa.int32()), note=("2", pa.string()))
WIDE = source(id=("1", pa.int32()), note=("2", pa.string()), extra=("3", pa.int32()))
SEVEN = {"extra": pa.scalar(7, pa.int32())}


def plant(target, key: int) -> None:
    """Append a row as another program does."""
    table = target._open()
    columns = table.schema().as_arrow()
    row = dict.fromkeys(columns.names) | {"id": key, "note": "planted"}
    table.append(pa.Table.from_pylist([row], columns))


def test_history_of_a_longer_batch(lake) -> None:
    """If a batch is planned again with a later end, a row version that its first attempt wrote ends there."""
    target = lake.table(("public", "t"), "history")
    first = ("insert", [], {"id": 1, "note": "a", "n": 1})
    apply(target, 10, first)
    apply(target, 10, first, ("update", [], {"id": 1, "note": "b", "n": 1}))
    found = [(row["note"], row["_is_current"]) for row in rows(target)]
    assert sorted(found) == [("a", False), ("b", True)]


def test_soft_deletes_under_another_key(lake) -> None:
    """After a change of the key columns, a table still has one row for each key: the live one, or else the last deleted one."""
    target = lake.table(("public", "t"), "soft_delete")
    by_id, by_note, by_both = (
        partial(apply, target, keys=keys) for keys in (("id",), ("note",), ("id", "note"))
    )
    by_id(1, *(("insert", [], {"id": number, "note": note}) for number, note in enumerate("xxyyz")))
    by_id(2, *(("delete", [], {"id": number}) for number in range(5)))
    by_id(3, ("insert", [], {"id": 7, "note": "x"}))
    changes = [("update", [], {"note": "x", "id": 7, "n": 4}), ("insert", [], {"note": "z", "id": 8, "n": 4})]
    by_note(4, *changes)
    assert [(row["id"], row["note"], row["n"], row["_deleted"]) for row in rows(target)] == [
        (3, "y", None, True),
        (7, "x", 4, False),
        (8, "z", 4, False),
    ]
    by_both(6, ("delete", [], {"note": "x", "id": 7}), ("insert", [], {"note": "y", "id": 8, "n": 6}))
    assert [(row["id"], row["note"], row["n"], row["_deleted"]) for row in rows(target)] == [
        (3, "y", None, True),
        (7, "x", 4, True),
        (8, "y", 6, False),
        (8, "z", 4, False),
    ]


def test_a_move_under_another_key(lake) -> None:
    """An unsent value is taken from the row that moves, and not from a deleted row with the same key."""
    target = lake.table(("public", "t"), "soft_delete")
    by_id, by_note = (partial(apply, target, keys=keys) for keys in (("id",), ("note",)))
    by_id(1, *(("insert", [], {"id": number, "note": "x", "n": number}) for number in (1, 2)))
    by_id(2, ("delete", [], {"id": 1}))
    by_id(3, ("insert", [], {"id": 7, "note": "x", "n": 7}))
    by_id(4, ("delete", [], {"id": 2}))
    by_note(5, ("delete", [], {"note": "x"}), ("insert", ["n"], {"id": 7, "note": "y"}))
    assert [row["n"] for row in rows(target) if not row["_deleted"]] == [7]


def test_modes(lake) -> None:
    """Deletes, moves, unsent values and truncates give the rows of each mode; a repeated batch changes nothing."""
    targets = {mode: lake.table(("public", mode), mode) for mode in ("current", "soft_delete", "history")}
    log = lake.table(("public", "log"), "changelog")
    for lsn, batch in enumerate(BATCHES, start=10):
        for target in (*targets.values(), log):
            apply(target, lsn, *batch)
            assert target.applied("query", lsn)
            assert not target.applied("query", lsn + 1)
            apply(target, lsn, *batch)
    again = {"id": 1, "note": "again", "n": 3}
    assert rows(targets["current"]) == [again]
    assert rows(
        targets["current"],
        next(each.number for each in targets["current"].versions() if each.commit.lsn <= LSN(11)),
    ) == [
        {"id": 1, "note": "note 1", "n": 1},
        {"id": 20, "note": "note 2", "n": 2},
        {"id": 4, "note": "note 4", "n": 0},
    ]
    assert {(row["id"], row["note"], row["_deleted"]) for row in rows(targets["soft_delete"])} == {
        (1, "again", False), (2, "note 2", True), (3, "note 3", True), (4, "note 4", True), (20, "note 2", True),
    }  # fmt: skip
    assert [(row["id"], row["note"]) for row in rows(targets["history"]) if row["_is_current"]] == [
        (1, "again")
    ]
    assert len(rows(targets["history"])) == 7
    assert len(rows(log)) == sum(map(len, BATCHES))


def test_a_batch_is_one_commit(lake, monkeypatch) -> None:
    """Readers see nothing of a batch of several parts until all of it is merged; a part that fails leaves nothing."""
    target = lake.table(("public", "t"))
    apply(target, 1, *BATCHES[0])
    before, apply_part, seen = rows(target), merge._Merge.apply, []
    files = set(data_files(target))

    def failing(self, changes) -> None:
        apply_part(self, changes)
        seen.append(rows(target))
        if len(seen) == 2:
            raise OSError("no space")

    monkeypatch.setattr(merge._Merge, "apply", failing)
    changed = [("update", ["note"], {"id": number, "n": 9}) for number in range(1, 5)]
    with pytest.raises(OSError, match="no space"):
        apply(target, 2, *changed)
    assert not target.applied("query", 2)
    assert set(data_files(target)) == files
    apply(target, 2, *changed)
    assert len(seen) > 3
    assert seen == [before] * len(seen)
    assert rows(target) == [{**row, "n": 9} for row in before]
    assert [each.commit.number for each in target.versions()] == [2, 1]
    assert len(target._open().snapshots()) == 2


def test_a_truncate_of_many_rows(lake) -> None:
    """A truncate reaches rows of other writers, too; rows that it keeps in soft_delete and history are rewritten in pieces."""
    everything = [("insert", [], {"id": number, "note": "x", "n": 0}) for number in range(9)]
    for mode in ("current", "soft_delete", "history"):
        target = lake.table(("public", mode), mode)
        apply(target, 5, *everything[:6])
        table = target._open()
        other = dict.fromkeys(table.schema().as_arrow().names) | {"id": 99, "_is_current": True}
        table.append(pa.Table.from_pylist([other], table.schema().as_arrow()))
        apply(target, 6, ("insert", [], {"id": 7, "note": "x", "n": 0}), ("truncate", [], {}), everything[8])
        found = [(row["id"], row.get("_deleted"), row.get("_is_current")) for row in rows(target)]
        gone = {"current": [], "soft_delete": (True, None), "history": (None, False)}[mode]
        left = {"current": (None, None), "soft_delete": (False, None), "history": (None, True)}[mode]
        assert sorted(found) == [
            *((key, *gone) for key in (*range(6), 7) if gone),
            (8, *left),
            *([(99, *gone)] if gone else []),
        ]


def test_a_key_that_is_renamed_and_changes(lake) -> None:
    """A row that moves keeps its unsent value, also if its key's column was renamed in the same batch."""

    def source(key: str) -> pa.Schema:
        names = (key, "note", "n")
        kinds = (pa.int32(), pa.string(), pa.int32())
        return pa.schema(
            [
                pa.field(name, kind, metadata={"aiorepl.number": str(number)})
                for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
            ]
        )

    target = lake.table(("public", "t"))
    apply(target, 1, ("insert", [], {"id": 1, "note": "kept", "n": 1}), schema=source("id"))
    moved = (("delete", [], {"key": 1}), ("insert", ["note"], {"key": 2, "n": 2}))
    apply(target, 2, *moved, schema=source("key"), keys=("key",))
    assert rows(target) == [{"key": 2, "note": "kept", "n": 2}]


def test_many_batches(lake, monkeypatch) -> None:
    """Manifests are joined, and a batch is one snapshot, which is added to the table's metadata, with all snapshots, once or twice."""
    from pyiceberg import catalog, table

    update, calls = table.update_table_metadata, []

    def counted(*given, **named):
        calls.append(given)
        return update(*given, **named)

    monkeypatch.setattr(table, "update_table_metadata", counted)
    monkeypatch.setattr(catalog, "update_table_metadata", counted)
    target = lake.table(("public", "t"))
    for number in range(1, 13):
        calls.clear()
        apply(target, number, ("update", [], {"id": number % 5, "note": "x", "n": number}))
        assert 0 < len(calls) < 3 or number == 1
    found = target._open()
    assert len(found.snapshots()) == 12
    assert len(found.current_snapshot().manifests(found.io)) < 12
    assert [row["n"] for row in rows(target)] == [10, 11, 12, 8, 9]


def test_a_catalog_that_fails(lake, monkeypatch) -> None:
    """A conflict, or a catalog that does not answer, is no error of the table; the batch can be applied again."""
    from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError
    from sqlalchemy.exc import OperationalError

    target = lake.table(("public", "t"))
    catalog = target._catalog
    apply(target, 1, *BATCHES[0])
    for error in (
        CommitFailedException("c"),
        ServiceUnavailableError("c"),
        OperationalError("locked", None, ValueError()),
    ):
        with monkeypatch.context() as patch, pytest.raises(TableUnavailable, match=r"mirror_public\.t"):
            patch.setattr("time.sleep", lambda seconds: None)
            patch.setattr(catalog, "commit_table", raising(error))
            apply(target, 2, ("delete", [], {"id": 1}))
    apply(target, 2, ("delete", [], {"id": 1}))
    assert [row["id"] for row in rows(target)] == [2, 3, 4]


def test_a_catalog_that_pyiceberg_only_reads(lake, monkeypatch) -> None:
    """DynamoDB's and BigQuery's catalogs do not implement commits."""
    target = lake.table(("public", "t"))
    monkeypatch.setattr(target._catalog, "commit_table", raising(NotImplementedError()))
    with pytest.raises(ConfigurationError, match=r"mirror_public\.t cannot be written: .* SqlCatalog\. Use "):
        apply(target, 1, *BATCHES[0])


def raising(error: Exception):
    def fail(*given, **named):
        raise error

    return fail


def test_columns_follow_the_source(lake) -> None:
    """Columns are added with their defaults, widened, and swap names, in a partitioned table."""
    target = lake.table(("public", "t"), layout=Layout(partition_by=("note",)))
    first = source(id=("1", pa.int32()), note=("2", pa.string()), other=("3", pa.string()))
    apply(target, 1, ("insert", [], {"id": 1, "note": "a", "other": "b"}), schema=first)
    second = source(
        id=("1", pa.int64()),
        other=("2", pa.string()),
        note=("3", pa.string()),
        **{"ex.tra": ("4", pa.int32())},
    )
    changes = [("insert", [], {"id": 1 << 40, "other": "a", "note": "c", "ex.tra": 1})]
    apply(target, 2, *changes, schema=second, defaults={"ex.tra": pa.scalar(7, pa.int32())})
    assert rows(target) == [
        {"id": 1, "other": "a", "note": "b", "ex.tra": 7},
        {"id": 1 << 40, "other": "a", "note": "c", "ex.tra": 1},
    ]
    target.apply(Commit("query", 3, LSN(3)), [Run(("id",), (), [Truncate(3, 0)])])
    assert [] == rows(target)
    assert target.applied("query", 3)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_infinite_keys(lake, kind) -> None:
    """Infinite numbers are keys like others, and 0 and -0 are one key."""
    target = lake.table(("public", "t"))
    schema = pa.schema([("id", kind), ("note", pa.string())])
    keys = (float("inf"), float("-inf"), 0.0, 1.5)
    apply(target, 1, *(("insert", [], {"id": key, "note": "one"}) for key in keys), schema=schema)
    apply(
        target,
        2,
        ("update", [], {"id": float("inf"), "note": "two"}),
        ("delete", [], {"id": float("-inf")}),
        ("update", [], {"id": -0.0, "note": "two"}),
        schema=schema,
    )
    found = {row["id"]: row["note"] for row in rows(target)}
    assert found == {float("inf"): "two", 0.0: "two", 1.5: "one"}
    assert len(rows(target)) == 3


FAR = {
    "date": (pa.date32(), -735527, 3672879),
    "timestamp": (pa.timestamp("us"), -63_517_795_200_000_000, 300_000_000_000_000_001),
    "timestamptz": (pa.timestamp("us", tz="UTC"), -63_517_795_200_000_000, 300_000_000_000_000_001),
}
"""Years before 1 and after 9999, which Python does not have."""


@pytest.mark.parametrize("mode", ["current", "soft_delete", "history"])
@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("format_", ["iceberg", "delta"])
def test_dates_that_python_does_not_have(lake, tmp_path, format_, name, mode) -> None:
    """Such dates are keys and values: rows are changed, moved with unsent values, and deleted, also after a rename."""
    kind, *far = FAR[name]
    keys = ("k",)
    target = lake.table(("public", "t"), mode)
    if format_ == "delta":
        target = DeltaTarget(str(tmp_path / "delta"), mode)
    number = pa.int32() if name == "date" else pa.int64()

    def batch(lsn: int, column: str, *changes: tuple) -> None:
        """Apply changes: op, the key's number, and the other column, or none if it was not sent."""
        schema = source(k=("1", kind), note=("2", pa.string()), **{column: ("3", kind)})
        count = len(changes)
        table = pa.table(
            [
                pa.array([key for _, key, _ in changes], number).cast(kind),
                pa.array([note for *_, note in changes], pa.string()),
                pa.array([key for _, key, _ in changes], number).cast(kind),
                pa.array([op for op, *_ in changes], pa.string()),
                pa.array([lsn] * count, pa.int64()),
                # A row that moves is a delete and an insert at one place.
                pa.array([0 if note is None else at for at, (*_, note) in enumerate(changes)], pa.int64()),
                pa.array([1] * count, pa.int64()),
                pa.array([lsn] * count, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
                pa.array(
                    [["note"] if note is None and op == "insert" else None for op, _, note in changes],
                    META[-1][1],
                ),
            ],
            schema=pa.schema([*schema, *META]),
        )
        reduced = reduce_changes(table, keys, mode)
        commit = Commit("query", lsn, LSN(lsn))
        target.apply(commit, [Run(keys, reduced.parts(1 << 20), reduced.truncates)], schema)

    batch(1, "other", ("insert", far[0], "a"), ("insert", 0, "b"))
    batch(2, "other", ("delete", far[0], None), ("insert", far[1], None))
    batch(3, "renamed", ("update", 0, "c"), ("insert", far[0], "d"))
    batch(4, "renamed", ("delete", far[0], ""))

    found = pa.Table.from_batches(list(target.newest().batches(target.newest().schema().names)))
    gone = found["_deleted"] if mode == "soft_delete" else None
    live = found.filter(found["_is_current"]) if mode == "history" else found
    live = live if gone is None else live.filter(pc.invert(pc.fill_null(gone, False)))
    keyed = zip(live["k"].cast(number).to_pylist(), live["note"].to_pylist(), strict=True)
    assert [(0, "c"), (far[1], "a")] == sorted(keyed)
    assert live["renamed"].cast(number).to_pylist() == live["k"].cast(number).to_pylist()


def test_a_partition_that_python_does_not_have(lake) -> None:
    """A date outside Python's years in a partition column is refused by name."""
    target = lake.table(("public", "t"), layout=Layout(("day",)))
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    meta = [pa.nulls(1, kind) for _, kind in META[3:]]
    day = pa.array([3672879], pa.int32()).cast(pa.date32())
    table = pa.table(
        [pa.array([1]), day, pa.array(["insert"]), pa.array([1]), pa.array([0]), *meta],
        schema=pa.schema([*schema, *META]),
    )
    with pytest.raises(ConfigurationError, match="'day'"):
        run = Run(("id",), reduce_changes(table, ("id",), "current").parts(100))
        target.apply(Commit("query", 1, LSN(1)), [run], schema)


def test_two_processes_with_one_batch(lake, monkeypatch) -> None:
    """The process that commits second is refused, also if both create the table."""
    from pyiceberg.table import Table

    from aiorepl.spark.lake.iceberg import IcebergLake

    one = lake.table(("public", "t"), "changelog")
    other = IcebergLake(one._catalog, "mirror_").table(("public", "t"), "changelog")

    original = Table._do_commit

    def commit(*given, **named) -> None:
        monkeypatch.setattr(Table, "_do_commit", original)
        apply(other, count, ("insert", [], {"id": count, "note": "one"}), schema=NARROW)
        original(*given, **named)

    for count in (1, 2):
        monkeypatch.setattr(Table, "_do_commit", commit)
        with pytest.raises(TableUnavailable):
            apply(one, count, ("insert", [], {"id": count, "note": "one"}), schema=NARROW)
        assert len(rows(one)) == count


def test_two_processes_that_create_one_table(lake, monkeypatch) -> None:
    """The process whose catalog finds the other's table at the last moment is refused, and succeeds when it applies the batch again."""
    from aiorepl.spark.lake.iceberg import IcebergLake

    one = lake.table(("public", "t"))
    other = IcebergLake(one._catalog, "mirror_").table(("public", "t"))
    original = one._catalog._write_metadata

    def write(**named) -> None:
        monkeypatch.undo()
        apply(other, 1, ("insert", [], {"id": 1, "note": "one"}), schema=NARROW)
        original(**named)

    monkeypatch.setattr(one._catalog, "_write_metadata", write)
    with pytest.raises(TableUnavailable):
        apply(one, 1, ("insert", [], {"id": 1, "note": "one"}), schema=NARROW)
    apply(one, 1, ("insert", [], {"id": 1, "note": "one"}), schema=NARROW)
    assert rows(one) == [{"id": 1, "note": "one"}]


def test_lost_files(lake, tmp_path) -> None:
    """If another program has deleted or cut files, the errors name the table and the file, and say what to do."""
    target = lake.table(("public", "t"))
    apply(target, 1, ("insert", [], {"id": 1, "note": "one"}), schema=NARROW)
    (data,) = tmp_path.rglob("*.parquet")
    kept = data.read_bytes()
    data.unlink()
    newest = target.newest()
    with pytest.raises(
        ConfigurationError, match=f"Iceberg table .*{data.name}.*begin it again with a snapshot"
    ):
        list(newest.batches(["id"]))
    with pytest.raises(ConfigurationError, match=rf"table mirror_public\.t cannot be read: .*{data.name}"):
        apply(target, 2, ("update", [], {"id": 1, "note": "two"}), schema=NARROW)
    data.write_bytes(kept)
    metadata = max(tmp_path.rglob("*.metadata.json"))
    metadata.write_text("{")
    with pytest.raises(
        ConfigurationError, match=r"mirror_public\.t cannot be read: its metadata file is damaged"
    ):
        target.versions()
    metadata.unlink()
    for read in (newest.files, newest.schema, target.newest):
        with pytest.raises(ConfigurationError, match=f"a file is missing .*{metadata.name}"):
            read()


def test_a_batch_creates_the_table(lake, monkeypatch) -> None:
    """A table is created by its first batch: if this fails, there is no table; a batch may also change columns and rows at once."""
    target = lake.table(("public", "t"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(merge._Merge, "apply", raising(KeyboardInterrupt()))
        apply(target, 1, ("insert", [], {"id": 1}), schema=NARROW)
    assert target.schema() is None
    apply(target, 1, ("insert", [], {"id": 1}), schema=NARROW)
    commits = len(target._open().metadata.metadata_log)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(merge._Merge, "apply", raising(KeyboardInterrupt()))
        apply(target, 2, ("insert", [], {"id": 2, "extra": 1}), schema=WIDE, defaults=SEVEN)
    assert rows(target) == [{"id": 1, "note": None}]
    apply(target, 2, ("insert", [], {"id": 2, "extra": 1}), schema=WIDE, defaults=SEVEN)
    assert [row["extra"] for row in rows(target)] == [7, 1]
    assert len(target._open().metadata.metadata_log) == commits + 1


def test_a_table_that_was_rolled_back(lake) -> None:
    """A table that was rolled back is refused, because it lacks batches. Expired snapshots do not hide a rollback, and are none."""
    target = lake.table(("public", "t"))
    for number in (1, 2, 3):
        apply(target, number, ("insert", [], {"id": number, "note": "x"}), schema=NARROW)
    first, second, third = (each.snapshot_id for each in target._open().metadata.snapshots)
    plant(target, 9)
    target._open().maintenance.expire_snapshots().by_id(first).commit()
    assert target.applied("query", 3)
    last = target._open().current_snapshot().snapshot_id
    target._open().manage_snapshots().rollback_to_snapshot(second).commit()
    with pytest.raises(ConfigurationError, match=r"public\.t was rolled back"):
        target.applied("query", 3)
    target._open().manage_snapshots().set_current_snapshot(snapshot_id=last).commit()
    assert target.applied("query", 3)
    target._open().maintenance.expire_snapshots().by_ids([second, third]).commit()
    assert target.applied("query", 3)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_batch_that_a_tag_keeps(lake, monkeypatch, version) -> None:
    """A tag keeps the snapshot of the last batch, and later snapshots expire: the table was not rolled back."""
    monkeypatch.setitem(iceberg._TABLE_PROPERTIES, "format-version", version)
    target = lake.table(("public", "t"))
    apply(target, 1, ("insert", [], {"id": 1, "note": "x"}), schema=NARROW)
    batch = target._open().current_snapshot().snapshot_id
    target._open().manage_snapshots().create_tag(batch, "kept").commit()
    for key in (7, 8, 9):
        plant(target, key)
    between = [each.snapshot_id for each in target._open().snapshots()][1:-1]
    target._open().maintenance.expire_snapshots().by_ids(between).commit()
    assert target._open().current_snapshot().parent_snapshot_id is None
    assert target._open().metadata.format_version == int(version)
    assert target.applied("query", 1)
    apply(target, 2, ("delete", [], {"id": 7}), ("insert", [], {"id": 2, "note": "x"}), schema=NARROW)
    assert [row["id"] for row in rows(target)] == [1, 2, 8, 9]


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_table_that_was_rolled_back_to_expired_snapshots(lake, monkeypatch, version) -> None:
    """A rollback is found without the snapshot to which the table went back."""
    monkeypatch.setitem(iceberg._TABLE_PROPERTIES, "format-version", version)
    target = lake.table(("public", "t"))
    for number in (1, 2):
        apply(target, number, ("insert", [], {"id": number, "note": "x"}), schema=NARROW)
    first, second = (each.snapshot_id for each in target._open().snapshots())
    target._open().manage_snapshots().create_tag(second, "kept").commit()
    target._open().manage_snapshots().rollback_to_snapshot(first).commit()
    plant(target, 9)
    target._open().maintenance.expire_snapshots().by_id(first).commit()
    for number in (2, 3):
        with pytest.raises(ConfigurationError, match=r"public\.t was rolled back"):
            target.applied("query", number)


@pytest.mark.parametrize("planted", [False, True])
def test_a_table_that_was_created_again(lake, planted) -> None:
    """A table that was dropped and created again, also with its properties and a snapshot, is refused."""
    target = lake.table(("public", "t"))
    apply(target, 1, ("insert", [], {"id": 1, "note": "x"}), schema=NARROW)
    columns, properties = target._open().schema(), target._open().properties
    target._catalog.drop_table(target.identifier)
    target._catalog.create_table(target.identifier, columns, properties=properties)
    if planted:
        plant(target, 9)
        assert target._open().current_snapshot().parent_snapshot_id is None
    for number in (1, 2):
        with pytest.raises(ConfigurationError, match=r"has replaced the Iceberg table mirror_public\.t"):
            target.applied("query", number)
    target._catalog.drop_table(target.identifier)
    target._catalog.create_table(target.identifier, columns)
    assert not target.applied("query", 1)
