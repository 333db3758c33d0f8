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
from aiorepl.journal.metadata import Start, dump_start
from aiorepl.journal.segment_format import FOOTER_BYTES, footer, index_offset
from aiorepl.journal.verification import problems
from aiorepl.lsn import LSN
from aiorepl.sink import Batch
from aiorepl.storage.checked_json import checksum
from aiorepl.storage.local import LocalStore
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

pytestmark = pytest.mark.by_day

JSON = ["journal.json", "position.json", "start.json", "completeness/*.json", "cursors/*.json"]
FILES = [*JSON, "manifests/*.manifest", "segments/*.segment", "prepared/*.prepared"]
# Without these files the journal has another meaning, but a valid one.
OPTIONAL = ("cursors/*.json", "start.json")


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
async def small(tmp_path, tools, monkeypatch) -> InMemory:
    """A journal of one segment, which a manifest names, a gap, one prepared transaction, one cursor, and a start."""
    monkeypatch.setattr("aiorepl.journal.publisher._TAIL_SEGMENTS", 0)
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    stream.transaction(table.insert("1"))
    stream.prepare("x", table.insert("2"))
    sink = tools.sink(tmp_path)
    await tools.opened(sink, stream.position)
    await sink.write(Batch(tuple(stream.slices())))
    await sink.flush()
    await sink.skip(stream.lsn, stream.position.at(LSN(stream.lsn + 1)))
    await sink.close()
    Cursors(tmp_path).advance("c", stream.position.at(stream.ends[0]))
    (tmp_path / "start.json").write_bytes(dump_start(Start(JournalReader(tmp_path).chain().identity.journal)))
    store = InMemory(tmp_path)
    assert list(problems("", store=store)) == []
    assert all(matching(store, pattern) for pattern in FILES)
    return store


def matching(store: InMemory, pattern: str) -> str:
    (name,) = (name for name in store.contents if Path(name).match(pattern))
    return name


@pytest.mark.parametrize("pattern", FILES)
async def test_every_byte_and_every_cut(small, pattern) -> None:
    """A flipped bit in every byte and every cut of each file is detected, and the error names the file."""
    name = matching(small, pattern)
    whole = small.contents[name]
    damaged = [whole[:length] for length in range(len(whole))]
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        damaged.append(bytes(flipped))
    for data in damaged:
        small.contents[name] = data
        found = list(problems("", store=small))
        assert found, data
        assert all(isinstance(error, JournalError) for error in found)
        assert any(name in str(error) for error in found)


@pytest.mark.parametrize("pattern", FILES)
async def test_every_file_may_be_gone(small, pattern) -> None:
    """A missing file is an error with its name; a missing cursor was never registered, and nothing was pruned without a start."""
    name = matching(small, pattern)
    del small.contents[name]
    found = list(problems("", store=small))
    assert {name in str(error) for error in found} == (set() if pattern in OPTIONAL else {True})


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


@pytest.mark.parametrize("pattern", JSON)
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


@pytest.mark.parametrize("pattern", ["segments/*.segment", "prepared/*.prepared"])
async def test_wrong_indexes(small, tools, pattern) -> None:
    """An index with invalid contents and a valid checksum raises JournalError, and no other error."""
    name = matching(small, pattern)
    file = small.contents[name]
    offset = index_offset(file[-FOOTER_BYTES:])
    whole = orjson.loads(file[offset:].partition(b"\n")[0])
    for variant in variants(whole):
        try:
            body = orjson.dumps(variant)
        except TypeError:
            continue  # a number that JSON of ours cannot have
        small.contents[name] = file[:offset] + b"%b\n%08x\n" % (body, checksum(body)) + footer(offset)
        assert all(isinstance(error, (JournalError, SlotError)) for error in problems("", store=small))


def links(folder: Path) -> list[str]:
    return [segment.file for segment in JournalReader(folder).segments()]


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
    """Whichever segment is lost, whoever reads it names it, and so does verification; nothing else is deleted."""
    folder, stream = journal
    lost = links(folder)[number]
    (folder / lost).unlink()
    before = sorted(folder.rglob("*"))
    with pytest.raises(JournalError, match=lost):
        await tools.read(JournalReader(folder), LSN(0), stream.ends[-1])
    assert [lost in str(error) for error in problems(folder)] == [True]
    if number < 4:
        assert 4 - number == len(
            await tools.read(JournalReader(folder), stream.ends[number], stream.ends[-1])
        )
    assert before == sorted(folder.rglob("*"))


@pytest.mark.parametrize("name", ["position.json", "journal.json"])
async def test_a_lost_file(journal, tools, name) -> None:
    """Without position.json or journal.json every reader fails, because segments are there."""
    folder, stream = journal
    (folder / name).unlink()
    assert all(name in text for text in await readers(folder, stream, tools, LSN(0)))


