"""Dead letters on disk can be read back unchanged, are replayed in order, and are never lost."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime

import orjson
import pytest

from aiorepl import (
    Batch,
    ConfigurationError,
    DeadLetters,
    Delivery,
    PermanentError,
    Pipeline,
    Rejection,
    Selection,
    Sink,
    SinkError,
)
from aiorepl.delivery.redelivery import redeliver
from aiorepl.formats.native import NativeFormat
from aiorepl.sink import SinkContext
from aiorepl.testing import MemorySource
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.messages import column, message
from aiorepl.testing.stream import Stream
from aiorepl.transforms.methods import Method
from aiorepl.values.types import TypeInfo
from aiorepl_sinks.formats.debezium import DebeziumFormat


class Refusing(MemorySink):
    """Rejects every row until ``mended`` is set."""

    def __init__(self, *, keeps_position: bool = False) -> None:
        super().__init__(keeps_position=keeps_position)
        self.mended = False

    async def write(self, batch) -> None:
        if not self.mended and any(change.kind != "message" for change in batch.changes):
            raise PermanentError("no such column")
        await super().write(batch)


def every_kind(binary: bool = False) -> Stream:
    """Return a stream with one transaction that has changes of every kind."""
    stream = Stream(types=[TypeInfo(70000, "public", "mood", "e")], binary=binary)
    stream.type_(70000, "mood")
    table = stream.table("t", column("id", 23, key=True), column("mood", 70000), column("large"))
    other = stream.table("o", column("id", 23), replica_identity="f", namespace='odd "name')
    stream.transaction(
        table.insert("1", "happy", None),
        table.update("2", "sad", None, key=("1", None, None)),
        other.delete("7", full=True),
        table.truncate(),
        message(transactional=True, lsn=5, prefix="p", content=b"\x00\xff"),
        origin="elsewhere",
    )
    return stream


@pytest.fixture
def letters(tmp_path):
    return DeadLetters(tmp_path / "refused")


@pytest.mark.parametrize("binary", [False, True])
def test_what_was_refused_comes_back(letters, binary):
    """A letter read from its file has the same changes with the same identities."""
    stream = every_kind(binary)
    letters.open(SinkContext("s", stream.position))
    batch = Batch(tuple(stream.slices()))
    letters.write(batch)
    (letter,) = letters.letters()
    events = [list(NativeFormat(boundaries=True).events(each.slices)) for each in (batch, letter.batch)]
    assert events[0] == events[1]
    assert stream.position == letter.source


@pytest.mark.parametrize("whole", [True, False], ids=["chunk", "row"])
def test_rows_of_a_snapshot_come_back(letters, whole):
    """Rows of a chunk are replayed as reads of its snapshot, and a letter without the chunk's end completes no table."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    stream.snapshot(table, table.insert("1"), table.insert("2"))
    batch = Batch(tuple(stream.slices()))
    if not whole:
        batch = Batch((replace(batch.slices[0], changes=batch.slices[0].changes[1:], end_lsn=None),))
    letters.open(SinkContext("s", stream.position))
    letters.write(batch)
    (letter,) = letters.letters()
    events = [list(DebeziumFormat().events(each.slices)) for each in (batch, letter.batch)]
    assert events[0] == events[1]
    (part,) = letter.batch.slices
    assert {"read"} == {change.kind for change in part.changes}
    assert (whole, whole) == (part.transaction.snapshot.last_of_table, part.transaction.snapshot.last)


def test_refused_again_is_the_same_letter(letters):
    """A transaction that is rejected again after a restart is one file."""
    stream = every_kind()
    letters.open(SinkContext("s", stream.position))
    batch = Batch(tuple(stream.slices()))
    letters.write(batch)
    letters.write(batch)
    assert 1 == len(list(letters.letters()))


