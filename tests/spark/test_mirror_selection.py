"""No file that a mirror writes has a hidden value, whatever is renamed and whenever the mirror ends. Without Spark."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from aiorepl.errors import ConfigurationError, JournalError, PermanentError
from aiorepl.journal import JournalReader
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.source.source import Source
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.table import Part
from aiorepl.spark.mirroring import planning
from aiorepl.spark.mirroring.applying import Applying, TableFailed
from aiorepl.spark.mirroring.mirror import Mirror
from aiorepl.spark.mirroring.mirrored import MirroredTables
from aiorepl.spark.mirroring.reduction import reduce_changes
from aiorepl.spark.mirroring.source import MirrorReader
from aiorepl.spark.verifying.verification import Verification
from aiorepl.testing.messages import column
from aiorepl.transforms.methods import keyed_hash
from aiorepl.transforms.selection import Selection

from .batches import Killed, Lake
from .histories import compact, pruned

pytestmark = pytest.mark.by_day

SECRET = "s3cr3t"
ID, NOTE, EMAIL, BORN = column("id", 23, key=True), column("note"), column("email"), column("born", 1082)
HIDING = Selection(mask=("public.t.email", "public.t.born"), drop=("public.t.note",), secret=SECRET)


def masked(text: str) -> str:
    return keyed_hash(SECRET.encode())(text.encode()).hex()


@pytest.fixture
def lake(tmp_path: Path, journal: Any) -> Callable[..., Lake]:
    return partial(Lake, tmp_path, journal)


def numbers(*names: str, **others: int) -> dict[str, Attribute]:
    """Return the attributes of columns. Their numbers are their places, or those of ``others``. Hidden columns have a planted missing value."""
    return {
        name: Attribute(
            others.get(name, number),
            "planted-missing" if name in ("email", "mail") else None,
            name in ("email", "mail"),
        )
        for number, name in enumerate(names, 1)
    }


def rows(mirror: Lake, table: str = "t") -> list[dict[str, Any]]:
    found = DeltaTable(f"{mirror.target}/public/{table}").to_pyarrow_table().to_pylist()
    return sorted(
        ({name: value for name, value in row.items() if not name.startswith("_")} for row in found),
        key=str,
    )


def written(mirror: Lake) -> dict[Path, bytes]:
    """Return every file of the mirror, except the journal's."""
    folders = (mirror.target, Path(mirror.staging.staging))
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in found}


def has_nothing(mirror: Lake) -> None:
    """Check that no file has a planted value, also not in compressed form."""
    import pyarrow.parquet as pq

    files = written(mirror)
    assert files
    for path, data in files.items():
        assert b"planted" not in data, path
        assert SECRET.encode() not in data, path
        if path.suffix == ".parquet":
            text = str(pq.read_table(path).to_pydict()) + str(pq.ParquetFile(path).schema_arrow)
            assert "planted" not in text, path


def changes(table: Any, *, identity: str = "d") -> list[bytes]:
    """Return changes of ``(id, note, email, born)``."""
    first = ["1", "planted-1", "planted-a@b", "1980-02-03"]
    old = {"old": first} if identity == "f" else {}
    return [
        table.insert(*first),
        table.insert("2", "planted-2", "planted-c@d", "infinity"),
        table.insert("3", None, None, None),
        table.update("1", UNCHANGED, UNCHANGED, "1980-02-04", **old),
        table.delete("3", None, None, None, full=identity == "f"),
    ]


EXPECTED = [
    {"id": 1, "email": masked("planted-a@b"), "born": masked("1980-02-04")},
    {"id": 2, "email": masked("planted-c@d"), "born": masked("infinity")},
]


@pytest.mark.parametrize("place", ["segments", "history", "pruned"])
@pytest.mark.parametrize("identity", ["d", "f"])
def test_rows_of_segments_and_of_the_history(lake, journal, monkeypatch, identity, place) -> None:
    """Rows of segments and of the history enter the lake masked. Staged files and statistics have no hidden value."""
    mirror = lake(selection=HIDING, keys={"public.t": ["id"]} if identity == "f" else {})
    columns = [replace(ID, key=identity == "d"), NOTE, EMAIL, BORN]
    t = journal.stream.table("t", *columns, replica_identity=identity)
    journal.stream.transaction(*changes(t, identity=identity))
    journal.write(numbers("id", "note", "email", "born"))
    if place != "segments":
        monkeypatch.setattr(planning, "_LEAST_BYTES", 0)
        compact(journal)
    if place == "pruned":
        journal.stream.transaction(t.insert("2", "planted-3", "planted-c@d", "infinity"))
        journal.write(numbers("id", "note", "email", "born"))
        pruned(journal, 1)
    batch = mirror.stage()
    assert any(file.compacted for file in batch.files) == (place != "segments") or place == "history"
    assert "planted" not in repr(pickle.dumps(batch))
    if mirror.store.names():
        has_nothing(mirror)
    mirror.again()
    assert rows(mirror) == EXPECTED
    has_nothing(mirror)