async def test_a_lost_prepared_transaction(tmp_path, tools) -> None:
    """A lost file of a prepared transaction stops the writer at its start, not at the commit."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    stream.prepare("x", table.insert("1"))
    await tools.write(tmp_path, stream.position, stream.slices())
    (file,) = tmp_path.glob("prepared/*")
    file.unlink()
    with pytest.raises(DamagedJournal, match=f"{file.name} .* 'x'"):
        await tools.write(tmp_path, stream.position)


async def test_another_file_under_a_segments_name(journal, tools) -> None:
    """A segment under another segment's name is an error."""
    folder, stream = journal
    first, second = links(folder)[:2]
    (folder / second).write_bytes((folder / first).read_bytes())
    with pytest.raises(DamagedJournal, match=f"{second} .* another segment"):
        await tools.read(JournalReader(folder), LSN(0), stream.ends[-1])


async def test_a_file_that_is_no_segment(journal, tools) -> None:
    """A file that position.json does not name is not read, nor deleted unless it has a segment's name."""
    folder, stream = journal
    (folder / "segments" / "notes.txt").write_text("?")
    await tools.write(folder, stream.position, ())
    assert list(problems(folder)) == []
    assert (folder / "segments" / "notes.txt").exists()


@pytest.fixture
async def grown(tmp_path, tools, monkeypatch) -> tuple[Path, Stream, list[bytes]]:
    """A journal that two writers wrote, with manifests, and every ``position.json`` that it had."""
    monkeypatch.setattr("aiorepl.journal.publisher._TAIL_SEGMENTS", 2)
    monkeypatch.setattr("aiorepl.journal.publisher.MERGED", 2)
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    position, states = tmp_path / "position.json", []
    for _ in range(2):
        sink = tools.sink(tmp_path)
        await tools.opened(sink, stream.position)
        for number in range(7):
            stream.transaction(table.insert(str(number)))
            await sink.write(Batch(tuple(stream.slices())))
            await sink.flush()
            states.append(position.read_bytes())
        await sink.close()
    return tmp_path, stream, states


async def test_an_older_copy(grown, tools) -> None:
    """A reader or cursor whose position is after the end of a restored journal is rejected."""
    folder, stream, states = grown
    Cursors(folder).reset("c", stream.position.at(stream.ends[-1]))
    (folder / "position.json").write_bytes(states[-2])
    with pytest.raises(JournalError, match=f"after the end of the journal .* {stream.ends[-2]}"):
        await tools.read(JournalReader(folder), stream.ends[-1], stream.ends[-1])
    for call in (Cursors(folder).get, lambda _: prune(folder)):
        with pytest.raises(JournalError, match=r"cursor 'c' \(cursors/c.json .* after the end"):
            call("c")


async def test_every_older_copy_of_position_json(grown, tools) -> None:
    """A writer refuses every older copy, and deletes nothing; one segment more is what a kill can leave."""
    folder, stream, states = grown
    Cursors(folder).advance("c", stream.position.at(stream.ends[0]))
    files = sorted(folder.rglob("*"))
    for number, state in enumerate(states[:-1]):
        (folder / "position.json").write_bytes(state)
        if number == len(states) - 2:
            break
        with pytest.raises(DamagedJournal, match=r"position\.json .* is an older copy"):
            await tools.write(folder, stream.position, ())
        assert files == sorted(folder.rglob("*"))
    await tools.write(folder, stream.position, stream.again())
    assert len(stream.ends) == len(await tools.read(JournalReader(folder), LSN(0), stream.ends[-1]))
    assert list(problems(folder)) == []


async def test_an_older_copy_and_an_accepted_gap(grown, tools) -> None:
    """A segment that may have been published is kept if the slot cannot send its range again."""
    folder, stream, states = grown
    (folder / "position.json").write_bytes(states[-2])
    files = set(folder.glob("segments/*"))
    sink = tools.sink(folder)
    await tools.opened(sink, stream.position)
    await sink.skip(stream.ends[-2], stream.position.at(LSN(stream.lsn + 0x100)))
    later = Stream(start=LSN(stream.lsn + 0x100))
    later.transaction(later.table("t", column("id", 23, key=True)).insert("9"))
    await sink.write(Batch(tuple(later.slices())))
    await sink.flush()
    await sink.close()
    assert files < set(folder.glob("segments/*"))


async def test_a_reader_notices_an_older_copy(grown, tools) -> None:
    """A reader that has read a later position.json, and one that finds the start after the end, refuse an older copy."""
    folder, stream, states = grown
    Cursors(folder).advance("c", stream.position.at(stream.ends[-1]))
    reader = JournalReader(folder)
    assert stream.ends[-1] == reader.end().lsn
    prune(folder)
    (folder / "position.json").write_bytes(states[0])
    with pytest.raises(DamagedJournal, match="older copy"):
        reader.end()
    with pytest.raises(DamagedJournal, match="older copy"):
        JournalReader(folder).segments()


async def test_a_manifest_that_is_merged_while_it_is_read(grown) -> None:
    """A reader that knows an earlier position.json finds the segments in the manifest that took the others' place."""
    folder, _, states = grown
    now = [segment.after for segment in JournalReader(folder).segments()]
    current = (folder / "position.json").read_bytes()
    for number, state in enumerate(states, 1):
        (folder / "position.json").write_bytes(state)
        chain = JournalReader(folder).chain()
        (folder / "position.json").write_bytes(current)
        assert now[:number] == [segment.after for segment in chain.walk()]


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


