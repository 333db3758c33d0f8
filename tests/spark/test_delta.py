"""A Delta target: its columns follow the source's, its versions are found by LSN, and upkeep bounds its files."""

from __future__ import annotations

import errno
import math
import shutil
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaLake, DeltaTarget
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_transaction import DeltaTransaction
from aiorepl.spark.lake.table import Commit, Layout, Run, TableUnavailable, Truncate, Upkeep
from aiorepl.spark.mirroring.reduction import reduce_changes


def source(**columns: tuple[str | None, pa.DataType]) -> pa.Schema:
    """Columns by name: attribute number, if it is known, and type."""
    return pa.schema(
        [
            pa.field(name, kind, metadata=None if number is None else {"aiorepl.number": number})
            for name, (number, kind) in columns.items()
        ]
    )


FIRST = source(id=("1", pa.int32()), note=("2", pa.string()), n=("3", pa.int32()))


def apply(
    target: DeltaTarget,
    schema: pa.Schema,
    lsn: int,
    *rows: dict,
    defaults=None,
    truncates=(),
    part=1 << 20,
    application="query",
    keys=("id",),
) -> None:
    """Apply a batch of inserts and updates, one commit at ``lsn``."""
    meta = [
        ("_op", pa.string()),
        ("_commit_lsn", pa.int64()),
        ("_ordinal", pa.int64()),
        ("_commit_ts", pa.timestamp("us", tz="UTC")),
        ("_unchanged", pa.list_(pa.string())),
    ]
    changes = pa.Table.from_pylist(
        [{"_op": "update", "_commit_lsn": lsn, "_ordinal": number, **row} for number, row in enumerate(rows)],
        pa.schema([*schema, *meta]),
    )
    commit = Commit(application, lsn, LSN(lsn))
    reduced = reduce_changes(changes, keys, target.mode, truncates)
    target.apply(commit, [Run(keys, reduced.parts(part), reduced.truncates)], schema, defaults)


@pytest.mark.parametrize("character", ["%", "\\", "\n", "\x7f", "[", "]", "^", "|"])
@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_paths_that_deltalake_cannot_use(tmp_path, character, form):
    """They are refused before anything is written, also as part of a longer path and encoded in a URI."""
    folder = f"{tmp_path}/a{character}b"
    target = form.format(folder if form == "{}" else quote(folder))
    for make in (DeltaLake, DeltaTarget):
        with pytest.raises(
            ConfigurationError, match=r"Delta tables cannot be in the folder .*takes no path with"
        ):
            make(f"{target}/t")


def test_other_paths(tmp_path, monkeypatch):
    """All other characters can be in a path, also of the working directory."""
    folder = tmp_path / "ü #?*{}<>~$:\"'`;&+=,@ "
    folder.mkdir()
    monkeypatch.chdir(folder)
    apply(target := DeltaTarget("t"), FIRST, 1, {"id": 1, "note": "one", "n": 10})
    assert 1 == DeltaTable(target.target).to_pyarrow_table().num_rows


def evolve(target: DeltaTarget, schema: pa.Schema, defaults=None) -> None:
    """Apply a batch that only changes the columns."""
    target.apply(Commit("columns", 1, LSN(1)), (), schema, defaults)


def rows(target: DeltaTarget, version: int | None = None) -> list[dict]:
    table = DeltaTable(target.target, version=version).to_pyarrow_table()
    names = [name for name in table.column_names if not name.startswith("_")]
    return table.select(names).sort_by("id").to_pylist()


@pytest.fixture
def target(tmp_path: Path) -> DeltaTarget:
    return DeltaTarget(str(tmp_path / "target"))


