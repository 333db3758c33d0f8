"""A journal's history has each of its changes once, typed, whatever happened to the tables."""

from __future__ import annotations

import contextlib
import errno
import shutil
from dataclasses import replace
from datetime import date

import pytest

from aiorepl import history
from aiorepl.errors import JournalError, SlotError
from aiorepl.history.buffers import Bounds
from aiorepl.history.catalog import Deleted, Fenced
from aiorepl.history.compaction import Compaction, Pace
from aiorepl.history.cursor import CURSOR
from aiorepl.history.planning import Limits
from aiorepl.journal import Cursors, JournalReader, prune
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.position import Timelines
from aiorepl.storage.local import LocalStore
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

pytestmark = pytest.mark.by_day

KEY = column("id", 23, key=True)
DAY = 86_400


def test_changes(journal):
    """Inserts, updates, deletes and truncates have operation, position, transaction and row."""
    t = journal.stream.table("t", KEY, column("note"), column("at", 1184))
    first = journal.stream.transaction(
        t.insert("1", "a", "2026-11-22 10:00:00.5+02"),
        t.update("1", "b", None),
        t.update("2", "b", None, key=["1", None, None]),
    )
    journal.stream.transaction(t.delete("2", None, None), t.truncate())
    journal.write()
    journal.compact()

    rows = journal.rows()

    assert [
        ("insert", 0, 1, "a"), ("update", 1, 1, "b"), ("delete", 2, 1, None), ("insert", 2, 2, "b"),
        ("delete", 0, 2, None), ("truncate", 1, None, None),
    ] == [(row["_op"], row["_ordinal"], row["id"], row["note"]) for row in rows]  # fmt: skip
    assert rows[0]["_commit_lsn"] < first
    assert rows[0]["at"].isoformat() == "2026-11-22T08:00:00.500000+00:00"
    assert {row["_unrepresentable"] for row in rows} == {None}
    assert all(row["_unchanged"] == [] and row["_xid"] for row in rows)


def test_a_later_pass_goes_on(journal):
    """Each pass covers what came since the last one, whatever the size of blocks and segments."""
    t = journal.stream.table("t", KEY, column("note"))
    for part in range(3):
        for number in range(3):
            journal.stream.transaction(
                *(t.insert(str(100 * part + 10 * number + row), "x" * 50) for row in range(10))
            )
            journal.write(block_bytes=300)
        compaction = journal.compact(pace=Pace(pass_bytes=1))

    assert compaction.done.passes > 1
    assert [row["id"] for row in journal.rows()] == [
        100 * p + 10 * n + r for p in range(3) for n in range(3) for r in range(10)
    ]
    assert history.end(journal.folder) == journal.stream.lsn
    assert journal.compact().done.passes == 0
    assert history.tables(journal.folder) == [("public", "t")]


def test_unchanged_values(journal):
    """A value that the server did not send is null, and its column is named; the next update has it."""
    t = journal.stream.table("t", KEY, column("big"))
    journal.stream.transaction(t.insert("1", "x"), t.update("1", UNCHANGED), t.update("1", "y"))
    journal.write()
    journal.compact()
    assert [(row["big"], row["_unchanged"]) for row in journal.rows()] == [
        ("x", []),
        (None, ["big"]),
        ("y", []),
    ]


def test_replica_identity_full(journal):
    """Old rows are kept: of a delete as the row, of an update beside it."""
    t = journal.stream.table("t", column("id", 23), column("note"), replica_identity="f")
    journal.stream.transaction(t.update("1", "new", old=["1", "old"]), t.delete("1", "new", full=True))
    journal.write()
    journal.compact()
    assert [(row["_op"], row["note"], row["_before"]) for row in journal.rows()] == [
        ("update", "new", {"id": 1, "note": "old"}),
        ("delete", "new", None),
    ]


