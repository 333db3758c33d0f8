"""Tasks of a mirror write typed files per table and description, and the files are read in common columns. Without Spark."""

from __future__ import annotations

import stat
from pathlib import Path

import pyarrow as pa
import pytest

from aiorepl.errors import ConfigurationError, DataError, JournalError
from aiorepl.journal import JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import ZERO
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark.mirroring import staged_store
from aiorepl.spark.mirroring.changes import changes
from aiorepl.spark.mirroring.executors import pickled, unpickled
from aiorepl.spark.mirroring.mirror import Mirror
from aiorepl.spark.mirroring.shuffle import Routes
from aiorepl.spark.mirroring.source import url_of
from aiorepl.spark.mirroring.staging import StagedFile, stage
from aiorepl.spark.mirroring.versions import Common
from aiorepl.spark.reading.blocks import plan
from aiorepl.storage.local import LocalStore
from aiorepl.storage.objects.location import ObjectStore
from aiorepl.table_name import TableName
from aiorepl.testing.messages import column

INT4, INT8, TEXT = 23, 20, 25
ID, NOTE = column("id", INT4, key=True), column("note")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "staging")


def staged(journal, store, wanted=lambda table: True) -> list[StagedFile]:
    """Stage the whole journal as one task does, and send the descriptions of the files to the driver."""
    reader = JournalReader(journal.folder)
    chain = reader.chain()
    parts = plan(reader, chain, None, 2**20, BlockPosition(ZERO), BlockPosition(chain.last_segment_end))
    files = [file for part in parts for file in stage(reader, part, store, wanted)]
    return list(unpickled([pickled(files)]))


def common_rows(files: list[StagedFile], store, *, null: bool = False) -> tuple[Common, list[dict]]:
    common = Common("public.t", [file.version for file in files])
    rows = [
        row
        for file in files
        for batch in changes(file, store)
        for row in common.conform(batch, file.version, null=null).to_pylist()
    ]
    return common, [
        {name: row[name] for name in row if not name.startswith("_")} | {"_op": row["_op"]} for row in rows
    ]


def test_files_by_table(journal, store) -> None:
    """Each wanted table has private files with its rows, in order; the others have none."""
    t, other = journal.stream.table("t", ID, NOTE), journal.stream.table("other", ID, NOTE)
    journal.stream.transaction(t.insert("1", "one"), other.insert("7", "x"), t.update("1", "uno"))
    journal.write()
    journal.stream.transaction(t.delete("1", None), t.truncate())
    journal.write()

    (file,) = staged(journal, store, lambda table: table == TableName("public", "t"))

    _, rows = common_rows([file], store)
    assert rows == [
        {"id": 1, "note": "one", "_op": "insert"},
        {"id": 1, "note": "uno", "_op": "update"},
        {"id": 1, "note": None, "_op": "delete"},
        {"id": None, "note": None, "_op": "truncate"},
    ]
    assert not file.only_truncates
    assert stat.S_IMODE((store.path / file.file.name).stat().st_mode) == 0o600


def test_versions(journal, store) -> None:
    """Rows from before an added column, a rename and a wider type are read as PostgreSQL shows them after it."""
    before = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(before.insert("1", "one"), before.delete("1", None))
    numbers = {"id": Attribute(1), "note": Attribute(2)}
    journal.write(numbers)
    added = column("kind")
    after = journal.stream.table("t", column("id", INT8, key=True), column("text"), added, replaces=before)
    journal.stream.transaction(after.update("1", UNCHANGED, "y"))
    journal.write({"id": Attribute(1), "text": Attribute(2), "kind": Attribute(3, "x", True)})
    files = staged(journal, store)
    assert len(files) == 2

    common, rows = common_rows(files, store)

    assert [(field.name, str(field.type)) for field in common.schema] == [
        ("id", "int64"),
        ("text", "string"),
        ("kind", "string"),
    ]
    assert rows == [
        {"id": 1, "text": "one", "kind": "x", "_op": "insert"},
        {"id": 1, "text": None, "kind": None, "_op": "delete"},
        {"id": 1, "text": None, "kind": "y", "_op": "update"},
    ]
    assert common.defaults["kind"].as_py() == "x"
    (last,) = changes(files[1], store)
    assert common.conform(last, files[1].version)["_unchanged"].to_pylist() == [["text"]]