@pytest.mark.parametrize("other", ["sink", "slot", "no letter"])
def test_a_letter_of_another_is_not_replaced(letters, other):
    """If two sinks or slots reject the same change, the folder keeps the first letter and the second write fails."""
    stream = every_kind()
    batch = Batch(tuple(stream.slices()))

    def write(name, position):
        letters.open(SinkContext(name, position))
        rejection = Rejection(name, "PermanentError", "no", "write", datetime.now(UTC))
        letters.write(Batch(batch.slices, rejection))

    write("s", stream.position)
    (file,) = letters.path.iterdir()
    if other == "no letter":
        file.write_text("{}")
    before = file.read_bytes()
    with pytest.raises(PermanentError, match=r"belongs to another sink or slot|is not a dead letter"):
        write(
            "t" if other == "sink" else "s",
            replace(stream.position, slot="other") if other == "slot" else stream.position,
        )
    assert before == file.read_bytes()


def test_two_sinks_with_one_folder(letters):
    """Two sinks with the same folder are refused, however its path is written."""
    sinks = [
        Delivery(MemorySink(), on_error="dead_letter", dead_letters=folder)
        for folder in (letters, letters.path / ".." / "refused")
    ]
    with pytest.raises(
        ConfigurationError, match="sinks memory and memory-2 have the same folder of dead letters"
    ):
        Pipeline(MemorySource(), sinks)


def test_a_message_that_ends_where_a_commit_begins(letters):
    """A message outside transactions and the transaction after it are two letters, in stream order."""
    stream = every_kind()
    stream.message("between", b"x")
    stream.transaction(message(transactional=True, lsn=5, prefix="within", content=b"y"), at_once=True)
    letters.open(SinkContext("s", stream.position))
    _, *parts = stream.slices()
    for part in parts:
        letters.write(Batch((part,)))
    found = [change for letter in letters.letters() for change in letter.batch.changes]
    assert ["between", "within"] == [change.prefix for change in found]
    assert found[0].lsn == found[1].transaction.commit_lsn


def test_rows_are_for_their_owner_alone(letters):
    """Only the owner can read folder and files."""
    stream = every_kind()
    letters.open(SinkContext("s", stream.position))
    letters.write(Batch(tuple(stream.slices())))
    (letter,) = letters.letters()
    assert (0o700, 0o600) == (letters.path.stat().st_mode & 0o777, letter.file.stat().st_mode & 0o777)


def test_links_in_the_folder_are_not_followed(letters, tmp_path):
    """Symbolic links under a letter's final and temporary name are not followed."""
    stream, victim = every_kind(), tmp_path / "victim"
    letters.open(SinkContext("s", stream.position))
    victim.write_text("mine")
    batch = Batch(tuple(stream.slices()))
    letters.write(batch)
    (letter,) = letters.letters()
    letter.file.unlink()
    for name in (letter.file, letter.file.with_suffix(".part")):
        name.symlink_to(victim)
    letters.write(batch)
    assert ("mine", False) == (victim.read_text(), letter.file.is_symlink())
    assert 1 == len(list(letters.letters()))


def test_a_flipped_bit(letters):
    """A letter that has changed on disk is refused. A letter of format 1, which has no checksum, is still read."""
    stream = every_kind()
    letters.open(SinkContext("s", stream.position))
    letters.write(Batch(tuple(stream.slices())))
    (letter,) = letters.letters()
    fields = orjson.loads(letter.file.read_bytes())
    content = base64.b64decode(fields["changes"][0]["message"])
    fields["changes"][0]["message"] = base64.b64encode(content.replace(b"happy", b"happx")).decode()
    letter.file.write_bytes(orjson.dumps(fields))
    with pytest.raises(ConfigurationError, match="damaged"):
        list(letters.letters())
    letter.file.write_bytes(orjson.dumps({**fields, "format": 1}))
    (earlier,) = letters.letters()
    assert len(letter.batch) == len(earlier.batch)


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"format": 99}', b"[1]"])
def test_a_file_that_is_no_letter(letters, damage):
    """The error names the damaged file."""
    letters.path.mkdir()
    (letters.path / "A-1.json").write_bytes(damage)
    with pytest.raises(ConfigurationError, match=r"A-1\.json"):
        list(letters.letters())


async def refused(harness, letters, sink, **choices) -> None:
    """Fill the folder with three rejected transactions."""
    served = harness(sink, on_error="dead_letter", dead_letters=_Open(letters), **choices)
    for number in (1, 2, 3):
        served.commit(number)
    await served.finish()


