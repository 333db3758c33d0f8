"""Tables without a key are mirrored as changelogs; a key that comes or goes later never changes a target silently."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import asyncpg
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from aiorepl import Pipeline, Source
from aiorepl.spark import MirroredTables, mirror
from aiorepl.spark.lake.iceberg import IcebergLake
from aiorepl.spark.mirroring.applying import TableFailed
from aiorepl.spark.mirroring.state import StateFile
from aiorepl.spark.verifying.ended import replay
from aiorepl.table_name import TableName
from aiorepl.testing.messages import column

from .batches import Killed, Lake, refused

ID, KEY, NOTE = column("id", 23), column("id", 23, key=True), column("note")


@pytest.fixture
def lake(tmp_path, journal) -> Callable[..., Lake]:
    return partial(Lake, tmp_path, journal)


def log(target: Any, table: str) -> list[tuple[Any, ...]]:
    """Return operation, id and note of a changelog, in commit order; a delete before the insert of the same update."""
    columns = ["_op", "id", "note", "_commit_lsn", "_ordinal"]
    rows = DeltaTable(f"{target}/public/{table}").to_pyarrow_table(columns=columns).to_pylist()
    rows.sort(key=lambda row: (row["_commit_lsn"], row["_ordinal"], row["_op"]))
    return [(row["_op"], row["id"], row["note"]) for row in rows]


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if "mode changelog" in record.getMessage()]


@pytest.mark.parametrize("identity", ["d", "n", "f"])
def test_changelog_by_default(lake, journal, caplog, identity) -> None:
    """A table without a key is a changelog, with one warning that names the table; other tables have the mirror's mode."""
    mirror = lake()
    t, keyless = (
        journal.stream.table("t", KEY, NOTE),
        journal.stream.table("log", ID, NOTE, replica_identity=identity),
    )
    for number in "12":
        journal.stream.transaction(t.insert(number, "a"), keyless.insert("5", "x"))
        mirror.step()
    assert mirror.rows("t") == {1: "a", 2: "a"}
    assert log(mirror.target, "log") == [("insert", 5, "x"), ("insert", 5, "x")]
    (warning,) = warnings(caplog)
    assert "public.log is mirrored with the mode changelog" in warning
    assert "it has no key. For the mode current, give it a primary key" in warning


def test_former_rows(lake, journal) -> None:
    """Under REPLICA IDENTITY FULL, an update that changes a value is a delete of the former row and an insert, nulls and NaN included."""
    mirror = lake()
    full = journal.stream.table(
        "log", ID, NOTE, column("day", 1082), column("days", 1182), column("f", 701), replica_identity="f"
    )
    journal.stream.transaction(
        full.insert("1", "x", None, "{20000-01-01}", "NaN"),
        full.update("1", "x", None, "{20000-01-01}", "NaN", old=["1", "x", None, "{20000-01-01}", "NaN"]),
        full.update("1", None, None, "{20000-01-01}", "NaN", old=["1", "x", None, "{20000-01-01}", "NaN"]),
        full.update("1", None, None, "{20000-01-02}", "NaN", old=["1", None, None, "{20000-01-01}", "NaN"]),
        full.delete("1", None, None, "{20000-01-02}", "NaN", full=True),
    )
    mirror.step()
    assert log(mirror.target, "log") == [
        ("insert", 1, "x"),
        ("update", 1, "x"),
        ("delete", 1, "x"),
        ("insert", 1, None),
        ("delete", 1, None),
        ("insert", 1, None),
        ("delete", 1, None),
    ]


@pytest.mark.parametrize("restart", [False, True])
def test_key_comes_later(lake, journal, caplog, restart) -> None:
    """A changelog stays one after its table got a key, with a warning; a new target with an empty state has the mirror's mode."""
    mirror = lake()
    before = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(before.insert("1", "a"))
    mirror.step()
    after = journal.stream.table("t", KEY, NOTE, replaces=before)
    if restart:
        mirror.restart()
        caplog.clear()
    journal.stream.transaction(after.update("1", "b"), after.delete("1", None))
    mirror.step()
    assert log(mirror.target, "t") == [("insert", 1, "a"), ("update", 1, "b"), ("delete", 1, None)]
    (warning,) = warnings(caplog)
    assert ("its target is a changelog" in warning) is restart


