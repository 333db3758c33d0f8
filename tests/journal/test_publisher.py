"""The publisher's commits, one by one: the state that each makes, the files that it writes and deletes, and who may commit."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from aiorepl.errors import JournalError, SlotError
from aiorepl.journal.completeness import Completeness, Gap, PublishedChunk
from aiorepl.journal.metadata import PreparedTransaction, Start, dump_start
from aiorepl.journal.metadata_files import MetadataFiles
from aiorepl.journal.publisher import Publisher
from aiorepl.journal.segments import Entry, Segment
from aiorepl.journal.times import Times
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.storage.local import LocalStore
from aiorepl.table_name import TableName
from aiorepl.transactions.transaction import SnapshotChunk

SOURCE = Position("7", 1, "slot", LSN(5))
TABLE = TableName("public", "t")


class Store(LocalStore):
    """A folder in which the steps of chosen files fail with a full disk."""

    full: str = ""

    def reached(self, step: str, name: str) -> None:
        if self.full and self.full in name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def delete(self, name: str) -> None:
        if self.full and self.full in name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().delete(name)


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    """An empty folder. Nothing loses power, so fsync is skipped."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return Store(tmp_path)


def opened(store: Store, *, claim: bool = True) -> Publisher:
    """A writer of the journal, by default with the epoch."""
    publisher = Publisher(store)
    publisher.open(SOURCE, "the journal")
    if claim:
        publisher.claim()
    return publisher


def entry(after: int, end: int, *tables: TableName) -> Entry:
    """A segment, and its tables: one unless they are given."""
    return Entry(Segment(LSN(after), LSN(end), 1, 0, 1, 100, 90, 1, 0), tables or (TABLE,))


def commit(publisher: Publisher, end: int, *entries: Entry, **changes) -> None:
    """Commit up to ``end``."""
    publisher.commit(position=at(end), entries=entries, end=at(end) if entries else None, **changes)
    assert publisher.finish() is True


def at(lsn: int) -> Position:
    """A position of the source."""
    return replace(SOURCE, lsn=LSN(lsn))


def append(publisher: Publisher, count: int, *tables: TableName) -> None:
    """Commit segments one by one, each of ten bytes of WAL."""
    for _ in range(count):
        after = publisher.state.end.lsn
        commit(publisher, after + 10, entry(after, after + 10, *tables))


def chunk(number: int, *, oid: int = 1, **flags) -> PublishedChunk:
    """A chunk of the table ``t<oid>``."""
    return PublishedChunk(
        SnapshotChunk(LSN(1), oid, "public", f"t{oid}", number, **flags), LSN(number), LSN(number + 1)
    )


def files(store: Store, folder: str) -> set[str]:
    """The files of a folder of the journal, with the folder."""
    return {f"{folder}/{name}" for name in store.names(folder)}


def test_opening_writes_who_the_source_is_and_nothing_else(store):
    """The state of an empty journal is not written before the epoch is taken."""
    publisher = Publisher(store)
    assert not publisher.claimed
    assert publisher.completeness == Completeness()
    identity = publisher.open(SOURCE, "the journal")
    assert (at(0), LSN(5), 16) == (identity.source, identity.start_lsn, len(identity.journal))
    assert ["journal.json", "replace.lock"] == sorted(store.names())
    assert (0, 0, None, None) == (
        publisher.state.epoch,
        publisher.state.sequence,
        publisher.state.begins,
        publisher.state.writer,
    )
    assert not publisher.claimed


def test_an_empty_journal_gets_another_start(store):
    """While there is no segment, the journal starts where the slot is now; then its identity stays."""
    first = opened(store, claim=False).open(SOURCE, "the journal")
    moved = Publisher(store).open(at(50), "the journal")
    assert (LSN(50), first.journal) == (moved.start_lsn, moved.journal)
    publisher = opened(store)
    commit(publisher, 60, entry(0, 60))
    stays = Publisher(store).open(at(70), "the journal")
    assert (LSN(5), first.journal) == (stays.start_lsn, stays.journal)


def test_the_journal_of_another_source(store):
    """It is refused, whether its state exists or only its identity."""
    other = replace(SOURCE, system_identifier="8")
    opened(store, claim=False)
    with pytest.raises(SlotError, match="the journal"):
        Publisher(store).open(other, "the journal")
    append(opened(store), 1)
    with pytest.raises(SlotError, match="the journal"):
        Publisher(store).open(other, "the journal")


class Raced(Store):
    """A store in which another process opens the journal between the look for journal.json and its replacement."""

    def __init__(self, path, source: Position) -> None:
        super().__init__(path)
        self.source = source

    def load(self, name: str) -> tuple[bytes, str]:
        if name == "journal.json":
            Publisher(LocalStore(self.path)).open(self.source, "the journal")
            raise FileNotFoundError
        return super().load(name)


