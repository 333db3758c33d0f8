"""Batches of a mirror reach every table exactly once, whatever fails between two steps. Without Spark."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog.sql import SqlCatalog

from aiorepl.errors import ConfigurationError, JournalError, SlotError
from aiorepl.history.opening import open_compaction
from aiorepl.journal import Cursors, JournalReader
from aiorepl.journal.retention import prune
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark.lake import merge
from aiorepl.spark.lake.delta import DeltaLake, DeltaTarget
from aiorepl.spark.lake.iceberg import IcebergLake
from aiorepl.spark.lake.table import Layout, TableUnavailable
from aiorepl.spark.mirroring import reducing, staged_store
from aiorepl.spark.mirroring.applying import TableFailed
from aiorepl.spark.mirroring.mirrored import MirroredTables
from aiorepl.spark.mirroring.source import MirrorPlanner, MirrorReader
from aiorepl.spark.mirroring.staging import Head, StagedBatch
from aiorepl.spark.mirroring.state import SavedState, StateFile
from aiorepl.spark.reading.offsets import Offset
from aiorepl.storage.local import LocalStore
from aiorepl.storage.opening import open_store
from aiorepl.testing.messages import column
from aiorepl.values import TypeInfo

from .batches import Killed, Lake

pytestmark = pytest.mark.by_day

INT4 = 23
ID, NOTE = column("id", INT4, key=True), column("note")


@pytest.fixture
def lake(tmp_path, journal) -> Callable[..., Lake]:
    return partial(Lake, tmp_path, journal)


def killed(*_: Any, **__: Any) -> None:
    raise Killed


def fail_at(monkeypatch, count: int, error: BaseException) -> None:
    """Fail in the commit with this number, before it is made."""
    apply, calls = DeltaTarget.apply, []

    def failing(self: Any, *given: Any, **named: Any) -> None:
        calls.append(self)
        if len(calls) == count:
            raise error
        apply(self, *given, **named)

    monkeypatch.setattr(DeltaTarget, "apply", failing)


def test_many_tables(lake, journal) -> None:
    """Every table that a pattern matches follows, also one that appears later; the staged files are gone."""
    mirror = lake(tables=["public.*", "!public.secret"])
    t, secret = journal.stream.table("t", ID, NOTE), journal.stream.table("secret", ID, NOTE)
    journal.stream.transaction(t.insert("1", "one"), secret.insert("1", "hidden"), t.insert("2", "two"))
    mirror.step()
    later = journal.stream.table("later", ID, NOTE)
    journal.stream.transaction(later.insert("7", "seven"), t.update("1", UNCHANGED), t.delete("2", None))
    mirror.step()
    assert (mirror.rows("t"), mirror.rows("later")) == ({1: "one"}, {7: "seven"})
    assert MirroredTables(mirror.target).tables == ["public.later", "public.t"]
    assert mirror.store.names() == []


def test_as_of(lake, journal) -> None:
    """All tables can be read at the end of one batch."""
    mirror = lake()
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    ends = []
    for note in ("a", "b"):
        ends.append(
            journal.stream.transaction(t.insert(str(len(ends)), note), u.insert(str(len(ends)), note))
        )
        mirror.step()
    ends.append(journal.stream.transaction(u.delete("0", None)))
    mirror.step()
    found = MirroredTables(mirror.target)
    assert (found.lsn, found.batches()) == (ends[2], ends)

    def at(lsn: LSN) -> dict[str, set[int]]:
        return {
            name: set(DeltaTable(each.path, version=each.version).to_pyarrow_table()["id"].to_pylist())
            for name, each in found.as_of(lsn).items()
        }

    assert at(ends[0]) == {"public.t": {0}, "public.u": {0}}
    assert at(LSN(ends[2] - 1)) == {"public.t": {0, 1}, "public.u": {0, 1}}
    assert at(ends[2]) == {"public.t": {0, 1}, "public.u": {1}}
    with pytest.raises(ConfigurationError, match="not yet at"):
        found.as_of(LSN(ends[2] + 1))


@pytest.mark.parametrize("commit", [1, 2], ids=["first", "second"])
def test_killed_between_commits(lake, journal, monkeypatch, commit) -> None:
    """A batch that was interrupted between the commits of its tables is completed by a restart."""
    mirror = lake(mode="changelog")
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"), u.insert("1", "a"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        fail_at(patch, commit, Killed())
        mirror.step()
    mirror.restart()
    mirror.again()
    mirror.again()
    assert [DeltaTable(f"{mirror.target}/public/{name}").to_pyarrow_table().num_rows for name in "tu"] == [
        1,
        1,
    ]


@pytest.mark.parametrize("complete", [False, True], ids=["interrupted", "complete"])
@pytest.mark.parametrize("most", [1, 2**62], ids=["less", "more"])
def test_planned_again(lake, journal, monkeypatch, complete, most) -> None:
    """If the checkpoint has lost the plan of a batch, the batch has the same end again, and all tables can be read at that end."""
    mirror = lake(mode="changelog")
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)

    def write(number: int) -> LSN:
        end = journal.stream.transaction(*(each.insert(str(number), "a") for each in (t, u)))
        journal.write()
        return end

    ends = [write(0)]
    mirror.stage()
    mirror.again()
    write(1)
    ends.append(write(2))
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        fail_at(patch, 9 if complete else 2, Killed())
        mirror.stage()
        mirror.again()
    ends.append(write(3))
    mirror.lose_plan()
    assert mirror.stage(most).head.lsn == ends[1]
    mirror.again()
    mirror.stage()
    mirror.again()
    found = MirroredTables(mirror.target)
    assert found.batches() == ends
    for count, end in zip((1, 3, 4), ends, strict=True):
        for each in found.as_of(end).values():
            rows = DeltaTable(each.path, version=each.version).to_pyarrow_table()
            assert sorted(rows["id"].to_pylist()) == list(range(count))


def test_planned_again_with_moved_rows(lake, journal, monkeypatch) -> None:
    """If a batch is planned again, a row that it moved keeps the value that was not sent."""
    mirror = lake()
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    journal.stream.transaction(t.insert("1", "kept"), u.insert("1", "kept"))
    mirror.step()
    journal.stream.transaction(*[each.update("2", UNCHANGED, key=["1", None]) for each in (t, u)])
    with monkeypatch.context() as patch, pytest.raises(Killed):
        fail_at(patch, 2, Killed())
        mirror.step()
    mirror.lose_plan()
    mirror.stage()
    mirror.again()
    journal.stream.transaction(*[each.update("2", UNCHANGED) for each in (t, u)])
    mirror.step()
    assert (mirror.rows("t"), mirror.rows("u")) == ({2: "kept"}, {2: "kept"})


def test_truncates_in_a_log(lake, journal) -> None:
    """A log has every truncate, also one that is alone in its batch."""
    mirror = lake(mode="changelog")
    t = journal.stream.table("t", ID, NOTE)
    for message in (t.insert("1", "a"), t.truncate(), t.insert("2", "b")):
        journal.stream.transaction(message)
        mirror.step()
    rows = DeltaTable(f"{mirror.target}/public/t").to_pyarrow_table().sort_by("_commit_lsn").to_pylist()
    assert [(row["_op"], row["id"]) for row in rows] == [("insert", 1), ("truncate", None), ("insert", 2)]


@pytest.mark.parametrize("partition", [(), ("id",)], ids=["plain", "partitioned"])
def test_a_log_begins_with_truncates(tmp_path, make_journal, partition) -> None:
    """A log has the truncates before the first row, too; columns whose types come with a row are added then."""
    pair = TypeInfo(90001, "public", "pair", "c", fields=(("a", 23), ("b", 25)))
    journal = make_journal(types=[pair])
    mirror = Lake(tmp_path, journal, mode="changelog", layout=Layout(partition))
    t = journal.stream.table("t", ID, NOTE, column("pair", 90001))
    for messages in ([t.truncate()], [t.truncate()], [t.insert("1", "a", "(7,x)")]):
        journal.stream.transaction(*messages)
        mirror.step()
    rows = DeltaTable(f"{mirror.target}/public/t").to_pyarrow_table().sort_by("_commit_lsn").to_pylist()
    found = [(row["_op"], row["id"], row["note"], row["pair"]) for row in rows]
    nothing = ("truncate", None, None, None)
    assert found == [nothing, nothing, ("insert", 1, "a", {"a": 7, "b": "x"})]


@pytest.mark.parametrize("keys", [{}, {"public.t": ["id"]}], ids=["without keys", "keys"])
def test_a_changed_key_in_a_log(lake, journal, keys) -> None:
    """Under REPLICA IDENTITY FULL, a log has a changed key as a delete and an insert, if the key is named: it can be replayed."""
    mirror = lake(mode="changelog", keys=keys)
    t = journal.stream.table("t", column("id", 23), NOTE, replica_identity="f")
    journal.stream.transaction(t.insert("1", "a"))
    journal.stream.transaction(t.update("1", "b", old=["1", "a"]))
    journal.stream.transaction(t.update("2", "c", old=["1", "b"]))
    mirror.step()
    rows = DeltaTable(f"{mirror.target}/public/t").to_pyarrow_table()
    rows = rows.sort_by([("_commit_lsn", "ascending"), ("_op", "ascending")]).to_pylist()
    moved = [("delete", 1, "b"), ("insert", 2, "c")] if keys else [("update", 2, "c")]
    found = [(row["_op"], row["id"], row["note"]) for row in rows]
    assert found == [("insert", 1, "a"), ("update", 1, "b"), *moved]


def test_killed_before_the_state(lake, journal, monkeypatch) -> None:
    """A batch whose tables were written, and nothing else, changes nothing when it comes again."""
    mirror = lake(mode="changelog")
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"))
    mirror.step()
    journal.stream.transaction(t.insert("2", "b"))
    save = StateFile.save

    def killed(self: StateFile, state: SavedState) -> SavedState:
        if state.batch == 1:
            raise Killed
        return save(self, state)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(StateFile, "save", killed)
        mirror.step()
    version = DeltaTable(f"{mirror.target}/public/t").version()
    mirror.restart()
    mirror.again()
    assert DeltaTable(f"{mirror.target}/public/t").version() == version
    assert MirroredTables(mirror.target).lsn == mirror.offset.position.lsn


def test_a_failed_table_halts(lake, journal) -> None:
    """By default the query ends with the name of the table, after the others; the restart goes on once it is repaired."""
    mirror = lake(keys={"public.log": ["missing"]})
    t, keyless = (
        journal.stream.table("t", ID, NOTE),
        journal.stream.table("log", column("id", INT4), NOTE, replica_identity="f"),
    )
    journal.stream.transaction(t.insert("1", "a"), keyless.insert("5", "x"))
    with pytest.raises(TableFailed, match=r"public\.log: .*has no column 'missing'"):
        mirror.step()
    assert mirror.rows("t") == {1: "a"}
    mirror.settings = lake(keys={"public.log": ["id"]}).settings
    mirror.restart()
    mirror.again()
    assert mirror.rows("log") == {5: "x"}


def test_a_failed_table_is_set_aside(lake, journal) -> None:
    """The others go on, its segments are kept, and a restart after the repair has all of its changes."""
    mirror = lake(on_error="set_aside", keys={"public.log": ["missing"]})
    t = journal.stream.table("t", ID, NOTE)
    keyless = journal.stream.table("log", column("id", INT4), NOTE, replica_identity="f")
    journal.stream.transaction(t.insert("1", "a"))
    mirror.step()
    held = mirror.offset.position.lsn
    for number, note in enumerate("bcd", 2):
        journal.stream.transaction(
            t.insert(str(number), note),
            keyless.insert(str(number), note),
            keyless.update("2", note, old=["2", "b"]),
        )
        mirror.step()
        if number == 3:
            mirror.restart()
    found = MirroredTables(mirror.target)
    assert "has no column 'missing'" in found.set_aside["public.log"]
    assert found.tables == ["public.t"]
    (name,) = Cursors(journal.folder).names()
    assert Cursors(journal.folder).get(name).lsn == held
    assert mirror.rows("t") == {1: "a", 2: "b", 3: "c", 4: "d"}

    mirror.settings = lake(on_error="set_aside", keys={"public.log": ["id"]}).settings
    mirror.restart()
    journal.stream.transaction(t.insert("9", "z"))
    mirror.step()
    assert mirror.rows("log") == {2: "d", 3: "c", 4: "d"}
    assert (found.set_aside, Cursors(journal.folder).names()) == ({}, [])


def test_set_aside_after_its_commit(lake, journal, monkeypatch) -> None:
    """A table that failed after its commit gets only the changes that it lacks, so a moved row keeps its value."""
    mirror = lake(on_error="set_aside")
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "toast"))
    mirror.step()
    journal.stream.transaction(t.update("2", UNCHANGED, key=["1", None]))
    apply = DeltaTarget.apply

    def failing(self: Any, *given: Any, **named: Any) -> None:
        apply(self, *given, **named)
        raise ValueError("no checkpoint")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTarget, "apply", failing)
        mirror.step()
    assert MirroredTables(mirror.target).set_aside
    mirror.restart()
    journal.stream.transaction(t.update("2", UNCHANGED))
    mirror.step()
    assert mirror.rows("t") == {2: "toast"}


def test_set_aside_and_dropped(lake, journal) -> None:
    """A table that is set aside, and is not to be mirrored any more, keeps no segments."""
    mirror = lake(on_error="set_aside", keys={"public.log": ["missing"]})
    keyless = journal.stream.table("log", column("id", INT4), NOTE, replica_identity="f")
    journal.stream.transaction(keyless.insert("1", "a"))
    mirror.step()
    assert len(Cursors(journal.folder).names()) == 1
    mirror.settings = lake(on_error="set_aside", tables=["public.*", "!public.log"]).settings
    mirror.staging = replace(mirror.staging, settings=mirror.settings)
    mirror.restart()
    journal.stream.transaction(keyless.insert("2", "b"))
    mirror.step()
    assert (MirroredTables(mirror.target).set_aside, Cursors(journal.folder).names()) == ({}, [])


@pytest.mark.parametrize("pruned", [False, True], ids=["kept", "pruned"])
def test_an_added_pattern(lake, journal, caplog, pruned) -> None:
    """A table that a new pattern adds has its earlier changes as well, or a warning asks for a snapshot."""
    mirror = lake(tables=["public.t"])
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    for key in "12":
        journal.stream.transaction(t.insert(key, "a"), u.insert(key, "a"))
        mirror.step()
    if pruned:
        Cursors(journal.folder).advance("other", mirror.offset.position)
        assert prune(journal.folder)
    mirror.settings = lake(tables=["public.*"]).settings
    mirror.staging = replace(mirror.staging, settings=mirror.settings)
    mirror.restart()
    journal.stream.transaction(u.insert("3", "a"))
    mirror.step()
    assert sorted(mirror.rows("u")) == ([3] if pruned else [1, 2, 3])
    assert ("request a snapshot" in caplog.text) == pruned


@pytest.mark.parametrize("pruned", [False, True], ids=["kept", "pruned"])
def test_a_table_that_comes_back(lake, journal, pruned) -> None:
    """What a table missed while no pattern matched it is caught up with; if it was pruned, the table fails."""
    mirror = lake()
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    for key, tables in enumerate((["public.*"], ["public.t"], ["public.*"])):
        mirror.settings = lake(tables=tables).settings
        mirror.staging = replace(mirror.staging, settings=mirror.settings)
        mirror.restart()
        if pruned and key == 2:
            Cursors(journal.folder).advance("other", mirror.offset.position)
            assert prune(journal.folder)
            journal.stream.transaction(u.insert("2", "a"))
            with pytest.raises(TableFailed, match=r"public\.u was mirrored before"):
                mirror.step()
            return
        journal.stream.transaction(t.insert(str(key), "a"), u.insert(str(key), "a"))
        mirror.step()
    assert sorted(mirror.rows("u")) == [0, 1, 2]


def test_snapshot_in_parts(lake, journal) -> None:
    """The chunks of a snapshot come in several batches, with changes between them."""
    mirror = lake()
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.snapshot(t, t.insert("1", "read"), t.insert("2", "read"), last_of_table=False, last=False)
    mirror.step()
    journal.stream.transaction(t.update("1", "changed"), t.delete("2", None))
    mirror.step()
    journal.stream.snapshot(t, t.insert("3", "read"), number=2)
    mirror.step()
    assert mirror.rows("t") == {1: "changed", 3: "read"}


@pytest.mark.parametrize(
    "error",
    [OSError("no answer"), CommitFailedError("a conflict"), TableUnavailable("busy")],
    ids=["network", "conflict", "catalog"],
)
def test_what_may_pass(lake, journal, monkeypatch, error) -> None:
    """An error of the network, or a conflict with somebody's upkeep, is no table's: the query ends, and is tried again."""
    mirror = lake(on_error="set_aside")
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"))
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        fail_at(patch, 1, error)
        mirror.step()
    mirror.restart()
    mirror.again()
    assert mirror.rows("t") == {1: "a"}


def test_failed_upkeep(lake, journal, monkeypatch, caplog) -> None:
    """Upkeep that fails is no reason to stop."""
    mirror = lake()
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"))
    monkeypatch.setattr(DeltaTarget, "maintain", lambda self: 1 / 0)
    mirror.step()
    assert mirror.rows("t") == {1: "a"}
    assert "upkeep of public.t failed: ZeroDivisionError" in caplog.text


def test_whole_transactions(lake, journal, monkeypatch) -> None:
    """With ``whole_transactions``, no version of a table has a part of a transaction, even of one that spans segments."""
    monkeypatch.setattr(reducing, "PART_BYTES", 400)
    monkeypatch.setattr(merge, "bounded", lambda parts, size: [[each] for each in parts])
    t = journal.stream.table("t", ID, NOTE)
    for note in "ab":
        journal.stream.transaction(*[t.insert(str(key), note * 100) for key in range(30)])
        journal.write(at_once=5, block_bytes=64, segment_bytes=200)
    chain = JournalReader(journal.folder).chain()
    assert min(segment.parts for segment in chain.walk(LSN(0))) > 1
    mirror = lake()
    mirror.staging = replace(mirror.staging, whole_transactions=True)
    mirror.restart()
    while mirror.stage(100) is not None:
        mirror.again()
    target = f"{mirror.target}/public/t"
    versions = [DeltaTable(target, version=each) for each in range(DeltaTable(target).version() + 1)]
    found = [sorted(each.to_pyarrow_table()["note"].to_pylist()) for each in versions]
    complete = [[note * 100] * 30 for note in "ab"]
    assert found[-1] == complete[-1]
    assert all(each in ([], *complete) for each in found)
    assert mirror.number == 2


def test_lost_staging(lake, journal) -> None:
    """Files of failed attempts are not applied and are deleted; lost ones end the query, and no table is blamed."""
    mirror = lake(on_error="set_aside")
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("0", "a"))
    mirror.step()
    journal.stream.transaction(t.insert("1", "a"))
    journal.write()
    mirror.stage()
    staged_store.clean(mirror.store)
    with pytest.raises(JournalError, match=r"a staged file of public\.t was lost"):
        mirror.again()
    for _ in range(2):  # the first of these attempts is lost by its executor
        mirror.lose_plan()
        mirror.stage()
    assert len(mirror.store.names()) == 2
    mirror.restart()
    mirror.again()
    assert (mirror.rows("t"), mirror.store.names()) == ({0: "a", 1: "a"}, [])


def test_from_history(lake, journal) -> None:
    """What retention deleted comes from the history's files, as they are; the rest is staged. Nothing comes twice."""
    t = journal.stream.table("t", ID, NOTE)
    expected = []
    for number in range(4):
        journal.stream.transaction(t.insert(str(number), "a"), t.update("0", str(number)))
        journal.write()
        expected += [("insert", "a"), ("update", str(number))]
        if number == 2:
            open_compaction(str(journal.folder)).run()
            assert prune(journal.folder)
    mirror = lake(mode="changelog")
    chain = mirror.reader.chain()
    planner = MirrorPlanner(mirror.staging)
    first = Offset.initial(chain.end.at(LSN(0)), None)
    place, number = BlockPosition(LSN(0)), 0
    compacted = set()
    while place.lsn < chain.last_segment_end:
        # One byte: the end of each transaction that ends a file.
        end = planner.latest(mirror.reader, chain, place, 1, chain.last_segment_end)
        head = Head(first.at(chain.end.at(place.lsn), None), first.at(chain.end.at(end.lsn), None), end.lsn)
        assert MirrorReader(mirror.staging).partitions(head.start.to_json(), head.end.to_json())
        batch = mirror._staged(planner, place, end, head)
        compacted |= {file.compacted for file in batch.files}
        mirror.applying.apply(batch, number)
        place, number = end, number + 1
    assert compacted == {True, False}
    rows = (
        DeltaTable(f"{mirror.target}/public/t")
        .to_pyarrow_table()
        .sort_by([("_commit_lsn", "ascending"), ("_ordinal", "ascending")])
    )
    assert [(row["_op"], row["note"]) for row in rows.to_pylist()] == expected


