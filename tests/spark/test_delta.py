"""A Delta target: its columns follow the source's, its versions are found by LSN, and upkeep bounds its files."""

from __future__ import annotations

import math
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaLake, DeltaTarget
from aiorepl.spark.lake.table import Commit, Layout, TableUnavailable, Truncate, Upkeep
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
    target.undo(commit.application)
    target.evolve(schema, defaults, commit)
    reduced = reduce_changes(changes, target.keys, target.mode, truncates)
    target.merge(reduced.parts(part), commit, reduced.truncates)


def rows(target: DeltaTarget, version: int | None = None) -> list[dict]:
    table = DeltaTable(target.target, version=version).to_pyarrow_table()
    names = [name for name in table.column_names if not name.startswith("_")]
    return table.select(names).sort_by("id").to_pylist()


@pytest.fixture
def target(tmp_path: Path) -> DeltaTarget:
    return DeltaTarget(str(tmp_path / "target"), ("id",))


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
        target.evolve(source(id=("1", pa.int32()), amount=("2", pa.bool_())))


def test_defaults_in_a_history(tmp_path) -> None:
    """Only current versions get a new column's default; an ended one had no such column."""
    target = DeltaTarget(str(tmp_path / "target"), ("id",), "history")
    apply(target, FIRST, 1, {"id": 1, "note": "one"})
    apply(target, FIRST, 2, {"id": 1, "note": "uno"})
    target.evolve(source(**{**COLUMNS, "extra": ("4", pa.int32())}), {"extra": pa.scalar(7, pa.int32())})
    assert {row["note"]: row["extra"] for row in rows(target)} == {"one": None, "uno": 7}


COLUMNS = {"id": ("1", pa.int32()), "note": ("2", pa.string()), "n": ("3", pa.int32())}


def test_as_of(target) -> None:
    """A version is found by the end LSN of its batch; commits in the middle of a batch and of upkeep are none."""
    apply(target, FIRST, 100, {"id": 1, "note": "one"})
    first = target.as_of(LSN(100))
    target._part_bytes = 1
    many = [{"id": number, "note": "more"} for number in range(2, 5)]
    apply(target, FIRST, 200, *many)
    target._upkeep = Upkeep(optimize_every=1)
    target._maintained = 0
    target.maintain()

    assert rows(target, target.as_of(LSN(199))) == [{"id": 1, "note": "one", "n": None}]
    assert target.as_of(LSN(199)) == first
    assert 4 == len(rows(target, target.as_of(LSN(200))))
    assert target.as_of(LSN(99)) is None
    assert [200, 100] == [version.commit.lsn for version in target.versions()]


def test_upkeep_bounds_the_files(tmp_path) -> None:
    """Small files are compacted and old ones deleted, on a schedule that counts versions; a restart does not change it."""
    upkeep = Upkeep(optimize_every=5, vacuum_every=10, retain=timedelta())
    layout = Layout(cluster_by=("n",))
    for number in range(1, 31):
        target = DeltaTarget(str(tmp_path / "target"), ("id",), layout=layout, upkeep=upkeep)
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
    target = DeltaLake(str(tmp_path)).table(("public", "a/b ü%"), ("id",), layout=Layout(("note",)))
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
    target.evolve(more)
    apply(target, few, 2, {"id": Decimal(8), "price": Decimal(1), "flag": False})

    assert {(row["id"], row["price"], row["flag"]) for row in rows(target)} == {
        ("7", "0.0000000001", "true"),
        ("8", "1.0000000000", "false"),
    }


@pytest.mark.parametrize("name", ["_kept", "_aiorepl_kept_0", "_COMMIT_LSN", "ID"])
def test_names_that_cannot_be(target, name) -> None:
    """A column is refused by name if a mirror needs the name itself, or if it differs from another one in case only."""
    with pytest.raises(ConfigurationError, match=name):
        target.evolve(source(id=("1", pa.int32()), **{name: ("2", pa.string())}))


def test_nested_key(tmp_path) -> None:
    """A key of a nested type is refused by name."""
    with pytest.raises(ConfigurationError, match="'tags'"):
        target = DeltaTarget(str(tmp_path / "t"), ("tags",))
        apply(target, source(tags=("1", pa.list_(pa.string()))), 1, {"tags": ["a"]})


def test_moves_of_an_unfinished_batch(target, monkeypatch) -> None:
    """A batch that failed half-way is applied under another number, with the values of rows whose former keys are gone by now."""
    apply(target, FIRST, 1, *({"id": number, "note": f"toast {number}"} for number in range(1, 5)))
    target._part_bytes = 1
    moves = []
    for number in range(1, 5):
        moves += [
            {"_op": "delete", "_ordinal": number, "id": number},
            {"_op": "insert", "_ordinal": number, "id": number + 10, "_unchanged": ["note"]},
        ]
    failing = DeltaTarget._apply
    left = iter([True, True, False])

    def fail(self, *given) -> None:
        if not next(left, True):
            raise OSError
        failing(self, *given)

    monkeypatch.setattr(DeltaTarget, "_apply", fail)
    with pytest.raises(OSError):
        apply(target, FIRST, 2, *moves, part=200)
    renamed = source(id=("1", pa.int32()), text=("2", pa.string()), n=("3", pa.int32()))
    moves = [{**move, "_unchanged": ["text"] if "_unchanged" in move else None} for move in moves]
    apply(target, renamed, 3, *moves, part=200)
    assert [(row["id"], row["text"]) for row in rows(target)] == [
        (number + 10, f"toast {number}") for number in range(1, 5)
    ]


