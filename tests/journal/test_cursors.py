"""Cursors never move back, and pruning keeps what a cursor needs."""

from __future__ import annotations

import os
import shutil

import pytest

from aiorepl.errors import ConfigurationError, JournalError, SlotError
from aiorepl.journal import Cursors, JournalReader, prune
from aiorepl.journal.verification import problems
from aiorepl.lsn import LSN
from aiorepl.storage.local import LocalStore
from aiorepl.testing.stream import Stream


async def test_forward_only(journal) -> None:
    """A cursor is registered by its first position, and moves forward only."""
    folder, stream = journal
    cursors = Cursors(folder)
    assert (cursors.names(), cursors.get("s3")) == ([], None)
    begin, later = stream.position.at(LSN(0)), stream.position.at(stream.ends[2])
    assert cursors.advance("s3", begin) == begin
    assert cursors.advance("s3", later) == later
    assert cursors.advance("s3", begin) == later
    assert (cursors.names(), Cursors(folder).get("s3")) == (["s3"], later)
    cursors.remove("s3")
    cursors.remove("s3")
    assert cursors.names() == []


async def test_labels(journal, reseal) -> None:
    """A cursor says what its query reads and writes; one of an earlier version does as soon as its query runs."""
    folder, stream = journal
    first = stream.position.at(stream.ends[0])
    Cursors(folder).advance("spark-1", first, query="1")
    file = folder / "cursors" / "spark-1.json"
    reseal(file, '"label":"",', "")
    found = Cursors(folder, label="mirror to /lake")
    assert "" == found.read("spark-1").label
    assert first == found.advance("spark-1", first, query="1")
    assert "mirror to /lake" == Cursors(folder).read("spark-1").label


@pytest.mark.parametrize("name", ["../escape", ".hidden", "a/b", "space and ü", "%2F"])
async def test_any_name(journal, name: str) -> None:
    """A cursor may have any name, which is never used as a path."""
    folder, stream = journal
    cursors = Cursors(folder)
    cursors.advance(name, stream.position)
    assert (cursors.names(), cursors.get(name)) == ([name], stream.position)
    assert len(list((folder / "cursors").iterdir())) == 1


async def test_foreign_cursor(journal) -> None:
    """The position of another slot does not move a cursor."""
    folder, stream = journal
    Cursors(folder).advance("s3", stream.position)
    with pytest.raises(SlotError, match="cursor 's3'"):
        Cursors(folder).advance("s3", Stream(slot="other").position)


async def test_damaged_cursor(journal) -> None:
    """A cursor that cannot be read is an error, and nothing is pruned."""
    folder, stream = journal
    Cursors(folder).advance("s3", stream.position)
    (folder / "cursors" / "s3.json").write_text("{}")
    with pytest.raises(JournalError, match="'s3'"):
        prune(folder)


async def test_prune(journal, tools) -> None:
    """Segments that every cursor has passed are deleted, except the newest; without cursors nothing is deleted."""
    folder, stream = journal
    cursors, reader = Cursors(folder), JournalReader(folder)
    assert prune(folder) == []
    cursors.advance("fast", stream.position.at(stream.ends[4]))
    cursors.advance("slow", stream.position.at(LSN(stream.ends[1] + 1)))
    names = [segment.name for segment in reader.segments()]
    assert prune(folder, until=stream.ends[0]) == names[:1]
    assert prune(folder) == names[1:2]
    assert prune(folder) == []
    assert len(tools.flat(await tools.read(reader, stream.ends[1], stream.ends[4]))) == 6
    with pytest.raises(JournalError, match="pruned"):
        await tools.read(reader, stream.ends[0], stream.ends[4])
    cursors.remove("slow")
    assert prune(folder) == names[2:4]
    assert await tools.write(folder, stream.position) == stream.position.at(stream.ends[4])


class Stopping(LocalStore):
    """A store that fails before the step of this number."""

    def __init__(self, path, at: int) -> None:
        super().__init__(path)
        self.left = at

    def reached(self, step: str, name: str) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


async def test_prune_cut_short(journal, tools, tmp_path_factory) -> None:
    """A prune that stopped at any step leaves a valid journal, and readers know what is deleted; the next one deletes the rest."""
    folder, stream = journal
    Cursors(folder).advance("all", stream.position.at(stream.ends[4]))
    at, starts = 0, set()
    while True:
        at += 1
        copy = tmp_path_factory.mktemp("pruned") / "journal"
        shutil.copytree(folder, copy)
        try:
            prune(copy, store=Stopping(copy, at))
        except KeyboardInterrupt:
            reader = JournalReader(copy)
            start = reader.chain().start_lsn
            starts.add(start)
            assert len(await tools.read(reader, start or LSN(0), stream.ends[4])) in (1, 5)
            assert list(problems(copy)) == []
            await tools.write(copy, stream.position)
            prune(copy)
            assert [stream.ends[3]] == [segment.after for segment in reader.segments()]
            assert len(list(copy.glob("segments/*.segment"))) == 1
        else:
            break
    assert {LSN(0), stream.ends[3]} == starts