def test_types_whose_text_the_history_lacks(lake, journal, monkeypatch) -> None:
    """A masked array is read from the segments instead of the history. If they were deleted, the mirror's error names the column."""
    monkeypatch.setattr(planning, "_LEAST_BYTES", 0)
    t = journal.stream.table("t", ID, column("tags", 1009))
    for number in "12":
        journal.stream.transaction(t.insert(number, f"{{planted-{number},NULL}}"))
        journal.write(numbers("id", "tags"))
    compact(journal)
    mirror = lake(selection=Selection(mask=("*.t.tags",), secret=SECRET))
    mirror.stage()
    mirror.again()
    assert [row["tags"] for row in rows(mirror)] == [masked("{planted-1,NULL}"), masked("{planted-2,NULL}")]
    has_nothing(mirror)
    pruned(journal, 1)
    mirror.lose_plan()
    with pytest.raises(ConfigurationError, match=r"'tags' of public\.t as list"):
        mirror.stage()


def test_a_table_that_was_set_aside(lake, journal) -> None:
    """The changes that a table lacks because it was set aside are staged masked. A rename ends the mirror."""
    mirror = lake(selection=ANY_EMAIL, on_error="set_aside")
    t = journal.stream.table("t", ID, EMAIL)
    journal.stream.transaction(t.insert("1", "planted-1"))
    journal.write(numbers("id", "email"))
    mirror.stage()
    mirror.again()
    folder = mirror.target / "public" / "t"
    folder.rename(mirror.target / "away")
    journal.stream.transaction(t.insert("2", "planted-2"))
    journal.write(numbers("id", "email"))
    mirror.stage()
    mirror.again()
    assert mirror.applying.state.aside
    (mirror.target / "away").rename(folder)
    mirror.restart()
    journal.stream.transaction(t.insert("3", "planted-3"))
    journal.write(numbers("id", "email"))
    mirror.stage()
    mirror.again()
    assert not mirror.applying.state.aside
    assert {row["email"] for row in rows(mirror)} == {masked(f"planted-{number}") for number in "123"}
    has_nothing(mirror)
    renamed(journal, t, ID, column("mail"))
    with pytest.raises(PermanentError, match=r"public\.t\.mail"):
        mirror.stage()
    has_nothing(mirror)


def test_large_changes(lake, journal, monkeypatch) -> None:
    """Parts of files of the history that executors would reduce are masked when they are read."""
    monkeypatch.setattr(planning, "_LEAST_BYTES", 0)
    monkeypatch.setattr("aiorepl.spark.mirroring.reducing.DRIVER_BYTES", 0)
    seen = []

    def large(changes: Any, files: Any, truncates: Any) -> Any:
        again = pickle.loads(pickle.dumps(changes))
        table = pa.Table.from_batches(
            [batch for file in files for batch in again.rows(file)], schema=again.schema
        )
        seen.append(str(table.to_pydict()))
        return [Part(table.nbytes, lambda: reduce_changes(table, again.keys, again.mode).table)], truncates

    mirror = lake(selection=HIDING, reduce_large=large)
    t = journal.stream.table("t", ID, NOTE, EMAIL, BORN)
    journal.stream.transaction(*changes(t))
    journal.write(numbers("id", "note", "email", "born"))
    compact(journal)
    mirror.stage()
    mirror.again()
    assert rows(mirror) == EXPECTED
    assert seen
    assert "planted" not in "".join(seen)
    has_nothing(mirror)


