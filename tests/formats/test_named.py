"""Formats by name, their options, and errors of both."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from aiorepl import LSN, ConfigurationError, Position
from aiorepl.formats import named, names
from aiorepl.formats.format import event_id
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.schema_changes import SchemaTracker

POSITION = Position("7000000000000000001", 1, "orders", LSN(0))


def first(form):
    """The first event of a transaction of one row, and the row's change."""
    stream = Stream()
    items = stream.table("items", column("id", 23, key=True))
    stream.transaction(items.insert("1"))
    slices = stream.slices()
    return next(form.events(slices)), slices[0].changes[0]


@pytest.mark.parametrize("name", names())
def test_each_writes(name):
    """Every name gives a format that writes a change, and boundaries around it if they are asked for."""
    event, change = first(named(name))
    assert event == named(name).event(change)
    assert event != first(named(name, boundaries=True))[0]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("native", lambda event: f"{event['commit_lsn']}-{event['ordinal']}"),
        ("cloudevents", lambda event: event["id"]),
        ({"type": "wal2json", "include_event_id": True}, lambda event: event["id"]),
        (
            "debezium",
            lambda event: "{}-{}".format(
                LSN(json.loads(event["source"]["sequence"])[0]), event["source"]["sequence"][-3]
            ),
        ),
    ],
)
def test_where_each_carries_the_identity(name, found):
    """Each format has the identity of a change, at its documented place."""
    event, change = first(named(name))
    assert event_id(change) == found(json.loads(event))


def test_pretty_shows_the_identity():
    """The pretty format shows the identity."""
    event, change = first(named("pretty"))
    assert f" {event_id(change)} " in event.decode()


def test_called_after_the_source():
    """Unless an option calls it otherwise."""
    event, _ = first(named("cloudevents", position=POSITION))
    assert "/postgresql/7000000000000000001/orders" == json.loads(event)["source"]
    event, _ = first(named("debezium", position=POSITION))
    assert "orders" == json.loads(event)["source"]["name"]
    event, _ = first(named({"type": "debezium", "name": "shop"}, position=POSITION))
    assert "shop" == json.loads(event)["source"]["name"]
    known = replace(POSITION, database="books")
    event, _ = first(named("debezium", position=known))
    assert "books" == json.loads(event)["source"]["db"]
    event, _ = first(named({"type": "debezium", "database": "other"}, position=known))
    assert "other" == json.loads(event)["source"]["db"]


def test_without_metadata(monkeypatch):
    """The built-in formats are found in an application without the metadata of its packages."""
    monkeypatch.setattr("aiorepl.plugins.entry_points", lambda **_: ())
    assert ("cloudevents", "debezium", "native", "pretty", "wal2json") == names()
    for name in names():
        assert named(name)


def test_values():
    """``values="text"`` is available in the formats that support it."""
    for name in ("native", "cloudevents"):
        assert '"new":{"id":"1"}' in first(named(name, values="text"))[0].decode()
    assert first(named("pretty"))[0] == first(named("pretty", values="text"))[0]


@pytest.mark.parametrize(
    ("chosen", "values", "reason"),
    [
        ("debezum", "typed", "did you mean debezium"),
        ("yaml?", "typed", "use one of cloudevents, debezium, native"),
        ({"name": "shop"}, "typed", "type is missing: use one of"),
        ("debezium", "text", "remove values"),
        ("wal2json", "text", "remove values"),
        ("pretty", "yaml", "typed or text"),
        ("native", "yaml", "typed or text"),
        ({"type": "debezium", "decimal": "double"}, "typed", "no option decimal: did you mean decimals\\?"),
        (
            {"type": "debezium", "decimals": "exact"},
            "typed",
            "decimals is .exact., but must be string, double or precise",
        ),
        (
            {"type": "wal2json", "include_xids": "yes"},
            "typed",
            "include_xids is of type str, but must be True or False",
        ),
    ],
)
def test_refusals(chosen, values, reason):
    """Unknown formats and options are rejected with what to do."""
    with pytest.raises(ConfigurationError, match=reason):
        named(chosen, values=values)


def test_only_what_is_chosen_is_imported():
    """A pipeline that writes native events loads no other format."""
    program = "import sys; from aiorepl.formats import named; named('native'); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = {name.rpartition(".")[2] for name in said.split() if name.startswith("aiorepl.formats.")}
    assert {"native"} == loaded & set(names())


@pytest.mark.parametrize(
    ("name", "count"), [("native", 4), ("cloudevents", 4), ("pretty", 4), ("debezium", 2), ("wal2json", 2)]
)
def test_what_was_altered(name, count):
    """Events of their own in formats that have such, with an identity beside the row's; none in the others."""
    stream, tracker = Stream(), SchemaTracker()
    items = stream.table("items", column("id", 23, key=True))
    stream.transaction(items.insert("1"))
    after = stream.table("items", column("id", 23, key=True), column("note"), replaces=items)
    stream.transaction(after.insert("2", "a"))
    slices = list(map(tracker.announced, stream.slices()))
    assert count == len(list(named(name).events(slices)))
    changes = [change for part in slices for change in part.changes]
    assert len(changes) == len(set(map(event_id, changes)))


@pytest.mark.parametrize("name", names())
def test_keys(name):
    """For sinks that keep the key beside the event."""
    _, change = first(named(name))
    assert b'{"id":1}' == named(name).key(change)


@pytest.mark.parametrize("name", names())
def test_a_table_that_was_altered(name):
    """Each row by the description that was sent before it, be it in one slice or in two."""
    stream, form = Stream(), named(name)
    items = stream.table("items", column("id", 23, key=True))
    stream.transaction(items.insert("1"))
    before = stream.slices()
    after = stream.table("items", column("label"), column("id", 23, key=True), replaces=items)
    stream.transaction(after.insert("b", "2"))
    first, second = (event.decode() for part in (before, stream.slices()) for event in form.events(part))
    assert ("label" in first, "label" in second) == (False, True)


@pytest.mark.parametrize("name", names())
def test_a_transaction_without_changes(name):
    """A transaction without changes has no boundary lines, because only some servers send it."""
    stream = Stream()
    stream.transaction()
    assert [] == list(named(name, boundaries=True).events(stream.slices()))
