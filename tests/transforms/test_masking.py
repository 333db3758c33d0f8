"""The contents of masks, and that nothing of the masked value remains."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from aiorepl.errors import DataError
from aiorepl.testing.messages import Binary, column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.changes import RowChange
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.methods import keyed_hash
from aiorepl.transforms.selection import Selection

BOOL, BYTEA, INT4, FLOAT8, DATE, NUMERIC, JSONB, INT4_ARRAY = 16, 17, 23, 701, 1082, 1700, 3802, 1007
ID = column("id", INT4, key=True)
ONE, TWO = Binary(b"\0\0\0\1"), Binary(b"\0\0\0\2")
NOTE = Selection(mask=("*.*.note",), secret="s3cr3t")
ANY = Selection(mask=("*.*.*",), secret="s3cr3t")


def masked(text: str) -> str:
    """Return the mask of this text."""
    return hmac.new(b"s3cr3t", text.encode(), hashlib.sha256).hexdigest()


def insert(selection: Selection, *new, note: int = 25, binary: bool = False) -> RowChange:
    """Return a new row of ``(id, note)`` after the selection."""
    stream = Stream(binary=binary)
    stream.transaction(stream.table("orders", ID, column("note", note)).insert(*new))
    (part,) = stream.slices()
    (change,) = StreamFilter(selection).apply(part).changes
    return change


@pytest.mark.parametrize(
    ("oid", "text", "binary"),
    [
        (25, "a", b"a"),
        (25, "", b""),
        (25, "größe", "größe".encode()),
        (BOOL, "t", b"\1"),
        (BYTEA, "\\x00ff", b"\0\xff"),
        (INT4, "-7", b"\xff\xff\xff\xf9"),
        (FLOAT8, "0.1", b"\x3f\xb9\x99\x99\x99\x99\x99\x9a"),
        (DATE, "2000-01-02", b"\0\0\0\1"),
        (NUMERIC, "1.50", b"\0\2\0\0\0\0\0\2\0\1\x13\x88"),
        (JSONB, '{"a": 1}', b'\1{"a": 1}'),
        (
            INT4_ARRAY,
            "{1,NULL}",
            bytes.fromhex("00000001000000010000001700000002000000010000000400000001ffffffff"),
        ),
    ],
)
def test_text_and_binary_have_one_mask(oid, text, binary):
    """A mask is text, and the same whether the value was sent as text or binary."""
    as_text = insert(NOTE, "1", text, note=oid)
    as_binary = insert(NOTE, ONE, Binary(binary), note=oid, binary=True)

    assert {"id": 1, "note": masked(text)} == as_text.new == as_binary.new
    assert b"bt" == as_binary.new_kinds


def test_a_masked_key():
    """A masked key identifies rows before and after an UPDATE of the key, in text and in binary."""
    stream = Stream(binary=True)
    orders = stream.table("orders", ID, column("note"))
    stream.transaction(
        orders.insert("1", "a"), orders.update(TWO, "a", key=[ONE, None]), orders.delete("2", None)
    )
    (part,) = stream.slices()

    changes = StreamFilter(ANY).apply(part).changes

    assert [masked("1"), masked("1"), masked("2")] == [change.key["id"] for change in changes]
    assert masked("2") == changes[1].new["id"]


def test_dropping_wins():
    """A column that matches both drop and mask is dropped."""
    change = insert(Selection(drop=("*.*.note",), mask=("*.*.*",), secret="s3cr3t"), "1", "a")

    assert {"id": masked("1")} == change.new


def test_another_secret():
    """Equal values have equal masks under one secret, whatever their columns and types; another secret gives other masks."""
    one, other = (
        insert(Selection(mask=("*.*.*",), secret=secret), "1", "1").new for secret in ("one", "other")
    )

    assert one["id"] == one["note"]
    assert one["id"] != other["id"]


@pytest.mark.parametrize(
    ("oid", "value", "binary", "problem"),
    [
        (60001, Binary(b"p4ssword"), True, "the binary form of type with oid 60001 is not known"),
        (INT4, Binary(b"p4ssword"), True, "type int4 .* in binary"),
        (25, b"p4ssword\xff", False, "type text .* in text"),
    ],
)
def test_what_cannot_be_masked(oid, value, binary, problem):
    """A column that cannot be decoded never passes unmasked; the error has its name and type, and not its value."""
    with pytest.raises(DataError, match=rf"public\.orders\.note: {problem}") as error:
        insert(NOTE, "1", value, note=oid, binary=binary)

    assert "p4ssword" not in str(error.value)
    assert error.value.__cause__ is None


def test_what_is_dropped_need_not_be_readable():
    """A column of an unknown type can be dropped."""
    change = insert(Selection(drop=("*.*.note",)), "1", Binary(b"?"), note=60001, binary=True)

    assert {"id": 1} == change.new


@pytest.mark.parametrize(
    "selection",
    [NOTE, Selection(drop=("*.*.note",)), Selection(drop=("*.*.note",), mask=("*.*.id",), secret="s")],
)
def test_nothing_of_the_value_is_left(selection):
    """The bytes of a dropped or masked value are nowhere in a change, and its repr has no values at all."""
    stream = Stream()
    orders = stream.table("orders", ID, column("note"), column("more"), replica_identity="f")
    stream.transaction(
        orders.insert("1", "p4ssword", "m0re"),
        orders.update("1", "p4ssword", "m0re", old=["1", "p4ssword", "m0re"]),
        orders.delete("1", "p4ssword", "m0re", full=True),
    )
    (part,) = stream.slices()

    for change in StreamFilter(selection).apply(part).changes:
        assert b"p4ssword" not in change.message.payload
        assert b"m0re" in change.message.payload
        assert "m0re" not in repr(change) + repr(change.message) + repr(change.relation) + repr(change.new)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_any_key(size):
    """A mask is the HMAC of RFC 2104, whatever the length of the key."""
    key = bytes(range(200))[:size]
    mask = keyed_hash(key)
    for text in (b"", b"a", b"x" * 1000):
        assert mask(text) == mask(memoryview(text)) == hmac.digest(key, text, "sha256")
