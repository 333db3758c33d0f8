"""Changes with other columns are read as they were set by every reader; nothing else changes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl import UNCHANGED
from aiorepl.formats.native import NativeFormat
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

INT4, NUMERIC, JSONB, INT4_ARRAY, TEXT_ARRAY, BOOL = 23, 1700, 3802, 1007, 1009, 16


def changes_of(*, identity: str = "d", binary: bool = False):
    """Return an insert, an update that changed its key (or of a whole old row), and a delete."""
    stream = Stream(binary=binary)
    table = stream.table(
        "t", column("id", INT4, key=True), column("note"), column("large"), replica_identity=identity
    )
    full = identity == "f"
    old = ["1", "was", "x" * 10]
    stream.transaction(
        table.insert("1", "a", None),
        table.update("2", "b", UNCHANGED, old=old)
        if full
        else table.update("2", "b", UNCHANGED, key=("1", None, None)),
        table.delete(*old, full=True) if full else table.delete("2", None, None),
    )
    (part,) = stream.slices()
    return part.changes


@pytest.mark.parametrize("identity", ["d", "f"])
def test_set_and_added(identity):
    """Columns of the new row are set and added; the old row, the key and unsent columns stay."""
    insert, update, _ = changes_of(identity=identity)
    for change in (insert, update):
        made = change.with_columns({"note": "other", "score": 7})
        assert {**change.new, "note": "other", "score": 7} == dict(made.new)
        assert (change.transaction, change.ordinal, change.unchanged) == (
            made.transaction,
            made.ordinal,
            made.unchanged,
        )
        assert change.key == made.key
        expected = None if change.old is None else dict(change.old)
        if expected is not None and identity == "f":
            expected["score"] = None
        assert expected == (None if made.old is None else dict(made.old))


def test_the_change_itself_stays_as_it_was():
    """The original change is unchanged, because other sinks have it, too."""
    insert, *_ = changes_of()
    before = NativeFormat().event(insert)
    insert.with_columns({"note": None, "more": 1})
    assert before == NativeFormat().event(insert)


def test_its_bytes_say_the_same():
    """The bytes decode to the new values, as a journal or a dead letter needs."""
    for change in changes_of(identity="f")[:2]:
        made = change.with_columns({"note": "other", "score": Decimal("1.50")})
        decoder = Decoder()
        relation = decoder.decode(made.relation.payload)
        message = decoder.decode(made.message.payload)
        assert made.relation.columns == relation.columns
        assert made.message.new.split() == message.new.split()
        old = getattr(message, "old", None)
        assert made.raw_old == (None if old is None else old.split())


VALUES = {
    "true": (True, True),
    "large": (2**40, 2**40),
    "real": (1.5, 1.5),
    "text": ('quote" \\ é', 'quote" \\ é'),
    "numeric": (Decimal("12.340"), Decimal("12.340")),
    "bytes": (b"\x00\xff", b"\x00\xff"),
    "aware": (dt.datetime(2026, 11, 21, 8, tzinfo=dt.UTC), dt.datetime(2026, 11, 21, 8, tzinfo=dt.UTC)),
    "naive": (dt.datetime(2026, 11, 21, 8, 0, 0, 5), dt.datetime(2026, 11, 21, 8, 0, 0, 5)),
    "date": (dt.date(2026, 11, 21), dt.date(2026, 11, 21)),
    "time": (dt.time(8, 1, 2), dt.time(8, 1, 2)),
    "uuid": (UUID(int=5), UUID(int=5)),
    "json": ({"a": [1, None]}, {"a": [1, None]}),
    "list": ([1, "x"], [1, "x"]),
    "null": (None, None),
}


@pytest.mark.parametrize(("given_", "read"), VALUES.values(), ids=list(VALUES))
@pytest.mark.parametrize("binary", [False, True])
def test_an_added_column_has_the_type_of_its_value(given_, read, binary):
    """An added column has the type of its value."""
    insert, *_ = changes_of(binary=binary)
    assert read == insert.with_columns({"added": given_}).new["added"]


@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_characters="\0", codec="utf-8")))))
def test_lists_for_arrays(values):
    """Lists become array literals, whatever they contain."""
    stream = Stream()
    table = stream.table("t", column("id", INT4, key=True), column("tags", TEXT_ARRAY))
    stream.transaction(table.insert("1", "{}"))
    (part,) = stream.slices()
    assert values == part.changes[0].with_columns({"tags": values}).new["tags"]


def test_nested_lists_and_numbers():
    """Nested lists and numbers become arrays of any dimension."""
    stream = Stream()
    table = stream.table("t", column("a", INT4_ARRAY), column("j", JSONB), replica_identity="n")
    stream.transaction(table.insert("{}", "{}"))
    (part,) = stream.slices()
    made = part.changes[0].with_columns({"a": [[1, 2], [3, None]], "j": [1, 2]})
    assert ([[1, 2], [3, None]], [1, 2]) == (made.new["a"], made.new["j"])


def test_one_description_for_all_rows():
    """Rows with the same columns added share one description, for which formats prepare once."""
    insert, update, _ = changes_of()
    assert insert.with_columns({"x": 1}).layout is update.with_columns({"x": 2}).layout
    assert insert.with_columns({"x": 1}).layout is not update.with_columns({"x": "text"}).layout


def test_what_cannot_be_set():
    """Columns of a delete, and values without a text form, cannot be set; the error has no value."""
    insert, _, delete = changes_of()
    with pytest.raises(TypeError, match="a delete has no new row"):
        delete.with_columns({"note": "x"})
    with pytest.raises(TypeError, match="set to a set") as raised:
        insert.with_columns({"note": {"secret"}})
    assert "secret" not in str(raised.value)