def test_planned_within_a_deleted_segment(lake, journal) -> None:
    """A batch that was planned to end within a segment that was deleted is refused; planned again, it is read from the history."""
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(*[t.insert(str(key), "x" * 50) for key in range(9)])
    journal.write(block_bytes=100)
    journal.stream.transaction(t.insert("9", "last"))
    journal.write()
    mirror = lake()
    planner, chain = MirrorPlanner(mirror.staging), mirror.reader.chain()
    start = BlockPosition(LSN(0))
    end = planner.latest(mirror.reader, chain, start, 1, chain.last_segment_end)
    assert end.block
    open_compaction(str(journal.folder)).run()
    Cursors(journal.folder).advance("other", mirror.reader.end().at(journal.stream.ends[0]))
    assert len(prune(journal.folder)) == 1
    with pytest.raises(JournalError, match="Delete the newest file in the folder offsets"):
        planner.partitions(mirror.reader, mirror.reader.chain(), start, end)
    mirror.stage()
    mirror.again()
    assert sorted(mirror.rows("t")) == list(range(10))


def test_refused_targets(lake, journal, make_journal, tmp_path) -> None:
    """A target takes no second mirror, no other source and no batch out of turn."""
    mirror = lake()
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"))
    mirror.step()
    second = Lake(tmp_path, journal)
    second.journal.write()
    second.stage()
    with pytest.raises(ConfigurationError, match="belongs to the mirror with the checkpoint"):
        second.again()
    batch, _ = mirror.last
    mirror.restart()
    with pytest.raises(JournalError, match="put back from an older copy"):
        mirror.applying.apply(batch, 7)
    state = StateFile(LocalStore(mirror.target))
    other = state.load().source.__class__(
        "7000000000000000009", 1, "test", LSN(0), state.load().source.timelines
    )
    with pytest.raises(SlotError):
        state.claim(other, mirror.offset.query, "checkpoint")