def test_undone_columns(tmp_path) -> None:
    """A batch that is applied again with other columns finds nothing of its first attempt, not even the table that this created."""
    target = DeltaTarget(str(tmp_path / "t"), ("id",), layout=Layout(("note",)))
    target.evolve(source(**COLUMNS, at=("4", pa.timestamp("us"))), None, Commit("query", 1, LSN(1)))
    target.undo("query")
    assert target.schema() is None
    apply(target, source(note=("2", pa.string()), id=("1", pa.int64())), 2, {"id": 1, "note": "one"})
    assert (target.schema().names[:2], target.schema().field("id").type) == (["note", "id"], pa.int64())
    assert ["note"] == DeltaTable(target.target).metadata().partition_columns

    moment = pa.scalar(0, pa.timestamp("us"))
    wide = source(id=("1", pa.int64()), text=("2", pa.string()), at=("4", pa.timestamp("us")))
    target.evolve(wide, {"at": moment}, Commit("query", 3, LSN(3)))
    assert rows(target) == [{"id": 1, "text": "one", "at": moment.as_py()}]
    target.undo("query")
    assert rows(target) == [{"id": 1, "note": "one"}]


def test_an_unfinished_batch_of_a_query_whose_checkpoint_was_lost(target) -> None:
    """The first batch of the next query undoes it. The former query may then continue. Rows of other programs stay."""
    apply(target, FIRST, 1, {"id": 1, "note": "one"})
    extra = source(**COLUMNS, extra=("4", pa.int32()))

    def begin(application: str) -> None:
        target.evolve(extra, {"extra": pa.scalar(7, pa.int32())}, Commit(application, 2, LSN(2)))

    begin("query")
    apply(target, FIRST, 2, {"id": 2, "note": "two"}, application="next")
    assert rows(target) == [{"id": 1, "note": "one", "n": None}, {"id": 2, "note": "two", "n": None}]
    begin("next")
    apply(target, FIRST, 3, {"id": 3, "note": "three"})
    assert "extra" in target.schema().names, "the former query is not new"
    planted = pa.table({"id": pa.array([7], pa.int32()), "note": ["planted"]})
    write_deltalake(target.target, planted, mode="append", schema_mode="merge")
    apply(target, FIRST, 4, {"id": 4, "note": "four"}, application="third")
    assert [row["id"] for row in rows(target)] == [1, 2, 3, 4, 7]


def test_two_processes_with_one_batch(tmp_path) -> None:
    """If another process has undone the first commit of a batch, the next one is refused, and the whole batch is applied again."""
    one, other = (DeltaLake(str(tmp_path)).table(("public", "t"), ("id",)) for _ in range(2))
    apply(one, FIRST, 1, {"id": 1, "note": "one"})
    extra = source(**COLUMNS, extra=("4", pa.int32()))
    one.undo("query")
    one.evolve(extra, {"extra": pa.scalar(7, pa.int32())}, Commit("query", 2, LSN(2)))
    other.undo("query")
    with pytest.raises(TableUnavailable, match="only one query may write a table"):
        one.merge((), Commit("query", 2, LSN(2)))
    assert not other.applied("query", 2)
    apply(other, extra, 2, {"id": 2, "note": "two", "extra": 2}, defaults={"extra": pa.scalar(7, pa.int32())})
    assert [row["extra"] for row in rows(other)] == [7, 2]


def test_two_queries_append_the_same_changes(tmp_path, monkeypatch) -> None:
    """Of two queries with one target, the one that commits second fails."""
    one, other = (DeltaTarget(str(tmp_path / "t"), ("id",), "changelog") for _ in range(2))
    apply(one, FIRST, 1, {"id": 1, "note": "one"})

    def write(*given, **named) -> None:
        monkeypatch.undo()
        apply(other, FIRST, 2, {"id": 2, "note": "two"}, application="next")
        write_deltalake(*given, **named)

    monkeypatch.setattr("aiorepl.spark.lake.delta.write_deltalake", write)
    with pytest.raises(CommitFailedError):
        apply(one, FIRST, 2, {"id": 2, "note": "two"})
    assert [row["id"] for row in rows(one)] == [1, 2]