def test_two_processes_open_an_empty_journal(store, tmp_path):
    """Both get the identity that was written first; a process with another source is refused."""
    raced = Publisher(Raced(tmp_path, at(9))).open(SOURCE, "the journal")
    assert (LSN(9), raced) == (raced.start_lsn, MetadataFiles(store).identity())
    other = replace(SOURCE, system_identifier="8")
    with pytest.raises(SlotError, match="the journal"):
        Publisher(Raced(tmp_path / "other", SOURCE)).open(other, "the journal")


def test_the_epoch(store):
    """It is one more than the last writer's, is taken once, and each commit counts."""
    first = opened(store)
    assert (1, 1) == (first.state.epoch, first.state.sequence)
    first.claim()
    assert (1, 1) == (first.state.epoch, first.state.sequence)
    assert first.claimed
    append(first, 1)
    assert 2 == first.state.sequence
    second = opened(store)
    assert (2, 3) == (second.state.epoch, second.state.sequence)
    assert second.state == MetadataFiles(store).state()


def test_a_writer_without_the_epoch_anymore(store):
    """Each of its calls fails, and names the other writer; its own epoch is no error."""
    first = opened(store)
    first.require_epoch()
    second = opened(store, claim=False)
    second.require_epoch()
    second.claim()
    with pytest.raises(JournalError, match=r"taken over the journal in .* \(host .*process \d+"):
        first.require_epoch()
    first.commit(position=at(50))
    with pytest.raises(JournalError, match="taken over"):
        first.finish()


def test_a_writer_that_opened_before_the_last_commit(store):
    """It must not take the epoch, because it does not know the last state."""
    late = opened(store, claim=False)
    append(opened(store), 1)
    with pytest.raises(JournalError, match="taken over"):
        late.claim()


def test_what_a_commit_does_not_give_stays(store):
    """Prepared transactions, times, the start and the last segment are those of the state before."""
    publisher = opened(store)
    prepared, times = (PreparedTransaction(LSN(7), 1, "gid"),), Times(3, 1, 2, LSN(4))
    commit(publisher, 10, entry(0, 10), begins=LSN(5), prepared=prepared, times=times)
    before = publisher.state
    assert (LSN(5), LSN(10), prepared, times) == (
        before.begins,
        before.end.lsn,
        before.prepared,
        before.times,
    )
    commit(publisher, 20)
    assert replace(before, sequence=before.sequence + 1, position=at(20)) == publisher.state
    commit(publisher, 30, entry(10, 30), begins=LSN(9))
    assert LSN(5) == publisher.state.begins
    assert [(LSN(0), LSN(10)), (LSN(10), LSN(30))] == [
        (each.segment.after, each.segment.last_end_lsn) for each in publisher.state.tail
    ]


def test_nothing_to_finish(store):
    """Without a commit, ``finish`` does nothing and says so."""
    publisher = opened(store)
    state = publisher.state
    assert publisher.finish() is False
    assert state is publisher.state


@pytest.mark.parametrize(
    ("segments", "tables", "manifests"),
    [(64, 1, 0), (65, 1, 1), (2, 1024, 0), (3, 683, 1)],
    ids=["most segments", "too many segments", "most tables", "too many tables"],
)
def test_the_tail_moves_to_a_manifest(store, segments: int, tables: int, manifests: int):
    """A tail of up to 64 segments and 2,048 tables stays in position.json; a larger one becomes one manifest of level 0."""
    publisher = opened(store)
    names = [TableName("public", f"t{number}") for number in range(tables)]
    append(publisher, segments, *names)
    state = publisher.state
    assert (manifests, 0 if manifests else segments) == (len(state.manifests), len(state.tail))
    assert files(store, "manifests") == {ref.file for ref in state.manifests}
    for ref in state.manifests:
        found = (ref.level, ref.after, ref.end, ref.segments, ref.size)
        assert (0, LSN(0), LSN(10 * segments), segments, 100 * segments) == found
        assert names == list(MetadataFiles(store).manifest(ref).tables)


def test_manifests_are_merged(store, monkeypatch):
    """Eight of a level become one of the next level, in a commit of its own; the merged files are deleted."""
    monkeypatch.setattr("aiorepl.journal.publisher._TAIL_SEGMENTS", 0)
    publisher = opened(store)
    append(publisher, 7)
    assert ([0] * 7, 8) == ([ref.level for ref in publisher.state.manifests], publisher.state.sequence)
    append(publisher, 1)
    (merged,) = publisher.state.manifests
    assert (1, LSN(0), LSN(80), 8) == (merged.level, merged.after, merged.end, merged.segments)
    assert 10 == publisher.state.sequence
    assert {merged.file} == files(store, "manifests")
    append(publisher, 55)
    assert ([1] * 7 + [0] * 7) == [ref.level for ref in publisher.state.manifests]
    append(publisher, 1)
    assert [(2, 64)] == [(ref.level, ref.segments) for ref in publisher.state.manifests]
    assert publisher.state == MetadataFiles(store).state()


