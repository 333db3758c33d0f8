"""TupleData: its columns, their kinds, and their encoded form."""

from __future__ import annotations

import pickle
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.errors import ProtocolError
from aiorepl.pgoutput.tuples import UNCHANGED, TupleData, encoded_columns, skip
from aiorepl.testing.messages import Binary, tuple_data

VALUES = st.none() | st.just(UNCHANGED) | st.binary(max_size=40) | st.binary(max_size=40).map(Binary)


def kind(value: object) -> bytes:
    """The kind byte that a value is sent with."""
    if isinstance(value, Binary):
        return b"b"
    return b"n" if value is None else b"u" if value is UNCHANGED else b"t"


@given(st.lists(VALUES, max_size=20), st.binary(max_size=9), st.binary(max_size=9))
def test_split_and_kinds(values, before, after):
    """At any offset in a message, a tuple's columns and their kinds are those that were sent."""
    payload = before + tuple_data(values) + after

    row = TupleData(payload, len(before))

    assert len(values) == len(row)
    assert values == row.split()
    assert b"".join(map(kind, values)) == row.kinds()
    assert len(payload) - len(after) == skip(payload, len(before), "Insert", len(values))
    columns = encoded_columns(payload, len(before))
    assert [tuple_data([value])[2:] for value in values] == columns


@pytest.mark.parametrize("count", [0, 1, 255, 256, 1600, 65535])
def test_many_columns(count):
    """The count is sixteen bits, unsigned."""
    row = TupleData(tuple_data([b""] * count), 0)

    assert (count, [b""] * count, b"t" * count) == (len(row), row.split(), row.kinds())


def test_skip_without_a_relation():
    """Without a known relation any number of columns is valid, and the rest is checked."""
    payload = tuple_data(["a", None])

    assert len(payload) == skip(payload, 0, "Insert", None)
    with pytest.raises(ProtocolError, match="column 2 of 2 is missing"):
        skip(payload[:-1], 0, "Insert", None)


def test_unchanged_is_no_value():
    """UNCHANGED is compared by identity, even after pickling, and is false."""
    assert UNCHANGED is pickle.loads(pickle.dumps(UNCHANGED))
    assert "UNCHANGED" == repr(UNCHANGED)
    assert not UNCHANGED
    assert UNCHANGED not in (None, "", b"", 0, False)


@pytest.mark.parametrize("cut", range(14))
def test_bytes_that_end_too_soon(cut):
    """A tuple that was not validated may be cut short anywhere: that is an error, and nothing after its end is read."""
    payload = tuple_data([b"abc", None, b"d"])[:cut]
    row = TupleData(payload, 0)

    with pytest.raises(ProtocolError, match="ends before its last column"):
        row.split()
    with pytest.raises(ProtocolError, match="ends before its last column"):
        encoded_columns(payload, 0)
    if cut < 11:
        with pytest.raises(ProtocolError, match="ends before its last column"):
            row.kinds()


def test_an_offset_outside_of_the_bytes():
    """An offset before or after the bytes is an error."""
    for offset in (-1, 2, 7, 10**9):
        row = TupleData(b"\0\1n", offset)
        for read in (row.split, row.kinds, partial(encoded_columns, b"\0\1n", offset)):
            with pytest.raises(ProtocolError, match="ends before its last column"):
                read()
