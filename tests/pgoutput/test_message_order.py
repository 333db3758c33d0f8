"""The order of logical messages among rows with the same LSN."""

from __future__ import annotations

import pytest

from aiorepl.pgoutput import message_order
from aiorepl.pgoutput.message_order import MessageOrder
from aiorepl.wire.frames import XLogData

# Begin, a row, a message that ends where a record with three rows of two tables begins, another row, and Commit.
IN_ORDER = [b"B", b"R1", b"I1", b"M", b"R2", b"I2", b"R3", b"I3", b"I4", b"D5", b"C"]
LSNS = [10, 10, 10, 30, 30, 30, 30, 30, 30, 40, 50]


def frames(order: list[bytes]) -> list[XLogData]:
    """Return frames with these payloads."""
    return [XLogData(LSNS[IN_ORDER.index(payload)], 0, 0, payload) for payload in order]


@pytest.mark.parametrize("reads", [1, 2, 11])
@pytest.mark.parametrize("place", range(3, 10))
def test_a_message_comes_before_the_rows_with_its_lsn(place, reads):
    """Wherever the server sends the message among the rows of its LSN, and wherever a read ends."""
    others = [payload for payload in IN_ORDER if payload != b"M"]
    place = min(place, 8)
    sent = frames([*others[:place], b"M", *others[place:]])
    order = MessageOrder()
    size = -(-len(sent) // reads)
    got = [frame for at in range(0, len(sent), size) for frame in order.feed(sent[at : at + size])]
    assert IN_ORDER == [frame.payload for frame in got]


def test_nothing_else_changes_places():
    """Messages stay behind rows with other LSNs, and within their stream block."""
    sent = [
        (10, b"S"),
        (10, b"I1"),
        (20, b"M"),
        (20, b"E"),
        (20, b"S"),
        (20, b"I2"),
        (30, b"E"),
        (30, b"M"),
        (40, b"c"),
    ]
    given = [XLogData(lsn, 0, 0, payload) for lsn, payload in sent]
    order = MessageOrder()
    assert given == [frame for one in given for frame in order.feed([one])]


def test_rows_are_held_back_until_something_follows():
    """Rows at the end of a read may have to follow a message of the next one; a keepalive does not release them."""
    order = MessageOrder()
    one, two, commit = (XLogData(lsn, 0, 0, payload) for lsn, payload in ((10, b"I"), (20, b"I"), (30, b"C")))
    assert [one] == order.feed([one, two])
    assert [] == order.feed([])
    assert [two, commit] == order.feed([commit])


def test_what_is_held_back_is_bounded(monkeypatch):
    """Rows with one LSN that are larger than the limit are not held back, and nothing is missing or twice."""
    monkeypatch.setattr(message_order, "HELD_BYTES", 10)
    order = MessageOrder()
    rows = [XLogData(10, 0, 0, b"I" + bytes([at]) * 5) for at in range(3)]
    assert [] == order.feed(rows[:1])
    assert rows[:2] == order.feed(rows[1:2])
    assert [] == order.feed(rows[2:])
    message = XLogData(10, 0, 0, b"M")
    assert [message, rows[2]] == order.feed([message, XLogData(20, 0, 0, b"C")])[:2]
