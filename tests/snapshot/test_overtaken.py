"""The net effect of transactions on rows: which are known whole, which with their base, and which not."""

from __future__ import annotations

import pytest

from aiorepl.snapshot.merging.overtaken import Overtaken, PartialRow

A, B, C = (b"a",), (b"b",), (b"c",)
ONE, TWO, NOT_SENT = b"t\0\0\0\x011", b"t\0\0\0\x012", b"u"


def partial(base, *columns: bytes) -> PartialRow:
    """A row without some columns; without any if there were too many bytes."""
    return PartialRow(base, columns or None)


def put(*changes) -> Overtaken:
    """One transaction."""
    done = Overtaken()
    for change in changes:
        done.put(*change)
    return done


UPDATED = (A, A, partial(A, ONE, NOT_SENT))
MOVED = (A, B, partial(A, ONE, NOT_SENT))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([UPDATED], {A: partial(A, ONE, NOT_SENT)}),
        ([UPDATED, (A, B, partial(A, NOT_SENT, TWO))], {}),
        ([MOVED, (B, C, partial(B, TWO, NOT_SENT))], {C: partial(A, TWO, NOT_SENT)}),
        ([MOVED, (None, A, None)], {B: partial(A, ONE, NOT_SENT)}),
        ([UPDATED, (A, None, None)], {}),
        ([UPDATED, (A, A, None)], {}),
        ([(A, A, None), UPDATED], {}),
        ([MOVED, (B, None, None), (None, B, None)], {}),
        ([(A, A, partial(A)), UPDATED], {A: partial(A)}),
        ([(None, A, partial(None, ONE, NOT_SENT)), UPDATED], {A: partial(None, ONE, NOT_SENT)}),
        ([(A, None, None), (None, A, partial(None, ONE, NOT_SENT))], {A: partial(None, ONE, NOT_SENT)}),
    ],
)
@pytest.mark.parametrize("together", [True, False], ids=["one", "several"])
def test_rows(changes, expected, together):
    """Changes add up in the same way in one transaction and in several."""
    done = Overtaken()
    for later in [put(*changes)] if together else [put(change) for change in changes]:
        done.then(later)
    assert expected == done.partial
    assert {key for change in changes for key in change[:2] if key is not None} == done.keys


@pytest.mark.parametrize(
    ("change", "read", "lacking"),
    [
        (UPDATED, {A}, set()),
        (MOVED, {A}, set()),
        (MOVED, {B}, {B}),
        (MOVED, {C}, set()),
        (MOVED, None, set()),
        ((A, B, partial(A)), {A}, {B}),
        ((A, B, partial(A)), None, {B}),
        ((None, A, partial(None, ONE, NOT_SENT)), None, {A}),
    ],
)
def test_lacking(change, read, lacking):
    """A row is whole after a chunk if that has its base, and its columns are known."""
    assert lacking == put(change).lacking(read)