def test_columns_follow_the_source(target) -> None:
    """Columns are added with their defaults, renamed by attribute number and widened; a dropped one stays."""
    apply(target, FIRST, 1, {"id": 1, "note": "one", "n": 10}, {"id": 2, "note": "two", "n": 20})
    second = source(
        id=("1", pa.int64()), text=("2", pa.string()), extra=("4", pa.int32()), empty=("5", pa.string())
    )
    defaults = {"extra": pa.scalar(7, pa.int32()), "empty": pa.scalar(None, pa.string())}
    apply(
        target,
        second,
        2,
        {"id": 1 << 40, "text": "big", "extra": 1},
        {"id": 2, "text": "2"},
        defaults=defaults,
    )

    assert rows(target) == [
        {"id": 1, "text": "one", "n": 10, "extra": 7, "empty": None},
        {"id": 2, "text": "2", "n": 20, "extra": None, "empty": None},
        {"id": 1 << 40, "text": "big", "n": None, "extra": 1, "empty": None},
    ]
    assert [field.metadata for field in target.schema()][:2] == [
        {b"aiorepl.number": b"1"},
        {b"aiorepl.number": b"2"},
    ]


def test_names_change_hands(target) -> None:
    """Two columns may swap names, and a new column may have the name of a dropped one, whose values stay."""
    apply(target, FIRST, 1, {"id": 1, "note": "one", "n": 10})
    second = source(id=("1", pa.int32()), n=("2", pa.string()), note=("3", pa.int32()))
    apply(target, second, 2, {"id": 2, "n": "two", "note": 20})
    third = source(id=("1", pa.int32()), n=("2", pa.string()), note=("9", pa.bool_()))
    apply(target, third, 3, {"id": 3, "n": "three", "note": True})

    assert rows(target) == [
        {"id": 1, "n": "one", "note_dropped_3": 10, "note": None},
        {"id": 2, "n": "two", "note_dropped_3": 20, "note": None},
        {"id": 3, "n": "three", "note_dropped_3": None, "note": True},
    ]


def test_types_that_do_not_fit(target) -> None:
    """A narrower type is held by the target's; one that cannot hold the values is refused by name."""
    wide = source(id=("1", pa.int64()), amount=("2", pa.decimal128(12, 2)))
    apply(target, wide, 1, {"id": 1, "amount": 1})
    apply(target, source(id=("1", pa.int32()), amount=("2", pa.decimal128(6, 3))), 2, {"id": 2, "amount": 2})
    assert target.schema().field("id").type == pa.int64()
    assert target.schema().field("amount").type == pa.decimal128(13, 3)

    with pytest.raises(ConfigurationError, match="'amount'"):
        evolve(target, source(id=("1", pa.int32()), amount=("2", pa.bool_())))


def test_defaults_in_a_history(tmp_path) -> None:
    """Only current versions get a new column's default; an ended one had no such column."""
    target = DeltaTarget(str(tmp_path / "target"), "history")
    apply(target, FIRST, 1, {"id": 1, "note": "one"})
    apply(target, FIRST, 2, {"id": 1, "note": "uno"})
    evolve(target, source(**{**COLUMNS, "extra": ("4", pa.int32())}), {"extra": pa.scalar(7, pa.int32())})
    assert {row["note"]: row["extra"] for row in rows(target)} == {"one": None, "uno": 7}


COLUMNS = {"id": ("1", pa.int32()), "note": ("2", pa.string()), "n": ("3", pa.int32())}


def as_of(target, lsn):
    """The version at the end of the last batch up to an LSN."""
    return next((each.number for each in target.versions() if each.commit.lsn <= lsn), None)


def test_as_of(target) -> None:
    """A version is found by the end LSN of its batch; commits of upkeep are none."""
    apply(target, FIRST, 100, {"id": 1, "note": "one"})
    first = as_of(target, LSN(100))
    many = [{"id": number, "note": "more"} for number in range(2, 5)]
    apply(target, FIRST, 200, *many)
    target._upkeep = Upkeep(optimize_every=1)
    target._maintained = 0
    target.maintain()

    assert rows(target, as_of(target, LSN(199))) == [{"id": 1, "note": "one", "n": None}]
    assert as_of(target, LSN(199)) == first
    assert 4 == len(rows(target, as_of(target, LSN(200))))
    assert as_of(target, LSN(99)) is None
    assert [200, 100] == [version.commit.lsn for version in target.versions()]