@pytest.mark.parametrize("mode", ["current", "history", "soft_delete", "changelog"])
def test_a_masked_key(lake, journal, mode) -> None:
    """A masked key identifies rows in every mode, also in updates of the key and in deletes."""
    mirror = lake(selection=Selection(mask=("*.*.id", "*.*.note"), secret=SECRET), mode=mode)
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(
        t.insert("1", "planted-a"), t.insert("2", "planted-b"), t.insert("3", "planted-c")
    )
    mirror.step()
    journal.stream.transaction(
        t.update("1", "planted-d"), t.update("4", UNCHANGED, key=["2", None]), t.delete("3", None)
    )
    mirror.step()
    found = rows(mirror)
    expected = {masked("1"): masked("planted-d"), masked("4"): masked("planted-b")}
    if mode == "current":
        assert {row["id"]: row["note"] for row in found} == expected
    elif mode == "changelog":
        assert len(found) == 7
    else:
        raw = DeltaTable(f"{mirror.target}/public/t").to_pyarrow_table().to_pylist()
        gone = "_deleted" if mode == "soft_delete" else "_valid_to"
        assert {row["id"]: row["note"] for row in raw if not row[gone]} == expected
        assert len(raw) == (4 if mode == "soft_delete" else 5)
    has_nothing(mirror)


@pytest.mark.parametrize("change", ["added", "secret", "removed"])
@pytest.mark.parametrize("mode", ["current", "history", "soft_delete", "changelog"])
def test_other_masks_of_a_key(lake, journal, mode, change) -> None:
    """Rows whose key has other masks cannot be found, so the table fails before anything is written; a log of changes has no key."""
    masks = Selection(mask=("public.t.k",), secret=SECRET)
    given = {
        "added": (None, masks),
        "secret": (masks, replace(masks, secret="other")),
        "removed": (masks, Selection(drop=("public.t.gone?",))),
    }
    first, second = given[change]
    mirror = lake(selection=first, mode=mode)
    t = journal.stream.table("t", column("k", key=True), NOTE)
    journal.stream.transaction(t.insert("a", "x"), t.insert("b", "y"))
    mirror.step()
    before = rows(mirror)
    journal.stream.transaction(t.update("a", "z"), t.delete("b", None))
    journal.write()
    for _ in range(2):
        other = lake(selection=second, mode=mode)
        other.offset, other.number = mirror.offset, mirror.number
        other.stage()
        if mode == "changelog":
            other.again()
            assert len(rows(other)) == 4
            return
        with pytest.raises(TableFailed, match=r"the key column 'k' of public\.t has other masks"):
            other.again()
        assert rows(other) == before
    mirror.restart()
    mirror.stage()
    mirror.again()
    assert len({row["k"] for row in rows(mirror)}) == (1 if mode == "current" else 2)


@pytest.mark.parametrize("begun", ["first", "again"])
def test_a_masked_key_of_a_table_that_the_state_does_not_know(lake, journal, monkeypatch, begun) -> None:
    """If the process ends between a new table's commit and the state's, the next process still knows the masks of the key."""
    selection = Selection(mask=("public.t.k",), secret=SECRET)
    mirror = lake(selection=selection)
    t = journal.stream.table("t", column("k", key=True), NOTE)
    if begun == "again":
        journal.stream.transaction(t.insert("b", "x"))
        mirror.step()
        shutil.rmtree(mirror.target / "public" / "t")
        MirroredTables(str(mirror.target)).restart("public.t")
        mirror.restart()
    journal.stream.transaction(t.insert("a", "x"))
    journal.write()
    mirror.stage()

    written = Applying._in_threads

    def killed(*given: Any) -> None:
        written(*given)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Applying, "_in_threads", killed)
        mirror.again()
    mirror.restart()
    mirror.stage_again()
    mirror.again()
    journal.stream.transaction(t.update("a", "y"))
    mirror.step()
    assert rows(mirror) == [{"k": masked("a"), "note": "y"}]
    journal.stream.transaction(t.truncate())
    mirror.step()
    journal.stream.transaction(t.insert("a", "z"))
    mirror.step()
    assert rows(mirror) == [{"k": masked("a"), "note": "z"}]
    other = lake(selection=replace(selection, secret="other"))
    other.offset, other.number = mirror.offset, mirror.number
    journal.stream.transaction(t.update("a", "z"))
    with pytest.raises(TableFailed, match="has other masks"):
        other.step()


def test_a_dropped_key(lake, journal) -> None:
    """A column of the key can be dropped in the mode changelog only."""
    selection = Selection(drop=("public.t.id",))
    mirror = lake(selection=selection)
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "planted"))
    with pytest.raises(ConfigurationError, match=r"public\.t\.id is a column of the key"):
        mirror.step()
    assert not mirror.store.names()
    mirror = lake(selection=Selection(drop=("public.t.*",)), mode="changelog")
    mirror.step()
    assert rows(mirror) == [{}]
    has_nothing(mirror)


