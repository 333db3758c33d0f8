"""Large columns are written straight from their messages, with the same result as a copy."""

from __future__ import annotations

import orjson
import pytest

from aiorepl import UNCHANGED, DataError
from aiorepl.formats import named
from aiorepl.formats.native import NativeFormat
from aiorepl.testing.messages import column
from aiorepl.values.registry import Types

SIZE = 1_100_000
TEXT, JSON, JSONB, BYTEA, TEXT_ARRAY = 25, 114, 3802, 17, 1009
COLUMNS = {
    "plain": (TEXT, "x" * SIZE),
    "quotes": (TEXT, '"\\\n\x00'.replace("\x00", "\x01") * (SIZE // 4)),
    # Without care, the parts that are escaped at once would end within characters of two, three and four bytes.
    "two": (TEXT, "a" + "é" * (SIZE // 2)),
    "three": (TEXT, "ab" + "€" * (SIZE // 3)),
    "four": (TEXT, "abc" + "🐘" * (SIZE // 4)),
    "json": (JSON, '{"a":\n "' + "x" * SIZE + '"}'),
    "jsonb": (JSONB, '{"a": "' + "x" * SIZE + '"}'),
    "bytea": (BYTEA, "\\x" + "0a" * (SIZE // 2)),
    "array": (TEXT_ARRAY, "{" + "x" * SIZE + ',"a b"}'),
}


@pytest.mark.parametrize("values", ["typed", "text"])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_large_column(stream, name, values):
    """The event has the JSON of the column's encoder, whole and in pieces."""
    oid, text = COLUMNS[name]
    table = stream.table("t", column("id", 23, key=True), column("note", oid), column("end"))
    stream.transaction(table.insert("1", text, "z"))
    (part,) = stream.slices()
    (change,) = part.changes
    form = NativeFormat(values=values)

    event = form.event(change)

    encoded = Types().json_encoder(oid, ord("t"), typed=values == "typed")(text.encode())
    assert b'"note":' + encoded + b',"end":"z"}' in event
    assert orjson.loads(event)["new"]["end"] == "z"
    pieces = form.pieces([part])
    assert event + b"\n" == b"".join(pieces) == b"".join(pieces) == form.lines([part])


def test_rows_with_old_columns(stream):
    """Large columns are right in a new row, in an old row, and if an update did not send them."""
    note = "x" * SIZE
    table = stream.table("t", column("id"), column("note"), replica_identity="f")
    stream.transaction(table.insert("é" * SIZE, note), table.update("2", UNCHANGED, old=("1", note)))
    (part,) = stream.slices()
    form = NativeFormat()

    inserted, updated = (orjson.loads(line) for line in form.lines([part]).splitlines())

    assert {"id": "é" * SIZE, "note": note} == inserted["new"]
    assert {"id": "2", "note": note} == updated["new"]
    assert {"id": "1", "note": note} == updated["old"]
    assert ["note"] == updated["unchanged"]


def test_bytes_that_are_no_text(stream):
    """A large column that is not UTF-8 is an error before anything is written."""
    table = stream.table("t", column("id", 23, key=True), column("note"))
    stream.transaction(table.insert("1", b"\xff" * SIZE))

    with pytest.raises(DataError, match="note"):
        NativeFormat().pieces(stream.slices())


@pytest.mark.parametrize("name", ["native", "debezium", "cloudevents", "wal2json"])
def test_every_format(stream, name):
    """The pieces have the text of the lines, even if small rows are beside the large one."""
    table = stream.table("t", column("id", 23, key=True), column("note"))
    stream.transaction(table.insert("1", "a"), table.insert("2", '"' * SIZE), table.insert("3", "b"))
    parts = stream.slices()

    text = b"".join(named(name).pieces(parts))

    assert bytes(named(name).lines(parts)) == text
    assert b"".join(event + b"\n" for event in named(name).events(parts)) == text


def test_a_view_of_the_message(stream):
    """A large string without characters to escape is a view of its message; every other piece is small."""
    table = stream.table("t", column("id", 23, key=True), column("note"))
    stream.transaction(table.insert("1", "x" * SIZE))
    (part,) = stream.slices()
    payload = part.changes[0].message.payload

    for piece in NativeFormat().pieces([part]):
        assert len(piece) < SIZE // 2 or (isinstance(piece, memoryview) and piece.obj is payload)
