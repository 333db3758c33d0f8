"""The events that a sink's options ask for, one by one."""

from __future__ import annotations

import json

import pytest

from aiorepl import LSN, ConfigurationError, Position
from aiorepl.formats import named
from aiorepl.formats.events import Events
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.schema_changes import SchemaTracker

POSITION = Position("7000000000000000001", 1, "orders", LSN(0))


def written():
    """A row, and a truncate of two tables."""
    stream = Stream()
    items = stream.table("items", column("id", 23, key=True))
    others = stream.table("others", column("id", 23))
    stream.transaction(items.insert("1"), build.truncate(relations=[items.oid, others.oid]))
    (part,) = stream.slices()
    return part.changes


@pytest.mark.parametrize(("name", "count"), [("native", 1), ("debezium", 2)])
def test_a_change_of_several_events(name, count):
    """A change gives as many events as the format makes of it, without headers."""
    _, truncate = written()
    events, form = Events(name), named(name)
    found = list(events.of(truncate))
    assert count == len(found)
    assert [(form.event(part), {}) for part in form.split(truncate)] == [
        (payload, headers) for _, payload, headers in found
    ]
    assert [form.event(part) for part, _, _ in found] == [payload for _, payload, _ in found]


@pytest.mark.parametrize("name", ["debezium", "wal2json"])
def test_what_a_format_does_not_tell(name):
    """A change that the format has no events for gives none, nor does a schema change."""
    stream, tracker = Stream(), SchemaTracker()
    items = stream.table("items", column("id", 23, key=True))
    stream.transaction(items.insert("1"))
    after = stream.table("items", column("id", 23, key=True), column("note"), replaces=items)
    stream.transaction(after.insert("2", "a"))
    changes = [change for part in map(tracker.announced, stream.slices()) for change in part.changes]
    assert {"schema": 0, "insert": 1} == {
        change.kind: len(list(Events(name).of(change))) for change in changes
    }


@pytest.mark.parametrize(("binding", "attribute"), [("http", "ce-id"), ("kafka", "ce_id")])
def test_binary(binding, attribute):
    """The native event, and the attributes beside it as the binding spells them."""
    insert, _ = written()
    ((part, payload, headers),) = Events("cloudevents", binary=binding).of(insert)
    assert insert is part
    assert named("native").event(insert) == payload
    assert {attribute, "content-type"} <= headers.keys()


def test_whose_events_they_are():
    """The source of events is known once the sink is open; the user's options win."""
    insert, _ = written()

    def source(chosen):
        events = Events(chosen)
        events.open(POSITION)
        ((_, payload, _),) = events.of(insert)
        return json.loads(payload)["source"]

    assert "/postgresql/7000000000000000001/orders" == source("cloudevents")
    assert "/mine" == source({"type": "cloudevents", "source": "/mine"})
    assert "orders" == source("debezium")["name"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"binary": "http"}, "binary is a mode of CloudEvents: set format = cloudevents"),
        ({"chosen": "avro"}, "format 'avro' does not exist"),
        ({"values": "raw"}, "values is 'raw', but must be typed or text"),
    ],
)
def test_options_that_cannot_work(options, says):
    """Options that cannot work are rejected before anything is opened."""
    with pytest.raises(ConfigurationError, match=says):
        Events(**options)