def test_two_processes(lake, journal) -> None:
    """Of two processes that run one mirror, one is refused."""
    mirror = lake()
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"))
    mirror.step()
    journal.stream.transaction(t.insert("2", "b"))
    first = mirror.applying
    mirror.step()
    mirror.restart()
    mirror.again()
    journal.stream.transaction(t.insert("3", "c"))
    mirror.step()
    batch, number = mirror.last
    journal.stream.transaction(t.insert("4", "d"))
    mirror.step()
    with pytest.raises(JournalError, match="only one process"):
        first.apply(StagedBatch(batch.head, ()), number)


def test_a_damaged_target_at_the_start(lake, journal) -> None:
    """A table whose log cannot be read stops no other table, neither at the start of the mirror nor in its batches."""
    mirror = lake(on_error="set_aside")
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"), u.insert("1", "a"))
    mirror.step()
    for each in (mirror.target / "public" / "u" / "_delta_log").iterdir():
        each.write_text('{"commitInfo"')
    mirror.restart()
    journal.stream.transaction(t.insert("2", "b"), u.insert("2", "b"))
    mirror.step()
    assert mirror.rows("t") == {1: "a", 2: "b"}
    assert list(MirroredTables(mirror.target).set_aside) == ["public.u"]


def test_a_lost_target(lake, journal) -> None:
    """A target that was deleted is not silently begun again."""
    mirror = lake()
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"))
    mirror.step()
    (mirror.target / "public" / "t").rename(mirror.target / "away")
    journal.stream.transaction(t.insert("2", "b"))
    with pytest.raises(TableFailed, match=r"target of public\.t is gone"):
        mirror.step()
    MirroredTables(mirror.target).restart("public.t")
    mirror.restart()
    mirror.again()
    assert mirror.rows("t") == {2: "b"}


