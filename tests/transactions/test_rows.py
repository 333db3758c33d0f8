"""A row: a mapping from names to values that are read when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from aiorepl.errors import DataError
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build

GOOD = build.insert(relation=7, new=["1", "a"])
BAD = build.insert(relation=7, new=["s3cr3t", "a"])
KEY = build.delete(relation=7, old=["1", "not the key's"])


def test_a_row_is_a_mapping(one_change):
    """What can be done with a mapping can be done with a row; it reads in the order of the table's columns."""
    row = one_change(GOOD).new

    assert isinstance(row, Mapping)
    assert [("id", 1), ("note", "a")] == list(row.items())
    assert (2, ["id", "note"], [1, "a"]) == (len(row), list(row), list(row.values()))
    assert row == {"note": "a", "id": 1}
    assert (None, 9) == (row.get("none"), row.get("none", 9))


def test_a_key_has_its_columns_only(one_change):
    """An old key says nothing about other columns, whatever the server sent in their places."""
    row = one_change(KEY).old

    assert (["id"], 1, {"id": 1}) == (list(row), len(row), row)
    assert "note" not in row
    with pytest.raises(KeyError, match="note"):
        row["note"]


def test_an_unknown_column(one_change):
    """A column that the table does not have is a KeyError with its name."""
    with pytest.raises(KeyError, match="colour"):
        one_change(GOOD).new["colour"]


def test_null_is_not_unchanged(one_change):
    """NULL is None; what was not sent is UNCHANGED."""
    row = one_change(build.insert(relation=7, new=[None, UNCHANGED])).new

    assert row["id"] is None
    assert row["note"] is UNCHANGED


def test_a_row_is_lazy(one_change):
    """A value that cannot be read harms nobody who does not ask for it."""
    change = one_change(BAD)
    row = change.new

    assert ("a", 2, ["id", "note"], True) == (row["note"], len(row), list(row), "id" in row)
    assert ((), None) == (change.unchanged, change.old)
    with pytest.raises(DataError):
        row["id"]


def test_a_value_that_cannot_be_read(one_change):
    """The error names table, column and type, and not the value."""
    with pytest.raises(DataError) as caught:
        dict(one_change(BAD).new)

    said = str(caught.value)
    assert said.startswith("public.orders.id: ")
    assert "int4" in said
    assert "s3cr3t" not in said
    assert caught.value.__cause__ is None


def test_an_unreadable_key(one_change):
    """The same for the old key."""
    change = one_change(build.delete(relation=7, old=["s3cr3t", None]))

    with pytest.raises(DataError, match=r"^public\.orders\.id: ") as caught:
        change.key["id"]
    assert "s3cr3t" not in str(caught.value)


def test_rows_without_columns(one_change):
    """A table without a replica identity's columns has no key, not an empty one."""
    assert one_change(GOOD, identity="n").key is None
    assert one_change(GOOD, identity="f").key is None