def test_upkeep_bounds_the_files(tmp_path) -> None:
    """Small files are compacted and old ones deleted, on a schedule that counts versions; a restart does not change it."""
    upkeep = Upkeep(optimize_every=5, vacuum_every=10, retain=timedelta())
    layout = Layout(cluster_by=("n",))
    for number in range(1, 31):
        target = DeltaTarget(str(tmp_path / "target"), layout=layout, upkeep=upkeep)
        apply(target, FIRST, number, {"id": number, "note": "x", "n": number})
        target.maintain()

    assert 30 == len(rows(target))
    assert len(list((tmp_path / "target").rglob("*.parquet"))) < 15
    # Compaction keeps the encoding of merges.
    for uri in DeltaTable(target.target).file_uris():
        column = pq.ParquetFile(uri).metadata.row_group(0).column(0)
        assert ("id", True) == (column.path_in_schema, "DELTA_BINARY_PACKED" in column.encodings)


def test_partitions(tmp_path) -> None:
    """Rows move between partitions, whatever their values are, and an evolved table keeps them."""
    target = DeltaLake(str(tmp_path)).table(("public", "a/b ü%"), layout=Layout(("note",)))
    apply(target, FIRST, 1, {"id": 1, "note": "a/b=ü"}, {"id": 2, "note": None})
    apply(target, FIRST, 2, {"id": 1, "note": None}, {"id": 2, "note": "x"})
    renamed = source(id=("1", pa.int32()), kind=("2", pa.string()), n=("3", pa.int64()))
    apply(target, renamed, 3, {"id": 3, "kind": "x"}, truncates=[Truncate(2, 1)])

    assert rows(target) == [
        {"id": 2, "kind": "x", "n": None},
        {"id": 3, "kind": "x", "n": None},
    ]
    assert ["kind"] == DeltaTable(target.target).metadata().partition_columns


def test_extreme_numbers(target) -> None:
    """The least and greatest numbers and times survive a first write and a merge, whatever the names of their columns."""
    schema = source(
        **{
            "id": ("1", pa.int64()),
            "a.b": ("2", pa.int64()),
            "small": ("3", pa.int16()),
            "money": ("4", pa.decimal128(18, 2)),
            "large": ("5", pa.decimal128(38, 2)),
            "day": ("6", pa.date32()),
            "time": ("7", pa.timestamp("us", tz="UTC")),
            "list": ("8", pa.list_(pa.int64())),
        }
    )
    least = {
        "a.b": -(2**63),
        "small": -(2**15),
        "money": Decimal("-9999999999999999.99"),
        "large": Decimal("-" + 36 * "9" + ".99"),
        "day": date.min,
        "time": datetime.min.replace(tzinfo=UTC),
        "list": [-(2**63), None],
    }
    most = {
        "a.b": 2**63 - 1,
        "small": 2**15 - 1,
        "money": Decimal("9999999999999999.99"),
        "large": Decimal(36 * "9" + ".99"),
        "day": date.max,
        "time": datetime.max.replace(tzinfo=UTC),
        "list": [2**63 - 1],
    }
    none = dict.fromkeys(least)
    apply(target, schema, 1, {"id": -(2**63), **least}, {"id": 1, **most}, {"id": 2, **none})
    apply(target, schema, 2, {"id": 1, **least}, {"id": 2, **most}, {"id": 2**63 - 1, **none})

    assert rows(target) == [
        {"id": -(2**63), **least},
        {"id": 1, **least},
        {"id": 2, **most},
        {"id": 2**63 - 1, **none},
    ]


