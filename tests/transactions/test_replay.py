"""A stream that is replayed from any point, in any slices, gives each change once and in order."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.spool import Extent, Spool
from aiorepl.transactions.spooled_changes import SpooledChanges
from aiorepl.values import Types

UNITS = st.lists(
    st.one_of(st.integers(0, 9), st.sampled_from(["message", "prepare", "commit", "rollback"])), max_size=8
)
# For each replay: messages a read, how many slices of it come, and where it begins, as a share of what was received.
REPLAYS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40), st.floats(0, 1)), max_size=5)


def history(units) -> Stream:
    """Transactions of so many rows, messages between them, and prepared transactions."""
    stream = Stream()
    table = stream.table("items", column("id", 23, key=True))
    prepared: list[str] = []
    for number, unit in enumerate(units):
        rows = [table.insert(str(row)) for row in range(unit if isinstance(unit, int) else 3)]
        if unit == "message":
            stream.message("prefix")
        elif unit == "prepare":
            prepared.append(f"gid {number}")
            stream.prepare(prepared[-1], *rows)
        elif unit in ("commit", "rollback") and prepared:
            outcome = stream.commit_prepared if unit == "commit" else stream.rollback_prepared
            outcome(prepared.pop())
        else:
            stream.transaction(*rows)
    return stream


def content(slices):
    """Return the content of slices, independent of their cuts: identities, ends and steps of two-phase commit."""
    found = []
    for part in slices:
        at = None if part.transaction is None else part.transaction.commit_lsn
        found += [(at, change.kind, change.ordinal) for change in part.changes]
        if part.end_lsn is not None:
            found.append((at, part.end_lsn, type(part.two_phase)))
    return found


def take(replay: ReplayFilter, slices) -> list[Slice]:
    """Return the new parts of the slices, and record them as received."""
    received = []
    for part in slices:
        if (new := replay.new(part)) is not None:
            replay.add(new)
            received.append(new)
    return received


def whole(slices) -> None:
    """Check that each transaction begins with its only first slice, and ends with its last."""
    open_lsn = None
    for part in slices:
        if part.transaction is not None:
            assert part.first is (open_lsn is None)
            assert open_lsn in (None, part.transaction.commit_lsn)
            open_lsn = None if part.last else part.transaction.commit_lsn
    assert open_lsn is None


@given(units=UNITS, replays=REPLAYS)
def test_everything_comes_once(units, replays):
    """If the stream breaks off anywhere and is replayed from the end of any transaction, each change comes once."""
    stream = history(units)
    replay, received = ReplayFilter(), []
    after, reached = LSN(0), LSN(0)
    for at_once, count, share in [*replays, (2, 10**6, 0)]:
        slices = stream.again(at_once, after=after)[:count]
        received += take(replay, slices)
        reached = max([after, *(part.end_lsn for part in slices if part.end_lsn)])
        ends = [LSN(0), *stream.ends[: bisect_right(stream.ends, reached)]]
        after = ends[int(share * (len(ends) - 1))]
    assert content(stream.again()) == content(received)
    whole(received)


@given(units=UNITS, replays=REPLAYS)
def test_taken_at_once(units, replays):
    """``take`` returns and records what ``new`` and ``add`` do."""
    stream = history(units)
    one, other = ReplayFilter(), ReplayFilter()
    for at_once, count, _ in [*replays, (2, 10**6, 0)]:
        slices = stream.again(at_once)[:count]
        received = [new for part in slices if (new := one.take(part)) is not None]
        assert content(take(other, slices)) == content(received)
        assert (other.after, other.commit_lsn, other.ordinal) == (one.after, one.commit_lsn, one.ordinal)


@given(units=UNITS, replays=REPLAYS, dropped=st.sets(st.integers(0, 9)))
def test_ordinals_with_gaps(units, replays, dropped):
    """Slices without the changes that a transformation left out are replayed by ordinal, not by count."""

    def thinned(slices):
        return [
            replace(part, changes=[c for c in part.changes if c.ordinal not in dropped]) for part in slices
        ]

    stream = history(units)
    replay, received = ReplayFilter(), []
    for at_once, count, _ in [*replays, (3, 10**6, 0)]:
        received += take(replay, thinned(stream.again(at_once)[:count]))
    assert content(thinned(stream.again())) == content(received)


@given(units=UNITS, at_once=st.integers(1, 5), share=st.floats(0, 1))
def test_what_a_consumer_has_at_the_start_does_not_come(units, at_once, share):
    """A consumer that begins at the end of a transaction receives what comes after it."""
    stream = history(units)
    ends = [LSN(0), *stream.ends]
    after = ends[int(share * (len(ends) - 1))]
    received = take(ReplayFilter(after), stream.again(at_once))
    assert content(stream.again(after=after)) == content(received)


@given(units=UNITS, at_once=st.integers(1, 5), count=st.integers(0, 40), again=st.integers(1, 5))
def test_an_assembler_drops_the_same(units, at_once, count, again):
    """An assembler that resumes drops the same changes as the filter."""
    stream = history(units)
    replay = ReplayFilter()
    before = take(replay, stream.again(at_once)[:count])
    point = (replay.after, replay.commit_lsn, replay.ordinal)
    assembler = Assembler(Types(), resume=ReplayFilter(*point), begins=LSN(0), deliver_prepared=True)
    decoder = Decoder()
    payloads = [payload for _, unit in stream.units for payload in unit]
    after = []
    for start in range(0, len(payloads), again):
        after += assembler.feed([decoder.decode(payload) for payload in payloads[start : start + again]])
    after = [part for part in after if part.changes or part.last]
    assert content(stream.again()) == content([*before, *after])
    assert content(after) == content(take(replay, stream.again(again)))
    whole([*before, *after])


def test_a_replay_that_breaks_off_earlier():
    """If a transaction breaks off several times, the longest part counts as received."""
    stream = history([6])
    parts = stream.again(1)
    replay = ReplayFilter()
    # A read of each message: the description, six rows, the end.
    assert [0, 1, 2, 3] == [change.ordinal for part in take(replay, parts[:4]) for change in part.changes]
    assert [] == take(replay, parts[:2])
    assert [] == take(replay, stream.again(2)[:1])
    rest = take(replay, stream.again(4))
    assert [4, 5] == [change.ordinal for part in rest for change in part.changes]
    assert not any(part.first for part in rest)


def test_new_records_nothing():
    """A slice that failed on its way to the consumer is new again."""
    stream = history([2])
    replay = ReplayFilter()
    (part,) = stream.again()
    assert replay.new(part) is part
    assert replay.new(part) is part
    replay.add(part)
    assert replay.new(part) is None
    assert (part.end_lsn, None, 0) == (replay.after, replay.commit_lsn, replay.ordinal)


def test_a_message_within_a_transaction():
    """A partly received transaction continues after a message whose LSN is later than its changes."""
    stream = history([4, "message"])
    parts = [part for part in stream.again(1) if part.changes or part.last]
    *rows, message = parts
    replay = ReplayFilter()
    assert rows[:2] == take(replay, rows[:2])
    assert [message] == take(replay, [message])
    assert [] == take(replay, [message])
    header = rows[0].transaction
    assert header.commit_lsn < replay.after
    assert [2] == [change.ordinal for part in take(replay, rows[:3]) for change in part.changes]
    assert [] == take(replay, rows[:3])
    assert [3] == [change.ordinal for part in take(replay, rows) for change in part.changes]
    assert [] == take(replay, rows)


@given(units=UNITS, at_once=st.integers(1, 5), count=st.integers(0, 40))
def test_recorded_twice(units, at_once, count):
    """Recording known slices again changes nothing."""
    slices = history(units).again(at_once)[:count]
    replay = ReplayFilter()
    take(replay, slices)
    point = (replay.after, replay.commit_lsn, replay.ordinal)
    for part in slices:
        replay.add(part)
        assert point == (replay.after, replay.commit_lsn, replay.ordinal)


def test_a_transaction_that_begins_where_the_last_one_ended():
    """A commit record that starts at the received end LSN is new, because commit records can be adjacent."""
    first, second = history([1, 2]).again()
    second = replace(second, transaction=replace(second.transaction, commit_lsn=first.end_lsn))
    replay = ReplayFilter()
    assert [first, second] == take(replay, [first, second])
    begun = replace(second, end_lsn=None)
    assert ReplayFilter(first.end_lsn).new(begun) is begun


def test_a_slice_without_changes():
    """A slice that a transformation left empty leaves the changes after it new."""
    (part,) = history([2]).again()
    empty = replace(part, changes=(), end_lsn=None)
    replay = ReplayFilter()
    assert [empty] == take(replay, [empty])
    assert [0, 1] == [change.ordinal for new in take(replay, [part]) for change in new.changes]


def test_known():
    """The LSN of its commit record says whether a transaction is known whole, in part or not at all."""
    replay = ReplayFilter(LSN(0x20), LSN(0x30), 3)
    assert [None, 0, 3, 0] == [replay.known(lsn) for lsn in (0x1F, 0x20, 0x30, 0x31)]


@pytest.fixture
def spooled(tmp_path: Path):
    """A spool, and the slices of one transaction of 30 rows in it, in several chunks."""

    def spooled(resume: ReplayFilter | None = None):
        spool = Spool(tmp_path)
        decoder = Decoder(Streaming.ON)
        assembler = Assembler(Types(), spool=spool, budget=1, slice_bytes=100, resume=resume)
        payloads = [
            build.relation(oid=7, name="orders", columns=[column("id", key=True)]),
            build.stream_start(xid=5, first_segment=True),
            *(build.insert(relation=7, new=[str(row)], xid=5) for row in range(30)),
            build.stream_stop(),
            build.stream_commit(xid=5, commit_lsn=0x10, end_lsn=0x18),
        ]
        return assembler.feed([decoder.decode(payload) for payload in payloads])

    return spooled


def test_a_large_row_in_the_spool(tmp_path: Path):
    """All readers of its slice share the message; other slices are read from the spool each time."""
    decoder = Decoder(Streaming.ON)
    assembler = Assembler(Types(), spool=Spool(tmp_path), budget=1)
    rows = ["a", "b" * 5_000_000, "c", "d" * 2_000_000]
    payloads = [
        build.relation(oid=7, name="orders", columns=[column("id", key=True)]),
        build.stream_start(xid=5, first_segment=True),
        *(build.insert(relation=7, new=[row], xid=5) for row in rows),
        build.stream_stop(),
        build.stream_commit(xid=5, commit_lsn=0x10, end_lsn=0x18),
    ]
    parts = assembler.feed([decoder.decode(payload) for payload in payloads])

    read = [[change for part in parts for change in part.changes] for _ in range(2)]

    assert rows == [change.new["id"] for change in read[0]]
    assert [False, True, False, False] == [
        one.message.payload is other.message.payload for one, other in zip(*read, strict=True)
    ]
    assert all(part.changes[0] is next(iter(part.changes)) for part in parts if part.size > 4_000_000)


@pytest.mark.parametrize("known", [0, 1, 2, 3, 10, 29, 30])
def test_spooled_changes_are_not_read(spooled, monkeypatch, known):
    """The new part of spooled changes is found without reading the spool; iterating over it reads the spool."""
    parts = spooled()
    assert len(parts) > 5
    assert all(isinstance(part.changes, SpooledChanges) for part in parts)
    replay = ReplayFilter(LSN(0), LSN(0x10), known)

    with monkeypatch.context() as patched:
        patched.setattr(Extent, "read", lambda _: pytest.fail("the spool was read"))
        rest = take(replay, parts)
        assert 30 - known == sum(len(part.changes) for part in rest)

    ordinals = [change.ordinal for part in rest for change in part.changes]
    assert list(range(known, 30)) == ordinals
    assert known == 0 or not any(part.first for part in rest)
    assert ordinals == [
        change.ordinal for part in spooled(ReplayFilter(LSN(0), LSN(0x10), known)) for change in part.changes
    ]
    assert LSN(0x18) == replay.after


def test_each_spooled_slice_alone(spooled):
    """The new part of a slice depends on its ordinals alone, not on the slices before it."""
    for part in spooled():
        first, count = part.changes.first_ordinal, len(part.changes)
        for known in range(1, 30):
            new = ReplayFilter(LSN(0), LSN(0x10), known).new(part)
            left = range(max(first, known), first + count)
            if not left and not part.last:
                assert new is None
            else:
                assert list(left) == [change.ordinal for change in new.changes]


def test_spooled_changes_are_recorded_by_their_number(spooled):
    """A stream that breaks off within spooled changes continues there."""
    parts = spooled()
    replay, received = ReplayFilter(), []
    for count in (2, 1, 4, 3, 100):
        received += take(replay, parts[:count])
        assert replay.ordinal in (0, sum(len(part.changes) for part in received))
    assert list(range(30)) == [change.ordinal for part in received for change in part.changes]
    assert LSN(0x18) == replay.after
