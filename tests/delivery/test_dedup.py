"""What is new to a reader, of a stream that comes again from anywhere before it, in any cut."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from aiorepl import LSN
from aiorepl.delivery.dedup import Deduplicator
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

UNITS = st.lists(
    st.one_of(st.integers(0, 9), st.sampled_from(["message", "prepare", "decide", "undo"])), max_size=8
)


def told(units) -> Stream:
    """Transactions of so many rows, messages between them, prepared ones."""
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
        elif unit in ("decide", "undo") and prepared:
            decide = stream.commit_prepared if unit == "decide" else stream.rollback_prepared
            decide(prepared.pop())
        else:
            stream.transaction(*rows)
    return stream


def content(slices):
    """What a reader gets of slices, whatever their cut: identities, ends and steps of two-phase commit."""
    found = []
    for part in slices:
        at = None if part.transaction is None else part.transaction.commit_lsn
        found += [(at, change.kind, change.ordinal) for change in part.changes]
        if part.end_lsn is not None:
            found.append((at, part.end_lsn, type(part.two_phase)))
    return found


@given(
    units=UNITS,
    readings=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40), st.floats(0, 1)), max_size=5),
)
def test_everything_comes_once(units, readings):
    """Broken off anywhere and read again from the end of any transaction before: each change once, in order."""
    stream = told(units)
    seen, got = Deduplicator(LSN(0)), []
    after, reached = LSN(0), LSN(0)
    for at_once, count, share in [*readings, (2, 10**6, 0)]:
        for part in stream.again(at_once, after=after)[:count]:
            reached = part.end_lsn or reached
            if (new := seen.new(part)) is not None:
                got.append(new)
        ends = [LSN(0), *stream.ends[: bisect_right(stream.ends, reached)]]
        reached = after = ends[int(share * (len(ends) - 1))]
    assert content(stream.again()) == content(got)
    firsts = [part.transaction.commit_lsn for part in got if part.transaction is not None and part.first]
    assert sorted(set(firsts)) == firsts


@given(units=UNITS, at_once=st.integers(1, 5), place=st.floats(0, 1))
def test_what_is_held_at_the_start_does_not_come(units, at_once, place):
    """A reader that begins at the end of a transaction gets what lies behind it."""
    stream = told(units)
    ends = [LSN(0), *stream.ends]
    after = ends[int(place * (len(ends) - 1))]
    seen = Deduplicator(after)
    got = [new for part in stream.again(at_once) if (new := seen.new(part)) is not None]
    assert content(stream.again(after=after)) == content(got)


def test_a_reading_that_stops_short_of_the_last():
    """Of a transaction that broke off at different places, what is known is the most that ever came."""
    stream = told([6])
    parts = stream.again(1)
    seen = Deduplicator(LSN(0))
    # A read of each message: the description, six rows, the end.
    assert [0, 1, 2, 3] == [change.ordinal for part in parts[:4] for change in seen.new(part).changes]
    assert [None, None] == [seen.new(part) for part in parts[:2]]
    assert [] == [new for part in stream.again(2)[:1] if (new := seen.new(part)) is not None]
    rest = [new for part in stream.again(4) if (new := seen.new(part)) is not None]
    assert [4, 5] == [change.ordinal for part in rest for change in part.changes]
    assert not any(part.first for part in rest)
