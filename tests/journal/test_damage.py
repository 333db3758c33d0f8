"""Every file of a journal is damaged in every way: each reader names the file, and deletes nothing."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from aiorepl.errors import AioreplError, DamagedJournal, JournalError, SlotError
from aiorepl.journal import Cursors, JournalReader, prune
from aiorepl.journal.chain import Chain
from aiorepl.journal.check import problems
from aiorepl.journal.metadata_files import read_chain
from aiorepl.journal.segment_format import checksum
from aiorepl.journal.store import LocalStore
from aiorepl.lsn import LSN
from aiorepl.sink import Batch
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.slices import Slice

FILES = [
    "journal.json",
    "position.json",
    "*.index",
    "*.segment",
    "*.prepared",
    "*.prepared-index",
    "cursors/*.json",
]


class InMemory(LocalStore):
    """A store in memory whose files can be replaced."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        files = (file for file in path.rglob("*") if file.is_file())
        self.contents = {file.relative_to(path).as_posix(): file.read_bytes() for file in files}

    def names(self, folder: str = "") -> list[str]:
        under = f"{folder}/" if folder else ""
        return [
            name[len(under) :]
            for name in self.contents
            if name.startswith(under) and "/" not in name[len(under) :]
        ]

    def read(self, name: str, offset: int = 0, length: int = -1) -> bytes:
        if name not in self.contents:
            raise FileNotFoundError(2, "No such file or directory", name)
        data = self.contents[name][offset:]
        return data if length < 0 else data[:length]

    def about(self, name: str) -> tuple[int, float]:
        return len(self.read(name)), 0.0


@pytest.fixture
async def small(tmp_path, tools) -> InMemory:
    """A journal of one segment, one prepared transaction and one cursor."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    stream.transaction(table.insert("1"))
    stream.prepare("x", table.insert("2"))
    await tools.write(tmp_path, stream.position, stream.slices())
    Cursors(tmp_path).advance("c", stream.position.at(stream.ends[0]))
    store = InMemory(tmp_path)
    assert list(problems("", store=store)) == []
    return store


def matching(store: InMemory, pattern: str) -> str:
    (name,) = (name for name in store.contents if Path(name).match(pattern))
    return name


@pytest.mark.parametrize("pattern", FILES)
async def test_every_bit_and_every_cut(small, pattern) -> None:
    """Every flipped bit and every cut of each file is detected, and the error names the file."""
    name = matching(small, pattern)
    whole = small.contents[name]
    damaged = [whole[:length] for length in range(len(whole))]
    for place in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            damaged.append(bytes(flipped))
    for data in damaged:
        small.contents[name] = data
        found = list(problems("", store=small))
        assert found, data
        assert all(isinstance(error, JournalError) for error in found)
        assert any(name in str(error) for error in found)


@pytest.mark.parametrize("pattern", FILES)
async def test_every_file_may_be_gone(small, pattern) -> None:
    """A missing file is an error with its name; a missing cursor was never registered."""
    name = matching(small, pattern)
    del small.contents[name]
    found = list(problems("", store=small))
    assert [name in str(error) for error in found] == ([] if pattern == "cursors/*.json" else [True])


WRONG = [1, -1, 2**64, 0.5, "", "x", "0/zz", None, True, [], {}, [[]], [None], {"lsn": 1}]


def variants(value: object) -> list[object]:
    """Yield copies of ``value`` in which one part, at any depth, is missing or of another kind."""
    made: list[object] = [wrong for wrong in WRONG if type(wrong) is not type(value)]
    if isinstance(value, dict):
        for key, part in value.items():
            made.append({name: other for name, other in value.items() if name != key})
            made += [{**value, key: variant} for variant in variants(part)]
    if isinstance(value, list):
        for place, part in enumerate(value):
            made += [[*value[:place], variant, *value[place + 1 :]] for variant in variants(part)]
    return made


@pytest.mark.parametrize("pattern", [name for name in FILES if name not in ("*.segment", "*.prepared")])
async def test_wrong_contents(small, tools, pattern) -> None:
    """Invalid contents with a valid checksum raise JournalError, and no other error."""
    name = matching(small, pattern)
    whole = orjson.loads(small.contents[name].partition(b"\n")[0])
    for variant in variants(whole):
        try:
            body = orjson.dumps(variant)
        except TypeError:
            continue  # a number that JSON of ours cannot have
        small.contents[name] = b"%b\n%08x\n" % (body, checksum(body))
        assert all(isinstance(error, (JournalError, SlotError)) for error in problems("", store=small))
        with contextlib.suppress(AioreplError):
            await tools.read(JournalReader("", store=small), LSN(0), JournalReader("", store=small).end().lsn)


def links(folder: Path) -> list[str]:
    return [segment.name for segment in JournalReader(folder).segments()]


async def readers(folder: Path, stream: Stream, tools, after: LSN) -> list[str]:
    """Return the errors of every kind of reader that begins at ``after``; fail if one has none."""
    told = []
    for read in (
        lambda: tools.read(JournalReader(folder), after, stream.ends[-1]),
        lambda: tools.write(folder, stream.position),
        lambda: _prune(folder),
        lambda: _position(folder),
    ):
        with pytest.raises(DamagedJournal) as caught:
            await read()
        told.append(str(caught.value))
    return told


async def _prune(folder: Path) -> None:
    prune(folder)


async def _position(folder: Path) -> None:
    JournalReader(folder).position()


@pytest.mark.parametrize("number", range(5))
async def test_a_lost_segment(journal, tools, number) -> None:
    """Whichever segment is lost, every reader names it, and nothing else is deleted."""
    folder, stream = journal
    Cursors(folder).advance("c", stream.position.at(stream.ends[-1]))
    lost = links(folder)[number]
    for path in folder.glob(f"{lost}.*"):
        path.unlink()
    before = sorted(folder.rglob("*"))
    if number:
        assert all(lost[:16] in text for text in await readers(folder, stream, tools, LSN(0)))
    else:
        # It looks like one that was pruned, so what comes behind can be read by those who have had it.
        with pytest.raises(JournalError, match="nothing between its beginning"):
            await tools.read(JournalReader(folder), LSN(0), stream.ends[-1])
        assert len(await tools.read(JournalReader(folder), stream.ends[0], stream.ends[-1])) == 4
    assert before == sorted(folder.rglob("*"))


async def test_a_lost_index_behind_quiet_wal(journal, tools) -> None:
    """If the last index is lost and the journal's position is after it, every reader reports it."""
    folder, stream = journal
    quiet = Slice(None, (), True, LSN(stream.ends[-1] + 0x1000), 0)
    await tools.write(folder, stream.position, [quiet])
    last = links(folder)[-1]
    (folder / f"{last}.index").unlink()
    assert all(f"{last}.index" in text for text in await readers(folder, stream, tools, LSN(0)))
    assert (folder / f"{last}.segment").exists()