@pytest.mark.parametrize(("kind", "bits"), [(pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64)])
def test_integer_keys(target, kind, bits) -> None:
    """Rows of every integer type are found by their keys, the least and the greatest ones too."""
    schema = source(id=("1", kind), v=("2", pa.int32()))
    keys = [-(2 ** (bits - 1)), -1, 0, 2 ** (bits - 1) - 1]
    apply(target, schema, 1, *({"id": key, "v": 1} for key in keys))
    apply(target, schema, 2, *({"id": key, "v": 2} for key in keys), {"id": 5, "v": 2})

    assert rows(target) == [{"id": key, "v": 2} for key in sorted([*keys, 5])]


def test_keys_that_find_no_row(target) -> None:
    """A null or NaN in a key is refused by name."""
    with pytest.raises(ConfigurationError, match="'id'"):
        apply(target, FIRST, 1, {"id": None, "note": "x"})
    with pytest.raises(ConfigurationError, match="'id'"):
        apply(target, source(id=("1", pa.float64())), 1, {"id": math.nan})


def test_numbers_become_text(target) -> None:
    """Decimals with more digits than any decimal has, and numeric without precision, are text as PostgreSQL prints it; keys, too."""
    few = source(id=("1", pa.decimal128(38, 0)), price=("2", pa.decimal128(12, 10)), flag=("3", pa.bool_()))
    tiny = Decimal("0.0000000001")
    apply(target, few, 1, {"id": Decimal(7), "price": tiny, "flag": True}, {"id": Decimal(8), "price": tiny})
    more = source(id=("1", pa.decimal128(38, 1)), price=("2", pa.string()), flag=("3", pa.string()))
    evolve(target, more)
    apply(target, few, 2, {"id": Decimal(8), "price": Decimal(1), "flag": False})

    assert {(row["id"], row["price"], row["flag"]) for row in rows(target)} == {
        ("7", "0.0000000001", "true"),
        ("8", "1.0000000000", "false"),
    }


@pytest.mark.parametrize("name", ["_kept", "_aiorepl_kept_0", "_COMMIT_LSN", "ID"])
def test_names_that_cannot_be(target, name) -> None:
    """A column is refused by name if a mirror needs the name itself, or if it differs from another one in case only."""
    with pytest.raises(ConfigurationError, match=name):
        evolve(target, source(id=("1", pa.int32()), **{name: ("2", pa.string())}))


def test_nested_key(tmp_path) -> None:
    """A key of a nested type is refused by name."""
    with pytest.raises(ConfigurationError, match="'tags'"):
        target = DeltaTarget(str(tmp_path / "t"))
        apply(target, source(tags=("1", pa.list_(pa.string()))), 1, {"tags": ["a"]}, keys=("tags",))


def test_two_queries_append_the_same_changes(tmp_path, monkeypatch) -> None:
    """Of two queries with one target, the one that commits second fails, and its files are gone."""
    one, other = (DeltaTarget(str(tmp_path / "t"), "changelog") for _ in range(2))
    apply(one, FIRST, 1, {"id": 1, "note": "one"})
    commit = DeltaTransaction.commit

    def late(*given, **named):
        monkeypatch.undo()
        apply(other, FIRST, 2, {"id": 2, "note": "two"}, application="next")
        return commit(*given, **named)

    monkeypatch.setattr(DeltaTransaction, "commit", late)
    with pytest.raises(TableUnavailable, match="only one query may write a table"):
        apply(one, FIRST, 2, {"id": 2, "note": "two"})
    assert [row["id"] for row in rows(one)] == [1, 2]
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 2


