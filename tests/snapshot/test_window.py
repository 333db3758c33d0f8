"""Which rows of a chunk the stream has overtaken."""

from __future__ import annotations

import struct

import pytest

from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.snapshot.window import Visibility, Window
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
    snapshot = Visibility.parse(f"{base + 101}:{base + 110}:{base + 101},{base + 105}")
    assert seen == snapshot.sees(xid)


def test_visibility_around_a_wrap():
    """An xid from before the wraparound is old, one from after it new."""
    snapshot = Visibility.parse(f"{2**32 - 2}:{2**32 + 5}:{2**32 - 2},{2**32 + 3}")
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
    before, after = Visibility.parse("5:5:"), Visibility.parse("8:8:")
    assert window.judge(before, change.layout.relation).again is not None
    assert window.take_owed() is None
    window.prune(after)
    assert window.judge(after, change.layout.relation).again is None