def test_an_unfinished_batch_and_another_program(target) -> None:
    """Undoing a batch never removes what another program has written since. A user may restore the table first, and upkeep is harmless."""
    apply(target, FIRST, 1, {"id": 1, "note": "one"})
    version = DeltaTable(target.target).version()
    target.evolve(source(**COLUMNS, extra=("4", pa.int32())), None, Commit("query", 2, LSN(2)))
    DeltaTable(target.target).optimize.compact()
    planted = pa.table({"id": pa.array([7], pa.int32()), "note": ["planted"]})
    write_deltalake(target.target, planted, mode="append", schema_mode="merge")
    with pytest.raises(ConfigurationError, match=f"restore the table to version {version}"):
        target.undo("query")
    DeltaTable(target.target).restore(version)
    write_deltalake(target.target, planted, mode="append", schema_mode="merge")
    apply(target, FIRST, 3, {"id": 2, "note": "two"})
    assert [(row["id"], row["note"]) for row in rows(target)] == [(1, "one"), (2, "two"), (7, "planted")]


@pytest.mark.parametrize("begun", [True, False], ids=["undo", "evolve"])
def test_another_program_writes_while_the_table_is_created_again(target, monkeypatch, begun) -> None:
    """The other program's rows stay, and the error says what to do, also when the batch is applied again."""
    create = DeltaTable.create
    commit = Commit("query", 1, LSN(1))
    target.evolve(FIRST, None, commit)
    if not begun:
        target.undo("query")
    planted = pa.table({"id" if begun else "_commit_lsn": pa.array([7], pa.int32() if begun else pa.int64())})

    def late(*given, **named):
        write_deltalake(target.target, planted, mode="append", schema_mode="merge")
        return create(*given, **named)

    monkeypatch.setattr(DeltaTable, "create", late)
    with pytest.raises(ConfigurationError, match="another program has changed"):
        target.undo("query") if begun else target.evolve(FIRST, None, commit)
    monkeypatch.undo()
    found = DeltaTable(target.target).to_pyarrow_table()
    assert 7 in found["id" if begun else "_commit_lsn"].to_pylist()
    with pytest.raises(ConfigurationError, match="another program has changed"):
        target.undo("query")


def test_an_unfinished_batch_and_a_vacuum(target) -> None:
    """If a vacuum has deleted the version before an unfinished batch, the error says so, and the table stays as it is."""
    apply(target, FIRST, 1, {"id": 1, "note": "one"})
    columns = source(**COLUMNS, extra=("4", pa.int32()))
    target.evolve(columns, {"extra": pa.scalar(7, pa.int32())}, Commit("query", 2, LSN(2)))
    present = rows(target)
    DeltaTable(target.target).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(ConfigurationError, match="a vacuum has deleted files of version"):
        target.undo("query")
    assert rows(target) == present


def test_an_unfinished_batch_and_a_shorter_log(target) -> None:
    """If the log does not go back to an unfinished batch, the error says so, and the table stays as it is."""
    apply(target, FIRST, 1, {"id": 1, "note": "one"})
    target.evolve(source(**COLUMNS, extra=("4", pa.int32())), None, Commit("query", 2, LSN(2)))
    table = DeltaTable(target.target)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    for file in Path(target.target, "_delta_log").iterdir():
        os.utime(file, (0, 0))
    table.create_checkpoint()
    table.cleanup_metadata()
    present = rows(target)
    with pytest.raises(ConfigurationError, match="in the log of the Delta table"):
        target.undo("query")
    assert rows(target) == present


def test_soft_deletes_under_another_key(tmp_path, monkeypatch) -> None:
    """After a change of the key columns, a table still has one row for each key: the live one, or else the last deleted one."""
    by_id, by_note, by_both = (
        DeltaTarget(str(tmp_path / "t"), keys, "soft_delete") for keys in (("id",), ("note",), ("id", "note"))
    )
    first = [{"id": number, "note": note} for number, note in enumerate("xxyyz")]
    apply(by_id, FIRST, 1, *first)
    apply(by_id, FIRST, 2, *({"id": number, "_op": "delete"} for number in range(5)))
    version = DeltaTable(by_id.target).version()
    apply(by_id, FIRST, 3, {"id": 7, "note": "x"})
    assert DeltaTable(by_id.target).version() == version + 1, "the key is the same"
    before = state(by_id)

    def fail(*_: object) -> None:
        raise OSError

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(DeltaTarget, "_apply", fail)
        apply(by_note, FIRST, 4, {"note": "x", "id": 7, "n": 4})
    by_note.undo("query")
    assert state(by_id) == before

    apply(by_note, FIRST, 4, {"note": "x", "id": 7, "n": 4}, {"note": "z", "id": 8, "n": 4})
    assert state(by_note) == {(3, "y", None, True), (7, "x", 4, False), (8, "z", 4, False)}
    apply(by_note, FIRST, 5, {"note": "w", "id": 7}, {"_op": "delete", "note": "x"})
    apply(by_both, FIRST, 6, {"note": "x", "id": 7, "n": 6}, {"note": "w", "id": 7, "n": 6})
    found = {(3, "y", None, True), (7, "x", 6, False), (8, "z", 4, False), (7, "w", 6, False)}
    assert state(by_both) == found


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
    target = DeltaTarget(str(tmp_path / "t"), ("id",))
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
    target = DeltaTarget(str(tmp_path / "t"), ("id",), layout=Layout(("note",)))
    with pytest.raises(ConfigurationError, match="'note'"):
        apply(target, FIRST, 1, {"id": 1, "note": ""})