@pytest.mark.parametrize("vectors", [True, False])
def test_a_commit_whose_outcome_is_unknown(tmp_path, monkeypatch, vectors) -> None:
    """If a commit fails after its entry was written, the table has all its files, and the batch."""
    target = DeltaTarget(str(tmp_path / "target"), deletion_vectors=vectors)
    schema = source(id=("1", pa.int32()), note=("2", pa.string()))
    apply(target, schema, 1, *({"id": number, "note": "first"} for number in range(3)))

    def failing(self, name, data):
        assert create(self, name, data)
        raise OSError(errno.EIO, "the folder cannot be synced")

    create = DeltaFolder.create_entry
    monkeypatch.setattr(DeltaFolder, "create_entry", failing)
    with pytest.raises(OSError, match="synced"):
        apply(target, schema, 2, {"id": 1, "note": "second"})
    monkeypatch.undo()
    again = DeltaTarget(target.target)
    assert again.applied("query", 2)
    apply(again, schema, 3, {"id": 2, "note": "third"})
    found = again.newest()
    assert found is not None
    notes = pa.Table.from_batches(found.batches(["id", "note"])).sort_by("id")["note"].to_pylist()
    assert ["first", "second", "third"] == notes


@pytest.mark.parametrize("new", [True, False], ids=["created", "appended"])
def test_another_program_writes_meanwhile(target, monkeypatch, new) -> None:
    """The batch is made again after the other program's commit: rows that came meanwhile are found, and the others stay."""
    if not new:
        apply(target, FIRST, 1, {"id": 1, "note": "one"})
    planted = pa.table({"id": pa.array([1, 7], pa.int32()), "note": ["planted"] * 2})
    commit, versions = DeltaTransaction.commit, []

    def late(*given, **named):
        if not versions:
            write_deltalake(target.target, planted, mode="append", schema_mode="merge")
        versions.append(commit(*given, **named))
        return versions[-1]

    monkeypatch.setattr(DeltaTransaction, "commit", late)
    apply(target, FIRST, 2, {"id": 1, "note": "uno"})
    assert [(row["id"], row["note"]) for row in rows(target)] == [(1, "uno"), (7, "planted")]
    assert len(versions) == 2
    assert DeltaTable(target.target).transaction_version("query") == 2


def test_a_table_that_was_put_back(target, tmp_path) -> None:
    """A target sees that its table was replaced by an older copy, or deleted, meanwhile."""
    apply(target, FIRST, 1, {"id": 1, "note": "one"})
    shutil.copytree(target.target, tmp_path / "copy")
    apply(target, FIRST, 2, {"id": 2, "note": "two"})
    shutil.rmtree(target.target)
    shutil.copytree(tmp_path / "copy", target.target)
    assert not target.applied("query", 2)
    apply(target, FIRST, 3, {"id": 3, "note": "three"})
    assert [row["id"] for row in rows(target)] == [1, 3]
    shutil.rmtree(target.target)
    assert target.schema() is None


def test_a_feature_that_is_not_known(target) -> None:
    """A table with a feature that the mirror cannot write is refused by the feature's name."""
    apply(target, FIRST, 1, {"id": 1, "note": "one"})
    DeltaTable(target.target).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(ConfigurationError, match="changeDataFeed"):
        apply(target, FIRST, 2, {"id": 2, "note": "two"})


def test_soft_deletes_under_another_key(tmp_path) -> None:
    """After a change of the key columns, a table still has one row for each key: the live one, or else the last deleted one."""
    target = DeltaTarget(str(tmp_path / "t"), "soft_delete")
    by_id, by_note, by_both = (
        partial(apply, target, FIRST, keys=keys) for keys in (("id",), ("note",), ("id", "note"))
    )
    first = [{"id": number, "note": note} for number, note in enumerate("xxyyz")]
    by_id(1, *first)
    by_id(2, *({"id": number, "_op": "delete"} for number in range(5)))
    version = DeltaTable(target.target).version()
    by_id(3, {"id": 7, "note": "x"})
    assert DeltaTable(target.target).version() == version + 1, "the key is the same"

    by_note(4, {"note": "x", "id": 7, "n": 4}, {"note": "z", "id": 8, "n": 4})
    assert state(target) == {(3, "y", None, True), (7, "x", 4, False), (8, "z", 4, False)}
    by_note(5, {"note": "w", "id": 7}, {"_op": "delete", "note": "x"})
    by_both(6, {"note": "x", "id": 7, "n": 6}, {"note": "w", "id": 7, "n": 6})
    found = {(3, "y", None, True), (7, "x", 6, False), (8, "z", 4, False), (7, "w", 6, False)}
    assert state(target) == found


