"""``mirror`` is one Spark query for many tables: executors stage, and the query's checkpoint says where it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deltalake import DeltaTable

from aiorepl.journal import Cursors
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark import Mirror, MirroredTables, mirror
from aiorepl.spark.mirroring import reducing
from aiorepl.spark.mirroring.changes import MirrorChanges
from aiorepl.spark.mirroring.versions import Common
from aiorepl.testing.messages import column

from .batches import Lake

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("spark")]

INT4 = 23
ID, NOTE = column("id", INT4, key=True), column("note")


def run(spark, journal, target: Path, **options) -> None:
    """Mirror everything that the journal has, and stop."""
    query = mirror(spark, journal.folder, ["public.*"], target, trigger={"availableNow": True}, **options)
    assert query.awaitTermination(240)


def rows(target: Path, table: str) -> list[dict]:
    found = DeltaTable(f"{target}/public/{table}").to_pyarrow_table().to_pylist()
    return sorted(
        ({name: row[name] for name in row if not name.startswith("_")} for row in found),
        key=lambda row: row["id"],
    )


def test_reduced_on_executors(spark, journal, tmp_path, monkeypatch) -> None:
    """A large batch gives the same rows: rows whose key changed keep their values, and truncated rows are gone.

    Spark's UI names the table and the batch of each job.
    """
    monkeypatch.setattr(reducing, "DRIVER_BYTES", 0)
    monkeypatch.setattr(reducing, "PART_BYTES", 2048)
    target = tmp_path / "lake"
    t, u = journal.stream.table("t", ID, column("no.te")), journal.stream.table("u", ID, NOTE)
    journal.stream.transaction(t.insert("1", "gone"), t.truncate(), u.insert("1", "gone"))
    journal.stream.transaction(*[t.insert(str(key), f"toast {key}") for key in range(2, 8)])
    journal.stream.transaction(u.truncate())
    journal.stream.transaction(
        t.update("20", UNCHANGED, key=["2", None]),
        t.update("30", UNCHANGED, key=["20", None]),
        t.delete("3", None),
        t.update("4", UNCHANGED),
    )
    journal.write(block_bytes=64)
    run(spark, journal, target, partition_bytes=256)
    assert {row["id"]: row["no.te"] for row in rows(target, "t")} == {
        30: "toast 2",
        **{key: f"toast {key}" for key in range(4, 8)},
    }
    assert rows(target, "u") == []
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    described = {str(jobs.apply(number).description()) for number in range(jobs.size())}
    assert {"Some(public.t batch 0)", "Some(public.u batch 0)"} <= described


def test_executors_without_new_changes(spark, journal, tmp_path) -> None:
    """Executors return no parts if the table already has all changes."""
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"), t.insert("2", "b"))
    journal.write()
    mirror = Lake(tmp_path, journal)
    batch = mirror.stage()
    assert batch is not None
    common = Common("public.t", [file.version for file in batch.files])
    last = batch.files[-1].file.last
    for after, rows in ((None, 2), (last, 0)):
        changes = MirrorChanges(
            mirror.staging.staging, common.rows, ("id",), "current", str(journal.folder), common, False, after
        )
        parts, truncates = reducing.reduce_on_executors(spark, changes, batch.files, [])
        assert sum(part.read().num_rows for part in parts) == rows
        assert truncates == []


def test_documentation(spark, journal, tmp_path, capsys) -> None:
    """The examples of docs/spark/mirror.md run as they are, but for their folders and their end."""
    text = (Path(__file__).parents[2] / "docs" / "spark" / "mirror.md").read_text(encoding="utf-8")
    section = text.partition("\n## Mirroring many tables")[2].partition("\n## ")[0]
    orders = journal.stream.table("orders", ID, NOTE)
    journal.stream.transaction(orders.insert("1", "one"))
    journal.write()
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        here = block.replace("/var/lib/aiorepl", str(tmp_path))
        exec(here.replace("query.awaitTermination()", "query.processAllAvailable()\nquery.stop()"), names)
    assert names["orders"].to_pyarrow_table()["id"].to_pylist() == [1]
    assert "public.orders" in capsys.readouterr().out


def test_one_query(spark, journal, tmp_path) -> None:
    """Tables that appear, columns that are added, and a transaction that is larger than a batch need no restart."""
    target = tmp_path / "lake"
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    keyless = journal.stream.table("log", column("id", INT4), NOTE, replica_identity="f")
    numbers = {"id": Attribute(1), "note": Attribute(2), "kind": Attribute(3, "old", True)}
    journal.stream.transaction(t.insert("1", "one"), u.insert("1", "eins"), keyless.insert("1", "a"))
    journal.write(numbers)
    wide = journal.stream.table("t", ID, NOTE, column("kind"), replaces=t)
    journal.stream.transaction(*[wide.insert(str(key), "x" * 500, "new") for key in range(2, 40)])
    journal.write(numbers, block_bytes=4096)
    journal.stream.transaction(u.delete("1", None), u.insert("2", "zwei"))
    journal.write(numbers)
    run(
        spark,
        journal,
        target,
        max_bytes=8192,
        partition_bytes=4096,
        on_error="set_aside",
        keys={"public.log": ["no"]},
    )

    assert [row["kind"] for row in rows(target, "t")] == ["old", *["new"] * 38]
    assert rows(target, "u") == [{"id": 2, "note": "zwei"}]
    found = MirroredTables(target)
    assert found.lsn == journal.stream.ends[-1]
    assert set(found.batches()) == set(journal.stream.ends)
    assert list(found.set_aside) == ["public.log"]
    cursors = Cursors(journal.folder)
    labels = {cursors.read(name).label for name in cursors.names()}
    assert labels == {f"mirror to {target}", f"table set aside by mirror to {target}"}
    assert not list((target / "_checkpoint" / "_staging").glob("*.parquet"))

    later = journal.stream.table("later", ID, NOTE)
    journal.stream.transaction(later.insert("1", "one"), keyless.update("1", "b", old=["1", "a"]))
    journal.write()
    again = Mirror(str(journal.folder), ["public.*"], str(target), keys={"public.log": ["id"]})
    assert again.up_to_date() is None
    run(spark, journal, target, name="lake", keys={"public.log": ["id"]})
    assert again.up_to_date("lake") == journal.stream.ends[-1]
    assert rows(target, "later") == [{"id": 1, "note": "one"}]
    assert rows(target, "log") == [{"id": 1, "note": "b"}]
    assert [f"mirror lake to {target}"] == [cursors.read(name).label for name in cursors.names()]