def test_schema_changes(journal):
    """Another description begins another file, also within a block; attribute numbers connect renamed columns."""
    t = journal.stream.table("t", KEY, column("note"))
    journal.stream.transaction(t.insert("1", "a"))
    t = journal.stream.table("t", column("id", 20, key=True), column("remark"), column("day", 1082))
    journal.stream.transaction(t.insert("2", "b", "2026-11-22"))
    t = journal.stream.table("t", KEY, column("note"))
    journal.stream.transaction(t.insert("3", "c"))
    journal.write({"id": Attribute(1), "note": Attribute(2), "remark": Attribute(2), "day": Attribute(3)})
    journal.compact()

    first, second, third = journal.files()

    assert [file.schema.names[:3] for file in (first, second)] == [
        ["id", "note", "_op"],
        ["id", "remark", "day"],
    ]
    assert third.schema.equals(first.schema)
    assert first.schema.field("note").metadata == second.schema.field("remark").metadata
    assert [row["id"] for row in journal.rows()] == [1, 2, 3]
    assert journal.rows()[1]["day"] == date(2026, 11, 22)
    assert [file.relation().names for file in (first, second)] == [("id", "note"), ("id", "remark", "day")]


def test_tables_of_one_name(journal):
    """A table that was dropped and created again, or renamed, is a table by its name; its files have its oid."""
    old = journal.stream.table("t", KEY)
    other = journal.stream.table("other", KEY)
    journal.stream.transaction(old.insert("1"), other.insert("10"))
    new = journal.stream.table("t", KEY)
    journal.stream.transaction(new.insert("2"))
    # ``other`` is renamed to t, while t is renamed to old: two oids change their names.
    journal.stream.table("old", KEY, replaces=new)
    moved = journal.stream.table("t", KEY, replaces=other)
    journal.stream.transaction(moved.insert("3"), new.insert("4"))
    journal.write()
    journal.compact()

    assert [(file.oid, [row["id"] for row in journal.read(file)]) for file in journal.files()] == [
        (old.oid, [1]), (new.oid, [2]), (other.oid, [3]),
    ]  # fmt: skip
    assert [row["id"] for row in journal.rows("other")] == [10]
    assert [row["id"] for row in journal.rows("old")] == [4]


@pytest.mark.parametrize(
    ("schema", "name", "folder"),
    [
        ("public", "Orders", "public.Orders"),
        ("_s", ".t", "~5Fs.~2Et"),
        ("a.b", "c/d", "a~2Eb.c~2Fd"),
        ("a", "b.c/d", "a.b~2Ec~2Fd"),
        ("x=1", "öh *?%", "x~3D1.~C3~B6h~20~2A~3F~25"),
        ("~", "..", "~7E.~2E~2E"),
        ("ö" * 31, "ü" * 31, "~C3~B6" * 30),
    ],
    ids=["case", "hidden", "slash", "other dot", "signs", "dots", "long"],
)
def test_names(journal, schema, name, folder):
    """A name makes one folder, which is neither hidden, a partition nor a pattern."""
    t = journal.stream.table(name, KEY, namespace=schema)
    journal.stream.transaction(t.insert("1"))
    journal.write()
    journal.compact(limits=Limits(least_bytes=1))
    (file,) = history.files(journal.folder, schema, name).files
    assert file.published
    assert file.path.startswith(folder)
    assert journal.read(file)[0]["id"] == 1
    assert history.tables(journal.folder) == [(schema, name)]


def test_messages(journal):
    """Messages, which belong to no table, are in a folder of their own."""
    t = journal.stream.table("t", KEY)
    journal.stream.message("between", b"1")
    journal.stream.transaction(t.insert("1"), t.insert("2"))
    journal.stream.message("again", b"\xff")
    journal.write()
    journal.compact()
    found = [row for file in history.messages(journal.folder).files for row in journal.read(file)]
    assert [(row["prefix"], row["content"], row["_xid"]) for row in found] == [
        ("between", b"1", None),
        ("again", b"\xff", None),
    ]
    assert journal.rows()[-1]["_ordinal"] == 1


def test_truncates_alone(journal):
    """A truncate of a table without rows has its description; one of a table that the history knows has its types."""
    journal.stream.type_(90_000, "mood")
    t = journal.stream.table("t", KEY, column("mood", 90_000))
    u = journal.stream.table("u", KEY)
    journal.stream.transaction(t.insert("1", "happy"))
    journal.write()
    journal.compact()
    journal.stream.transaction(t.truncate(), u.truncate())
    journal.write()
    journal.compact()
    first, second = journal.files()
    assert first.schema.equals(second.schema)
    assert [row["_op"] for row in journal.rows()] == ["insert", "truncate"]
    assert [row["_op"] for row in journal.rows("u")] == ["truncate"]


