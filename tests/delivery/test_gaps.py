"""Gaps: what is one, and what becomes of it."""

from __future__ import annotations

import pytest

from aiorepl import LSN, Position, SlotError
from aiorepl.delivery.gaps import Gap, Gaps
from aiorepl.delivery.timelines import left_at, require_ancestor

BEGIN = Position("1", 1, "s", LSN(100))
END = LSN(1000)
HISTORY = "1\t0/C8\tno recovery target specified\n\n2\t0/190\tno recovery target specified\n"


@pytest.mark.parametrize("held", [None, BEGIN, BEGIN.at(LSN(500)), BEGIN.at(END)])
def test_no_gap(held):
    """Who holds nothing has no gap, nor who is at the slot's begin or ahead of it."""
    gaps = Gaps(accept=False)
    assert held == gaps.check("sink x", held, BEGIN, END)
    assert [] == gaps.accepted


def test_a_gap():
    """Refused, or noted and passed over."""
    held = BEGIN.at(LSN(99))
    with pytest.raises(SlotError, match=r"sink x stands at 0/63, but slot 's' begins at 0/64"):
        Gaps(accept=False).check("sink x", held, BEGIN, END)
    gaps = Gaps(accept=True)
    assert BEGIN == gaps.check("sink x", held, BEGIN, END)
    assert [Gap("sink x", LSN(99), LSN(100))] == gaps.accepted


def test_beyond_the_end_of_wal():
    """No gap, and nothing that could be accepted."""
    with pytest.raises(SlotError, match="WAL ends at 0/3E8"):
        Gaps(accept=True).check("sink x", BEGIN.at(LSN(1001)), BEGIN, END)


@pytest.mark.parametrize(("timeline", "expected"), [(1, LSN(0xC8)), (2, LSN(0x190)), (3, None), (11, None)])
def test_where_a_timeline_was_left(timeline, expected):
    """As the history file of a later one has it."""
    assert expected == left_at(HISTORY, timeline)


def test_what_is_known_has_to_be_in_the_history():
    """Up to the very point; behind it, or of no ancestor, it is refused."""
    found = Position("1", 3, "s", LSN(0))
    require_ancestor(BEGIN, found, LSN(0xC8), left_at(HISTORY, 1))
    with pytest.raises(
        SlotError, match=r"left timeline 1 at 0/C8, but this pipeline has received up to 0/C9"
    ):
        require_ancestor(BEGIN, found, LSN(0xC9), left_at(HISTORY, 1))
    with pytest.raises(SlotError, match="does not descend from 1"):
        require_ancestor(BEGIN, found, LSN(0), None)
