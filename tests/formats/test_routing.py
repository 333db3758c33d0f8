"""Templates of topics, subjects and keys: what every field is of every kind of change, and what is no template."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl import UNCHANGED, ConfigurationError, DataError
from aiorepl.formats.routing import Routing
from aiorepl.testing import messages as build
from aiorepl.testing.messages import Binary, column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.schema_changes import SchemaTracker

INT4, NUMERIC, INT4_ARRAY = 23, 1700, 1007
EVERYTHING = "{schema}|{table}|{kind}|{key}|{key.id}|{new.note}"


def places(template, stream):
    """Return the destination of each change."""
    routing = Routing(template)
    return [routing(change) for part in stream.slices() for change in part.changes]


def test_every_field_of_every_kind(stream, items):
    """Text around the fields stands for itself; what a change does not have is empty."""
    stream.transaction(
        items.insert("1", "a"),
        items.update("1", "b"),
        items.delete("1", None),
        items.truncate(),
        build.message(transactional=True, lsn=1, prefix="audit", content=b"x"),
    )
    stream.message("alone")
    assert [
        ("public|items|insert|1|1|a",),
        ("public|items|update|1|1|b",),
        ("public|items|delete|1|1|",),
        ("public|items|truncate|||",),
        ("message|audit|message|||",),
        ("message|alone|message|||",),
    ] == places(EVERYTHING, stream)


def test_names_with_dots(stream):
    """Tables of different schemas have different places, wherever the dots in their names are."""
    names = [("a", "b.c"), ("a.b", "c"), ("a%2Eb", "c"), ("a", "b%2Ec")]
    tables = [stream.table(table, column("id", INT4, key=True), namespace=schema) for schema, table in names]
    stream.transaction(*(table.insert("1") for table in tables))
    found = places("{schema}.{table}", stream)
    assert [("a.b%2Ec",), ("a%2Eb.c",), ("a%252Eb.c",), ("a.b%252Ec",)] == found


def test_a_key_that_changed(stream, items):
    """The key is the one before the change, the new row is the one after it."""
    stream.transaction(items.update("2", "a", key=("1", None)))
    assert [("1|1|2|a",)] == places("{key}|{key.id}|{new.id}|{new.note}", stream)


def test_a_value_that_was_not_sent(stream, items):
    """An unsent value is empty, unless the old key or the whole old row has it."""
    by_text = stream.table("by_text", column("name", key=True), column("note"))
    whole = stream.table("whole", column("id", key=True), column("note", key=True), replica_identity="f")
    stream.transaction(
        items.update("1", UNCHANGED),
        by_text.update(UNCHANGED, "a", key=("long", None)),
        whole.update("1", UNCHANGED, old=("1", "long")),
    )
    assert [("",), ("a",), ("long",)] == places("{new.note}", stream)
    stream.transaction(by_text.update(UNCHANGED, "a", key=("long", None)))
    assert [("long|long",)] == places("{key}|{new.name}", stream)


def test_null_is_empty_and_is_not_taken_from_the_old_row(stream):
    """A new value that is NULL is NULL."""
    whole = stream.table("whole", column("id", key=True), column("note", key=True), replica_identity="f")
    stream.transaction(whole.update("1", None, old=("1", "before")))
    assert [("<>",)] == places("<{new.note}>", stream)


@pytest.mark.parametrize("identity", ["f", "n"])
def test_tables_without_a_key(stream, identity):
    """FULL and NOTHING identify no row, but columns can still be asked for."""
    loose = stream.table("loose", column("id", key=identity == "f"), replica_identity=identity)
    stream.transaction(loose.insert("7"))
    assert [("<>|<>|7",)] == places("<{key}>|<{key.id}>|{new.id}", stream)


def test_a_delete_under_full(stream):
    """The old row stands in for the new one."""
    whole = stream.table("whole", column("id", key=True), column("tenant", key=True), replica_identity="f")
    stream.transaction(whole.delete("1", "acme", full=True))
    assert [("acme",)] == places("{new.tenant}", stream)


def test_a_truncate_of_several_tables(stream, items):
    """One place for each, in the order of the statement, also where they are the same."""
    others = stream.table("others", column("id", INT4, key=True), namespace="shop")
    both = build.truncate(relations=[others.oid, items.oid])
    stream.transaction(both)
    assert [("shop.others.", "public.items.")] == places("{schema}.{table}.{key}", stream)
    stream.transaction(both)
    assert [("all", "all")] == places("all", stream)


def test_a_key_of_several_columns(stream):
    """The key has its columns in the table's order, with commas; one column can be named; others are rejected."""
    lines = stream.table(
        "lines", column("item", INT4, key=True), column("note"), column("order", INT4, key=True)
    )
    stream.transaction(lines.insert("1", "a", "2"))
    assert [("1,2|2|",)] == places("{key}|{key.order}|{key.note}", stream)


