"""A journal at one moment: its segments from manifests and the tail, whatever has been merged."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.errors import DamagedJournal
from aiorepl.journal.chain import Chain
from aiorepl.journal.completeness import Completeness, Gap
from aiorepl.journal.manifest import Manifest, ManifestRef
from aiorepl.journal.metadata import Identity, JournalState, Start, dump_state, load_state
from aiorepl.journal.segments import Entry, Segment, groups, parse_name
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.storage.checked_json import checksum

SOURCE = Position("1", 1, "s", LSN(0))
IDENTITY = Identity(SOURCE, LSN(1), "j")
TABLES = [("public", name) for name in "abcd"]


class Files:
    """The manifests, completeness and start of a chain, in memory."""

    def __init__(self, completeness: Completeness | None = None, start: int = 0) -> None:
        self.manifests: dict[str, bytes] = {}
        self._completeness = completeness or Completeness()
        self._start = start

    def manifest(self, ref: ManifestRef) -> Manifest:
        return Manifest.load(ref, self.manifests[ref.name], ref.file)

    def completeness(self, state: JournalState) -> Completeness:
        return self._completeness

    def start(self, state: JournalState) -> Start:
        return Start("j", LSN(self._start), LSN(self._start))

    def add(self, entries: list[Entry]) -> ManifestRef:
        """Make a manifest of segments."""
        manifest, name = Manifest.of(entries), f"{len(self.manifests):08X}"
        self.manifests[name] = manifest.dump()
        after, end = entries[0].segment.after, entries[-1].segment.last_end_lsn
        data = self.manifests[name]
        return ManifestRef(name, 0, after, end, len(entries), manifest.total_size(), checksum(data))


@st.composite
def histories(draw: st.DrawFn) -> list[list[Entry]]:
    """Segments of one or more parts, each with the tables that it has."""
    ends = sorted(draw(st.sets(st.integers(1, 2**64 - 1), min_size=1, max_size=12)))
    made = []
    for after, end in zip([0, *ends], ends, strict=False):
        parts = draw(st.integers(1, 3))
        made.append(
            [
                Entry(
                    Segment(LSN(after), LSN(end), draw(st.integers(1, 3)), part, parts, 100 + part, 50, 2, 7),
                    tuple(draw(st.lists(st.sampled_from(TABLES), unique=True))),
                )
                for part in range(parts)
            ]
        )
    return made


def chain_of(parts: list[list[Entry]], files: Files, cuts: list[int]) -> Chain:
    """Return a chain in which the segments before each cut are in a manifest."""
    refs, start = [], 0
    for cut in cuts:
        if cut > start:
            refs.append(files.add([entry for group in parts[start:cut] for entry in group]))
            start = cut
    tail = tuple(entry for group in parts[start:] for entry in group)
    end = SOURCE.at(parts[-1][-1].segment.last_end_lsn)
    state = JournalState("j", end, end, 3, 9, begins=LSN(1), manifests=tuple(refs), tail=tail)
    assert state == load_state(dump_state(state), "position.json")
    return Chain(IDENTITY, state, files)


@given(histories(), st.data())
def test_segments_behind_a_position(parts: list[list[Entry]], data: st.DataObject) -> None:
    """A reader gets the segments between two positions, of all tables or of one, wherever they are named."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(parts)))))
    chain = chain_of(parts, Files(), cuts)
    ends = [group[0].segment.last_end_lsn for group in parts]
    position = st.sampled_from([0, *ends]) | st.integers(0, ends[-1])
    after, until = (LSN(lsn) for lsn in data.draw(st.tuples(position, position)))
    table = data.draw(st.none() | st.sampled_from(TABLES))
    expected = [
        entry.segment
        for group in parts
        for entry in group
        if after < entry.segment.last_end_lsn <= until and (table is None or table in entry.tables)
    ]
    assert expected == chain.segments(after, until, table)
    if table is None:
        assert [list(each) for each in groups(expected)] == [
            [entry.segment for entry in group]
            for group in parts
            if after < group[0].segment.last_end_lsn <= until
        ]
    else:
        everywhere = [entry.segment for group in parts for entry in group if table in entry.tables]
        assert everywhere[::-1] == list(chain.backwards(table))
    assert [lsn for lsn in (*ends, after) if chain.ends_at(LSN(lsn))] == [
        *ends,
        *([after] if after in (0, *ends) else []),
    ]


