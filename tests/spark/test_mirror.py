"""``apply_changes`` makes the mirror equal to the table, whatever a batch contains and however often it runs."""

from __future__ import annotations

import datetime as dt
import re
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark import apply_changes
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.testing.messages import column

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("spark")]

BOOL, INT4, TEXT, NUMERIC, TIMESTAMPTZ, INT4_ARRAY = 16, 23, 25, 1700, 1184, 1007
ID, NOTE = column("id", INT4, key=True), column("note")


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "mirror")


def mirror(target: str) -> dict:
    """Return the mirror's rows by key, without positions."""
    rows = DeltaTable(target).to_pyarrow_table().to_pylist()
    return {row["id"]: {name: row[name] for name in row if not name.startswith("_")} for row in rows}


def notes(target: str) -> dict:
    return {key: row["note"] for key, row in mirror(target).items()}


def step(spark, journal, target: str, **options: str) -> None:
    """Write a segment, and apply it alone, as Spark does with a micro-batch."""
    journal.write()
    done = journal.applied
    journal.applied = journal.stream.ends[-1]
    apply_changes(journal.read(spark, **options).where(f"_commit_lsn >= {int(done)}"), target, ["id"])


def run(spark, journal, target: str, **options) -> None:
    """Stream everything into the mirror, and stop."""
    query = apply_changes(
        journal.read(spark, stream=True), target, ["id"], trigger={"availableNow": True}, **options
    )
    assert query.awaitTermination(240)


def test_types_and_changes(spark, journal, target) -> None:
    """Inserts, updates and deletes keep their types, in the batch that creates the table and in later ones."""
    table = journal.stream.table(
        "t",
        ID,
        column("amount", NUMERIC, type_modifier=(12 << 16 | 2) + 4),
        column("at", TIMESTAMPTZ),
        column("tags", INT4_ARRAY),
    )
    moment = "2026-11-21 08:00:00.5+00"
    journal.stream.transaction(
        table.insert("1", "1.50", moment, "{1,2}"),
        table.insert("2", "2.50", None, None),
        table.insert("3", "3.50", moment, "{}"),
        table.update("1", "10.00", moment, "{1,NULL}"),
        table.delete("3", None, None, None),
    )
    journal.write()
    run(spark, journal, target)
    first = {
        "id": 1,
        "amount": Decimal("10.00"),
        "at": dt.datetime(2026, 11, 21, 8, 0, 0, 500_000, dt.UTC),
        "tags": [1, None],
    }
    second = {"id": 2, "amount": Decimal("2.50"), "at": None, "tags": None}
    assert mirror(target) == {1: first, 2: second}
    journal.stream.transaction(
        table.insert("4", "4.00", None, None),
        table.update("2", "20.00", None, None),
        table.delete("1", None, None, None),
    )
    journal.write()
    run(spark, journal, target)
    assert mirror(target) == {
        2: {**second, "amount": Decimal("20.00")},
        4: {"id": 4, "amount": Decimal("4.00"), "at": None, "tags": None},
    }
    versions = DeltaTable(target).version()
    run(spark, journal, target)
    assert DeltaTable(target).version() == versions


def test_key_change_and_reuse(spark, journal, target) -> None:
    """A row whose key changes moves; a reused key is the new row."""
    table = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(table.insert("1", "one"), table.insert("2", "two"))
    step(spark, journal, target)
    journal.stream.transaction(
        table.update("10", "one, moved", key=["1", None]),
        table.delete("2", None),
        table.insert("2", "another two"),
    )
    step(spark, journal, target)
    assert notes(target) == {10: "one, moved", 2: "another two"}


def test_full_identity_with_keys(spark, journal, target) -> None:
    """Under replica identity FULL the option ``keys`` defines what a key change is."""
    table = journal.stream.table("t", ID, NOTE, replica_identity="f")
    journal.stream.transaction(table.insert("1", "one"))
    journal.stream.transaction(table.update("5", UNCHANGED, old=["1", "one"]))
    journal.stream.transaction(table.update("5", "five", old=["5", "one"]))
    journal.write()
    apply_changes(journal.read(spark, keys="id"), target, ["id"])
    assert notes(target) == {5: "five"}