@pytest.mark.parametrize("identity", ["d", "f", "n"])
@pytest.mark.parametrize("place", ["segments", "history"])
@pytest.mark.parametrize("masking", ["mirror", "journal"])
def test_a_key_with_equal_masks(lake, journal, monkeypatch, tmp_path, masking, place, identity) -> None:
    """A mask that may give two rows one key is refused for any key by which rows are merged, also if the journal has it."""
    selection = Selection(mask=("public.t.email = partial(4)",))
    email = replace(EMAIL, key=identity == "d")
    columns = [column("id", 23), email]
    if masking == "journal":
        columns[1] = replace(email, type_modifier=-2)
    t = journal.stream.table("t", *columns, replica_identity=identity)
    journal.stream.transaction(t.insert("1", "****5678"), t.insert("2", "****5678"))
    journal.write(numbers("id", "email"))
    if place == "history":
        monkeypatch.setattr(planning, "_LEAST_BYTES", 0)
        compact(journal)
    given = {"selection": selection} if masking == "mirror" else {}
    mirror = lake(keys={"public.t": ["email"]}, **given)
    with pytest.raises(
        (PermanentError, TableFailed), match=r"public\.t\.email is a column of the key.* partial"
    ):
        mirror.step()
    assert not (mirror.target / "public").exists()
    if identity != "d" or masking == "journal":
        mirror = Lake(tmp_path / "changelog", journal, mode="changelog", **given)
        mirror.step()
        assert len(rows(mirror)) == 2


ANY_EMAIL = Selection(mask=("*.*.email?",), secret=SECRET)


def renamed(journal: Any, table: Any, *columns: Any, **others: int) -> Any:
    altered = journal.stream.table("t", *columns, replaces=table)
    journal.stream.transaction(altered.insert("7", *["planted-later"] * (len(columns) - 1)))
    journal.write(numbers(*(each.name for each in columns), **others))
    return altered


@pytest.mark.parametrize("known", [True, False], ids=["numbers", "names"])
@pytest.mark.parametrize("batch", ["same", "next", "restart"])
def test_a_renamed_column(lake, journal, batch, known) -> None:
    """A rename of a hidden column ends the mirror before a row is staged, also in the next process, until patterns have both names."""
    mirror = lake(selection=ANY_EMAIL)
    t = journal.stream.table("t", ID, EMAIL)
    journal.stream.transaction(t.insert("1", "planted-1"))
    journal.write(numbers("id", "email") if known else None)
    if batch != "same":
        mirror.stage()
        mirror.again()
    if batch == "restart":
        mirror.restart()
    t = journal.stream.table("t", ID, column("mail"), replaces=t)
    journal.stream.transaction(t.insert("7", "planted-later"))
    journal.write(numbers("id", "mail") if known else None)
    for _ in range(2):
        with pytest.raises(PermanentError, match=r"public\.t\.email, which the selection drops or masks"):
            mirror.stage()
    if written(mirror):
        has_nothing(mirror)
    offset, number = mirror.offset, mirror.number
    both = lake(selection=replace(ANY_EMAIL, mask=("*.*.email?", "public.t.mail")))
    both.offset, both.number = offset, number
    both.stage()
    both.again()
    found = {row["id"]: row for row in rows(both)}
    # Without numbers, a rename is a new column.
    assert found[1]["mail" if known else "email"] == masked("planted-1")
    assert found[7]["mail"] == masked("planted-later")
    has_nothing(both)


def test_killed_before_the_state_is_saved(lake, journal, monkeypatch) -> None:
    """If a process ends after the commit of a table and before the write of the state, the next process knows the hidden names."""
    mirror = lake(selection=ANY_EMAIL, mode="changelog")
    t, u = journal.stream.table("t", ID, EMAIL), journal.stream.table("u", ID, NOTE)
    journal.stream.transaction(t.insert("1", "planted-1"), u.insert("1", "seen"))
    journal.write(numbers("id", "email"))
    mirror.stage()
    apply, calls = DeltaTarget.apply, []

    def once(self: Any, *given: Any, **named: Any) -> None:
        calls.append(self)
        if len(calls) == 2:
            raise Killed
        apply(self, *given, **named)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(DeltaTarget, "apply", once)
        mirror.again()
    mirror.restart()
    mirror.stage_again()
    mirror.again()
    renamed(journal, t, ID, column("mail"))
    with pytest.raises(PermanentError, match=r"public\.t\.mail"):
        mirror.stage()
    has_nothing(mirror)