def test_snapshots_and_prepared_transactions(journal):
    """Rows of a snapshot are reads with xid 0; a prepared transaction is at its commit."""
    t = journal.stream.table("t", KEY, column("note"))
    journal.stream.snapshot(t, *(t.insert(str(row), "s") for row in range(3)))
    journal.stream.prepare("x", t.insert("7", "prepared"))
    journal.stream.transaction(t.insert("8", "before"))
    journal.stream.commit_prepared("x")
    journal.write()
    journal.compact()
    assert [(row["_op"], row["id"], row["_xid"] == 0) for row in journal.rows()] == [
        ("read", 0, True), ("read", 1, True), ("read", 2, True), ("insert", 8, False), ("insert", 7, False),
    ]  # fmt: skip


def test_odd_values(journal):
    """A value that its type cannot hold is null, and its text is kept."""
    t = journal.stream.table(
        "t", KEY, column("day", 1082), column("price", 1700, type_modifier=(4 << 16 | 2) + 4)
    )
    journal.stream.transaction(t.insert("1", "infinity", "NaN"), t.insert("2", "0044-03-15 BC", "12.50"))
    journal.write()
    journal.compact()
    (file,) = journal.files()
    found = journal.table(file)
    assert [dict(each or ()) for each in found["_unrepresentable"].to_pylist()] == [
        {"day": "infinity", "price": "NaN"},
        {},
    ]
    assert found["day"].cast("int32").to_pylist() == [None, -735160]


def test_merges(journal):
    """Small files are merged without a change to their rows; a published one is never touched again."""
    t = journal.stream.table("t", KEY, column("note"))
    u = journal.stream.table("u", KEY)
    now = [1000.0]
    limits = Limits(publish_after=100, keep_replaced=50, least_bytes=2**20, most_pending=3, listed=2)

    def grow(count: int) -> None:
        for _ in range(count):
            journal.stream.transaction(t.insert("1", "x"), u.insert("2"))
            journal.write()
            journal.compact(limits=limits, clock=lambda: now[0])

    grow(3)
    assert [(file.rows, file.published) for file in journal.files()] == [(3, False)]
    grow(1)
    now[0] += 100
    grow(1)
    published = journal.files()
    assert [(file.rows, file.published) for file in published] == [(5, True)]
    now[0] += 50
    for _ in range(3):
        grow(2)
        now[0] += 100
        grow(1)
        now[0] += 50
    files = journal.files()
    assert files[0] == published[0]
    assert sum(file.rows for file in files) == 14
    assert len(files) > 2
    # The files that were merged are gone after the time for readers.
    journal.compact(limits=limits, clock=lambda: now[0] + 1000)
    journal.compact(limits=limits, clock=lambda: now[0] + 2000)
    assert journal.store.names("_pending") == []
    assert len(journal.rows()) == len(journal.rows("u")) == 14


def test_a_file_of_another_version_is_not_merged(journal):
    """Rows of two descriptions are in two published files."""
    t = journal.stream.table("t", KEY)
    journal.stream.transaction(t.insert("1"))
    t = journal.stream.table("t", KEY, column("note"))
    journal.stream.transaction(t.insert("2", "x"))
    journal.write()
    journal.compact(limits=Limits(publish_after=0))
    assert [(file.rows, file.published) for file in journal.files()] == [(1, True), (1, True)]


def test_large_tables(journal):
    """A table that is large enough is written in several files, and published, by one pass; so is a transaction in parts."""
    t = journal.stream.table("t", KEY, column("note"))
    journal.stream.transaction(*(t.insert(str(row), f"{row * 7919 % 1000}") for row in range(500)))
    journal.write(block_bytes=1000, segment_bytes=4000, at_once=50)
    assert len({segment.name for segment in JournalReader(journal.folder).segments()}) > 2
    bounds = Bounds(batch_bytes=1000, file_bytes=4000, memory_bytes=10_000)
    journal.compact(bounds=bounds, limits=Limits(least_bytes=2000, most_bytes=6000))
    files = journal.files()
    assert len(files) > 1
    assert all(file.published for file in files)
    assert [row["id"] for row in journal.rows()] == list(range(500))


def test_memory_is_bounded_over_all_tables(journal):
    """A hundred tables in one transaction: rows beyond the bound go to disk, and from there into files."""
    tables = [journal.stream.table(f"t{number}", KEY, column("note")) for number in range(100)]
    journal.stream.transaction(*(table.insert(str(row), "x" * 200) for row in range(30) for table in tables))
    journal.write(block_bytes=20_000)
    bounds = Bounds(batch_bytes=5000, memory_bytes=100_000, spool_bytes=300_000)
    compaction = journal.compact(bounds=bounds)

    assert compaction.done.peak < 100_000 + 60_000  # a block comes at once
    for number in range(100):
        assert [row["id"] for row in journal.rows(f"t{number}")] == list(range(30))