@pytest.mark.parametrize(("largest", "levels"), [(8, [1]), (7, [0] * 8)])
def test_the_largest_manifest(store, monkeypatch, largest: int, levels: list[int]):
    """Manifests that have more segments together are not merged."""
    monkeypatch.setattr("aiorepl.journal.publisher._TAIL_SEGMENTS", 0)
    monkeypatch.setattr("aiorepl.journal.publisher._MAX_SEGMENTS", largest)
    publisher = opened(store)
    append(publisher, 8)
    assert levels == [ref.level for ref in publisher.state.manifests]


@pytest.mark.parametrize(("deleted", "ends"), [(9, [10, 20, 30]), (10, [20, 30]), (20, [30])])
def test_manifests_of_deleted_segments_are_dropped(store, monkeypatch, deleted: int, ends: list[int]):
    """A manifest goes with the commit after its last segment was deleted, not while one is left."""
    monkeypatch.setattr("aiorepl.journal.publisher._TAIL_SEGMENTS", 0)
    publisher = opened(store)
    append(publisher, 2)
    journal = publisher.state.journal
    store.write("start.json", dump_start(Start(journal, LSN(deleted), LSN(deleted))))
    append(publisher, 1)
    assert ends == [ref.end for ref in publisher.state.manifests]
    assert {ref.file for ref in publisher.state.manifests} == files(store, "manifests")


def test_a_merge_without_room_is_repeated_later(store, monkeypatch):
    """The commit before the merge is whole, and the next commit that makes a manifest merges."""
    monkeypatch.setattr("aiorepl.journal.publisher._TAIL_SEGMENTS", 0)
    publisher = opened(store)
    append(publisher, 7)
    store.full = f"{publisher.state.sequence + 2:012X}.manifest"
    append(publisher, 1)
    assert 8 == len(publisher.state.manifests)
    assert publisher.finish() is False
    store.full = ""
    append(publisher, 1)
    assert [0, 0] != [ref.level for ref in publisher.state.manifests]
    assert publisher.state == MetadataFiles(store).state()


def test_chunks_of_snapshots(store):
    """Only chunks that begin or complete a table are kept, in position.json; with the 64th, the completeness gets a file."""
    publisher = opened(store)
    decisive = [chunk(1, oid=1), chunk(3, oid=1, last_of_table=True)]
    commit(publisher, 10, published=[decisive[0], chunk(2), decisive[1]])
    assert (tuple(decisive), None) == (publisher.state.chunks, publisher.state.completeness)
    whole = Completeness().with_chunks(decisive)
    assert whole == publisher.completeness
    assert set() == files(store, "completeness")
    rest = [chunk(1, oid=oid) for oid in range(2, 63)]
    commit(publisher, 20, published=rest)
    assert (63, None) == (len(publisher.state.chunks), publisher.state.completeness)
    commit(publisher, 25, published=[chunk(2, oid=5)])
    assert (63, None) == (len(publisher.state.chunks), publisher.state.completeness)
    commit(publisher, 30, published=[chunk(1, oid=63)])
    everything = Completeness().with_chunks([*decisive, *rest, chunk(1, oid=63)])
    assert ((), everything) == (publisher.state.chunks, publisher.completeness)
    assert {f"completeness/{publisher.state.completeness}.json"} == files(store, "completeness")
    assert everything == opened(store, claim=False).completeness


def test_a_gap(store):
    """It gets a file with everything that was known; the former file is deleted, and the same gap makes no other file."""
    publisher = opened(store)
    commit(publisher, 10, published=[chunk(1)])
    first = replace(publisher.completeness, gaps=(Gap(LSN(10), LSN(15), LSN(0)),))
    commit(publisher, 20, completeness=first)
    assert (first, ()) == (publisher.completeness, publisher.state.chunks)
    name = publisher.state.completeness
    commit(publisher, 30, completeness=first)
    assert name == publisher.state.completeness
    second = replace(first, gaps=(*first.gaps, Gap(LSN(30), LSN(35), LSN(0))))
    commit(publisher, 40, completeness=second)
    assert name != publisher.state.completeness
    assert {f"completeness/{publisher.state.completeness}.json"} == files(store, "completeness")
    assert second == opened(store, claim=False).completeness
    commit(publisher, 50, published=[chunk(2, last_of_table=True)])
    assert second.with_chunks([chunk(2, last_of_table=True)]) == publisher.completeness
    assert publisher.completeness == opened(store, claim=False).completeness


