"""Every reader, fed what no server sends: ProtocolError that names the message, and no other exception."""

from __future__ import annotations

import re
import struct

import pytest

from aiorepl.errors import ProtocolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build

COLUMNS = [build.column("id", 23, key=True), build.column("note")]


def refusal(decoder: Decoder, payload: bytes) -> ProtocolError:
    """Return the decoder's error."""
    with pytest.raises(ProtocolError) as caught:
        decoder.decode(payload)
    return caught.value


@pytest.fixture
def decoder() -> Decoder:
    """Relation 7 has two columns."""
    decoder = Decoder(Streaming.PARALLEL)
    decoder.decode(build.relation(oid=7, name="t", columns=COLUMNS))
    return decoder


def test_cut_at_every_byte(sample):
    """A message that is cut at any byte raises an error with its name."""
    payload = sample.payload
    everywhere = range(1, len(payload))
    # Of the long ones all of the head and of the tail, and a part of the middle.
    cuts = (
        everywhere
        if len(payload) < 500
        else [*everywhere[:200], *everywhere[200:-200:997], *everywhere[-200:]]
    )
    decoder = sample.decoder()

    refused = {refusal(decoder, payload[:cut]).message for cut in cuts}

    assert refused == ({sample.name} if cuts else set())


@pytest.mark.parametrize("trailing", [b"\0", b"\0\0\0\0", b"t\0\0\0\1x", b"I" * 100], ids=repr)
def test_trailing_bytes(sample, trailing):
    """Bytes after the end of a message raise an error with its name."""
    assert sample.name == refusal(sample.decoder(), sample.payload + trailing).message


def test_an_empty_message(decoder):
    """No bytes are no message."""
    assert "an empty message" == str(refusal(decoder, b""))


def test_unknown_types(decoder):
    """An unknown first byte raises an error that shows it."""
    for first in set(range(256)) - set(b"BCORYIUDTMSEcAbPKrp"):
        unknown = bytes([first])
        assert f"unknown message type {unknown!r}" == str(refusal(decoder, unknown + bytes(30)))


