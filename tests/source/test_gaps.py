"""Timelines and gaps: when a position does not fit the server, and how a gap is accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aiorepl import LSN, Position, SlotError
from aiorepl.position import Timelines
from aiorepl.source.continuity import Gap, GapPolicy, divergence, parse_history, require_history

BEGIN = Position("1", 1, "s", LSN(100))
END = LSN(1000)
HISTORY = "1\t0/C8\tno recovery target specified\n\n2\t0/190\tno recovery target specified\n"


@pytest.mark.parametrize("position", [None, BEGIN, BEGIN.at(LSN(500)), BEGIN.at(END)])
def test_no_gap(position):
    """A holder without a position has no gap, nor has one at or after the slot's beginning."""
    gaps = GapPolicy(accept=False)
    assert position == gaps.check("sink x", position, BEGIN, END)
    assert [] == gaps.accepted


def test_a_gap():
    """A gap is refused, or recorded and skipped."""
    position = BEGIN.at(LSN(99))
    with pytest.raises(SlotError, match=r"sink x is at 0/63, but slot 's' begins at 0/64"):
        GapPolicy(accept=False).check("sink x", position, BEGIN, END)
    gaps = GapPolicy(accept=True)
    assert BEGIN == gaps.check("sink x", position, BEGIN, END)
    assert [Gap("sink x", LSN(99), LSN(100))] == gaps.accepted


def test_beyond_the_end_of_wal():
    """A position after the end of WAL cannot be accepted as a gap."""
    with pytest.raises(SlotError, match="WAL ends at 0/3E8"):
        GapPolicy(accept=True).check("sink x", BEGIN.at(LSN(1001)), BEGIN, END)


@pytest.mark.parametrize(
    ("timeline", "expected"),
    [(1, ()), (2, ((1, LSN(0xC8)),)), (3, ((1, LSN(0xC8)), (2, LSN(0x190))))],
)
def test_the_history_of_a_timeline(timeline, expected):
    """The history file lists a timeline's ancestors; without the file they are unknown."""
    assert expected == parse_history(HISTORY, 3).history(timeline)
    assert (() if timeline == 1 else None) == parse_history(None, 3).history(timeline)


@pytest.mark.parametrize(("lsn", "expected"), [(0, 1), (0xC8, 1), (0xC9, 2), (0x190, 2), (0x191, 3)])
def test_the_timeline_of_a_position(lsn, expected):
    """A position from before a promotion gets the later timelines once the stream knows them."""
    timelines = Timelines(1)
    begin = Position("1", 1, "s", LSN(0), timelines)
    assert 1 == begin.at(LSN(lsn)).timeline
    timelines.grow(parse_history(HISTORY, 3))
    assert expected == begin.at(LSN(lsn)).timeline
    assert begin.at(LSN(lsn)) == Position.from_json(begin.at(LSN(lsn)).to_json())


def test_a_stream_is_of_its_latest_timeline():
    """A stream accepts positions up to its current timeline, and no later ones."""
    timelines = Timelines(1)
    begin = Position("1", 1, "s", LSN(0), timelines)
    kept = Position("1", 3, "s", LSN(0x191))
    with pytest.raises(SlotError, match="of timeline 3, this server is on 1"):
        kept.require_same_source(begin, "sink x")
    timelines.grow(parse_history(HISTORY, 3))
    kept.require_same_source(begin, "sink x")


def test_received_data_must_be_in_the_history():
    """Received data must be in the server's history; an unknown history is not compared."""
    timelines = parse_history(HISTORY, 3)
    require_history(BEGIN.at(LSN(0xC8)), timelines)
    with pytest.raises(
        SlotError, match=r"left timeline 1 at 0/C8, but this pipeline has received up to 0/C9"
    ):
        require_history(BEGIN.at(LSN(0xC9)), timelines)
    with pytest.raises(SlotError, match="does not descend from 1"):
        require_history(BEGIN, Timelines(3, [(2, LSN(0x190))]))
    require_history(BEGIN, parse_history(None, 3))