def test_names_move(journal, store) -> None:
    """The names in ``_unchanged`` follow a rename that comes later in the batch; a reused name is another column."""
    before = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(before.update("1", UNCHANGED))
    journal.write({"id": Attribute(1), "note": Attribute(2)})
    after = journal.stream.table("t", ID, column("note", INT4), replaces=before)
    journal.stream.transaction(after.insert("2", "5"))
    journal.write({"id": Attribute(1), "note": Attribute(3)})
    files = staged(journal, store)

    common, rows = common_rows(files, store)

    assert common.schema.names == ["id", "note_dropped_2", "note"]
    assert rows[1] == {"id": 2, "note_dropped_2": None, "note": 5, "_op": "insert"}
    (first,) = changes(files[0], store)
    assert common.conform(first, files[0].version)["_unchanged"].to_pylist() == [["note_dropped_2"]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [([ID, column("ID", TEXT)], "differ in case only"), ([column("id"), NOTE], "has no key")],
    ids=["case", "key"],
)
def test_refused_tables(journal, store, columns, message) -> None:
    """A table that no target can have is refused by name."""
    table = journal.stream.table("t", *columns, replica_identity="f")
    journal.stream.transaction(table.insert("1", "one"))
    journal.write()
    files = staged(journal, store)

    with pytest.raises(ConfigurationError, match=f"public.t .*{message}"):
        Common("public.t", [file.version for file in files]).key(files[0].version, ())


def test_altered_type(journal, store) -> None:
    """A type that does not have the earlier values is refused."""
    before = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(before.insert("1", "one"))
    journal.write()
    after = journal.stream.table("t", ID, column("note", 1082), replaces=before)
    journal.stream.transaction(after.insert("2", "2026-01-01"))
    journal.write()
    with pytest.raises(ConfigurationError, match=r"public\.t\.note was altered from string to date32"):
        common_rows(staged(journal, store), store)


def test_unrepresentable_values(journal, store) -> None:
    """A value that no column can hold is an error that names the column, or null where that is wanted."""
    table = journal.stream.table("t", ID, column("day", 1082))
    journal.stream.transaction(table.insert("1", "infinity"))
    journal.write()
    files = staged(journal, store)
    with pytest.raises(DataError, match="'day'"):
        common_rows(files, store)
    assert common_rows(files, store, null=True)[1] == [{"id": 1, "day": None, "_op": "insert"}]


def test_lost_file(journal, store) -> None:
    """A staged file that somebody deleted is named, with what to do."""
    table = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(table.insert("1", "one"))
    journal.write()
    (file,) = staged(journal, store)
    store.delete(file.file.name)
    with pytest.raises(JournalError, match=r"a staged file of public\.t was lost: .*Start the query again"):
        list(changes(file, store))


@pytest.mark.parametrize("change", ["bit", "end", "all"])
def test_damaged_part(tmp_path, change) -> None:
    """A part that was changed or deleted can be staged again, so its error does not say that the journal is damaged."""
    folder = tmp_path / "staging"
    file = staged_store.write(str(folder), pa.table({"id": pa.array(range(100))}))
    part = staged_store.part(str(folder), file, 800)
    assert part.read()["id"].to_pylist() == list(range(100))
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"bit": data, "end": data[:-1], "all": b""}[change])
    if change == "all":
        path.unlink()
    with pytest.raises(JournalError, match=rf"lost: {file.name} in .*Start the query again") as raised:
        part.read()
    assert type(raised.value) is JournalError


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.date32()], ids=["local", "utc", "date"]
)
def test_routes_of_late_times(kind) -> None:
    """Moves between keys after year 9999, which Python cannot represent, are joined as well."""
    wide = pa.int32() if pa.types.is_date(kind) else pa.int64()
    late = [4_000_000, 4_000_001] if pa.types.is_date(kind) else [2**60, 2**60 + 1]
    links = pa.table(
        {"k": pa.array(late, wide).cast(kind), "_commit_lsn": [5, 5], "_ordinal": [0, 0]},
    )
    (rows,) = links.to_batches()
    one, other = Routes.of([links], ["k"]).column(rows, ["k"]).to_pylist()
    assert one == other
    assert one is not None


def test_folders_of_queries() -> None:
    """Each mirror has its own folder in a shared staging folder, and a restart finds it again."""

    def folder(checkpoint: str, target: str, staging: str | ObjectStore) -> str:
        mirror = Mirror("journal", ["*.*"], target, checkpoint=checkpoint, staging=staging)
        return url_of(mirror.plan().staging)

    for staging in ("/staging/", ObjectStore("s3://bucket/staging", {})):
        one, again = (folder("one", "lake", staging) for _ in range(2))
        assert one == again
        assert one.startswith(f"{url_of(staging)}/aiorepl-")
        assert one not in {folder("other", "lake", staging), folder("one", "other", staging)}
