"""The chain of segments: a missing one is detected from names and ``position.json`` alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.journal.chain import Break, Chain, Segment, find_break
from aiorepl.journal.metadata import Gap, Manifest, State, segment_name
from aiorepl.lsn import LSN
from aiorepl.position import Position

SOURCE = Position("1", 1, "s", LSN(0))
MANIFEST = Manifest(SOURCE, LSN(1))


def names_of(ends: list[int]) -> list[str]:
    """Return the names of segments with these ends, from the first on."""
    return [segment_name(LSN(after), LSN(end)) for after, end in zip([0, *ends], ends, strict=False)]


def state_of(names: list[str]) -> State:
    """Return the state of a journal whose last segment this is."""
    end = LSN(int(names[-1][17:], 16)) if names else LSN(0)
    return State(SOURCE.at(end), names[-1] if names else None)


ends = st.lists(st.integers(1, 2**64 - 1), unique=True, min_size=1, max_size=12).map(sorted)


@given(ends, st.data())
def test_any_segments_missing(ends: list[int], data: st.DataObject) -> None:
    """Any missing segments are detected, unless they are the oldest ones, which look pruned."""
    names = names_of(ends)
    state = state_of(names)
    assert find_break(names, MANIFEST, state) is None
    kept = data.draw(st.sets(st.sampled_from(names)))
    left = [name for name in names if name in kept]
    pruned = left != [] and left == names[len(names) - len(left) :]
    assert (find_break(left, MANIFEST, state) is None) == pruned


@given(ends, st.data())
def test_position_one_segment_behind(ends: list[int], data: st.DataObject) -> None:
    """After a crash between the last index and position.json the journal is valid, even if earlier segments were pruned."""
    names = names_of(ends)
    state = state_of(names[:-1])
    assert find_break(names, MANIFEST, state) is None
    gone = data.draw(st.integers(0, len(names) - 1))
    left = names[gone:]
    assert (find_break(left, MANIFEST, state) is None) == (len(names) > 1 or gone == 0)


@given(ends, st.data())
def test_position_of_an_older_copy(ends: list[int], data: st.DataObject) -> None:
    """A position more than one segment behind is damage: no crash leaves it, and it would forget gaps."""
    names = names_of(ends)
    older = data.draw(st.integers(0, len(names)))
    found = find_break(names, MANIFEST, state_of(names[:older]))
    assert (found is None) == (older >= len(names) - 1)
    assert found is None or found.file == "position.json"


@given(ends)
def test_files_of_their_own(ends: list[int]) -> None:
    """Once there is a segment, journal.json and position.json must exist."""
    names = names_of(ends)
    for manifest, state, file in (
        (None, state_of(names), "journal.json"),
        (MANIFEST, None, "position.json"),
    ):
        found = find_break(names, manifest, state)
        assert found is not None
        assert found.file == file
    assert find_break([], None, None) is None
    assert find_break([], MANIFEST, None) is None


@given(ends, st.data())
def test_segments_behind_a_position(ends: list[int], data: st.DataObject) -> None:
    """A reader gets the segments that end after its position, up to the end that it asks for."""
    names = names_of(ends)
    chain = Chain(MANIFEST, state_of(names), tuple(names))
    position = st.sampled_from([0, *ends]) | st.integers(0, ends[-1])
    after, until = (LSN(lsn) for lsn in data.draw(st.tuples(position, position)))
    assert [segment.last_end_lsn for segment in chain.segments(after, until)] == [
        end for end in ends if after < end <= until
    ]


def test_gaps() -> None:
    """No position is valid inside a gap; at its edges, and in a history that the slot has left, positions are valid."""
    name = segment_name(LSN(0), LSN(100))
    gap = Gap(LSN(80), LSN(120), name)
    chain = Chain(MANIFEST, State(SOURCE.at(LSN(120)), name, (gap,)), (name,))
    assert [lsn for lsn in range(150) if chain.hole(LSN(lsn))] == list(range(101, 120))
    assert chain.gaps(LSN(0), LSN(120)) == chain.gaps(LSN(100), LSN(130)) == [gap]
    assert chain.gaps(LSN(0), LSN(119)) == chain.gaps(LSN(120), LSN(130)) == []


def test_the_ends_of_a_chain() -> None:
    """A chain starts where its first segment does, and ends at its last segment or the WAL after it."""
    names = tuple(names_of([10, 20, 30])[1:])
    chain = Chain(MANIFEST, State(SOURCE.at(LSN(35)), names[-1]), names)
    assert (chain.start_lsn, chain.last_segment_end, chain.end_lsn) == (10, 30, 35)
    assert chain.last == Segment(names[-1], LSN(20), LSN(30))
    assert [segment.after for segment in chain.segments()] == [10, 20]
    behind = Chain(MANIFEST, State(SOURCE.at(LSN(20)), names[0]), names)
    assert behind.end_lsn == 30
    empty = Chain(MANIFEST, State(SOURCE), ())
    assert (empty.start_lsn, empty.last_segment_end, empty.end_lsn) == (0, 0, MANIFEST.start_lsn)
    assert (empty.last, empty.segments()) == (None, [])


FIRST, SECOND, THIRD = names_of([0x10, 0x20, 0x30])


@pytest.mark.parametrize(
    ("names", "state", "expected"),
    [
        (
            [FIRST, "odd"],
            state_of([FIRST]),
            Break("odd.index", "does not have the name of a segment", "Move it out of the folder"),
        ),
        (
            [FIRST, THIRD],
            state_of([THIRD]),
            Break(f"{0x10:016X}-*.index", "is missing: there is nothing between 0/10 and 0/20"),
        ),
        (
            [FIRST, segment_name(LSN(8), LSN(0x20))],
            state_of([FIRST]),
            Break(
                f"{8:016X}-{0x20:016X}.index",
                f"does not follow {FIRST}.index",
                "Move the file that does not belong to this journal out of the folder",
            ),
        ),
        (
            [FIRST, SECOND, THIRD],
            state_of([FIRST]),
            Break("position.json", "is an older copy: it ends at 0/10, and a segment starts at 0/20"),
        ),
        (
            [FIRST],
            state_of([FIRST, SECOND]),
            Break(f"{SECOND}.index", "is missing, although position.json names it"),
        ),
        (
            [SECOND],
            State(SOURCE.at(LSN(0x10))),
            Break("position.json", "is an older copy: it ends at 0/0, and a segment starts at 0/10"),
        ),
        ([], state_of([FIRST]), Break(f"{FIRST}.index", "is missing, although position.json names it")),
        ([FIRST], None, Break("position.json", "is missing")),
    ],
)
def test_what_a_break_says(names: list[str], state: State | None, expected: Break) -> None:
    """The error names the file and the problem, and the remedy if that is not to restore the file."""
    assert find_break(names, MANIFEST, state) == expected
    no_manifest = Break("journal.json", "is missing")
    assert find_break(names, None, state) == no_manifest