@pytest.mark.parametrize("at_once", [False, True], ids=["batches", "batch"])
def test_recreated_table(lake, journal, at_once) -> None:
    """Rows of another table with the same name are refused, in one batch and in two; then the table begins again."""
    mirror = lake()
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"))
    if not at_once:
        mirror.step()
    other = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(other.insert("2", "b"))
    with pytest.raises(TableFailed, match="dropped and created again"):
        mirror.step()
    if not at_once:
        (mirror.target / "public" / "t").rename(mirror.target / "away")
    MirroredTables(mirror.target).restart("public.t")
    mirror.restart()
    mirror.again()
    assert mirror.rows("t") == {2: "b"}


def test_incompatible_types(lake, journal) -> None:
    """A table whose type has changed begins again with what comes after the change, and a snapshot brings the rest."""
    mirror = lake()
    before = journal.stream.table("t", ID, column("note", 16))
    journal.stream.transaction(before.insert("1", "t"))
    journal.write()
    after = journal.stream.table("t", ID, column("note", INT4), replaces=before)
    journal.stream.transaction(after.insert("2", "7"))
    with pytest.raises(TableFailed, match=r"public\.t\.note was altered"):
        mirror.step()
    MirroredTables(mirror.target).restart("public.t")
    mirror.restart()
    mirror.again()
    assert mirror.rows("t") == {2: 7}


