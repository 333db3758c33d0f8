"""Which places of a history are wrong, and which one may be unknown."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.places import misread

# The transaction at 20 has altered the type between its two items.
TEXTS = {(10, 1): '(1,"place 1")', (20, 4): "(2,)", (20, 5): "(3,,)", (30, 1): "(4,new,)"}


def row(identity: tuple[int, int], place: dict[str, Any] | None, text: str | None = None) -> dict[str, Any]:
    """A row of the history."""
    lsn, ordinal = identity
    unrepresentable = [] if text is None else [("place", text)]
    return {
        "_commit_lsn": lsn,
        "_ordinal": ordinal,
        "_op": "insert",
        "place": place,
        "_unrepresentable": unrepresentable,
    }


RIGHT = [
    row((10, 1), {"x": 1, "label": "place 1"}),
    row((20, 4), {"x": 2, "label": None, "later": None}),
    row((20, 5), {"x": 3, "label": None, "later": None}),
    row((30, 1), {"x": 4, "label": "new", "later": None}),
]


def test_right_places():
    """Rows with the journal's values are right, and a delete has none."""
    delete = row((30, 2), None) | {"_op": "delete"}

    assert not misread([*RIGHT, delete], TEXTS, replayed=False)


@pytest.mark.parametrize(
    ("wrong", "replayed", "found"),
    [
        (row((20, 5), None, "(3,,)"), True, 0),
        (row((20, 5), None, "(3,,)"), False, 1),
        (row((20, 5), None), True, 1),
        (row((20, 5), None, "(2,)"), True, 1),
        (row((20, 4), None, "(2,)"), True, 1),
        (row((30, 1), None, "(4,new,)"), True, 1),
        (row((10, 1), {"x": 1, "label": "place 2"}), True, 1),
        (row((40, 1), {"x": 1, "label": "place 1"}), True, 1),
    ],
)
def test_wrong_places(wrong, replayed, found):
    """After a crash, the text of the widest place of the altering transaction is enough; everything else is wrong."""
    assert found == misread([wrong], TEXTS, replayed=replayed)