def uploaded(store: Store, after: int, epoch: int) -> str:
    """Upload a segment that no state names; return its file."""
    file = replace(entry(after, after + 1).segment, epoch=epoch).file
    store.write(file, b"")
    return file


def test_uploads_of_an_earlier_writer(store):
    """They are kept until the same range is durable in other segments."""
    publisher = opened(store)
    append(publisher, 2)
    inside, later = uploaded(store, 20, 1), uploaded(store, 20, 0)
    store.write("segments/note.txt", b"")
    second = opened(store)
    assert {inside, later, "segments/note.txt"} == files(store, "segments")
    commit(second, 25)
    assert {inside, later, "segments/note.txt"} == files(store, "segments")
    append(second, 1)
    assert {"segments/note.txt"} == files(store, "segments")


def test_uploads_that_may_have_been_published(store):
    """After ``keep_orphans``, they are never deleted."""
    append(opened(store), 1)
    file = uploaded(store, 10, 1)
    second = opened(store)
    second.keep_orphans()
    append(second, 2)
    assert {file} == files(store, "segments")


def test_segments_that_retention_left(store):
    """A segment before the start that no state names is deleted with the next commit; one that is named stays."""
    publisher = opened(store)
    commit(publisher, 30, entry(20, 30))
    _, named, between = uploaded(store, 5, 0), uploaded(store, 20, 1), uploaded(store, 15, 0)
    store.write("start.json", dump_start(Start(publisher.state.journal, LSN(10), LSN(10))))
    opened(store)
    assert {named, between} == files(store, "segments")


def test_files_that_no_state_names(store, monkeypatch):
    """Manifests and completeness files of unfinished commits are deleted; those of the state stay."""
    monkeypatch.setattr("aiorepl.journal.publisher._TAIL_SEGMENTS", 0)
    publisher = opened(store)
    append(publisher, 1)
    commit(publisher, 20, completeness=Completeness((Gap(LSN(10), LSN(15), LSN(0)),)))
    named = files(store, "manifests") | files(store, "completeness")
    store.write("manifests/00000001-000000000000.manifest", b"")
    # The next commit of the same writer may have been interrupted.
    store.write(f"completeness/00000001-{publisher.state.sequence + 1:012X}-00000000.json", b"")
    opened(store)
    assert named == files(store, "manifests") | files(store, "completeness")


@pytest.mark.parametrize(
    "file",
    [
        "segments/0000000000000014-00000002-000000.segment",
        "segments/0000000000000015-00000001-000000.segment",
        "manifests/00000001-000000000009.manifest",
        "completeness/00000002-000000000001-00000000.json",
    ],
    ids=["a later epoch", "after the end", "a later commit", "a commit of a later epoch"],
)
def test_an_older_copy_of_the_state(store, file: str):
    """A file newer than position.json is an error, and no file is deleted."""
    append(opened(store), 2)
    first, last = uploaded(store, 20, 1), "segments/0000000000000000-00000000-000000.segment"
    for name in (file, last):
        store.write(name, b"")
    second = opened(store, claim=False)
    with pytest.raises(JournalError, match=r"position\.json.* older"):
        second.claim()
    second.finish()
    assert {first, last} <= files(store, "segments")
    assert not second.claimed


def test_a_file_that_cannot_be_deleted(store):
    """The commit is whole; the file goes with a later commit."""
    publisher = opened(store)
    commit(publisher, 10, completeness=Completeness((Gap(LSN(1), LSN(2), LSN(0)),)))
    former = files(store, "completeness")
    publisher.commit(position=at(20), completeness=Completeness((Gap(LSN(1), LSN(3), LSN(0)),)))
    (store.full,) = former
    publisher.finish()
    assert former < files(store, "completeness")
    store.full = ""
    commit(publisher, 30)
    assert {f"completeness/{publisher.state.completeness}.json"} == files(store, "completeness")


def test_a_failed_commit_is_finished_with_the_same_contents(store):
    """No step is lost, and a written file is not written again."""
    publisher = opened(store)
    store.full = "position.json"
    publisher.commit(position=at(10), completeness=Completeness((Gap(LSN(1), LSN(2), LSN(0)),)))
    with pytest.raises(OSError, match="No space"):
        publisher.finish()
    assert LSN(0) == publisher.state.position.lsn
    written = files(store, "completeness")
    store.full = "completeness"
    with pytest.raises(AssertionError):
        publisher.commit(position=at(20))
    store.full = ""
    assert publisher.finish() is True
    assert LSN(10) == publisher.state.position.lsn
    assert written == files(store, "completeness")
    assert publisher.state == MetadataFiles(store).state()


def test_calls_before_open(store):
    """They say what is missing."""
    with pytest.raises(RuntimeError, match="open first"):
        Publisher(store).claim()