def test_ranges(journal):
    """Files are listed by the positions of their rows."""
    t = journal.stream.table("t", KEY)
    ends = []
    for number in range(3):
        ends.append(journal.stream.transaction(t.insert(str(number))))
        journal.write()
        journal.compact()

    def ids(**options) -> list[int]:
        return [row["id"] for row in journal.rows(**options)]

    assert ids() == [0, 1, 2]
    assert ids(after=ends[0]) == [1, 2]
    assert ids(until=ends[0]) == [0]
    assert ids(after=ends[0], until=ends[1]) == [1]
    assert journal.files("unknown") == []


def test_retention_waits_for_compaction(journal):
    """Segments are kept until they are compacted."""
    t = journal.stream.table("t", KEY)
    for _ in range(3):
        journal.stream.transaction(t.insert("1"))
        journal.write()
        journal.compaction().claim()
    Cursors(journal.folder).advance("sink", journal.stream.position.at(journal.stream.lsn))
    assert prune(journal.folder) == []
    journal.compact()
    assert CURSOR in Cursors(journal.folder).names()
    assert len(prune(journal.folder)) == 2
    assert len(journal.rows()) == 3


def test_a_second_compaction_takes_over(journal):
    """The first one says so, commits nothing, and leaves no file."""
    t = journal.stream.table("t", KEY)
    journal.stream.transaction(t.insert("1"))
    journal.write()
    first = journal.compaction()
    first.claim()
    second = journal.compact()
    files = set(journal.store.names("_pending"))

    with pytest.raises(JournalError, match="another compaction has taken over the history"):
        first._pass()

    assert set(journal.store.names("_pending")) == files
    assert len(journal.rows()) == 1
    assert second.history.end.lsn == journal.stream.lsn


def test_a_promotion(journal):
    """A history goes on when the server was promoted."""
    position, ends = journal.stream.position, []
    for timeline in (1, 2, 3):
        journal.stream.transaction(journal.stream.table("t", KEY).insert(str(timeline)))
        ends.append((timeline, journal.stream.lsn))
        journal.write(position=replace(position, timelines=Timelines(timeline, ends[:-1])))
        journal.compact()
    assert [row["id"] for row in journal.rows()] == [1, 2, 3]


def test_another_journal(journal, make_journal, tmp_path):
    """A history does not continue another slot's journal."""
    journal.stream.transaction(journal.stream.table("t", KEY).insert("1"))
    journal.write()
    journal.compact()
    other = type(journal)(tmp_path / "other", slot="another")
    other.stream.transaction(other.stream.table("t", KEY).insert("1"))
    other.write()
    with pytest.raises(SlotError, match="the history"):
        other.compact(store=journal.store)


def test_no_journal(journal):
    """The error says that there is no journal."""
    with pytest.raises(JournalError, match="no journal"):
        journal.compact()
    assert history.files(journal.folder, "public", "t") is None
    assert history.end(journal.folder) is None


def test_an_empty_journal_that_begins_later(journal):
    """A history that was created while the journal was empty begins where the journal then begins, as with a new slot."""
    journal.write()
    journal.compact()
    journal.stream = Stream(start=journal.stream.position.lsn + 0x18)
    journal.stream.transaction(journal.stream.table("t", KEY).insert("1"))
    journal.write()
    journal.compact()
    assert [1] == [row["id"] for row in journal.rows()]
    assert journal.stream.lsn == Cursors(journal.folder).get(CURSOR).lsn


def test_a_pruned_journal(journal):
    """A history whose continuation was pruned is refused, with what to do."""
    t = journal.stream.table("t", KEY)
    journal.stream.transaction(t.insert("1"))
    journal.write()
    journal.compact()
    Cursors(journal.folder).remove(CURSOR)
    for _ in range(3):
        journal.stream.transaction(t.insert("1"))
        journal.write()
    Cursors(journal.folder).advance("sink", journal.stream.position.at(journal.stream.lsn))
    prune(journal.folder)
    with pytest.raises(JournalError, match="delete the folder history"):
        journal.compact()