class _Open(MemorySink):
    """Dead letters as an async sink, opened as by the engine."""

    def __init__(self, letters) -> None:
        super().__init__()
        letters.open(SinkContext("s", Stream().position))
        self._letters = letters

    async def write(self, batch) -> None:
        self._letters.write(batch)


async def test_written_again_when_it_is_mended(harness, ids, letters):
    """Letters are replayed in order, and each is deleted once it is durable."""
    sink = Refusing()
    await refused(harness, letters, sink)
    assert 3 == len(list(letters.letters()))
    sink.mended = True
    assert 3 == await redeliver("s", Delivery(sink), letters)
    assert [[1], [2], [3]] == ids(sink)
    assert [] == list(letters.letters())
    assert sink.closed


async def test_refused_once_more(harness, letters):
    """A letter that is rejected again is kept, and so are all later ones."""
    sink = Refusing()
    await refused(harness, letters, sink)
    with pytest.raises(SinkError, match="is rejected again: no such column"):
        await redeliver("s", Delivery(sink), letters)
    assert 3 == len(list(letters.letters()))


@pytest.mark.parametrize("before", [None, "hash", "encrypt", "partial(4)"])
async def test_letters_from_before_a_mask(harness, letters, before):
    """A column that the selection hides since the rejection is hidden; a column that was masked before stays as it is."""
    sink, keys = Refusing(), {"secret": "s", "encryption_key": "k" * 32}
    earlier = Selection(mask={"*.*.note": before}, **keys) if before else None
    await refused(harness, letters, sink, selection=earlier)
    sink.mended = True
    rejected = [dict(change.new) for letter in letters.letters() for change in letter.batch.changes]
    selection = Selection(mask={"*.*.note": "hash"}, **keys)
    await redeliver("s", Delivery(sink, selection=selection), letters)
    masks = [selection.masks[Method()](row["note"].encode()).decode() for row in rejected]
    expected = [row["note"] for row in rejected] if before else masks
    assert expected == [row.new["note"] for row in sink.changes]

    await refused(harness, letters, refusing := Refusing(), selection=earlier)
    refusing.mended = True
    await redeliver("s", Delivery(refusing, selection=Selection(drop=("*.*.note",))), letters)
    assert {("id",)} == {tuple(row.new) for row in refusing.changes}


async def test_a_position_is_left_alone(harness, letters):
    """Replay does not move the position of a sink that keeps one."""
    sink = Refusing(keeps_position=True)
    await sink.open(SinkContext("s", Stream().position))
    await refused(harness, letters, sink, keeps_position=True)
    held = sink.position
    assert held.lsn > Stream().position.lsn
    sink.mended = True
    await redeliver("s", Delivery(sink), letters)
    assert held == sink.position
    assert [1, 2, 3] == [change.new["id"] for change in sink.changes]


async def test_a_sink_that_cannot_replay_keeps_its_letters(harness, letters):
    """A sink that keeps a position and does not define replay gets no letter, and none is deleted."""

    class Positioned(Refusing):
        replay = Sink.replay

    sink = Positioned(keeps_position=True)
    await sink.open(SinkContext("s", Stream().position))
    await refused(harness, letters, sink, keeps_position=True)
    sink.mended = True
    with pytest.raises(ConfigurationError, match=r"'s' keeps a position .* aiorepl dlq show"):
        await redeliver("s", Delivery(sink), letters)
    assert [] == sink.changes
    assert 3 == len(list(letters.letters()))
    assert sink.closed


async def test_the_transform_has_another_try(harness, letters):
    """Replay transforms only the changes for which the transform had failed."""

    def broken(change):
        raise ValueError

    sink = MemorySink()
    await refused(harness, letters, sink, transform=broken)
    mended = Delivery(sink, transform=lambda change: change.with_columns({"note": "mended"}))
    await redeliver("s", mended, letters)
    assert ["mended"] * 3 == [change.new["note"] for change in sink.changes]


async def test_letters_of_another_sink(harness, letters):
    """Letters of another sink are not replayed."""
    await refused(harness, letters, Refusing())
    with pytest.raises(ConfigurationError, match="was rejected by sink 's', not by 'other'"):
        await redeliver("other", Delivery(MemorySink()), letters)