@pytest.mark.parametrize("flags", [1, 2, 0x80, 0xFF])
@pytest.mark.parametrize(
    ("name", "payload", "at"),
    [
        ("Commit", build.commit(commit_lsn=1, end_lsn=2), 1),
        ("Stream Commit", build.stream_commit(xid=5, commit_lsn=1, end_lsn=2), 5),
        ("Prepare", build.prepare(prepare_lsn=1, end_lsn=2, xid=3, gid="g"), 1),
        ("Commit Prepared", build.commit_prepared(commit_lsn=1, end_lsn=2, xid=3, gid="g"), 1),
        (
            "Rollback Prepared",
            build.rollback_prepared(prepare_end_lsn=1, rollback_end_lsn=2, xid=3, gid="g"),
            1,
        ),
        ("Stream Prepare", build.stream_prepare(prepare_lsn=1, end_lsn=2, xid=3, gid="g"), 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_flags_that_are_not_used(decoder, name, payload, at, flags):
    """Flags are reserved and 0: a bit that is set means something we do not know."""
    error = refusal(decoder, payload[:at] + bytes([flags]) + payload[at + 1 :])

    assert (name, "flags", f"unknown bits in {flags:#04x}") == (error.message, error.field, error.problem)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"M\2" + bytes(8) + b"\0\0\0\0\0", "Message.flags: unknown bits in 0x02"),
        (
            build.truncate(relations=[7]).replace(b"\0\0\0\1\0", b"\0\0\0\1\4"),
            "Truncate.options: unknown bits in 0x04",
        ),
        (
            build.relation(oid=8, name="t", replica_identity="x", columns=[]),
            "Relation.replica identity: is not d, n, f or i",
        ),
        (b"R\0\0\0\7\0t\0d\0\1\2a\0" + bytes(8), "Relation.column flags: unknown bits in 0x02"),
        (b"S\0\0\0\5\2", "Stream Start.first segment: is not 0 or 1"),
        (b"I\0\0\0\7K\0\2nn", "Insert.tuple kind: is not N"),
        (b"U\0\0\0\7X\0\2nn", "Update.tuple kind: is not K, O or N"),
        (b"U\0\0\0\7K\0\2nnK\0\2nn", "Update.tuple kind: is not K, O or N"),
        (b"D\0\0\0\7N\0\2nn", "Delete.tuple kind: is not K or O"),
        (b"I\0\0\0\7N\0\2nx", "Insert.TupleData: column 2 of 2 is of unknown kind 0x78"),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_flags_and_kinds(decoder, payload, expected):
    """An unknown flag, kind or replica identity raises an error with the valid ones."""
    assert expected == str(refusal(decoder, payload))


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (build.begin(final_lsn=0, xid=3), "Begin.final LSN"),
        (build.begin_prepare(prepare_lsn=0, end_lsn=2, xid=3, gid="g"), "Begin Prepare.LSN"),
        (build.begin_prepare(prepare_lsn=1, end_lsn=0, xid=3, gid="g"), "Begin Prepare.end LSN"),
        (build.prepare(prepare_lsn=0, end_lsn=2, xid=3, gid="g"), "Prepare.LSN"),
        (build.prepare(prepare_lsn=1, end_lsn=0, xid=3, gid="g"), "Prepare.end LSN"),
        (build.commit_prepared(commit_lsn=0, end_lsn=2, xid=3, gid="g"), "Commit Prepared.LSN"),
        (build.commit_prepared(commit_lsn=1, end_lsn=0, xid=3, gid="g"), "Commit Prepared.end LSN"),
        (build.stream_prepare(prepare_lsn=0, end_lsn=2, xid=3, gid="g"), "Stream Prepare.LSN"),
        (build.stream_prepare(prepare_lsn=1, end_lsn=0, xid=3, gid="g"), "Stream Prepare.end LSN"),
        (
            build.rollback_prepared(prepare_end_lsn=0, rollback_end_lsn=2, xid=3, gid="g"),
            "Rollback Prepared.prepare end LSN",
        ),
        (
            build.rollback_prepared(prepare_end_lsn=1, rollback_end_lsn=0, xid=3, gid="g"),
            "Rollback Prepared.rollback end LSN",
        ),
        (build.stream_start(xid=0, first_segment=True), "Stream Start.xid"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_must_be_set(decoder, payload, expected):
    """An LSN or xid of zero raises an error where PostgreSQL's own client does."""
    assert f"{expected}: is not set" == str(refusal(decoder, payload))


@pytest.mark.parametrize("new", [[], ["1"], ["1", "a", "b"], [None] * 1600], ids=len)
def test_a_row_unlike_its_relation(decoder, new):
    """A tuple has as many columns as its relation, in every place a tuple can stand in."""
    two = ["1", "a"]
    said = f"TupleData: has {len(new)} columns where its relation has 2"

    assert f"Insert.{said}" == str(refusal(decoder, build.insert(relation=7, new=new)))
    assert f"Update.{said}" == str(refusal(decoder, build.update(relation=7, new=new)))
    assert f"Update.{said}" == str(refusal(decoder, build.update(relation=7, old=new, old_kind="O", new=two)))
    assert f"Update.{said}" == str(refusal(decoder, build.update(relation=7, old=two, old_kind="K", new=new)))
    assert f"Delete.{said}" == str(refusal(decoder, build.delete(relation=7, old=new)))


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("Insert", build.insert(relation=8, new=[])),
        ("Update", build.update(relation=8, new=[])),
        ("Delete", build.delete(relation=8, old=[])),
        ("Truncate", build.truncate(relations=[7, 8])),
    ],
)
def test_a_relation_never_described(decoder, name, payload):
    """A row of an unknown relation raises an error with its oid."""
    assert f"{name}.relation: relation 8 was never described" == str(refusal(decoder, payload))


@pytest.mark.parametrize("claim", [6, 0x7FFF_FFFF, 0xFFFF_FFFF])
def test_a_value_that_claims_too_much(decoder, claim):
    """A column's length is believed only as far as the message goes."""
    payload = b"I\0\0\0\7N\0\2nt" + struct.pack(">I", claim) + b"short"

    assert "Insert.TupleData: column 2 of 2 claims more bytes than the message has" == str(
        refusal(decoder, payload)
    )


@pytest.mark.parametrize("claim", [0, 4, 6, 0xFFFF_FFFF])
def test_a_content_that_claims_another_length(decoder, claim):
    """A logical message's content is exactly as long as it says."""
    payload = build.message(lsn=1, content=b"12345").replace(b"\0\0\0\5", struct.pack(">I", claim))

    assert f"Message.content: claims {claim} bytes, the message has 5" == str(refusal(decoder, payload))


@pytest.mark.parametrize("claim", [0, 2, 0x4000_0001, 0xFFFF_FFFF])
def test_a_truncate_that_claims_another_count(decoder, claim):
    """The relations of a Truncate are as many as it says; four times the count may not wrap around."""
    payload = build.truncate(relations=[7]).replace(b"\0\0\0\1", struct.pack(">I", claim))

    assert f"Truncate.relations: {claim} relations do not fit the message" == str(refusal(decoder, payload))


def test_a_string_without_an_end(decoder):
    """A name without its NUL raises an error with its field."""
    assert "Type.name: has no end" == str(refusal(decoder, b"Y\0\0\0\7public\0mood"))
    assert "Origin.name: has no end" == str(refusal(decoder, b"O" + bytes(8) + b"north"))


@pytest.mark.parametrize(
    "payload", [b"I\0\0\0\7N\0\2", b"I\0\0\0\7N", b"U\0\0\0\7K\0\2nn", b"I\0\0\0\7N\0\2t\0\0"]
)
def test_no_error_shows_a_row(decoder, payload):
    """Errors have positions and lengths, and quote nothing."""
    secret = b"t\0\0\0\6s3cr3t"

    assert not re.search("s3cr3t", str(refusal(decoder, payload + secret)))


def test_a_refused_message_changes_nothing(decoder):
    """A relation that cannot be read whole does not replace the one that was."""
    refusal(decoder, build.relation(oid=7, name="t", columns=[])[:-1])

    row = decoder.decode(build.insert(relation=7, new=["1", UNCHANGED]))

    assert isinstance(row, m.Insert)
    assert 2 == len(row.relation.columns)