async def test_a_lost_position(journal, tools) -> None:
    """Without position.json every reader fails, because it names the files that must exist."""
    folder, stream = journal
    (folder / "position.json").unlink()
    assert all("position.json" in text for text in await readers(folder, stream, tools, LSN(0)))


async def test_a_lost_prepared_transaction(tmp_path, tools) -> None:
    """A lost file of a prepared transaction stops the writer at its start, not at the commit."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    stream.prepare("x", table.insert("1"))
    await tools.write(tmp_path, stream.position, stream.slices())
    (index,) = tmp_path.glob("*.prepared-index")
    index.unlink()
    with pytest.raises(DamagedJournal, match=f"{index.name} .* 'x'"):
        await tools.write(tmp_path, stream.position)


async def test_a_segment_of_another_journal(journal, tools) -> None:
    """A segment that does not fit between its neighbours is named."""
    folder, stream = journal
    third = links(folder)[2]
    (folder / f"{third}.index").rename(folder / f"{third[:-1]}F.index")
    assert all(third[:-2] in text for text in await readers(folder, stream, tools, LSN(0)))


async def test_a_file_that_is_no_segment(journal, tools) -> None:
    """An index with an invalid name is an error."""
    folder, stream = journal
    (folder / "notes.index").write_text("?")
    assert all("notes.index" in text for text in await readers(folder, stream, tools, LSN(0)))


async def test_an_index_under_another_name(journal, tools) -> None:
    """An index under another segment's name is an error."""
    folder, stream = journal
    first, second = links(folder)[:2]
    (folder / f"{second}.index").write_bytes((folder / f"{first}.index").read_bytes())
    with pytest.raises(DamagedJournal, match=f"{second}.index .* another segment"):
        await tools.read(JournalReader(folder), LSN(0), stream.ends[-1])


async def test_an_older_copy(journal, tools) -> None:
    """A reader or cursor whose position is after the end of a restored journal is rejected."""
    folder, stream = journal
    for path in folder.glob(f"{links(folder)[-1]}.*"):
        path.unlink()
    Cursors(folder).reset("c", stream.position.at(stream.ends[-1]))
    earlier = await _journal_of(folder.with_name("copy"), stream, tools)
    (folder / "position.json").write_bytes((earlier / "position.json").read_bytes())
    with pytest.raises(JournalError, match=f"after the end of the journal .* {stream.ends[-2]}"):
        await tools.read(JournalReader(folder), stream.ends[-1], stream.ends[-1])
    for call in (Cursors(folder).get, lambda _: prune(folder)):
        with pytest.raises(JournalError, match=r"cursor 'c' \(cursors/c.json .* after the end"):
            call("c")


async def _journal_of(folder: Path, stream: Stream, tools) -> Path:
    """Return a copy of the journal from one transaction ago."""
    batches = [[part] for part in stream.again()[:-1]]
    await tools.write(folder, stream.position, *batches, segment_bytes=1)
    return folder