async def test_what_is_pruned_is_refused(journal, tools) -> None:
    """A reader that begins before the first kept segment is rejected, even at the beginning."""
    folder, stream = journal
    Cursors(folder).advance("all", stream.position.at(stream.ends[1]))
    prune(folder)
    for after in (LSN(0), stream.ends[0]):
        with pytest.raises(JournalError, match="were pruned"):
            await tools.read(JournalReader(folder), after, stream.ends[4])
    assert len(await tools.read(JournalReader(folder), stream.ends[1], stream.ends[4])) == 3


async def test_cursor_of_another_consumer(journal) -> None:
    """A cursor file that was copied to another name is rejected, because it names its consumer."""
    folder, stream = journal
    Cursors(folder).advance("s3", stream.position.at(stream.ends[2]))
    (folder / "cursors" / "s3.json").rename(folder / "cursors" / "other.json")
    with pytest.raises(JournalError, match=r"cursor 'other' .* another consumer"):
        Cursors(folder).get("other")


async def test_cursor_of_another_source(journal) -> None:
    """A cursor of another slot's journal is rejected when it is read, and nothing is pruned by it."""
    folder, stream = journal
    Cursors(folder).reset("s3", Stream(slot="other").position.at(stream.ends[2]))
    for call in (Cursors(folder).get, lambda _: prune(folder)):
        with pytest.raises(SlotError, match="cursor 's3'"):
            call("s3")


async def test_reset(journal) -> None:
    """The cursor of a sink that lost data moves back, and the segments after it are kept."""
    folder, stream = journal
    cursors = Cursors(folder)
    cursors.advance("spark", stream.position.at(stream.ends[3]))
    cursors.reset("spark", stream.position.at(stream.ends[1]))
    assert cursors.get("spark") == stream.position.at(stream.ends[1])
    assert len(prune(folder)) == 2


async def test_owners(journal) -> None:
    """Only the kind of consumer that registered a cursor can move it; a query's, only that query."""
    folder, stream = journal
    cursors, first, second = Cursors(folder), *map(stream.position.at, stream.ends[:2])
    cursors.advance("sink", first)
    cursors.advance("query", first, query="1")
    refused = [
        (lambda: cursors.advance("sink", second, query="1"), "belongs to a sink"),
        (lambda: cursors.advance("query", second), "belongs to a Spark query"),
        (lambda: cursors.advance("query", second, query="2"), "belongs to another Spark query"),
        (lambda: cursors.reset("query", second), "belongs to a Spark query"),
    ]
    for call, message in refused:
        with pytest.raises(ConfigurationError, match=message + r".*\(aiorepl journal drop .*\)"):
            call()
    assert [first, first] == [cursors.get("sink"), cursors.get("query")]
    assert second == cursors.advance("query", second, query="1")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"kind":"sink"', '"kind":"spark"', "kind is neither"),
        ('"kind":"sink"', '"kind":"query"', "query is not a string"),
    ],
)
async def test_no_owner(journal, reseal, old, new, problem) -> None:
    """A cursor with a damaged owner is rejected."""
    folder, stream = journal
    Cursors(folder).advance("s3", stream.position)
    reseal(folder / "cursors" / "s3.json", old, new)
    with pytest.raises(JournalError, match=f"{problem}.*journal drop"):
        Cursors(folder).advance("s3", stream.position)


async def test_two_readers_under_one_name(journal) -> None:
    """The sink that registered last owns the cursor; the earlier one is refused, and told by whom."""
    folder, stream = journal
    earlier, later = Cursors(folder), Cursors(folder)
    first, second = map(stream.position.at, stream.ends[:2])
    earlier.advance("s3", first)
    assert second == later.advance("s3", second)
    for call in (earlier.advance, earlier.reset):
        with pytest.raises(ConfigurationError, match=rf"taken over cursor 's3' .*process {os.getpid()}"):
            call("s3", second)
    assert second == later.get("s3")


async def test_a_registration_whose_answer_is_lost(journal, monkeypatch) -> None:
    """The reader that repeats it owns the cursor, and is refused once another one has taken it over."""
    folder, stream = journal
    cursors, first = Cursors(folder), stream.position.at(stream.ends[0])
    replace = LocalStore.replace

    def lost(*arguments) -> str:
        replace(*arguments)
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "replace", lost)
        with pytest.raises(TimeoutError):
            cursors.advance("s3", first)
    cursors.advance("s3", first)
    Cursors(folder).advance("s3", first)
    with pytest.raises(ConfigurationError, match="taken over"):
        cursors.advance("s3", stream.position.at(stream.ends[1]))


class Meanwhile(LocalStore):
    """A store in which somebody else does something just before a cursor is replaced."""

    def __init__(self, path, meanwhile) -> None:
        super().__init__(path)
        self.meanwhile = [meanwhile]

    def reached(self, step: str, name: str) -> None:
        if step == "fsync" and self.meanwhile:
            self.meanwhile.pop()()


async def test_a_cursor_that_moves_meanwhile(journal) -> None:
    """Two processes of one query cannot move its cursor back."""
    folder, stream = journal
    first, second, third = map(stream.position.at, stream.ends[:3])
    cursors = Cursors(folder)
    cursors.advance("q", first, query="1")
    store = Meanwhile(folder, lambda: cursors.advance("q", third, query="1"))
    assert third == Cursors(folder, store=store).advance("q", second, query="1")
    assert third == cursors.get("q")