def test_key_comes_in_the_same_batch(lake, journal) -> None:
    """Rows with and without a key in a new table's first batch are all in its changelog."""
    mirror = lake()
    before = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(before.insert("1", "a"))
    after = journal.stream.table("t", KEY, NOTE, replaces=before)
    journal.stream.transaction(after.update("1", "b"))
    mirror.step()
    assert log(mirror.target, "t") == [("insert", 1, "a"), ("update", 1, "b")]


def test_begun_again(lake, journal) -> None:
    """A table that begins again has the mode of its last description: the rows before it come with the snapshot."""
    mirror = lake()
    before = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(before.insert("1", "a"))
    mirror.step()
    shutil.rmtree(f"{mirror.target}/public/t")
    MirroredTables(mirror.target).restart("public.t")
    mirror.restart()
    journal.stream.transaction(before.insert("2", "b"))
    after = journal.stream.table("t", KEY, NOTE, replaces=before)
    journal.stream.transaction(after.insert("3", "c"), after.update("3", "d"))
    mirror.step()
    assert mirror.rows("t") == {3: "d"}


@pytest.mark.parametrize("identity", ["d", "n", "f"])
def test_key_goes_later(lake, journal, identity) -> None:
    """A table that lost its key is refused by name, before a row changes; with the former key in keys, it has all rows."""
    mirror = lake()
    before = journal.stream.table("t", KEY, NOTE)
    u = journal.stream.table("u", KEY, NOTE)
    journal.stream.transaction(before.insert("1", "a"), before.insert("2", "b"))
    mirror.step()
    after = journal.stream.table("t", ID, NOTE, replaces=before, replica_identity=identity)
    journal.stream.transaction(after.insert("3", "c"), u.insert("1", "u"))
    if identity == "f":
        journal.stream.transaction(after.update("4", "d", old=["1", "a"]), after.delete("2", "b", full=True))
    with pytest.raises(TableFailed, match=r"public\.t has no key any longer.*keys"):
        mirror.step()
    assert (mirror.rows("t"), mirror.rows("u")) == ({1: "a", 2: "b"}, {1: "u"})
    mirror.settings = lake(keys={"public.t": ["id"]}).settings
    mirror.restart()
    mirror.again()
    assert mirror.rows("t") == ({3: "c", 4: "d"} if identity == "f" else {1: "a", 2: "b", 3: "c"})


def test_killed_before_the_state(lake, journal, monkeypatch) -> None:
    """A batch that creates a changelog, and ends before the state is written, is applied once."""
    mirror = lake()
    keyless = journal.stream.table("log", ID, NOTE)
    journal.stream.transaction(keyless.insert("1", "a"))
    save, calls = StateFile.save, []

    def killed(self: Any, state: Any) -> Any:
        calls.append(state)
        if state.tables:
            raise Killed
        return save(self, state)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(StateFile, "save", killed)
        mirror.step()
    mirror.restart()
    mirror.again()
    journal.stream.transaction(keyless.insert("1", "a"))
    mirror.step()
    assert log(mirror.target, "log") == [("insert", 1, "a")] * 2


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize(
    ("first", "second"), [("current", "changelog"), ("history", "current"), ("current", "soft_delete")]
)
def test_changed_mode(tmp_path, journal, kind, first, second) -> None:
    """A target keeps its mode: another mode in the settings is refused by name, and no row changes."""
    opened = None
    if kind == "iceberg":
        catalog = SqlCatalog(
            "lake", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}/files"
        )
        opened = lambda: IcebergLake(lambda: catalog)  # noqa: E731
    mirror = Lake(tmp_path, journal, mode=first, lake=opened)
    # In the modes current and history, a source may have a column with this name.
    own = second != "soft_delete"
    t = journal.stream.table("t", KEY, NOTE, *([column("_deleted", 16)] if own else []))
    journal.stream.transaction(t.insert("1", "a", *(["t"] if own else [])))
    mirror.step()
    before = mirror.lake.table(("public", "t")).newest().schema()
    mirror.settings = Lake(tmp_path, journal, mode=second).settings
    mirror.restart()
    journal.stream.transaction(t.update("1", "b", *(["t"] if own else [])))
    with pytest.raises(
        TableFailed, match=rf"public\.t has the mode {first}, which cannot be changed to {second}"
    ):
        mirror.step()
    assert mirror.lake.table(("public", "t")).newest().schema() == before