def test_a_column_that_the_table_does_not_have(stream, items):
    """One template serves many tables."""
    stream.transaction(items.insert("1", "a"))
    assert [("tenant-",)] == places("tenant-{new.tenant_id}", stream)


def test_a_table_that_changed(stream, items):
    """Columns are found by their names, wherever they stand now."""
    stream.transaction(items.insert("1", "a"))
    after = stream.table("items", column("note"), column("id", INT4, key=True), replaces=items)
    stream.transaction(after.insert("b", "2"))
    assert [("1a",), ("2b",)] == places("{key}{new.note}", stream)


numbers = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(numbers, st.none() | texts, st.sampled_from(["insert", "update", "moved", "delete"]))
def test_binary_columns_say_the_same(number, note, kind):
    """A column's place does not depend on the form it was sent in."""
    found = []
    for binary in (False, True):
        stream = Stream(binary=binary)
        items = stream.table("items", column("id", INT4, key=True), column("note"))
        sent = Binary(struct.pack(">i", number)) if binary else str(number)
        # The server chooses for each column: text stays text here.
        row, key = (sent, note), (sent, None)
        messages = {
            "insert": items.insert(*row),
            "update": items.update(*row),
            "moved": items.update(*row, key=key),
            "delete": items.delete(*key),
        }
        stream.transaction(messages[kind])
        found += places(EVERYTHING, stream)
    text, in_binary = found
    shown = "" if kind == "delete" or note is None else note
    assert (f"public|items|{kind.replace('moved', 'update')}|{number}|{number}|{shown}",) == text == in_binary


def test_unchanged_beside_binary_under_full():
    """Its form is that of the old row, where it was taken from."""
    stream = Stream(binary=True)
    whole = stream.table(
        "whole", column("id", INT4, key=True), column("n", INT4, key=True), replica_identity="f"
    )
    stream.transaction(whole.update("1", UNCHANGED, old=("1", Binary(b"\0\0\0\7"))))
    assert [("1-7",)] == places("{new.id}-{new.n}", stream)


@given(texts.filter(lambda text: not set(text) & set("{}")))
def test_any_other_text_is_itself(text):
    """Only braces have a meaning."""
    stream = Stream()
    stream.message("p")
    assert [(f"{text}p{text}",)] == places(f"{text}{{table}}{text}", stream)


@given(texts, texts)
def test_values_are_not_read_again(schema, prefix):
    """Braces in a name or a value stay what they are."""
    stream = Stream()
    items = stream.table("{key}", column("note", key=True), namespace=schema or "s")
    stream.transaction(items.insert(prefix))
    named = (schema or "s").replace("%", "%25").replace(".", "%2E")
    assert [(f"{named}.{{key}}.{prefix}",)] == places("{schema}.{table}.{new.note}", stream)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{tabel}", r"\{tabel\}.*the fields are \{schema\}"),
        ("{}", "the fields are"),
        ("{new}", "the fields are"),
        ("{new.}", "the fields are"),
        ("{old.id}", "the fields are"),
        ("{schema", "unmatched brace"),
        ("a}b", "unmatched brace"),
        ("{{table}}", "unmatched brace"),
    ],
)
def test_what_is_no_template(template, reason):
    """An invalid template is rejected before the first row."""
    with pytest.raises(ConfigurationError, match=reason):
        Routing(template)


def test_a_value_that_is_not_what_its_type_says():
    """Relation and column are named, the value is not."""
    stream = Stream(binary=True)
    items = stream.table("items", column("n", NUMERIC, key=True))
    stream.transaction(items.insert(Binary(b"secret")))
    with pytest.raises(DataError, match=r"public\.items\.n") as raised:
        places("{key}", stream)
    assert "secret" not in str(raised.value)


def test_what_was_altered_belongs_to_its_table(stream, items):
    """A schema change has the table's destination, and no key."""
    stream.transaction(items.insert("1", "a"))
    (part,) = map(SchemaTracker().announced, stream.slices())
    routing = Routing(EVERYTHING)
    assert [("public|items|schema|||",), ("public|items|insert|1|1|a",)] == list(map(routing, part.changes))
