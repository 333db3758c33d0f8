"""Framing and index: they are read as they were written, and damage is detected."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.errors import JournalError
from aiorepl.journal import segment_format
from aiorepl.journal.index import Block, Continuation, Description, SegmentIndex, dump, load
from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.framing import frame_length
from aiorepl.pgoutput.messages import without_xid
from aiorepl.pgoutput.relations import Attribute
from aiorepl.position import Position
from aiorepl.storage.checked_json import checksum, seal, unseal
from aiorepl.testing import messages as build
from aiorepl.values.types import TypeInfo

lsns = st.integers(0, 2**64 - 1).map(LSN)
names = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
midways = st.builds(
    Continuation,
    xid=st.integers(0, 2**32 - 1),
    commit_lsn=lsns,
    commit_timestamp=st.integers(-(2**62), 2**62),
    origin=st.none() | names,
    ordinal=st.integers(0, 2**40),
)


def blocks(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[Block]:
    """Blocks with descriptions of these numbers."""
    return st.builds(
        Block,
        offset=st.just(0),
        length=st.integers(0, 2**30),
        checksum=st.integers(0, 2**32 - 1),
        descriptions=st.lists(numbers).map(tuple),
        rows=st.dictionaries(numbers, st.integers(1, 10**6)),
        continuation=st.none() | midways,
        first_commit_lsn=st.none() | lsns,
        last_commit_lsn=st.none() | lsns,
        last_end_lsn=st.none() | lsns,
    )


positions = st.builds(
    Position, st.just("7000000000000000001"), st.integers(1, 99), names.filter(bool), lsns, st.none()
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
attributes = st.dictionaries(
    names,
    st.builds(Attribute, st.integers(1, 1600))
    | st.builds(Attribute, st.integers(1, 1600), st.none() | names, missing_known=st.just(True)),
    max_size=2,
)
described = build.relation(oid=7, namespace="public", name="t", columns=[build.column("id", 23, key=True)])


@st.composite
def indexes(draw: st.DrawFn) -> SegmentIndex:
    """Valid indexes."""
    end = draw(positions)
    after = draw(st.integers(0, end.lsn))
    descriptions = draw(st.integers(0, 3))
    numbers = st.integers(0, descriptions - 1) if descriptions else st.nothing()
    made, offset = [], len(segment_format.MAGIC)
    for _ in range(draw(st.integers(0, 4))):
        block = draw(blocks(numbers))
        made.append(dataclasses.replace(block, offset=offset))
        offset += block.length
    return SegmentIndex(
        after=LSN(after),
        epoch=draw(st.integers(0, 2**32 - 1)),
        part=draw(st.integers(0, 2**32 - 1)),
        end=end,
        offset=offset,
        binary=draw(st.booleans()),
        descriptions=tuple(
            Description(("public", "t"), described, (), draw(attributes)) for _ in range(descriptions)
        ),
        types=draw(st.lists(types, max_size=3).map(tuple)),
        blocks=tuple(made),
    )


@given(st.lists(st.binary(max_size=50)))
def test_frames(payloads: list[bytes]) -> None:
    """Payloads are unchanged by framing."""
    block = b"".join(frame_length(len(payload)) + payload for payload in payloads)
    assert list(segment_format.frames(block)) == payloads


@pytest.mark.parametrize("cut", [1, 3, 5, 8])
def test_frames_cut_short(cut: int) -> None:
    """A block that ends within a frame is an error."""
    with pytest.raises(JournalError, match="last message is incomplete"):
        list(segment_format.frames((frame_length(5) + b"12345")[:cut]))


@given(
    st.integers(1, 2**64 - 1),
    lsns,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
    names,
)
def test_own_messages(commit_lsn: int, end_lsn: int, time: int, xid: int, name: str) -> None:
    """The messages that the journal makes have the content that they were made of."""
    decode = Decoder().decode
    assert decode(segment_format.begin(commit_lsn, time, xid)) == m.Begin(commit_lsn, time, xid)
    assert decode(segment_format.commit(commit_lsn, end_lsn, time)) == m.Commit(commit_lsn, end_lsn, time)
    assert decode(segment_format.origin(name)) == m.Origin(0, name, None)


def test_prefix_is_stripped() -> None:
    """A message from a stream block becomes the version-1 message."""
    streamed = build.insert(relation=7, new=["1"], xid=9)
    assert without_xid(streamed, 9) == build.insert(relation=7, new=["1"])
    assert without_xid(build.insert(relation=7, new=["1"]), None) == build.insert(relation=7, new=["1"])


@given(indexes())
def test_index(index: SegmentIndex) -> None:
    """Every field of an index is read as it was written."""
    read = load(dump(index), index.offset, "index")
    assert read == index


@given(indexes(), st.data())
def test_index_damage(index: SegmentIndex, data: st.DataObject) -> None:
    """Any flipped bit and any cut is detected."""
    whole = dump(index)
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), whole[:place]):
        with pytest.raises(JournalError, match=r"some\.segment is damaged"):
            load(damaged, index.offset, "some.segment")


@pytest.mark.parametrize(
    ("data", "found"),
    [(seal({})[:-10].replace(b":3", b":99"), 99), (b'{"format":1,"slot":"test"}\n', 1)],
)
def test_other_format(data: bytes, found: int) -> None:
    """A file of another version is rejected with its number and what to do; the first version had no checksums."""
    if found != 1:
        data = b"%b\n%08x\n" % (data, checksum(data))
    with pytest.raises(JournalError, match=f"some.file has format {found}; .* resnapshot"):
        unseal(data, "some.file", dict)


@pytest.mark.parametrize("payload", [b"", b"R\0", build.begin(final_lsn=1, xid=2), described])
def test_unreadable_description(payload: bytes) -> None:
    """A description that is no Relation message of its table is damage, even with a valid checksum."""
    index = SegmentIndex(
        after=LSN(0),
        epoch=1,
        part=0,
        end=Position("1", 1, "s", LSN(1)),
        offset=len(segment_format.MAGIC),
        binary=False,
        descriptions=(Description(("public", "other"), payload),),
        types=(),
        blocks=(),
    )
    with pytest.raises(JournalError, match=r"some\.segment is damaged"):
        load(dump(index), index.offset, "some.segment").relation(0)