async def test_inside_a_gap(journal, tools) -> None:
    """Readers skip an accepted gap; a position inside it is rejected, and a transaction from it is dropped."""
    folder, stream = journal
    end, until = stream.ends[-1], stream.position.at(LSN(stream.ends[-1] + 0x5000))
    sink = tools.sink(folder)
    await tools.opened(sink, stream.position)
    await sink.skip(end, until)
    inside = stream.position.at(LSN(end + 0x10))
    lost = Stream(start=inside.lsn)
    lost.transaction(lost.table("t", column("id", 23, key=True)).insert("8"))
    await sink.write(Batch(tuple(lost.slices())))
    await sink.flush()
    await sink.close()
    Cursors(folder).reset("c", inside)
    with pytest.raises(JournalError, match="inside the gap"):
        Cursors(folder).get("c")
    with pytest.raises(JournalError, match="inside the gap"):
        await tools.read(JournalReader(folder), inside.lsn, until.lsn)
    assert JournalReader(folder).gaps() == [(end, until.lsn)]
    later = Stream(start=until.lsn)
    later.transaction(later.table("t", column("id", 23, key=True)).insert("9"))
    await tools.write(folder, stream.position, later.slices())
    assert len(await tools.read(JournalReader(folder), LSN(0), later.ends[-1])) == 6
    assert ["cursors/c.json" in str(error) for error in problems(folder)] == [True]


async def test_a_listing_that_misses_a_file(journal) -> None:
    """A file that appears or goes while the folder is listed is no damage; one that two listings miss is."""
    folder, stream = journal

    class Racing(LocalStore):
        missing: list[str]

        def names(self, folder: str = "") -> list[str]:
            hidden = self.missing.pop(0) if self.missing else ""
            return [name for name in super().names(folder) if not hidden or not name.startswith(hidden)]

    store = Racing(folder)
    second, third = links(folder)[1:3]
    store.missing = [second]
    assert read_chain(store).last_segment_end == stream.ends[-1]
    store.missing = [second, third]
    assert read_chain(store).last_segment_end == stream.ends[-1]
    store.missing = [second, second]
    with pytest.raises(DamagedJournal, match="nothing between"):
        read_chain(store)


async def test_files_of_another_slot(tmp_path, tools) -> None:
    """Files of another slot of the same cluster, which have the same names, are rejected."""
    for slot in ("own", "other"):
        stream = Stream()
        table = stream.table("t", column("id", 23, key=True))
        stream.transaction(table.insert(slot[:3]))
        stream.prepare("x", table.insert(slot[:3]))
        await tools.write(tmp_path / slot, replace(stream.position, slot=slot), stream.slices())
    for pattern in ("*.segment", "*.index", "*.prepared", "*.prepared-index"):
        (file,) = (tmp_path / "other").glob(pattern)
        (tmp_path / "own" / file.name).write_bytes(file.read_bytes())
    found = [str(error) for error in problems(tmp_path / "own")]
    assert ["from another journal" in error for error in found] == [True, True]
    with pytest.raises(DamagedJournal, match="slot 'other'"):
        await tools.read(JournalReader(tmp_path / "own"), LSN(0), stream.ends[0])
    with pytest.raises(DamagedJournal, match="slot 'other'"):
        await tools.write(tmp_path / "own", replace(stream.position, slot="own"))


async def test_a_segment_without_its_index_is_kept(journal, tools) -> None:
    """A segment without an index, which a crash left, is deleted only once its content is durable in other segments."""
    folder, stream = journal
    last = links(folder)[-1]
    left = f"{last[17:]}-{int(last[17:], 16) + 0x2000:016X}.segment"
    (folder / left).write_bytes(b"?")
    await tools.write(folder, stream.position)
    assert (folder / left).exists()
    table = stream.table("t", column("id", 23, key=True))
    for kept in (True, False):
        stream.transaction(*[table.insert(str(number)) for number in range(1 if kept else 600)])
        await tools.write(folder, stream.position, stream.slices())
        assert (folder / left).exists() is kept


async def test_checked_while_it_is_written(journal, tools, monkeypatch) -> None:
    """Files that are pruned or decided during a check are not reported as missing."""
    folder, stream = journal
    stream.prepare("x", stream.table("u", column("id", 23, key=True)).insert("1"))
    await tools.write(folder, stream.position, stream.slices())
    Cursors(folder).advance("c", stream.position.at(stream.ends[4]))
    sink = tools.sink(folder)
    await tools.opened(sink, stream.position)
    chain, seen = JournalReader.chain, []

    def meanwhile(reader: JournalReader) -> Chain:
        found = chain(reader)
        seen.append((len(found.names), len(found.state.prepared)))
        if len(seen) == 1:
            prune(folder)
            sink._writer.void_prepared()
        return found

    monkeypatch.setattr(JournalReader, "chain", meanwhile)
    found = list(problems(folder))
    await sink.close()
    assert ([], (5, 1), (1, 0)) == (found, seen[0], seen[-1])


def test_problems_are_told_of_each_file(tmp_path) -> None:
    """``check`` reports every damaged file; a folder that is no journal is one problem."""
    (error,) = problems(tmp_path)
    assert isinstance(error, AioreplError)
    assert os.fspath(tmp_path) in str(error)