@pytest.mark.parametrize("lost", ["deleted", "older"])
def test_a_lost_state(lake, journal, lost) -> None:
    """A batch is not staged if the state lacks the names of earlier batches."""
    mirror = lake(selection=ANY_EMAIL)
    t = journal.stream.table("t", ID, EMAIL)
    file = mirror.target / "_aiorepl" / "mirror.json"
    copies = []
    for number in "12":
        journal.stream.transaction(t.insert(number, "planted-1"))
        journal.write(numbers("id", "email"))
        mirror.stage()
        mirror.again()
        copies.append(file.read_bytes())
    start = mirror.offset
    end = start.at(JournalReader(journal.folder).end(), None)
    MirrorReader(mirror.staging).partitions(start.to_json(), end.to_json())
    renamed(journal, t, ID, column("mail"))
    end = start.at(JournalReader(journal.folder).end(), None)
    with pytest.raises(PermanentError, match=r"public\.t\.mail"):
        MirrorReader(mirror.staging).partitions(start.to_json(), end.to_json())
    if lost == "deleted":
        file.unlink()
    else:
        file.write_bytes(copies[0])
    with pytest.raises(
        JournalError, match=r"mirror\.json .*is older than the query's checkpoint, or was deleted"
    ):
        MirrorReader(mirror.staging).partitions(start.to_json(), end.to_json())
    has_nothing(mirror)


def test_a_renamed_table(lake, journal) -> None:
    """The rename of a table with a hidden column ends the mirror."""
    mirror = lake(selection=Selection(mask=("public.t.email?",), keep=("*.u.x?",), secret=SECRET))
    t = journal.stream.table("t", ID, EMAIL)
    journal.stream.transaction(t.insert("1", "planted-1"))
    journal.write(numbers("id", "email"))
    mirror.stage()
    mirror.again()
    u = journal.stream.table("u", ID, EMAIL, replaces=t)
    journal.stream.transaction(u.insert("2", "planted-2"))
    journal.write(numbers("id", "email"))
    with pytest.raises(PermanentError, match=r"public\.u\.email"):
        mirror.stage()
    has_nothing(mirror)


def test_partitions_that_the_journal_does_not_know(lake, journal) -> None:
    """A visible column with a hidden name has to be decided, because its table may be a child; the error names all of them."""
    stream = journal.stream
    t, part = stream.table("t", ID, EMAIL, BORN), stream.table("t_1", ID, EMAIL, BORN, NOTE)
    other = stream.table("other", ID, EMAIL)
    stream.transaction(
        t.insert("1", "planted-1", None),
        other.insert("1", "planted-3"),
        part.insert("2", "planted-2", None, None),
    )
    journal.write()
    selection = Selection(mask=("public.t.email",), secret=SECRET)
    mirror = lake(selection=selection)
    with pytest.raises(
        ConfigurationError,
        match=r"public\.other\.email has the name of a column that 'public\.t\.email' hides.*\(likewise public\.t_1\.email\)",
    ):
        mirror.stage()
    assert not written(mirror)
    decided = lake(selection=replace(selection, keep=("public.t_1.email",), drop=("public.other.email",)))
    decided.stage()
    decided.again()
    assert rows(decided) == [{"id": 1, "email": masked("planted-1"), "born": None}]
    assert rows(decided, "t_1")[0]["email"] == "planted-2"
    assert rows(decided, "other") == [{"id": 1}]


def test_a_child_from_before_its_parent_was_altered(lake, journal) -> None:
    """Rows of a child are hidden although the parent, as the journal describes it last, has columns that the child lacked."""
    stream = journal.stream
    p, c = stream.table("p", ID, EMAIL), stream.table("c", ID, EMAIL)
    stream.transaction(p.insert("1", "planted-1"), c.insert("2", "planted-2"))
    journal.write(numbers("id", "email"))
    altered = [ID, EMAIL, NOTE]
    p, c = stream.table("p", *altered, replaces=p), stream.table("c", *altered, replaces=c)
    stream.transaction(p.insert("3", "planted-3", None), c.insert("4", "planted-4", None))
    journal.write(numbers("id", "email", "note"))
    mirror = lake(selection=Selection(mask=("public.p.email",), secret=SECRET))
    with pytest.raises(ConfigurationError, match=r"public\.c\.email has the name"):
        mirror.stage(most=1)
    assert not written(mirror)


