"""A row is a mapping of names to values that are decoded when they are read."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from aiorepl.errors import DataError
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build
from aiorepl.testing.messages import Binary
from aiorepl.transactions.assembler import Assembler
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo

GOOD = build.insert(relation=7, new=["1", "a"])
BAD = build.insert(relation=7, new=["s3cr3t", "a"])
KEY = build.delete(relation=7, old=["1", "not the key's"])


def test_a_row_is_a_mapping(one_change):
    """A row has every method of a mapping, in the order of the table's columns."""
    row = one_change(GOOD).new

    assert isinstance(row, Mapping)
    assert [("id", 1), ("note", "a")] == list(row.items())
    assert (2, ["id", "note"], [1, "a"]) == (len(row), list(row), list(row.values()))
    assert row == {"note": "a", "id": 1}
    assert (None, 9) == (row.get("none"), row.get("none", 9))


def test_a_key_has_its_columns_only(one_change):
    """An old key has its key columns only, whatever the server sent for the others."""
    row = one_change(KEY).old

    assert (["id"], 1, {"id": 1}) == (list(row), len(row), row)
    assert "note" not in row
    with pytest.raises(KeyError, match="note"):
        row["note"]


def test_an_unknown_column(one_change):
    """An unknown column is a KeyError with its name."""
    with pytest.raises(KeyError, match="colour"):
        one_change(GOOD).new["colour"]


def test_null_is_not_unchanged(one_change):
    """NULL is None; a column that was not sent is UNCHANGED."""
    row = one_change(build.insert(relation=7, new=[None, UNCHANGED])).new

    assert row["id"] is None
    assert row["note"] is UNCHANGED


def test_a_row_is_lazy(one_change):
    """A value that cannot be decoded raises only when it is read."""
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
    """The same holds for the old key."""
    change = one_change(build.delete(relation=7, old=["s3cr3t", None]))

    with pytest.raises(DataError, match=r"^public\.orders\.id: ") as caught:
        change.key["id"]
    assert "s3cr3t" not in str(caught.value)


def test_rows_without_columns(one_change):
    """A table without a replica identity's columns has no key, not an empty one."""
    assert one_change(GOOD, identity="n").key is None
    assert one_change(GOOD, identity="f").key is None


def rows(types, columns, *sent, binary=False):
    """Return inserted rows of a table, each from a transaction of its own."""
    decoder, assembler = Decoder(), Assembler(types, binary=binary)
    payloads = [build.relation(oid=9, name="t", columns=columns)]
    for place, values in enumerate(sent, 1):
        payloads += [
            build.begin(final_lsn=place * 16, xid=place),
            build.insert(relation=9, new=values),
            build.commit(commit_lsn=place * 16, end_lsn=place * 16 + 8),
        ]
    slices = assembler.feed([decoder.decode(payload) for payload in payloads])
    return [change.new for part in slices for change in part.changes]


def test_all_at_once_are_the_values_one_by_one():
    """``values`` and ``items`` give the same as reading each column, in text and in binary."""
    columns = [build.column("a", 23), build.column("b", 1700), build.column("c"), build.column("d", 23)]
    sent = ["1", "1.50", None, "-7"], [Binary(b"\0\0\0\5"), UNCHANGED, Binary(b"x"), "6"]
    for row in rows(Types(), columns, *sent, binary=True):
        each = [row[name] for name in row]
        assert each == list(row.values())
        assert list(zip("abcd", each, strict=True)) == list(row.items())
        assert (4, True, False) == (len(row.values()), each[0] in row.values(), ("a", None) in row.items())


def test_a_type_that_becomes_known_later():
    """A row is decoded by types that were looked up since it was last read."""
    types = Types()
    (row,) = rows(types, [build.column("a", 70000)], ["{1,2}"])
    assert ["{1,2}"] == list(row.values())

    types.add(TypeInfo(70000, "public", "_n", "a", element=23))
    assert [[1, 2]] == list(row.values()) == [row["a"]]


def test_walking_names_the_column_that_cannot_be_read():
    """``values`` raises the same error for a column as reading it, without its value."""
    columns = [build.column("a", 23), build.column("b", 1700)]
    (row,) = rows(Types(), columns, ["1", "s3cr3t"])

    for walk in (row.values, row.items):
        with pytest.raises(DataError, match=r"public\.t\.b: .*numeric") as raised:
            list(walk())
        assert "s3cr3t" not in str(raised.value)
        assert raised.value.__suppress_context__


def test_a_type_made_of_itself_spoils_its_own_column_alone():
    """A type that contains itself fails its own column only; ``values`` names it."""
    types = Types([TypeInfo(70001, "public", "loop", "d", element=70001)])
    (row,) = rows(types, [build.column("a", 23), build.column("b", 70001)], ["1", "x"], binary=False)

    assert 1 == row["a"]
    with pytest.raises(DataError, match=r"public\.t\.b"):
        list(row.values())
