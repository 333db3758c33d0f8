"""The descriptions of a composite type's values at the time of a transaction, by what the catalog has of its attributes."""

from __future__ import annotations

import pytest

from aiorepl.source.catalog.composites import parse

TEXT = 25
CREATED = (10, 0)
"""The transaction and the command that created the type."""


def attributes(*rows: tuple, counted: tuple[int, int] = CREATED):
    """Attributes of names, the transaction and the command that changed each, and ``-`` if it was dropped."""
    found = parse(
        (
            1,
            number,
            name.strip("-"),
            TEXT,
            name.startswith("-"),
            xid,
            command,
            *counted,
            *CREATED,
            3,
            2**32 + 5000,
        )
        for number, (name, (xid, command)) in enumerate(rows, 1)
    )
    return found[1]


BEFORE = attributes(("a", CREATED), ("b", CREATED))
ADDED = attributes(("a", CREATED), ("b", CREATED), ("c", (20, 3)), counted=(20, 3))
RENAMED = attributes(("z", (20, 3)), ("b", CREATED))
DROPPED = attributes(("-", (20, 3)), ("b", CREATED))
REPLACED = attributes(("-", (20, 3)), ("b", CREATED), ("c", (20, 4)), counted=(20, 4))
AT_ONCE = attributes(("-", (20, 0)), ("b", CREATED), ("c", (20, 1)), counted=(20, 1))
ADDED_AND_RENAMED = attributes(("a", CREATED), ("b", CREATED), ("c", (20, 5)), counted=(20, 3))
SET_DEFAULT = attributes(("a", (20, 3)), ("b", CREATED))
ADDED_FIRST = attributes(("a", CREATED), ("b", CREATED), ("c", (20, 0)), counted=(20, 0))
UNKNOWN_COMMAND = attributes(("a", CREATED), ("b", CREATED), ("c", (20, None)), counted=(20, 3))


@pytest.mark.parametrize(
    ("now", "before", "xid", "expected"),
    [
        (ADDED, None, 20, ["ab", "abc"]),
        (ADDED, BEFORE, 20, ["ab", "abc"]),
        (ADDED, None, 19, ["ab", "abc"]),
        # It may have overlapped the transaction that added c.
        (ADDED, None, 21, ["abc", "ab"]),
        (ADDED, BEFORE, 21, ["abc", "ab"]),
        (REPLACED, None, 21, ["bc"]),
        (ADDED_FIRST, None, 20, ["abc", "ab"]),
        (ADDED_FIRST.replayed(), None, 20, ["ab"]),
        (AT_ONCE.replayed(), None, 20, []),
        (RENAMED, None, 20, []),
        (RENAMED, BEFORE, 20, []),
        (RENAMED, None, 19, ["zb"]),
        (DROPPED, None, 20, ["b"]),
        (DROPPED, BEFORE, 20, ["b", "ab"]),
        (REPLACED, None, 20, []),
        (REPLACED, BEFORE, 20, []),
        (REPLACED, None, 19, []),
        (AT_ONCE, None, 20, ["bc", "b"]),
        (ADDED_AND_RENAMED, None, 20, ["ab"]),
        (ADDED_AND_RENAMED, BEFORE, 20, ["ab"]),
        (SET_DEFAULT, BEFORE, 20, ["ab"]),
        (SET_DEFAULT, None, 20, []),
        (UNKNOWN_COMMAND, None, 20, ["ab"]),
    ],
)
def test_variants(now, before, xid, expected):
    """Only descriptions that the number of attributes proves are returned."""
    found = now.variants(xid, before)

    assert {len(names): tuple((name, TEXT) for name in names) for names in expected} == found


def test_altered():
    """A type is altered by a transaction if rows may precede the alteration in it; its creation is no alteration."""
    assert (True, False, False) == (ADDED.altered_by(20), ADDED.altered_by(19), ADDED.altered_by(10))
    assert (True, True, False) == tuple(ADDED.altered_since(xid) for xid in (19, 20, 21))
    assert not BEFORE.altered_since(9)


def test_replayed_commands():
    """WAL has no numbers of commands, so a replayed alteration may have come after rows of its transaction."""
    assert not ADDED_FIRST.altered_by(20)
    assert ADDED_FIRST.replayed().altered_by(20)
    assert not BEFORE.replayed().altered_by(10)
    assert not attributes(("z", (20, 0)), ("b", CREATED)).altered_by(20)


@pytest.mark.parametrize("xid", [2**31 + 3000, 2, 6000])
def test_frozen(xid):
    """An xid that was assigned long ago, before the epoch in which it may be assigned again, is no alteration."""
    assert not attributes(("z", (xid, 3)), ("b", CREATED)).altered_since(4000)