def test_unchanged_values(spark, journal, target) -> None:
    """An unsent value is the last one sent in the batch, or the mirror's; never null."""
    table = journal.stream.table("t", ID, NOTE, column("n", INT4))
    journal.stream.transaction(*[table.insert(str(key), f"toast {key}", "0") for key in range(1, 5)])
    step(spark, journal, target)
    journal.stream.transaction(
        table.update("1", UNCHANGED, "1"),
        table.update("2", "new toast", "1"),
        table.update("2", UNCHANGED, "2"),
        table.update("3", None, "1"),
        table.update("3", UNCHANGED, "2"),
        table.insert("9", "nine", "0"),
        table.update("9", UNCHANGED, "1"),
    )
    step(spark, journal, target)
    assert {key: (row["note"], row["n"]) for key, row in mirror(target).items()} == {
        1: ("toast 1", 1),
        2: ("new toast", 2),
        3: (None, 2),
        4: ("toast 4", 0),
        9: ("nine", 1),
    }


def test_unchanged_values_move_with_the_key(spark, journal, target) -> None:
    """An unsent value of a key change is the one under the old key, over any number of changes."""
    table = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(table.insert("1", "first"), table.insert("2", "second"))
    step(spark, journal, target)
    journal.stream.transaction(
        table.update("11", UNCHANGED, key=["1", None]),
        table.update("12", UNCHANGED, key=["11", None]),
        # Swapped by way of a third key, and one of them born in the batch.
        table.insert("3", "third"),
        table.update("99", UNCHANGED, key=["2", None]),
        table.update("2", UNCHANGED, key=["3", None]),
        table.update("3", UNCHANGED, key=["99", None]),
        table.update("3", UNCHANGED),
    )
    step(spark, journal, target)
    assert notes(target) == {12: "first", 2: "third", 3: "second"}


def test_truncate(spark, journal, target) -> None:
    """A truncate removes earlier rows from mirror and batch, in the same commit as the rest."""
    table = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(table.insert("1", "one"), table.insert("2", "two"), table.insert("3", "three"))
    step(spark, journal, target)
    journal.stream.transaction(table.update("1", "gone"), table.insert("4", "gone"))
    journal.stream.transaction(table.truncate(), table.insert("2", "again"))
    journal.stream.transaction(table.insert("5", "new"))
    before = DeltaTable(target).version()
    step(spark, journal, target)
    assert notes(target) == {2: "again", 5: "new"}
    assert DeltaTable(target).version() == before + 1
    journal.stream.transaction(table.truncate())
    step(spark, journal, target)
    assert notes(target) == {}
    journal.stream.transaction(table.insert("7", "seven"), table.truncate(), table.insert("8", "eight"))
    step(spark, journal, target)
    assert notes(target) == {8: "eight"}


def test_rows_of_a_snapshot(spark, journal, target) -> None:
    """Rows of a snapshot replace the mirror's rows; the truncate removes rows that are gone; changes keep their kind."""
    table = journal.stream.table("t", ID, NOTE)
    journal.stream.snapshot(table, table.insert("1", "first"), table.insert("2", "old"), last=False)
    step(spark, journal, target)
    journal.stream.transaction(table.insert("3", "vanished"), table.update("2", "newer"))
    step(spark, journal, target)
    assert {1: "first", 2: "newer", 3: "vanished"} == notes(target)

    journal.stream.snapshot(table, table.insert("2", None), table.insert("4", "four"))
    step(spark, journal, target)
    assert {1: "first", 2: None, 3: "vanished", 4: "four"} == notes(target)

    journal.stream.transaction(table.truncate())
    journal.stream.snapshot(table, table.insert("1", "first"), table.insert("2", "read again"))
    journal.stream.snapshot(table, number=2)
    journal.stream.transaction(table.update("2", UNCHANGED))
    step(spark, journal, target)
    assert {1: "first", 2: "read again"} == notes(target)
    assert ["read"] * 2 == [row["_op"] for row in journal.rows(spark)[:2]]
    assert ["read", "insert"] == [row["op"] for row in journal.rows(spark, None)[1:3]]