@pytest.mark.parametrize("pattern", ["public.parent.email?", "parents.*.email?", "public.p*.email?"])
def test_patterns_of_tables_that_the_journal_lacks(lake, journal, pattern) -> None:
    """If the journal lacks a pattern's table, a visible column with the hidden name ends the mirror, whatever its table is."""
    t = journal.stream.table("t", ID, EMAIL)
    journal.stream.transaction(t.insert("1", "planted-1"))
    mirror = lake(selection=Selection(drop=(pattern,)))
    with pytest.raises(ConfigurationError, match=r"public\.t\.email has the name"):
        mirror.step()
    assert not written(mirror)


@pytest.mark.parametrize("pattern", ["public.t.e_mail", "public.parent.email", "private.*.*"])
def test_patterns_that_match_nothing(lake, journal, pattern) -> None:
    """A pattern that matches nothing ends the mirror before a row is staged."""
    t = journal.stream.table("t", ID, EMAIL)
    journal.stream.transaction(t.insert("1", "planted-1"))
    mirror = lake(selection=Selection(drop=(pattern,)))
    with pytest.raises(ConfigurationError, match="matches no column"):
        mirror.step()
    assert not written(mirror)


def test_a_table_that_is_added(lake, journal) -> None:
    """The earlier descriptions of an added table are compared with its present one before a row is staged."""
    stream = journal.stream
    t, u = stream.table("t", ID, EMAIL), stream.table("u", ID, NOTE)
    stream.transaction(t.insert("1", "planted-1"), u.insert("1", "seen"))
    journal.write(numbers("id", "email") | numbers("id", "note"))
    mirror = lake(selection=ANY_EMAIL, tables=["public.u"])
    mirror.stage()
    mirror.again()
    renamed(journal, t, ID, column("mail"))
    more = lake(selection=ANY_EMAIL)
    more.offset, more.number = mirror.offset, mirror.number
    with pytest.raises(PermanentError, match=r"public\.t\.mail"):
        more.stage()
    has_nothing(mirror)


def test_a_selection_that_is_added(lake, journal) -> None:
    """Rows from before a new selection keep their values. A mask for a column that is not text in the lake is refused."""
    mirror = lake()
    pin = column("pin", 23)
    t = journal.stream.table("t", ID, NOTE, pin)
    journal.stream.transaction(t.insert("1", "before", "11"))
    mirror.step()
    again = lake(selection=Selection(mask=("*.*.pin",), secret=SECRET))
    again.offset, again.number = mirror.offset, mirror.number
    journal.stream.transaction(t.insert("2", "later", "4711"))
    with pytest.raises(TableFailed, match="pin"):
        again.step()
    text = lake(selection=Selection(mask=("*.*.note",), drop=("*.*.pin",), secret=SECRET))
    text.offset, text.number = mirror.offset, mirror.number
    text.stage()
    text.again()
    assert rows(text) == [
        {"id": 1, "note": "before", "pin": 11},
        {"id": 2, "note": masked("later"), "pin": None},
    ]


def test_a_comparison_without_the_selection(lake, journal) -> None:
    """A comparison needs the selection: by clear keys, a repair would find no row of the lake in the source, and delete all of them."""

    def verification(selection: Selection | None) -> object:
        source = Source("postgresql://nowhere", slot="s", publication="p")
        tables = MirroredTables(str(mirror.target))
        return Verification(source, tables, str(journal.folder), selection=selection)

    mirror = lake(selection=ANY_EMAIL)
    t = journal.stream.table("t", ID, EMAIL)
    journal.stream.transaction(t.insert("1", "planted-1"))
    mirror.step()
    with pytest.raises(ConfigurationError, match="the mirror has a selection"):
        verification(None)
    assert verification(ANY_EMAIL)
    shutil.rmtree(mirror.target)
    keyed = Selection(mask=("public.t.id",), secret=SECRET)
    mirror = lake(selection=keyed)
    journal.stream.transaction(t.insert("2", "x"))
    mirror.step()
    for other in (None, Selection(), ANY_EMAIL):
        with pytest.raises(
            ConfigurationError, match=r"the key column 'id' of public\.t is masked in the target"
        ):
            verification(other)
    assert verification(keyed)


def test_options() -> None:
    """A mirror's selection has no tables and kinds, and nothing shows its secret."""
    with pytest.raises(ConfigurationError, match="no tables or kinds"):
        Mirror("journal", ["public.*"], "target", selection=Selection(tables=("public.t",)))
    mirror = Mirror("journal", ["public.*"], "target", selection=HIDING)
    assert SECRET not in repr(mirror) + repr(mirror.settings) + repr(mirror.plan())