async def test_files_of_another_journal(tmp_path, tools, monkeypatch) -> None:
    """Files of another journal of the same slot, which have the same names and ranges, are rejected."""
    monkeypatch.setattr("aiorepl.journal.publisher._TAIL_SEGMENTS", 0)
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        stream = Stream()
        table = stream.table("t" if folder is own else "u", column("id", 23, key=True))
        stream.transaction(table.insert("1"))
        await tools.write(folder, stream.position, stream.slices())
        start = Start(JournalReader(folder).chain().identity.journal)
        (folder / "start.json").write_bytes(dump_start(start))
        assert list(problems(folder)) == []
    for pattern in ("start.json", "position.json", "completeness/*", "manifests/*"):
        (target,), (file,) = own.glob(pattern), other.glob(pattern)
        before = target.read_bytes()
        target.write_bytes(file.read_bytes())
        assert [target.name in str(error) and "another" in str(error) for error in problems(own)] == [True]
        target.write_bytes(before)
    assert list(problems(own)) == []


async def test_files_of_another_slot(tmp_path, tools) -> None:
    """Files of another slot of the same cluster, which have the same names, are rejected."""
    for slot in ("own", "two"):
        stream = Stream()
        table = stream.table("t", column("id", 23, key=True))
        stream.transaction(table.insert(slot))
        stream.prepare("x", table.insert(slot))
        await tools.write(tmp_path / slot, replace(stream.position, slot=slot), stream.slices())
    for pattern in ("segments/*", "prepared/*"):
        (file,) = (tmp_path / "two").glob(pattern)
        (tmp_path / "own" / file.relative_to(tmp_path / "two")).write_bytes(file.read_bytes())
    found = [str(error) for error in problems(tmp_path / "own")]
    assert ["from another journal" in error for error in found] == [True, True]
    with pytest.raises(DamagedJournal, match="slot 'two'"):
        await tools.read(JournalReader(tmp_path / "own"), LSN(0), stream.ends[0])
    with pytest.raises(DamagedJournal, match="slot 'two'"):
        await tools.write(tmp_path / "own", replace(stream.position, slot="own"))


async def test_an_orphan_is_kept(journal, tools) -> None:
    """A segment that a killed writer uploaded is deleted only once its content is durable in another segment."""
    folder, stream = journal
    orphan = folder / "segments" / f"{stream.ends[-1]:016X}-{1:08X}-{0:06X}.segment"
    orphan.write_bytes(b"?")
    await tools.write(folder, stream.position, ())
    assert orphan.exists()
    table = stream.table("t", column("id", 23, key=True))
    stream.transaction(table.insert("1"))
    await tools.write(folder, stream.position, stream.slices())
    assert not orphan.exists()
    assert list(problems(folder)) == []


async def test_verified_while_it_is_written(journal, tools, monkeypatch) -> None:
    """Files that are pruned or decided meanwhile are not reported as missing."""
    folder, stream = journal
    stream.prepare("x", stream.table("u", column("id", 23, key=True)).insert("1"))
    await tools.write(folder, stream.position, stream.slices())
    Cursors(folder).advance("c", stream.position.at(stream.ends[4]))
    sink = tools.sink(folder)
    await tools.opened(sink, stream.position)
    chain, seen = JournalReader.chain, []

    def meanwhile(reader: JournalReader) -> Chain:
        found = chain(reader)
        seen.append((len(found.segments()), len(found.state.prepared)))
        if len(seen) == 1:
            prune(folder)
            sink._writer.void_prepared()
        return found

    monkeypatch.setattr(JournalReader, "chain", meanwhile)
    found = list(problems(folder))
    await sink.close()
    assert ([], (5, 1), (1, 0)) == (found, seen[0], seen[-1])


async def test_every_problem_is_found(tmp_path, tools, monkeypatch) -> None:
    """A damaged manifest hides only its own segments: what is damaged elsewhere is reported as well."""
    monkeypatch.setattr("aiorepl.journal.publisher._TAIL_SEGMENTS", 2)
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    for number in range(8):
        stream.transaction(table.insert(str(number)))
        await tools.write(tmp_path, stream.position, stream.slices())
    Cursors(tmp_path).advance("c", stream.position)
    manifests = sorted((tmp_path / "manifests").iterdir())
    segments = sorted((tmp_path / "segments").iterdir())
    completeness = next((tmp_path / "completeness").iterdir())
    damaged = [completeness, manifests[0], segments[3], segments[7], tmp_path / "cursors" / "c.json"]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-1])
    found = [str(error) for error in problems(tmp_path)]
    assert len(damaged) == len(found)
    assert all(path.name in text for path, text in zip(damaged, found, strict=True))


def test_problems_are_told_of_each_file(tmp_path) -> None:
    """Verification reports every damaged file; a folder that is no journal is one problem."""
    (error,) = problems(tmp_path)
    assert isinstance(error, AioreplError)
    assert os.fspath(tmp_path) in str(error)
