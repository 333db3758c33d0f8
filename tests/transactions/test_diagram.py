"""docs/reference/states.md is drawn from the current table of states."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from aiorepl.transactions.states import TRANSITIONS

ROOT = Path(__file__).parents[2]
if not (ROOT / "docs" / "reference" / "states.md").exists():
    pytest.skip("not a checkout", allow_module_level=True)


@pytest.fixture
def draw() -> dict:
    """The module of the script that draws it."""
    return runpy.run_path(str(ROOT / "scripts" / "draw_states.py"))


def test_current(draw):
    """The page is what the script draws: after a change of the table, run scripts/draw_states.py."""
    assert draw["page"]() == (ROOT / "docs" / "reference" / "states.md").read_text()


def test_every_transition_is_drawn(draw):
    """Each message that the table allows is on the arrow between its two states."""
    arrows = {}
    for line in draw["diagram"]().splitlines():
        if " --> " in line and ": " in line:
            ends, _, names = line.strip().partition(": ")
            arrows[ends] = names.replace("<br/>", ", ").split(", ")

    assert {
        (f"{state.name} --> {following.name}", draw["spaced"](kind))
        for state, kinds in TRANSITIONS.items()
        for kind, following in kinds.items()
    } == {(ends, each) for ends, names in arrows.items() for each in names}