@given(histories(), st.data())
def test_a_merged_manifest(parts: list[list[Entry]], data: st.DataObject) -> None:
    """A merged manifest has what the manifests had that it was made of."""
    entries = [entry for group in parts for entry in group]
    cut = data.draw(st.integers(0, len(entries)))
    merged = Manifest.merged([Manifest.of(entries[:cut]), Manifest.of(entries[cut:])])
    ref = Files().add(entries)
    data = merged.dump()
    loaded = Manifest.load(replace(ref, checksum=checksum(data)), data, "manifest")
    assert [(segment, set(tables)) for segment, tables in entries] == [
        (segment, set(tables)) for segment, tables in loaded.entries()
    ]
    for table in TABLES:
        expected = [number for number, entry in enumerate(entries) if table in entry.tables]
        assert expected == list(loaded.having(table, range(len(entries))))


@given(histories(), st.data())
def test_manifest_damage(parts: list[list[Entry]], data: st.DataObject) -> None:
    """Any flipped bit and any cut of a manifest is detected, and so is another manifest."""
    files = Files()
    ref = files.add([entry for group in parts for entry in group])
    whole = files.manifests[ref.name]
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), whole[:place]):
        with pytest.raises(DamagedJournal, match="some file is damaged"):
            Manifest.load(ref, damaged, "some file")
    with pytest.raises(DamagedJournal, match="some file is another manifest"):
        Manifest.load(replace(ref, segments=ref.segments + 1), whole, "some file")


@given(histories(), st.data())
def test_segments_that_do_not_join(parts: list[list[Entry]], data: st.DataObject) -> None:
    """A state that lacks any segment or part is damage."""
    chain = chain_of(parts, Files(), [])
    tail = list(chain.state.tail)
    del tail[data.draw(st.integers(0, len(tail) - 1))]
    joined = all(after.segment.follows(before.segment) for before, after in pairwise(tail))
    if joined and tail and not tail[0].segment.part and tail[-1] == chain.state.tail[-1]:
        return  # the oldest segments may have been pruned
    with pytest.raises(DamagedJournal, match=r"position\.json is damaged"):
        load_state(dump_state(replace(chain.state, tail=tuple(tail))), "position.json")


def test_gaps() -> None:
    """No position is valid inside a gap; at its edges, and in a history that the slot has left, positions are valid."""
    gap = Gap(LSN(80), LSN(120), LSN(100))
    end = SOURCE.at(LSN(120))
    chain = Chain(
        IDENTITY, replace(JournalState.empty(IDENTITY), position=end), Files(Completeness(gaps=(gap,)))
    )
    assert [lsn for lsn in range(150) if chain.hole(LSN(lsn))] == list(range(101, 120))
    assert chain.gaps_between(LSN(0), LSN(120)) == chain.gaps_between(LSN(100), LSN(130)) == [gap]
    assert chain.gaps_between(LSN(0), LSN(119)) == chain.gaps_between(LSN(120), LSN(130)) == []


def test_the_ends_of_a_chain() -> None:
    """A chain starts where its first segment does, or where retention says, and ends at its last segment or the WAL after it."""
    entries = [
        [Entry(Segment(LSN(after), LSN(after + 10), 1, 0, 1, 100, 50, 1, 7), ())] for after in (10, 20, 30)
    ]
    chain = chain_of(entries, Files(), [2])
    chain = replace(chain, state=replace(chain.state, position=SOURCE.at(LSN(45))))
    assert (chain.start_lsn, chain.last_segment_end, chain.end_lsn, chain.first_readable) == (10, 40, 45, 10)
    pruned = chain_of(entries, Files(start=20), [2])
    assert (pruned.start_lsn, [20, 30]) == (20, [segment.after for segment in pruned.walk()])
    assert [10] == [segment.after for segment in pruned.named(LSN(0), LSN(20))]
    empty = Chain(IDENTITY, JournalState.empty(IDENTITY), Files())
    assert (empty.start_lsn, empty.last_segment_end, empty.end_lsn, empty.first_readable) == (0, 0, 1, 1)
    assert empty.segments() == []


@pytest.mark.parametrize("file", ["odd.segment", "1-2-3.segment", f"{1:016X}-{2:08X}.segment"])
def test_other_files(file: str) -> None:
    """A file that is no segment has no segment's name."""
    with pytest.raises(ValueError, match=r".+"):
        parse_name(file)