@pytest.mark.parametrize(
    ("timeline", "history", "expected"),
    [
        (2, ((1, LSN(0xC8)),), LSN(0x190)),
        (2, ((1, LSN(0xC0)),), LSN(0xC0)),
        (2, ((1, LSN(0xD0)),), LSN(0xC8)),
        (2, None, LSN(0x190)),
        (3, ((1, LSN(0xC8)), (2, LSN(0x190))), None),
        (3, ((1, LSN(0xC8)), (2, LSN(0x180))), LSN(0x180)),
        (3, ((1, LSN(0xC8)),), LSN(0xC8)),
        (3, None, None),
        (4, ((1, LSN(0xC8)), (3, LSN(0x190))), LSN(0xC8)),
    ],
)
def test_where_two_histories_diverge(timeline, history, expected):
    """A timeline is identified by its ancestors, not by its number alone."""
    position = Position("1", timeline, "s", LSN(900), history=history)
    assert expected == divergence(position, parse_history(HISTORY, 3))
    assert None is divergence(position, parse_history(None, 3))
    if expected is not None:
        assert None is divergence(replace(position, lsn=expected), parse_history(HISTORY, 3))


def test_another_timeline_of_the_same_number():
    """The error says where the server's history left that of the holder, and how to continue."""
    position = Position("1", 3, "s", LSN(500), history=((1, LSN(0xC8)), (2, LSN(0x180))))
    with pytest.raises(SlotError, match="of timeline 3, which the server's history left at 0/180: "):
        GapPolicy(accept=False).check("sink x", position, PROMOTED, END)
    with pytest.raises(SlotError, match="history left timeline 3 at 0/180, but"):
        require_history(position, parse_history(HISTORY, 3))
    gaps = GapPolicy(accept=True)
    assert PROMOTED.at(LSN(500)) == gaps.check("sink x", position, PROMOTED, END)
    assert [Gap("sink x", LSN(0x180), LSN(500))] == gaps.accepted


def test_a_partial_transaction_must_be_in_the_history():
    """The commit of a partly received transaction must be in the history; the error names it."""
    timelines = parse_history(HISTORY, 3)
    require_history(BEGIN.at(LSN(0xC8)), timelines, LSN(0xC7))
    with pytest.raises(
        SlotError, match=r"received a part of the transaction that commits at 0/C8: the server has lost"
    ):
        require_history(BEGIN.at(LSN(0xC9)), timelines, LSN(0xC8))


PROMOTED = Position("1", 3, "s", LSN(100), parse_history(HISTORY, 3))


@pytest.mark.parametrize(("timeline", "lsn"), [(1, 0xC8), (2, 0x190), (3, 900)])
def test_what_the_promoted_server_has(timeline, lsn):
    """A position at or before the end of its timeline continues on the promoted server."""
    position = Position("1", timeline, "s", LSN(lsn))
    assert position == GapPolicy(accept=False).check("sink x", position, PROMOTED, END)


@pytest.mark.parametrize(("begin", "until"), [(100, 500), (600, 600)])
def test_what_the_promoted_server_never_had(begin, until):
    """Lost transactions are refused; if accepted, the holder continues after both its position and the slot."""
    position, begin = Position("1", 1, "s", LSN(500)), PROMOTED.at(LSN(begin))
    with pytest.raises(
        SlotError,
        match=r"sink x is at 0/1F4 of timeline 1, .* left at 0/C8: .* lost on the server and not in sink x",
    ):
        GapPolicy(accept=False).check("sink x", position, begin, END)
    gaps = GapPolicy(accept=True)
    assert begin.at(LSN(until)) == gaps.check("sink x", position, begin, END)
    assert [Gap("sink x", LSN(0xC8), LSN(until))] == gaps.accepted


def test_the_promoted_servers_wal_must_be_past_the_position():
    """Lost transactions cannot be accepted before the server's WAL is past them."""
    position = Position("1", 1, "s", LSN(END + 1))
    with pytest.raises(SlotError, match=r"WAL ends at 0/3E8.*pg_switch_wal"):
        GapPolicy(accept=True).check("sink x", position, PROMOTED, END)