def test_a_number_becomes_text(lake, journal) -> None:
    """Numbers of a column that was altered to text within a batch have PostgreSQL's text."""
    mirror = lake()
    before = journal.stream.table("t", ID, column("note", 1700, type_modifier=(12 << 16) + 8 + 4))
    journal.stream.transaction(before.insert("1", "0.00000001"))
    journal.write()
    after = journal.stream.table("t", ID, NOTE, replaces=before)
    journal.stream.transaction(after.insert("2", "x"))
    mirror.step()
    assert mirror.rows("t") == {1: "0.00000001", 2: "x"}


def test_a_key_that_changes(lake, journal) -> None:
    """Changes from before and after another primary key may be in one batch."""
    mirror = lake()
    before = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(before.insert("1", "a"), before.insert("2", "b"), before.delete("1", None))
    journal.write()
    after = journal.stream.table("t", column("id", INT4), column("note", key=True), replaces=before)
    journal.stream.transaction(after.update("20", "b"), after.insert("3", "c"))
    mirror.step()
    assert mirror.rows("t") == {20: "b", 3: "c"}
    mirror.restart()
    mirror.again()
    assert mirror.rows("t") == {20: "b", 3: "c"}


@pytest.mark.parametrize("at_once", [False, True], ids=["batches", "batch"])
def test_dropped_column(lake, journal, at_once) -> None:
    """A dropped column keeps its values, whatever the batches are."""
    mirror = lake()
    numbers = {"id": Attribute(1), "note": Attribute(2, "def", True)}
    before = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(before.insert("1", "keep"))
    journal.write(numbers)
    if not at_once:
        mirror.stage()
        mirror.again()
    after = journal.stream.table("t", ID, column("other"), replaces=before)
    journal.stream.transaction(after.insert("2", "x"), after.update("1", "y"))
    journal.write({"id": Attribute(1), "other": Attribute(3)})
    mirror.stage()
    mirror.again()
    rows = DeltaTable(f"{mirror.target}/public/t").to_pyarrow_table().to_pylist()
    assert {row["id"]: (row["note"], row["other"]) for row in rows} == {1: ("keep", "y"), 2: (None, "x")}