def state(target: DeltaTarget) -> set[tuple]:
    """Return the rows of a target with soft deletes, each of which it has once."""
    found = DeltaTable(target.target).to_pyarrow_table().to_pylist()
    rows = {(row["id"], row["note"], row["n"], row["_deleted"]) for row in found}
    assert len(rows) == len(found)
    return rows


def test_rows_of_somebody_else(target) -> None:
    """A row without a position is older than every change."""
    apply(target, FIRST, 1, {"id": 1, "note": "one"})
    planted = pa.table({"id": pa.array([7, 8, 9], pa.int32()), "note": ["planted"] * 3})
    write_deltalake(target.target, planted, mode="append", schema_mode="merge")
    apply(target, FIRST, 2, {"id": 7, "note": "seven"}, {"id": 8, "_op": "delete"})
    assert [(row["id"], row["note"]) for row in rows(target)] == [(1, "one"), (7, "seven"), (9, "planted")]
    apply(target, FIRST, 3, {"id": 7, "note": "7"}, truncates=[Truncate(2, 9)])
    assert [(row["id"], row["note"]) for row in rows(target)] == [(7, "7")]


def test_zero_with_a_sign(tmp_path) -> None:
    """0 and -0 are one key."""
    target = DeltaTarget(str(tmp_path / "t"))
    schema = source(id=("1", pa.float64()))
    apply(target, schema, 1, {"id": 0.0})
    apply(
        target,
        schema,
        2,
        {"id": 0.0, "_op": "delete", "_ordinal": 0},
        {"id": -0.0, "_op": "insert", "_ordinal": 0},
    )
    assert rows(target) == [{"id": 0.0}]


def test_partitions_that_delta_does_not_have(tmp_path) -> None:
    """An empty text in a partition column is refused by name, and not stored as null."""
    target = DeltaTarget(str(tmp_path / "t"), layout=Layout(("note",)))
    with pytest.raises(ConfigurationError, match="'note'"):
        apply(target, FIRST, 1, {"id": 1, "note": ""})


@pytest.fixture
def twice(tmp_path) -> DeltaTarget:
    """A table with two batches of a row each, the versions 0 and 1."""
    target = DeltaTarget(tmp_path / "t")
    for number in (1, 2):
        apply(target, pa.schema([("id", pa.int64())]), number, {"id": number})
    return target


def test_a_restore_to_a_restore(twice):
    """A table restored to a version that was a RESTORE itself is refused only if that version lacks a batch."""
    for version in (0, 1):
        DeltaTable(twice.target).delete("id = 1")
        DeltaTable(twice.target).restore(version)
        restored = DeltaTable(twice.target).version()
        DeltaTable(twice.target).delete()
        DeltaTable(twice.target).restore(restored)
        if version:
            assert twice.applied("query", 2)
            assert not twice.applied("query", 3)
        else:
            for number in (2, 3):
                with pytest.raises(ConfigurationError, match="was restored to an earlier version"):
                    twice.applied("query", number)


def test_a_restore_to_a_time(twice):
    """A RESTORE to a time after the last batch is not refused, and one to an earlier time is."""
    table = DeltaTable(twice.target)
    first, second = (
        datetime.fromtimestamp(each["timestamp"] / 1000, UTC) for each in reversed(table.history())
    )
    table.delete("id = 1")
    for time, version in ((second, 1), (first, 0)):
        DeltaTable(twice.target).restore(time)
        assert "version" not in DeltaTable(twice.target).history(1)[0]["operationParameters"]
        rows = DeltaTable(twice.target).to_pyarrow_table()["id"].to_pylist()
        assert sorted(rows) == [1, 2][: version + 1]
        if version:
            assert twice.applied("query", 2)
        else:
            with pytest.raises(ConfigurationError, match="was restored to an earlier version"):
                twice.applied("query", 2)
