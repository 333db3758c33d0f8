"""Framing and the index: what is written is what is read, and damage is noticed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.errors import JournalError
from aiorepl.journal import format as wire
from aiorepl.journal.index import Block, Description, Midway, SegmentIndex, dump, load
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.framing import frame_length
from aiorepl.pgoutput.messages import without_xid
from aiorepl.testing import messages as build
from aiorepl.values.types import TypeInfo

lsns = st.integers(0, 2**64 - 1).map(LSN)
names = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
midways = st.builds(
    Midway,
    xid=st.integers(0, 2**32 - 1),
    commit_lsn=lsns,
    commit_timestamp=st.integers(-(2**62), 2**62),
    origin=st.none() | names,
    ordinal=st.integers(0, 2**40),
)
blocks = st.builds(
    Block,
    offset=st.integers(0, 2**40),
    length=st.integers(0, 2**30),
    checksum=st.integers(0, 2**32 - 1),
    descriptions=st.lists(st.integers(0, 9)).map(tuple),
    rows=st.dictionaries(st.integers(0, 9), st.integers(1, 10**6)),
    midway=st.none() | midways,
    first_commit_lsn=st.none() | lsns,
    last_commit_lsn=st.none() | lsns,
    last_end_lsn=st.none() | lsns,
)
types = st.builds(
    TypeInfo,
    oid=st.integers(1, 2**32 - 1),
    namespace=names,
    name=names,
    kind=st.sampled_from("bcdermpa"),
    element=st.integers(0, 2**32 - 1),
    delimiter=st.sampled_from(",;"),
    fields=st.lists(st.tuples(names, st.integers(1, 2**32 - 1)), max_size=3).map(tuple),
)
indexes = st.builds(
    SegmentIndex,
    after=lsns,
    timeline=st.integers(1, 99),
    first_end_lsn=lsns,
    last_end_lsn=lsns,
    size=st.integers(0, 2**40),
    binary=st.booleans(),
    descriptions=st.lists(
        st.builds(Description, relation=st.binary(), types=st.lists(st.binary()).map(tuple)), max_size=3
    ).map(tuple),
    types=st.lists(types, max_size=3).map(tuple),
    blocks=st.lists(blocks, max_size=4).map(tuple),
)


@given(st.lists(st.binary(max_size=50)))
def test_frames(payloads: list[bytes]) -> None:
    """Payloads come back as they were framed."""
    block = b"".join(frame_length(len(payload)) + payload for payload in payloads)
    assert list(wire.frames(block)) == payloads


@pytest.mark.parametrize("cut", [1, 3, 5, 8])
def test_frames_cut_short(cut: int) -> None:
    """A block that ends within a frame is refused."""
    with pytest.raises(JournalError, match="does not end"):
        list(wire.frames((frame_length(5) + b"12345")[:cut]))


@given(
    st.integers(1, 2**64 - 1),
    lsns,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
    names,
)
def test_own_messages(commit_lsn: int, end_lsn: int, time: int, xid: int, name: str) -> None:
    """The messages that the journal writes itself read back as what they say."""
    decode = Decoder().decode
    assert decode(wire.begin(commit_lsn, time, xid)) == m.Begin(commit_lsn, time, xid)
    assert decode(wire.commit(commit_lsn, end_lsn, time)) == m.Commit(commit_lsn, end_lsn, time)
    assert decode(wire.origin(name)) == m.Origin(0, name, None)


def test_prefix_is_stripped() -> None:
    """A message from a stream block becomes the version-1 message."""
    streamed = build.insert(relation=7, new=["1"], xid=9)
    assert without_xid(streamed, 9) == build.insert(relation=7, new=["1"])
    assert without_xid(build.insert(relation=7, new=["1"]), None) == build.insert(relation=7, new=["1"])


@given(indexes)
def test_index(index: SegmentIndex) -> None:
    """An index comes back equal in every field."""
    read = load(dump(index), "index")
    assert dataclasses.asdict(read) == dataclasses.asdict(index)


@given(indexes, st.data())
def test_index_damage(index: SegmentIndex, data: st.DataObject) -> None:
    """Any flipped bit and any missing tail is noticed."""
    whole = dump(index)
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), whole[:place]):
        with pytest.raises(JournalError, match=r"some\.index is damaged"):
            load(damaged, "some.index")


def test_newer_format() -> None:
    """An index of a later version is refused by its number."""
    body = b'{"format":99}'
    with pytest.raises(JournalError, match="format 99"):
        load(b"%b\n%08x\n" % (body, wire.checksum(body)), "some.index")


def test_unreadable_description() -> None:
    """A description that is no Relation message is damage, however good its checksum."""
    empty = dict.fromkeys(("after", "first_end_lsn", "last_end_lsn"), LSN(0))
    for payload in (b"", b"R\0", build.begin(final_lsn=1, xid=2)):
        index = SegmentIndex(
            **empty,
            timeline=1,
            size=0,
            binary=False,
            descriptions=(Description(payload),),
            types=(),
            blocks=(),
        )
        with pytest.raises(JournalError):
            _ = index.relations