def test_new_column(spark, journal, target) -> None:
    """The next query adds a new column to the mirror; old rows have null in it."""
    table = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(table.insert("1", "one"))
    step(spark, journal, target)
    wider = journal.stream.table("t", ID, NOTE, column("extra", INT4), replaces=table)
    journal.stream.transaction(wider.insert("2", "two", "22"))
    step(spark, journal, target)
    assert mirror(target) == {
        1: {"id": 1, "note": "one", "extra": None},
        2: {"id": 2, "note": "two", "extra": 22},
    }


def test_odd_names(spark, journal, target) -> None:
    """Names that need quotes are quoted everywhere."""
    table = journal.stream.table(
        "t", column("id", INT4, key=True), column("Mixed Case"), column('q"t'), column("a.b`c")
    )
    journal.stream.transaction(table.insert("1", "a", "b", "."))
    step(spark, journal, target)
    journal.stream.transaction(table.update("1", "c", UNCHANGED, "`"))
    step(spark, journal, target)
    assert mirror(target) == {1: {"id": 1, "Mixed Case": "c", 'q"t': "b", "a.b`c": "`"}}


def history(journal) -> dict:
    """Three segments of a table's life with everything that a replay could get wrong, and the expected rows."""
    table = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(table.insert("1", "one"), table.insert("2", "two"), table.insert("3", "three"))
    journal.write()
    journal.stream.transaction(table.update("10", UNCHANGED, key=["1", None]), table.delete("2", None))
    journal.write()
    journal.stream.transaction(table.update("10", UNCHANGED), table.insert("2", "two again"))
    journal.write()
    return {10: "one", 2: "two again", 3: "three"}


