"""The changes are the same, once each, wherever reads end and wherever the stream breaks off."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.values import Types

ID = st.integers(-(2**31), 2**31 - 1).map(str)
NOTE = st.none() | st.just(UNCHANGED) | st.text(max_size=5)
CONTENT = st.one_of(
    st.builds(lambda *new: build.insert(relation=7, new=new), ID, NOTE),
    st.builds(lambda *new: build.update(relation=7, new=new), ID, NOTE),
    st.builds(
        lambda old, *new: build.update(relation=7, new=new, old=[old, None], old_kind="K"), ID, ID, NOTE
    ),
    st.builds(lambda old: build.delete(relation=7, old=[old, None]), ID),
    st.just(build.truncate(relations=[7], cascade=True)),
    st.builds(lambda content: build.message(lsn=1, prefix="p", content=content), st.binary(max_size=5)),
)
RELATION = build.relation(
    oid=7, name="orders", columns=[build.column("id", 23, key=True), build.column("note")]
)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Transactions, some with non-transactional messages between them."""
    payloads, lsn = [], 0x10
    for xid in range(draw(st.integers(1, 5))):
        lsn += 0x10
        if draw(st.booleans()):
            payloads.append(build.message(transactional=False, lsn=lsn, prefix="between"))
            lsn += 0x10
        origin = [build.origin(commit_lsn=1, name="north")] if draw(st.booleans()) else []
        contents = draw(st.lists(CONTENT, max_size=6))
        payloads += [build.begin(final_lsn=lsn, commit_time=xid, xid=xid), *origin, RELATION, *contents]
        payloads.append(build.commit(commit_lsn=lsn, end_lsn=lsn + 0x10))
        lsn += 0x10
    return payloads


@st.composite
def reads_of(draw: st.DrawFn, payloads: list[bytes]) -> list[list[bytes]]:
    """Return the same messages in reads that are cut anywhere; some reads are empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(payloads)), max_size=8)))
    return [payloads[start:end] for start, end in zip([0, *cuts], [*cuts, len(payloads)], strict=True)]


def assemble(reads: list[list[bytes]], resume: ReplayFilter | None = None) -> list[Slice]:
    """Return all slices of these reads."""
    decoder, assembler = Decoder(), Assembler(Types(), resume=resume)
    return [part for read in reads for part in assembler.feed([decoder.decode(payload) for payload in read])]


def described(slices: list[Slice]) -> list[tuple[Any, ...]]:
    """Return the changes and ends in order, independent of the cuts."""
    told: list[tuple[Any, ...]] = []
    for part in slices:
        header = part.transaction
        at = None if header is None else (header.xid, header.commit_lsn, header.commit_time, header.origin)
        for change in part.changes:
            rows = [getattr(change, name, None) for name in ("key", "old", "new")]
            values = [None if row is None else dict(row) for row in rows]
            told.append((at, change.ordinal, change.kind, values, getattr(change, "content", None)))
        if part.last:
            told.append((at, part.end_lsn))
    return told


def well_formed(slices: list[Slice]) -> None:
    """Check that the slices of a transaction follow each other, from the first to the last."""
    inside = False
    for part in slices:
        assert part.first is not inside
        inside = not part.last


@given(st.data())
def test_reads(data):
    """A stream in any reads gives the same changes, headers and ends as in one read."""
    payloads = data.draw(streams())

    slices = assemble(data.draw(reads_of(payloads)))

    assert described(assemble([payloads])) == described(slices)
    well_formed(slices)


@given(st.data())
def test_breaking_off(data):
    """A stream that breaks off anywhere and is sent again loses nothing and repeats nothing."""
    payloads = data.draw(streams())
    reads = data.draw(reads_of(payloads))
    before = assemble(reads[: data.draw(st.integers(0, len(reads)))])

    resume = ReplayFilter()
    for part in before:
        if part.end_lsn is not None:
            resume = ReplayFilter(max(resume.after, part.end_lsn))
        elif part.transaction is not None and part.changes:
            resume = ReplayFilter(resume.after, part.transaction.commit_lsn, part.changes[-1].ordinal + 1)
    again = assemble(data.draw(reads_of(payloads)), resume)

    assert described(assemble([payloads])) == described([*before, *again])
    well_formed([*before, *again])
    assert all(part.end_lsn is None or part.end_lsn > LSN(resume.after) for part in again)
