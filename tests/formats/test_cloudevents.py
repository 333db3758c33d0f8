"""CloudEvents, read by the SDK of those who specified them."""

from __future__ import annotations

import json

import pytest
from cloudevents.core.bindings import http, kafka
from cloudevents.core.bindings.http import HTTPMessage
from cloudevents.core.bindings.kafka import KafkaMessage
from hypothesis import given
from hypothesis import strategies as st

from aiorepl import ConfigurationError
from aiorepl.formats.cloudevents import CloudEventsFormat
from aiorepl.formats.format import event_id
from aiorepl.formats.native import NativeFormat
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

INT4 = 23
SOURCE = "/postgresql/7000000000000000001/test"


def structured(line):
    """A line as the SDK reads it."""
    return http.from_structured_event(HTTPMessage({"content-type": CloudEventsFormat.content_type}, line))


def facts(event):
    """Return the attributes and data that the SDK reads."""
    return (
        event.get_id(),
        event.get_type(),
        event.get_subject(),
        event.get_source(),
        event.get_datacontenttype(),
    )


def written():
    """A transaction of every kind of change, and a message that stands alone: slices and native events."""
    stream = Stream()
    items = stream.table("items", column("id", INT4, key=True), column("note"))
    others = stream.table("others", column("id"))
    stream.transaction(
        items.insert("1", "a"),
        items.update("1", "b"),
        items.delete("1", None),
        build.truncate(relations=[items.oid, others.oid]),
        build.message(transactional=True, lsn=1, prefix="p q"),
    )
    stream.message("alone")
    return stream.slices()


def test_every_kind():
    """The attributes of each, and the native event as its data."""
    slices = written()
    lines = list(CloudEventsFormat(source=SOURCE).events(slices))
    events = list(map(structured, lines))
    lsn, alone = slices[0].transaction.commit_lsn, slices[1].changes[0].lsn
    kinds = ["insert", "update", "delete", "truncate", "message", "message"]
    subjects = ["public.items"] * 3 + ["public.items,public.others", "p q", "alone"]
    identities = [f"{lsn}-{ordinal}" for ordinal in range(5)] + [f"{alone}-message"]
    assert [
        (identity, f"aiorepl.{kind}.v1", subject, SOURCE, "application/json")
        for identity, kind, subject in zip(identities, kinds, subjects, strict=True)
    ] == list(map(facts, events))
    assert [json.loads(line) for line in NativeFormat().events(slices)] == [
        event.get_data() for event in events
    ]
    assert [slices[0].transaction.commit_time] * 5 == [event.get_time() for event in events[:5]]
    # The SDK takes now where there is no time.
    assert "time" not in json.loads(lines[5])


@pytest.mark.parametrize("mode", ["http", "kafka"])
def test_binary_mode(mode):
    """Headers beside the native event say the same as the structured event."""
    form, binary = CloudEventsFormat(source=SOURCE), CloudEventsFormat(source=SOURCE, binary=mode)
    for part in written():
        for change in part.changes:
            assert {} == form.headers(change)
            headers, body = binary.headers(change), binary.event(change)
            if mode == "http":
                found = http.from_binary_event(HTTPMessage(headers, body))
            else:
                encoded = {name: value.encode() for name, value in headers.items()}
                found = kafka.from_binary_event(KafkaMessage(encoded, None, body))
            expected = structured(form.event(change))
            assert facts(expected) == facts(found)
            prefix = "ce-" if mode == "http" else "ce_"
            assert json.loads(form.event(change)).get("time") == headers.get(f"{prefix}time")
            assert expected.get_data() == found.get_data()
            assert event_id(change) == found.get_id()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_name_fits_in_a_header(name):
    """Headers are ASCII whatever the table is called, and the name can be decoded."""
    stream = Stream()
    table = stream.table(name, column("id"))
    stream.transaction(table.insert("1"))
    (part,) = stream.slices()
    form = CloudEventsFormat(binary="http")
    headers, body = form.headers(part.changes[0]), form.event(part.changes[0])
    assert all(value.isascii() and value.isprintable() and " " not in value for value in headers.values())
    assert f"public.{name}" == http.from_binary_event(HTTPMessage(headers, body)).get_subject()


def test_boundaries():
    """Events of their own, with an id that no row has and the time of what they tell."""
    stream = Stream()
    items = stream.table("items", column("id", INT4, key=True))
    stream.transaction(items.insert("1"))
    stream.prepare("g", items.insert("2"))
    stream.commit_prepared("g")
    events = [structured(line) for line in CloudEventsFormat(boundaries=True).events(stream.again())]
    kinds = ["begin", "insert", "commit", "begin", "insert", "prepare", "commit_prepared"]
    assert [f"aiorepl.{kind}.v1" for kind in kinds] == [event.get_type() for event in events]
    assert kinds == [event.get_data()["kind"] for event in events]
    assert len({event.get_id() for event in events}) == len(events)
    assert [1, 1, 1, 2, 2, 2, 3] == [event.get_time().second - 20 for event in events]


def test_values_and_type():
    """Values are those of the native format; the event type has the configured prefix."""
    stream = Stream()
    items = stream.table("items", column("id", INT4, key=True))
    stream.transaction(items.insert("1"))
    (line,) = CloudEventsFormat(values="text", type_prefix="com.example.cdc").events(stream.slices())
    event = structured(line)
    assert ("com.example.cdc.insert.v1", {"id": "1"}) == (event.get_type(), event.get_data()["new"])


def test_no_source_is_refused():
    """An event without one is none."""
    with pytest.raises(ConfigurationError, match="source"):
        CloudEventsFormat(source="")
