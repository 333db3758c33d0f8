"""The events that a sink's options ask for, one by one."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from functools import partial

import pytest

from aiorepl import LSN, ConfigurationError, Position
from aiorepl.formats import named, names
from aiorepl.formats.events import Events
from aiorepl.formats.native import NativeFormat
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.schema_changes import SchemaTracker
from aiorepl_sinks.jsonl import JsonLinesSink
from aiorepl_sinks.objects.encodings import JsonLinesEncoding
from aiorepl_sinks.stdout import StdoutSink

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
        (payload, headers) for _, ((_, payload, headers),) in found
    ]
    assert [form.event(part) for part, _ in found] == [payload for _, ((_, payload, _),) in found]


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
    ((part, ((_, payload, headers),)),) = Events("cloudevents", binary=binding).of(insert)
    assert insert is part
    assert named("native").event(insert) == payload
    assert {attribute, "content-type"} <= headers.keys()


def test_whose_events_they_are():
    """The source of events is known once the sink is open; the user's options win."""
    insert, _ = written()

    def source(chosen):
        events = Events(chosen)
        events.open(POSITION)
        ((_, ((_, payload, _),)),) = events.of(insert)
        return json.loads(payload)["source"]

    assert "/postgresql/7000000000000000001/orders" == source("cloudevents")
    assert "/mine" == source({"type": "cloudevents", "source": "/mine"})
    assert "orders" == source("debezium")["name"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"binary": "http"}, "binary is a mode of CloudEvents: set format = cloudevents"),
        ({"chosen": "avro"}, "no format 'avro' is installed"),
        ({"values": "raw"}, "values is 'raw', but must be typed or text"),
    ],
)
def test_options_that_cannot_work(options, says):
    """Options that cannot work are rejected before anything is opened."""
    with pytest.raises(ConfigurationError, match=says):
        Events(**options)


class Prepared(NativeFormat):
    """A format whose bytes depend on the destination, and that needs I/O once for each table and destination."""

    is_text = False

    def __init__(self, destination="", known=None, done=None):
        super().__init__()
        self.destination = destination
        self.known = {} if known is None else known
        self.done = [] if done is None else done

    def to(self, destination):
        if destination not in self.known:
            self.known[destination] = Prepared(destination, self.known, self.done)
        return self.known[destination]

    async def prepare(self, change):
        await asyncio.sleep(0)
        self.done.append(change)

    def event(self, change):
        assert change in self.done
        return self.destination.encode()

    def key(self, change):
        return self.destination.encode() + b" key"


async def test_a_format_that_prepares(tmp_path, monkeypatch):
    """A plug-in's format is found by its name, prepared for each destination, and makes an event for each."""
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[aiorepl.formats]\nprepared = other_formats:Prepared\nwrong = json:loads\n"
    )
    module = types.ModuleType("other_formats")
    module.Prepared = Prepared
    monkeypatch.setitem(sys.modules, "other_formats", module)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigurationError,
        match="which is not a subclass of",
    ):
        Events("wrong")
    with pytest.raises(ConfigurationError, match="no events for transactions: remove boundaries"):
        named("prepared", boundaries=True)
    assert "prepared" in names()
    for lines in (
        StdoutSink,
        partial(JsonLinesSink, tmp_path),
        partial(JsonLinesEncoding, values="typed", compression="none"),
    ):
        with pytest.raises(ConfigurationError, match="set a"):
            lines(format="prepared")
    changes = written()
    events = Events("prepared")
    await events.prepare(changes, lambda part: ("a", "b"))
    for change in changes:
        ((part, copies),) = events.of(change, lambda part: ("a", "b"))
        assert [("a", b"a", {}), ("b", b"b", {})] == copies
        assert b"b key" == events.key(part, "b")
    with pytest.raises(AssertionError):
        next(Events("prepared").of(changes[0]))
    events = Events("prepared")
    await events.prepare(changes)
    assert [[b"public.items"], [b"public.items"]] == [
        [payload for _, copies in events.of(change) for _, payload, _ in copies] for change in changes
    ]