def test_a_table_put_back(lake, journal, tmp_path) -> None:
    """A table's target that is older than the mirror is refused."""
    mirror = lake()
    t = journal.stream.table("t", ID, NOTE)
    for key in "123":
        if key == "2":
            shutil.copytree(mirror.target / "public" / "t", tmp_path / "copy")
        if key == "3":
            shutil.rmtree(mirror.target / "public" / "t")
            shutil.copytree(tmp_path / "copy", mirror.target / "public" / "t")
        mirror.restart()
        journal.stream.transaction(t.insert(key, "a"))
        with (
            pytest.raises(TableFailed, match="put back from an older copy")
            if key == "3"
            else contextlib.nullcontext()
        ):
            mirror.step()


@pytest.mark.parametrize("mode", ["current", "history", "soft_delete", "changelog"])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("most", [2**62, 1], ids=["longer", "shorter"])
def test_state_and_checkpoint_put_back(journal, tmp_path, caplog, kind, mode, most) -> None:
    """If both are older than the tables, batches with numbers that the tables have are applied by position, and nothing is lost."""

    def opened(name: str) -> Any:
        folder = tmp_path / name
        if kind == "delta":
            return DeltaLake(str(folder / "tables"))
        folder.mkdir(exist_ok=True)
        return IcebergLake(
            SqlCatalog("test", uri=f"sqlite:///{folder}/catalog", warehouse=f"file://{folder}")
        )

    mirror, other = (Lake(tmp_path / name, journal, lake=partial(opened, name), mode=mode) for name in "mo")
    state, copy = mirror.target / "_aiorepl", tmp_path / "copy"
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    journal.stream.transaction(t.insert("1", "kept"), t.insert("9", "gone"), u.insert("1", "a"))
    mirror.step()
    shutil.copytree(state, copy)
    number, offset = mirror.number, mirror.offset
    journal.stream.transaction(t.update("2", UNCHANGED, key=["1", None]), t.delete("9", None))
    mirror.step()
    for key in ("3", "4"):
        journal.stream.transaction(t.insert(key, "a"), u.insert(key, "a"))
        mirror.step()

    shutil.rmtree(state)
    shutil.copytree(copy, state)
    mirror.number, mirror.offset = number, offset
    mirror.restart()
    journal.stream.transaction(t.insert("5", "a"), t.update("2", UNCHANGED), u.delete("3", None))
    journal.write()
    while mirror.stage(most) is not None:
        mirror.again()
    journal.stream.transaction(t.insert("6", "a"), u.insert("6", "a"))
    mirror.step()

    assert "put back from an older copy" in caplog.text
    while other.stage() is not None:
        other.again()
    assert contents(other.lake, mode) == contents(mirror.lake, mode)


