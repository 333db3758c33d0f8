"""Transactions and slices are dataclasses in every respect that sinks rely on, compiled or not."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, fields, is_dataclass, replace

import pytest

from aiorepl import LSN, Slice, Transaction

TRANSACTION = Transaction(7, LSN(5), 3, gid="gid")
SLICE = Slice(TRANSACTION, ("secret",), True, LSN(9), 10)


def test_what_is_left_out_has_a_value():
    """The optional fields have the values of a local transaction that was not prepared."""
    assert (None, None, False) == (
        TRANSACTION.origin,
        replace(TRANSACTION, gid=None).gid,
        TRANSACTION.prepared,
    )
    assert SLICE.two_phase is None


@pytest.mark.parametrize("one", [TRANSACTION, SLICE])
def test_a_copy_has_the_same_fields_and_is_another(one):
    """``replace``, ``copy`` and ``pickle`` copy all fields; equality is identity."""
    assert is_dataclass(one)
    for other in (replace(one), copy.copy(one)):
        assert all(getattr(one, field.name) is getattr(other, field.name) for field in fields(one))
        assert one != other
    assert asdict(one) == asdict(pickle.loads(pickle.dumps(one)))
    assert {one: True}[one]


@pytest.mark.parametrize(("one", "name"), [(TRANSACTION, "xid"), (SLICE, "changes")])
def test_nothing_is_changed(one, name):
    """The fields cannot be set, so that a sink may keep them."""
    with pytest.raises(AttributeError) as raised:
        setattr(one, name, None)
    assert isinstance(raised.value, FrozenInstanceError) or "not writable" in str(raised.value)


def test_a_part_of_it_is_replaced():
    """``replace`` sets one field and keeps the rest."""
    left = replace(SLICE, changes=(), end_lsn=None)
    assert (TRANSACTION, (), True, None, 10) == (
        left.transaction,
        left.changes,
        left.first,
        left.end_lsn,
        left.size,
    )
    assert (True, False) == (SLICE.last, left.last)


def test_they_are_matched():
    """``match`` takes the fields by position."""
    match SLICE:
        case Slice(Transaction(xid, commit_lsn), _, first):
            assert (7, LSN(5), True) == (xid, commit_lsn, first)


def test_rows_stay_out_of_sight():
    """``repr`` has the header and no changes."""
    assert "Transaction(xid=7, commit_lsn=LSN.parse('0/5')" in repr(SLICE)
    assert "secret" not in repr(SLICE)