def test_replayed_batch(spark, journal, target) -> None:
    """If Spark loses the record of the last batch, it runs the batch again, and nothing changes."""
    expected = history(journal)
    one_segment = {"maxBytesPerTrigger": "1"}
    for _ in range(2):
        query = apply_changes(
            journal.read(spark, stream=True, **one_segment), target, ["id"], trigger={"availableNow": True}
        )
        assert query.awaitTermination(240)
        assert notes(target) == expected
        done = sorted(Path(target, "_checkpoint", "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        assert len(done) == 3
        done[-1].unlink()
        Path(target, "_checkpoint", "commits", f".{done[-1].name}.crc").unlink(missing_ok=True)
        version = DeltaTable(target).version()
    assert DeltaTable(target).version() == version == 2


def test_killed_between_commits(spark, journal, target, monkeypatch) -> None:
    """A query that dies between Delta's commit and Spark's applies the batch once."""
    expected = history(journal)
    applied = []

    def die(self, *arguments, **options) -> None:
        original(self, *arguments, **options)
        applied.append(arguments[0].number)
        raise RuntimeError("killed")

    original = DeltaTarget.apply
    monkeypatch.setattr(DeltaTarget, "apply", die)
    for number in range(2):
        query = apply_changes(
            journal.read(spark, stream=True, maxBytesPerTrigger="1"),
            target,
            ["id"],
            trigger={"availableNow": True},
        )
        with pytest.raises(Exception, match="killed"):
            query.awaitTermination(240)
        assert applied == list(range(number + 1))
    monkeypatch.setattr(DeltaTarget, "apply", original)
    run(spark, journal, target)
    assert notes(target) == expected
    assert DeltaTable(target).version() == 2


def test_lost_checkpoint(spark, journal, target) -> None:
    """A query that starts again over a full mirror reaches the same rows."""
    expected = history(journal)
    run(spark, journal, target)
    shutil.rmtree(Path(target, "_checkpoint"))
    query = apply_changes(
        journal.read(spark, stream=True, maxBytesPerTrigger="1"),
        target,
        ["id"],
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(240)
    assert notes(target) == expected


def test_batch_twice(spark, journal, target) -> None:
    """A batch DataFrame is applied at once; a second time changes nothing."""
    expected = history(journal)
    assert apply_changes(journal.read(spark), target, ["id"]) is None
    assert notes(target) == expected
    apply_changes(journal.read(spark), target, ["id"])
    assert notes(target) == expected


def test_wrong_dataframe(spark, journal, target) -> None:
    """The error names the missing columns."""
    history(journal)
    with pytest.raises(ConfigurationError, match="'number'"):
        apply_changes(journal.read(spark), target, ["number"])
    with pytest.raises(ConfigurationError, match="option table"):
        apply_changes(journal.read(spark, None), target, ["op"])
    with pytest.raises(ConfigurationError, match="keys"):
        apply_changes(journal.read(spark), target, [])


def test_changed_type(spark, journal, target) -> None:
    """The error names the column whose type changed."""
    history(journal)
    apply_changes(journal.read(spark), target, ["id"])
    table = journal.stream.table("t", ID, column("note", 1082))
    journal.stream.transaction(table.insert("1", "2026-01-01"))
    journal.write()
    with pytest.raises(ConfigurationError, match="'note'"):
        apply_changes(journal.read(spark, unrepresentable="null"), target, ["id"])


def test_reduced_on_executors(spark, journal, target, monkeypatch) -> None:
    """Executors reduce a large batch; keys that are linked by moves stay in one partition."""
    from aiorepl.spark.mirroring import reducing, staged_rows

    table = journal.stream.table("t", ID, NOTE, column("n.`", INT4))
    journal.stream.transaction(*[table.insert(str(key), f"toast {key}", "0") for key in range(20)])
    step(spark, journal, target)
    monkeypatch.setattr(reducing, "DRIVER_BYTES", 0)
    for module in (reducing, staged_rows):
        monkeypatch.setattr(module, "PART_BYTES", 500)
    journal.stream.transaction(
        *[table.update(str(key), UNCHANGED, "1") for key in range(10)],
        *[table.update(str(key + 100), UNCHANGED, "2", key=[str(key), None, None]) for key in range(5)],
        *[table.update(str(key + 200), UNCHANGED, "3", key=[str(key + 100), None, None]) for key in range(3)],
        table.delete("19", None, None),
    )
    step(spark, journal, target)
    assert {key: (row["note"], row["n.`"]) for key, row in mirror(target).items()} == {
        **{key: (f"toast {key}", 1 if key < 10 else 0) for key in range(5, 19)},
        **{key + 100: (f"toast {key}", 2) for key in (3, 4)},
        **{key + 200: (f"toast {key}", 3) for key in range(3)},
    }
    assert not list(Path(target, "_staging").iterdir())


SCHEMA = "id bigint, note string, _op string, _commit_lsn bigint, _ordinal bigint, _unchanged array<string>"


@pytest.mark.parametrize("backwards", [False, True])
def test_a_move_in_two_files(spark, target, monkeypatch, backwards) -> None:
    """A row whose delete under the old key is in another staged file than its insert under the new key keeps its unsent value."""
    from aiorepl.spark.mirroring import reducing

    before = [(key, f"toast {key}", "insert", 1, key, []) for key in range(8)]
    apply_changes(spark.createDataFrame(before, SCHEMA), target, ["id"])
    monkeypatch.setattr(reducing, "DRIVER_BYTES", 0)
    monkeypatch.setattr(reducing, "PART_BYTES", 20)
    halves = [(1, None, "delete", 2, 0, []), (101, None, "insert", 2, 0, ["note"])]
    moved = spark.createDataFrame(halves[::-1] if backwards else halves, SCHEMA)
    assert moved.rdd.getNumPartitions() == 2
    apply_changes(moved, target, ["id"])
    assert notes(target) == {key: f"toast {key % 100}" for key in (0, *range(2, 8), 101)}


@pytest.mark.parametrize("most", [0, 2**30])
def test_columns_without_nulls(spark, target, monkeypatch, most) -> None:
    """Columns that Spark knows to be never null match those of the target."""
    from aiorepl.spark.mirroring import reducing

    monkeypatch.setattr(reducing, "DRIVER_BYTES", most)
    for number in (1, 2):
        changes = spark.range(5).selectExpr(
            "id", f"'{number}' AS note", "'insert' AS _op", f"{number}L AS _commit_lsn", "id AS _ordinal",
            "cast(array() AS array<string>) AS _unchanged",
        )  # fmt: skip
        assert not changes.schema["id"].nullable
        apply_changes(changes, target, ["id"], deletion_vectors=True)
    assert notes(target) == dict.fromkeys(range(5), "2")


def test_shared_staging(spark, target, tmp_path, monkeypatch) -> None:
    """Each of two queries with one staging folder deletes its own files only. Other files in the folder stay."""
    from aiorepl.spark.mirroring import staged_rows

    staging, other = tmp_path / "staging", f"{target}_other"
    staging.mkdir()
    (staging / "orders.parquet").write_bytes(b"rows of others")
    changes = spark.createDataFrame([(1, "one", "insert", 1, 0, [])], SCHEMA)
    reduce_staged = staged_rows.reduce_staged

    def interrupted(*given: Any) -> Any:
        monkeypatch.setattr(staged_rows, "reduce_staged", reduce_staged)
        apply_changes(changes, other, ["id"], staging=staging)
        return reduce_staged(*given)

    monkeypatch.setattr(staged_rows, "reduce_staged", interrupted)
    apply_changes(changes, target, ["id"], staging=staging)
    assert notes(target) == notes(other) == {1: "one"}
    assert [path.name for path in staging.rglob("*") if path.is_file()] == ["orders.parquet"]


def test_damaged_staged_rows(spark, target, monkeypatch) -> None:
    """A staged file that was changed is an error by name, and not damage to the journal; the same batch succeeds after it."""
    from aiorepl.spark.mirroring import staged_rows

    reduce_staged = staged_rows.reduce_staged

    def damaged(*given: Any) -> Any:
        for file in Path(target, "_staging").iterdir():
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        return reduce_staged(*given)

    changes = spark.createDataFrame([(1, "one", "insert", 1, 0, [])], SCHEMA)
    with monkeypatch.context() as patch:
        patch.setattr(staged_rows, "reduce_staged", damaged)
        with pytest.raises(JournalError, match=r"a staged file of the table was lost: .*_staging") as raised:
            apply_changes(changes, target, ["id"])
    assert type(raised.value) is JournalError
    assert not list(Path(target, "_staging").iterdir())
    apply_changes(changes, target, ["id"])
    assert notes(target) == {1: "one"}


def test_more_than_the_driver_collects(spark, target) -> None:
    """A batch may be larger than spark.driver.maxResultSize."""
    assert spark.sparkContext.getConf().get("spark.driver.maxResultSize") == "20m"
    changes = spark.range(24_000).selectExpr(
        "cast(id AS int) AS id", "repeat(uuid(), 28) AS note", "'insert' AS _op", "id AS _commit_lsn", "0L AS _ordinal",
        "cast(null AS array<string>) AS _unchanged",
    )  # fmt: skip
    apply_changes(changes, target, ["id"])
    assert DeltaTable(target).to_pyarrow_table(columns=["id"]).num_rows == 24_000


def test_planned_again(spark, journal, target) -> None:
    """A batch that Spark plans again with a later end, because the plan was lost, is applied from where it had ended."""
    table = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(table.insert("1", "toast"))
    journal.write()
    run(spark, journal, target)
    journal.stream.transaction(table.update("2", UNCHANGED, key=["1", None]))
    journal.write()
    run(spark, journal, target)
    for folder in ("offsets", "commits"):
        Path(target, "_checkpoint", folder, "1").unlink()
        Path(target, "_checkpoint", folder, ".1.crc").unlink(missing_ok=True)
    journal.stream.transaction(table.update("2", UNCHANGED), table.insert("3", "three"))
    journal.write()
    run(spark, journal, target)
    assert notes(target) == {2: "toast", 3: "three"}


def test_documentation(spark, journal, tmp_path) -> None:
    """The example of apply_changes in docs/spark/mirror.md runs as it is, but for its folders."""
    text = (Path(__file__).parents[2] / "docs" / "spark" / "mirror.md").read_text(encoding="utf-8")
    section = text.partition("\n## Mirroring one table")[2].partition("\n## ")[0]
    table = journal.stream.table("orders", ID, NOTE)
    journal.stream.transaction(table.insert("1", "one"), table.update("1", "uno"))
    journal.write()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        here = block.replace("/var/lib/aiorepl/journal", str(journal.folder))
        exec(here.replace("/lake/", f"{tmp_path}/lake/"), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    versions = DeltaTable(f"{tmp_path}/lake/orders").to_pyarrow_table().to_pylist()
    assert {(row["note"], row["_is_current"]) for row in versions} == {("one", False), ("uno", True)}