def contents(lake: Any, mode: Any) -> dict[str, list[str]]:
    """The rows of two tables."""
    found = {}
    for name in "tu":
        rows = lake.table(("public", name), mode).newest()
        batches = rows.batches(rows.schema().names)
        found[name] = sorted(str(row) for batch in batches for row in batch.to_pylist())
    return found


def test_restored_table(lake, journal) -> None:
    """A table that somebody restored to an earlier version is refused, until it is put right again."""
    mirror = lake()
    t = journal.stream.table("t", ID, NOTE)
    for key in "12":
        journal.stream.transaction(t.insert(key, "a"))
        mirror.step()
    table = DeltaTable(f"{mirror.target}/public/t")
    last = table.version()
    table.restore(last - 1)
    mirror.restart()
    journal.stream.transaction(t.insert("3", "a"))
    with pytest.raises(TableFailed, match="restored to an earlier version"):
        mirror.step()
    DeltaTable(f"{mirror.target}/public/t").restore(last)
    mirror.restart()
    mirror.again()
    assert sorted(mirror.rows("t")) == [1, 2, 3]


def recreated_delta(lake: Any) -> None:
    target = lake.table(("public", "t")).target
    DeltaTable.create(target, DeltaTable(target).schema(), mode="overwrite")


def deleted_delta(lake: Any) -> None:
    target = lake.table(("public", "t")).target
    columns = DeltaTable(target).schema()
    shutil.rmtree(target)
    DeltaTable.create(target, columns)