def test_damaged_lists(journal):
    """A damaged list is named."""
    journal.stream.transaction(journal.stream.table("t", KEY).insert("1"))
    journal.write()
    journal.compact()
    (name,) = journal.store.names("_tables")
    path = journal.folder / "history" / "_tables" / name
    path.write_bytes(path.read_bytes().replace(b"public", b"Public"))
    with pytest.raises(JournalError, match=r"_tables/public\.t-.* is damaged"):
        journal.files()


class Failing(LocalStore):
    """Fails once at a step of a file."""

    step = name = ""

    def reached(self, step, name):
        if step == Failing.step and name.startswith(Failing.name):
            Failing.step = ""
            raise OSError(errno.EIO, "Input/output error")

    def within(self, folder):
        return Failing(self.path / folder)


@pytest.mark.parametrize(
    ("step", "name"), [("fsync folder", "history.json"), ("delete", "_tables"), ("rename", "_pending")]
)
def test_a_commit_whose_outcome_is_unknown(journal, monkeypatch, step, name):
    """An error at or after a commit loses nothing: what may be committed is not deleted."""
    t = journal.stream.table("t", KEY)
    for number in range(4):
        journal.stream.transaction(t.insert(str(number)))
        journal.write()
        compaction = journal.compaction(Failing(journal.folder / "history"))
        compaction.claim()
        monkeypatch.setattr(Failing, "step", step)
        monkeypatch.setattr(Failing, "name", name)
        with contextlib.suppress(JournalError):
            compaction.run()
        Failing.step = ""
        journal.compact()
        assert [row["id"] for row in journal.rows()] == list(range(number + 1))
    referenced = {file.path for file in journal.files()}
    assert {f"_pending/{file}" for file in journal.store.names("_pending")} == referenced


def test_damaged_files_are_not_merged(journal):
    """A pending file that was changed, or is another one, ends compaction with its name."""
    t = journal.stream.table("t", KEY)
    for number in range(2):
        journal.stream.transaction(t.insert(str(number)))
        journal.write()
        journal.compact()
    first, second = (journal.folder / "history" / file.path for file in journal.files())
    whole = first.read_bytes()
    flipped = bytearray(whole)
    flipped[100] ^= 1
    for content in (bytes(flipped), second.read_bytes(), whole[:-1]):
        first.write_bytes(content)
        with pytest.raises(JournalError, match=r"_pending/.* is damaged"):
            journal.compact(limits=Limits(publish_after=0))
        assert not list((journal.folder / "history" / "public.t").glob("*.parquet"))
    first.write_bytes(whole)
    journal.compact(limits=Limits(publish_after=0))
    assert [row["id"] for row in journal.rows()] == [0, 1]


def test_an_older_history(journal):
    """A history.json that was put back from an older copy, or is gone, is refused before anything is written."""
    path = journal.folder / "history" / "history.json"
    t = journal.stream.table("t", KEY)
    for number in range(2):
        journal.stream.transaction(t.insert(str(number)))
        journal.write()
        journal.compact()
        if number == 0:
            older = path.read_bytes()
    newest = path.read_bytes()
    path.write_bytes(older)
    with pytest.raises(JournalError, match="is an older copy: it ends at"):
        journal.compact()
    assert path.read_bytes() == older
    path.unlink()
    with pytest.raises(JournalError, match=r"history\.json in .* is missing"):
        journal.compact()
    path.write_bytes(newest)
    assert [row["id"] for row in journal.rows()] == [0, 1]
    journal.compact()


class _Interrupted:
    """A store that calls a function before one of the calls to it."""

    def __init__(self, store, number, function, calls=None):
        self._store, self._number, self._function = store, number, function
        self._calls = calls if calls is not None else []

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name == "within":
            return lambda folder: _Interrupted(found(folder), self._number, self._function, self._calls)

        def call(*arguments):
            self._calls.append(name)
            if len(self._calls) == self._number:
                self._function()
            return found(*arguments)

        return call if callable(found) else found