def test_replay_without_a_key(journal, tmp_path) -> None:
    """The comparison of ended rows does not read a changelog as if it were a history."""
    before = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(before.insert("1", "a"))
    journal.stream.transaction(journal.stream.table("t", KEY, NOTE, replaces=before).insert("2", "b"))
    journal.write()
    with pytest.raises(Exception, match="without a key"):
        replay(
            str(journal.folder),
            TableName("public", "t"),
            (),
            ("_is_current", "_valid_to_lsn"),
            str(tmp_path / "again"),
            refused,
        )


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_from_a_server(spark, database, slot_name, tmp_path, caplog, kind) -> None:
    """Rows of a table without a key are followed from a server to the lake: equal rows, large values, and a key that comes later."""
    journal, target = str(tmp_path / "journal"), tmp_path / "lake"
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}/files")
    tables = IcebergLake(lambda: catalog) if kind == "iceberg" else None

    def step(statements: str, *, mirrored: bool = True) -> list[tuple[Any, ...]]:
        async def capture() -> None:
            connection = await asyncpg.connect(database)
            try:
                await connection.execute(statements)
            finally:
                await connection.close()
            source = Source(database, slot=slot_name, publication="p", create_slot=True)
            await Pipeline(source, journal=journal, until="now").run()

        asyncio.run(capture())
        if not mirrored:
            return []
        query = mirror(spark, journal, ["public.*"], target, lake=tables, trigger={"availableNow": True})
        assert query.awaitTermination(240)
        rows = MirroredTables(target, tables).newest("public.bag")
        columns = ["_op", "id", "note", "big", "_commit_lsn", "_ordinal"]
        found = [row for batch in rows.batches(columns) for row in batch.to_pylist()]
        found.sort(key=lambda row: (row["_commit_lsn"], row["_ordinal"], row["_op"]))
        return [(row["_op"], row["id"], row["note"], len(row["big"] or "")) for row in found]

    step(
        "CREATE TABLE bag (id integer, note text, big text); ALTER TABLE bag ALTER big SET STORAGE EXTERNAL;"
        "CREATE TABLE keyed (id integer PRIMARY KEY); ALTER TABLE bag REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION p FOR TABLE bag, keyed",
        mirrored=False,
    )
    seen = step(
        "INSERT INTO keyed VALUES (1);"
        "INSERT INTO bag SELECT 1, 'a', repeat(md5('x'), 500) FROM generate_series(1, 2)"
    )
    assert seen == [("insert", 1, "a", 16000)] * 2
    seen += step(
        "UPDATE bag SET note = 'b' WHERE ctid = (SELECT min(ctid) FROM bag); DELETE FROM bag WHERE note = 'a'"
    )[2:]
    assert seen[2:] == [("delete", 1, "a", 16000), ("insert", 1, "b", 16000), ("delete", 1, "a", 16000)]
    caplog.clear()
    seen = step(
        "ALTER TABLE bag ADD PRIMARY KEY (id); ALTER TABLE bag REPLICA IDENTITY DEFAULT; UPDATE bag SET note = 'c'; DELETE FROM bag"
    )[5:]
    assert seen == [("update", 1, "c", 0), ("delete", 1, None, 0)]
    (warning,) = warnings(caplog)
    assert "public.bag" in warning
    assert "its target is a changelog" in warning
    keyed = MirroredTables(target, tables).newest("public.keyed").schema().names
    assert "_op" not in keyed
