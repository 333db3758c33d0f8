"""Which rows of a chunk the stream has overtaken."""

from __future__ import annotations

import struct

import pytest

from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.snapshot.merging.window import VisibleXids, Window
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.spool import Spool
from aiorepl.values.registry import Types

OID = 7


@pytest.mark.parametrize(
    ("xid", "seen"),
    [(90, True), (100, True), (101, False), (102, True), (110, False), (111, False)],
)
@pytest.mark.parametrize("epoch", [0, 3])
def test_visibility(xid, seen, epoch):
    """A transaction is visible if it ended before the snapshot; the epoch of the stream's xids is the nearest one."""
    base = epoch << 32
    snapshot = VisibleXids.parse(f"{base + 101}:{base + 110}:{base + 101},{base + 105}")
    assert seen == snapshot.sees(xid)


def test_visibility_around_a_wrap():
    """An xid from before the wraparound is old, one from after it new."""
    snapshot = VisibleXids.parse(f"{2**32 - 2}:{2**32 + 5}:{2**32 - 2},{2**32 + 3}")
    assert [True, False, True, False, False] == [
        snapshot.sees(xid) for xid in (2**32 - 3, 2**32 - 2, 2**32 - 1, 3, 5)
    ]


def test_a_key_that_cannot_be_decoded(tmp_path):
    """It does not end the stream: any row may have been changed, and the last chunk has all that were."""
    # An array of a text that is not UTF-8, as a SQL_ASCII database may have.
    key = build.Binary(struct.pack(">iiIiii", 1, 0, 25, 1, 1, 1) + b"\xe9")
    decoder, assembler = Decoder(Streaming.OFF), Assembler(Types(), binary=True, spool=Spool(tmp_path))
    payloads = [
        build.relation(oid=OID, name="t", columns=[build.column("id", 1009, key=True)]),
        build.begin(final_lsn=1000, xid=7),
        build.insert(relation=OID, new=[key]),
        build.commit(commit_lsn=1000, end_lsn=1008),
    ]
    window = Window(OID, ("id",), 1000)
    slices = assembler.feed([decoder.decode(payload) for payload in payloads])
    for part in slices:
        window.observe(part)
    (change,) = slices[0].changes
    before, after = VisibleXids.parse("5:5:"), VisibleXids.parse("8:8:")
    assert window.judge(before, change.layout.relation).again is not None
    assert window.take_owed() is None
    window.prune(after)
    assert window.judge(after, change.layout.relation).again is None


def observed(
    window: Window, *changes: bytes, columns: tuple[str, ...] = ("id", "v"), xid: int = 7, tmp_path
) -> None:
    """Show a window one transaction, whose values are binary where they are marked."""
    decoder = Decoder(Streaming.OFF)
    assembler = Assembler(Types(), binary=True, spool=Spool(tmp_path))
    listed = [build.column(name, 23 if name == "id" else 25, key=name != "v") for name in columns]
    payloads = [
        build.relation(oid=OID, name="t", columns=listed),
        build.begin(final_lsn=1000, xid=xid),
        *changes,
        build.commit(commit_lsn=1000, end_lsn=1008),
    ]
    for part in assembler.feed([decoder.decode(payload) for payload in payloads]):
        window.observe(part)


def relation(*columns: str) -> Relation:
    """The table, with these columns."""
    listed = [build.column(name, 23 if name == "id" else 25, key=name != "v") for name in columns]
    found = Decoder().decode(build.relation(oid=OID, name="t", columns=listed))
    assert isinstance(found, Relation)
    return found


UNSEEN = VisibleXids.parse("7:7:")


@pytest.mark.parametrize("change", ["insert", "delete"])
def test_a_row_without_a_key(tmp_path, change):
    """Any row may have been changed if the stream's columns lack one of the key."""
    window = Window(OID, ("id", "other"), 1000)
    rows = {
        "insert": build.insert(relation=OID, new=["1", "v"]),
        "delete": build.delete(relation=OID, old=["1", None]),
    }
    observed(window, rows[change], tmp_path=tmp_path)
    assert window.judge(UNSEEN, relation("id", "v")).again is not None
    assert 0 == window.memory


@pytest.mark.parametrize(
    ("columns", "again"), [(("id", "v"), False), (("id", "v", "w"), True), (("id", "w"), True)]
)
def test_other_columns(tmp_path, columns, again):
    """A chunk that was read with other columns than the stream's rows have is read again."""
    window = Window(OID, ("id",), 1000)
    observed(window, build.insert(relation=OID, new=["1", "v"]), tmp_path=tmp_path)
    assert again == (window.judge(UNSEEN, relation(*columns)).again is not None)


def test_columns_that_change_in_a_transaction(tmp_path):
    """Its rows cannot be compared with a chunk."""
    window = Window(OID, ("id",), 1000)
    altered = [build.column("id", 23, key=True), build.column("v"), build.column("w")]
    changes = (
        build.insert(relation=OID, new=["1", "v"]),
        build.relation(oid=OID, name="t", columns=altered),
        build.insert(relation=OID, new=["2", "v", "w"]),
    )
    observed(window, *changes, tmp_path=tmp_path)
    for columns in (("id", "v"), ("id", "v", "w")):
        assert window.judge(UNSEEN, relation(*columns)).again is not None


def test_a_key_counts_once(tmp_path):
    """However often a transaction changes a row, its key is in memory once."""
    sizes = []
    for times in (1, 3):
        window = Window(OID, ("id",), 1000)
        changes = [build.update(relation=OID, new=["1", "v"])] * times
        observed(window, *changes, tmp_path=tmp_path)
        sizes.append(window.memory)
    assert 200 < sizes[0] == sizes[1]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_column_of_the_key_that_is_not_sent(tmp_path, binary):
    """If a part of the key is out of line and another one changes, the old row has it."""
    window = Window(OID, ("id", "other"), 10_000)
    number = build.Binary(struct.pack(">i", 1)) if binary else "1"
    change = build.update(relation=OID, new=[UNCHANGED, "b", "v"], old=[number, "a", None])
    observed(window, change, columns=("id", "other", "v"), tmp_path=tmp_path)
    verdict = window.judge(UNSEEN, relation("id", "other", "v"))
    assert {(b"1", b"a"), (b"1", b"b")} == verdict.overtaken.keys
    assert [(b"1", b"a")] == [row.base for row in verdict.overtaken.partial.values()]
