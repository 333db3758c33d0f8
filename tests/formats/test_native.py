"""Native events: the fields, their order and their forms, without a server."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from aiorepl import UNCHANGED, ConfigurationError, DataError
from aiorepl.formats import native_schema
from aiorepl.formats.native import NativeFormat
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

INT4, JSON, INT4_ARRAY = 23, 114, 1007
VALIDATOR = Draft202012Validator(native_schema())
HEADER = '"xid":701,"commit_lsn":"%s","ordinal":%d,"commit_time":"%s","origin":null'


def lines(stream, **options):
    """The events of what was written down. Each matches the JSON Schema."""
    events = [line.decode() for line in NativeFormat(**options).events(stream.slices())]
    for event in events:
        VALIDATOR.validate(json.loads(event))
    return events


def test_every_kind(stream):
    """The fields in the promised order, without spaces."""
    items = stream.table("items", column("id", INT4, key=True), column("note"))
    end = stream.transaction(
        items.insert("1", "a"),
        items.update("1", UNCHANGED),
        items.update("2", None, key=("1", None)),
        items.delete("2", None),
        items.truncate(),
        build.message(transactional=True, lsn=1, prefix="p", content=b"\0\xff"),
    )
    commit_lsn, time = str(type(end)(end - 0x30)), "2025-05-08T06:13:21.000000Z"

    def row(kind, ordinal, rest):
        header = HEADER % (commit_lsn, ordinal, time)
        return f'{{"kind":"{kind}","schema":"public","table":"items",{header},{rest}}}'

    *rows, truncate, message = lines(stream)
    assert [
        row("insert", 0, '"key":{"id":1},"new":{"id":1,"note":"a"},"old":null,"unchanged":[]'),
        row("update", 1, '"key":{"id":1},"new":{"id":1},"old":null,"unchanged":["note"]'),
        row("update", 2, '"key":{"id":1},"new":{"id":2,"note":null},"old":{"id":1},"unchanged":[]'),
        row("delete", 3, '"key":{"id":2},"new":null,"old":{"id":2},"unchanged":[]'),
    ] == rows
    header = {"xid": 701, "commit_lsn": commit_lsn, "commit_time": time, "origin": None}
    tables = [{"schema": "public", "table": "items"}]
    assert {
        "kind": "truncate",
        "tables": tables,
        "ordinal": 4,
        "cascade": False,
        "restart_identity": False,
    } | header == json.loads(truncate)
    assert {
        "kind": "message",
        "prefix": "p",
        "content": "AP8=",
        "transactional": True,
        "ordinal": 5,
    } | header == json.loads(message)


def test_the_whole_old_row(stream):
    """Under FULL there is no key, and unsent values are taken from the old row."""
    items = stream.table(
        "items", column("id", INT4, key=True), column("note", key=True), replica_identity="f"
    )
    stream.transaction(
        items.update("2", UNCHANGED, old=("1", "large")), items.delete("2", "large", full=True)
    )
    update, delete = map(json.loads, lines(stream))
    assert (None, {"id": 2, "note": "large"}, {"id": 1, "note": "large"}, ["note"]) == tuple(
        update[name] for name in ("key", "new", "old", "unchanged")
    )
    assert (None, None, {"id": 2, "note": "large"}) == tuple(delete[name] for name in ("key", "new", "old"))


def test_an_insert_may_have_unchanged_columns(stream):
    """A row filter can make one of an update: never NULL."""
    items = stream.table("items", column("id", INT4, key=True), column("note"))
    stream.transaction(items.insert("1", UNCHANGED))
    (event,) = map(json.loads, lines(stream))
    assert ({"id": 1}, ["note"]) == (event["new"], event["unchanged"])


def test_origins_and_messages_between_transactions(stream):
    """An origin is a name; a message that stands alone has its own LSN and nothing of a transaction."""
    items = stream.table("items", column("id", INT4, key=True))
    stream.transaction(items.insert("1"), origin='o"1')
    lsn = stream.message("p", b"")
    insert, message = map(json.loads, lines(stream))
    assert 'o"1' == insert["origin"]
    assert {
        "kind": "message",
        "prefix": "p",
        "content": "",
        "transactional": False,
        "lsn": str(lsn),
    } == message


def test_a_table_that_changed(stream):
    """Each row by the description that was sent before it."""
    before = stream.table("items", column("id", INT4, key=True), column("note"))
    stream.transaction(before.insert("1", "a"))
    after = stream.table("items", column("label"), column("id", INT4, key=True), replaces=before)
    stream.transaction(after.insert("b", "2"))
    assert [{"id": 1, "note": "a"}, {"label": "b", "id": 2}] == [
        json.loads(line)["new"] for line in lines(stream)
    ]


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(texts, texts.filter(bool), st.booleans())
def test_any_text_is_one_line_of_json(value, name, typed):
    """Any text in a value or name is escaped, on one line, and can be decoded."""
    stream = Stream()
    items = stream.table(name, column(name), namespace=name)
    stream.transaction(items.insert(value))
    (line,) = lines(stream, values="typed" if typed else "text")
    event = json.loads(line)
    assert "\n" not in line
    assert (name, name, {name: value}) == (event["schema"], event["table"], event["new"])


def test_json_is_embedded_or_quoted(stream):
    """Typed it is the JSON that it is, on one line; as text it is a string."""
    items = stream.table("items", column("j", JSON))
    stream.transaction(items.insert('{"a":\n 1.0, "a": 1e400}'))
    slices = stream.slices()
    typed, text = (next(NativeFormat(values=values).events(slices)) for values in ("typed", "text"))
    assert b'"j":{"a":  1.0, "a": 1e400}' in typed
    assert {"j": '{"a":\n 1.0, "a": 1e400}'} == json.loads(text)["new"]


def test_a_value_that_is_not_what_its_type_says(stream):
    """Relation and column are named, the value is not."""
    items = stream.table("items", column("list", INT4_ARRAY))
    stream.transaction(items.insert("{secret"))
    with pytest.raises(DataError, match=r"public\.items\.list") as raised:
        lines(stream)
    assert "secret" not in str(raised.value)


def test_boundaries(stream):
    """Around each transaction, however many slices it comes in."""
    items = stream.table("items", column("id", INT4, key=True))
    end = stream.transaction(items.insert("1"), items.insert("2"))
    events = [json.loads(line) for line in NativeFormat(boundaries=True).events(stream.slices(1))]
    assert ["begin", "insert", "insert", "commit"] == [event["kind"] for event in events]
    header = {name: events[1][name] for name in ("xid", "commit_lsn", "commit_time")}
    assert {"kind": "begin"} | header == events[0]
    assert {"kind": "commit", "end_lsn": str(end)} | header == events[3]


def test_other_values_are_refused():
    """A form that does not exist."""
    with pytest.raises(ConfigurationError, match="typed or text"):
        NativeFormat(values="yaml")


def test_a_snapshot():
    """Its rows have the kind read; with boundaries the end of a chunk says what is complete, even without rows."""
    stream = Stream()
    items = stream.table("items", column("id", INT4, key=True))
    lsn = stream.snapshot(items, items.insert("1"), last_of_table=False, last=False)
    stream.snapshot(items, number=2)
    events = [json.loads(line) for line in lines(stream, boundaries=True)]
    complete = {"last_of_table": True, "last": True}

    assert ["begin", "read", "commit", "begin", "commit"] == [event["kind"] for event in events]
    assert (0, {"id": 1}) == (events[1]["xid"], events[1]["key"])
    assert {"lsn": str(lsn), "schema": "public", "table": "items", "chunk": 2} | complete == events[4][
        "snapshot"
    ]
    assert not any(events[2]["snapshot"][name] for name in complete)