def recreated_iceberg(lake: Any) -> None:
    table = lake.table(("public", "t"))
    columns, properties = table._open().schema(), table._open().properties
    table._catalog.drop_table(table.identifier)
    table._catalog.create_table(table.identifier, columns, properties=properties)


def deleted_iceberg(lake: Any) -> None:
    table = lake.table(("public", "t"))
    columns = table._open().schema()
    table._catalog.drop_table(table.identifier)
    table._catalog.create_table(table.identifier, columns)


@pytest.mark.parametrize("replace_", [recreated_delta, deleted_delta, recreated_iceberg, deleted_iceberg])
@pytest.mark.parametrize("restarted", [False, True])
def test_replaced_table(lake, journal, tmp_path, replace_, restarted) -> None:
    """A target that was dropped and created again, with or without its properties and identifiers, is refused by name and not written."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}/warehouse")
    (tmp_path / "warehouse").mkdir()
    mirror = lake(lake=(lambda: IcebergLake(catalog)) if "iceberg" in replace_.__name__ else None)
    t, u = journal.stream.table("t", ID, NOTE), journal.stream.table("u", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"), u.insert("1", "a"))
    mirror.step()
    replace_(mirror.lake)
    if restarted:
        mirror.restart()
    journal.stream.transaction(t.insert("2", "b"), u.insert("2", "b"))
    with pytest.raises(TableFailed, match=r"public\.t: .*(replaced the \w+ table|does not have batch 0)"):
        mirror.step()
    assert not [*mirror.lake.table(("public", "t")).newest().batches(["id"])]
    assert 2 == sum(len(each) for each in mirror.lake.table(("public", "u")).newest().batches(["id"]))


def test_renamed_table(lake, journal, caplog) -> None:
    """A table that was renamed has a target under its new name, and a warning asks for its snapshot."""
    mirror = lake()
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"))
    mirror.step()
    renamed = journal.stream.table("t2", ID, NOTE, replaces=t)
    journal.stream.transaction(renamed.insert("2", "b"))
    mirror.step()
    assert (mirror.rows("t"), mirror.rows("t2")) == ({1: "a"}, {2: "b"})
    assert "public.t2 was mirrored as public.t before it was renamed" in caplog.text


def test_object_store(journal, bucket, tmp_path) -> None:
    """The target, its state and the staged files may be in an object store."""

    class Remote(Lake):
        def restart(self) -> None:
            self.target = replace(bucket.location(), url=f"{bucket.url}/lake")
            place = replace(bucket.location(), url=f"{bucket.url}/staging")
            self.staging, self.store = replace(self.staging, staging=place), open_store(place)
            super().restart()

    mirror = Remote(tmp_path, journal)
    t = journal.stream.table("t", ID, NOTE)
    for key in "12":
        journal.stream.transaction(t.insert(key, "a"))
        mirror.step()
        mirror.restart()
        mirror.again()
    found = MirroredTables(mirror.target)
    assert (found.lsn, found.batches()) == (journal.stream.ends[-1], journal.stream.ends)
    assert found.as_of()["public.t"].path == f"{bucket.url}/lake/public/t"
    assert not [name for name in bucket.names() if name.startswith("staging/")]


def test_clean(tmp_path) -> None:
    """Only staged files are deleted."""
    store = LocalStore(tmp_path)
    store.write("a.parquet", b"")
    store.write("notes.txt", b"")
    staged_store.clean(store)
    assert store.names() == ["notes.txt"]


def test_names_that_were_swapped_and_swapped_back(lake, journal) -> None:
    """If a table returns to an earlier description within a batch, its target has the names of that description."""
    mirror = lake()
    table = journal.stream.table("t", ID, NOTE, column("other"))
    for key, names in enumerate((("note", "other"), ("other", "note"), ("note", "other"))):
        if key:
            table = journal.stream.table("t", ID, *map(column, names), replaces=table)
        journal.stream.transaction(table.insert(str(key), "a", "b"))
        journal.write({"id": Attribute(1), names[0]: Attribute(2), names[1]: Attribute(3)})
    mirror.stage()
    mirror.again()
    rows = DeltaTable(f"{mirror.target}/public/t").to_pyarrow_table().to_pylist()
    assert [(row["note"], row["other"]) for row in rows] == [("a", "b")] * 3