@pytest.mark.parametrize("deleted", [False, True], ids=["going on", "beginning anew"])
def test_a_claim_beside_a_commit(make_journal, deleted):
    """A compaction that takes over while another one commits finds no damage, whatever it has read before the commit."""
    journal, claims = make_journal(), 0
    t = journal.stream.table("t", KEY)

    def grow():
        journal.stream.transaction(t.insert(str(claims)))
        journal.write()

    for number in range(1, 100):
        grow()
        journal.compact()
        grow()
        if deleted:
            shutil.rmtree(journal.folder / "history")
        earlier = journal.compaction()
        if not deleted:
            earlier.claim()
        reached = []

        def commit(earlier=earlier, reached=reached):
            reached.append(True)
            with contextlib.suppress(Fenced):
                (earlier.run if deleted else earlier._pass)()

        root = _Interrupted(LocalStore(journal.folder), number, commit)
        later = Compaction(JournalReader(root), root.within("history"), Cursors(root))
        with contextlib.suppress(Fenced):
            later.claim()
        journal.compact()
        if not reached:
            break
        claims += 1
    assert claims > 4


def test_a_history_that_begins_anew_is_protected(journal, monkeypatch):
    """The cursor exists at every step, so that no prune in between deletes what is not compacted."""
    t = journal.stream.table("t", KEY)
    journal.stream.transaction(t.insert("1"))
    journal.write()
    journal.compact()
    shutil.rmtree(journal.folder / "history")
    steps = []

    def reached(store, step, name):
        steps.append((step, name))
        assert (journal.folder / "cursors" / f"{CURSOR}.json").exists()

    monkeypatch.setattr(LocalStore, "reached", reached)
    journal.compact()
    assert steps


def test_a_history_that_begins_anew(journal):
    """After the folder was deleted, the cursor is set back, so that nothing is pruned that is not compacted again."""
    t = journal.stream.table("t", KEY)
    for number in range(3):
        journal.stream.transaction(t.insert(str(number)))
        journal.write()
    Cursors(journal.folder).advance("sink", journal.stream.position.at(journal.stream.lsn))
    journal.compact()
    shutil.rmtree(journal.folder / "history")
    compaction = journal.compaction(pace=Pace(pass_bytes=1))
    compaction.claim()
    compaction._pass()
    assert len(prune(journal.folder)) == 1
    journal.compact()
    assert [row["id"] for row in journal.rows()] == [0, 1, 2]


def test_a_compaction_whose_files_vanish(journal):
    """An error that comes of another compaction's taking over says so."""
    t = journal.stream.table("t", KEY)
    journal.stream.transaction(t.insert("1"))
    journal.write()
    other = journal.compaction()

    class Overtaken(LocalStore):
        def reached(self, step, name):
            if step == "rename" and name.startswith("_pending"):
                other.run()
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    with pytest.raises(Fenced, match="another compaction has taken over"):
        journal.compact(store=Overtaken(journal.folder / "history"))
    assert [row["id"] for row in journal.rows()] == [1]


def test_a_history_that_is_deleted_meanwhile(journal):
    """A compaction whose folder is deleted says so, and leaves nothing that would keep a new history from beginning."""
    t = journal.stream.table("t", KEY)
    journal.stream.transaction(t.insert("1"))
    journal.write()
    compaction = journal.compact()
    journal.stream.transaction(t.insert("2"))
    journal.write()
    shutil.rmtree(journal.folder / "history")
    with pytest.raises(Deleted, match="was deleted while it was compacted"):
        compaction._pass()
    journal.compact()
    assert [row["id"] for row in journal.rows()] == [1, 2]


def test_a_clock_that_is_set_back(journal):
    """Rows that were compacted at a time in the future are published, and what they replace is deleted, as after a day."""
    t = journal.stream.table("t", KEY)
    for number, now in enumerate((40 * DAY, DAY, 2 * DAY)):
        journal.stream.transaction(t.insert(str(number)))
        journal.write()
        journal.compact(clock=lambda now=now: now)
        assert sum(file.published for file in journal.files()) == (0, 1, 1)[number]
    assert len(journal.store.names("_pending")) == 1
    assert [row["id"] for row in journal.rows()] == [0, 1, 2]


def test_a_slept_compaction_leaves_no_file(journal):
    """A later owner deletes the files that a compaction writes after another has taken over."""
    t = journal.stream.table("t", KEY)
    journal.stream.transaction(t.insert("1"))
    journal.write()
    journal.compaction().claim()
    journal.store.write("_pending/00000001-00000000.parquet", b"late")
    journal.compact()
    journal.store.write("_pending/00000001-00000005.parquet", b"later still")
    journal.compact()
    assert [f"_pending/{name}" for name in journal.store.names("_pending")] == [journal.files()[0].path]
