"""Events as Confluent's deserializers read them, and how they go through a sink's calls."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pytest

from aiorepl import DataError, Routing
from aiorepl.formats import named
from aiorepl.formats.events import Events
from aiorepl.pgoutput.relations import Column
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.values.types import DOMAIN, TypeInfo
from aiorepl_schema_registry.avro import AvroFormat
from aiorepl_schema_registry.protobuf import ProtobufFormat

FORMATS = [AvroFormat, ProtobufFormat]
COLUMNS = (
    column("id", 23, key=True),
    Column(False, "price", 1700, (12 << 16 | 2) + 4),
    column("plain", 1700),
    column("day", 1082),
    column("at", 1114),
    column("moment", 1184),
    column("clock", 1083),
    column("ref", 2950),
    column("data", 3802),
    column("raw", 17),
    column("tags", 1009),
    column("on", 16),
)
VALUES = (
    "1",
    "-12.50",
    "1e3",
    "2026-11-28",
    "2026-11-28 09:00:00.000001",
    "2026-11-28 09:00:00.5+00",
    "23:59:59.999999",
    "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    '{"a": 1}',
    "\\x00ff",
    '{a,NULL,"b c"}',
    "t",
)


async def test_avro_values(registry_url, readers, topic, written):
    """AvroDeserializer returns Python's types: decimals, dates, times, UUIDs and arrays."""
    stream = Stream()
    table = stream.table("t", *COLUMNS)
    stream.transaction(table.insert(*VALUES), origin="elsewhere")
    ((key, event),) = await written(
        AvroFormat(registry_url, name="shop", database="db"), stream.slices(), topic
    )
    assert readers.avro(key) == {"id": 1}
    read = readers.avro(event)
    assert read["after"] == {
        "id": 1,
        "price": Decimal("-12.50"),
        "plain": "1e3",
        "day": date(2026, 11, 28),
        "at": datetime(2026, 11, 28, 9, 0, 0, 1),
        "moment": datetime(2026, 11, 28, 9, 0, 0, 500_000, tzinfo=UTC),
        "clock": time(23, 59, 59, 999_999),
        "ref": uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        "data": '{"a": 1}',
        "raw": b"\x00\xff",
        "tags": ["a", None, "b c"],
        "on": True,
    }
    source = read["source"]
    assert (read["op"], read["before"], read["unchanged"], source["origin"]) == ("c", None, [], "elsewhere")
    assert (source["name"], source["db"], source["schema"], source["table"]) == ("shop", "db", "public", "t")
    assert read["ts_us"] == source["ts_us"] == 1000 * source["ts_ms"]


async def test_protobuf_values(registry_url, readers, topic, written):
    """ProtobufDeserializer returns numbers for times, text for numeric, and a message for an array."""
    stream = Stream()
    table = stream.table("t", *COLUMNS)
    stream.transaction(table.insert(*VALUES))
    ((key, event),) = await written(ProtobufFormat(registry_url), stream.slices(), topic)
    assert event[:6] == b"\0" + event[1:5] + b"\0"
    assert readers.protobuf(key).id == 1
    row = readers.protobuf(event).after
    seconds = int(datetime(2026, 11, 28, 9, tzinfo=UTC).timestamp())
    assert (row.price, row.plain, row.day) == ("-12.50", "1e3", seconds // 86_400)
    assert (row.at, row.moment) == (seconds * 1_000_000 + 1, seconds * 1_000_000 + 500_000)
    assert (row.clock, row.ref, row.data, row.raw, row.on) == (
        86_399_999_999,
        VALUES[7],
        VALUES[8],
        b"\x00\xff",
        True,
    )
    assert [each.value for each in row.tags.elements] == ["a", "", "b c"]
    assert [each.HasField("value") for each in row.tags.elements] == [True, False, True]


@pytest.mark.parametrize("make", FORMATS)
async def test_changed_keys_and_unchanged_values(make, registry_url, readers, topic, written):
    """A changed key is a delete and a create; a value that was not sent is named, in the create as well."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True), column("note"))
    stream.transaction(table.insert("1", None), table.update("2", UNCHANGED, key=("1", None)))
    events = await written(make(registry_url), stream.slices(), topic)
    read = readers.avro if make is AvroFormat else readers.protobuf_fields
    (first, insert), (before, delete), (after, create) = [(key, read(event)) for key, event in events]
    assert first == before != after
    assert [each["op"] for each in (insert, delete, create)] == ["c", "d", "c"]
    assert [each["unchanged"] for each in (insert, delete, create)] == [[], [], ["note"]]
    assert (delete["before"]["id"], delete["after"], create["after"]["id"]) == (1, None, 2)


async def test_an_error_names_the_column(registry_url, topic, written):
    """A value without a form is an error with table and column, and without the value."""
    stream = Stream()
    table = stream.table("t", Column(True, "id", 23, -1), Column(False, "price", 1700, (4 << 16 | 2) + 4))
    stream.transaction(table.insert("1", "NaN"))
    with pytest.raises(DataError, match=r"public\.t\.price: .*decimals = \"string\""):
        await written(AvroFormat(registry_url), stream.slices(), topic)
    stream.transaction(table.insert("1", "NaN"))
    ((_, event),) = await written(AvroFormat(registry_url, decimals="string"), stream.slices(), topic)
    assert b"NaN" in event


@pytest.mark.parametrize("make", FORMATS)
async def test_truncates_take_any_version(make, registry_url, readers, topic, written):
    """A truncate needs no version of its own: of a table with types whose names alone are known, it has the latest schema of the subject."""
    stream = Stream(types=[TypeInfo(50_001, "public", "amount", DOMAIN, 20)])
    stream.type_(50_001, "amount")
    table = stream.table("t", column("id", 23, key=True), column("amount", 50_001))
    stream.transaction(table.insert("1", "7"), table.truncate())
    (_, insert), (key, truncate) = await written(make(registry_url), stream.slices(), topic)
    assert (key, truncate[:5]) == (None, insert[:5])
    read = readers.avro(truncate) if make is AvroFormat else readers.protobuf_fields(truncate)
    assert (read["op"], read["before"], read["after"], read["source"]["table"]) == ("t", None, None, "t")


@pytest.mark.parametrize("make", FORMATS)
async def test_a_batch_with_several_versions(make, registry_url, readers, topic, written):
    """Events of a batch are made after all its changes were prepared, each with the schema of its own version."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True), column("a"))
    stream.transaction(table.insert("1", "x"))
    table = stream.table("t", column("id", 23, key=True), column("b", 20), replaces=table)
    stream.transaction(table.insert("2", "7"))
    changes = [change for part in stream.slices() for change in part.changes]
    bound = make(registry_url).to(topic)
    for change in changes:
        await bound.prepare(change)
    events = [bound.event(change) for change in changes]
    read = readers.avro if make is AvroFormat else readers.protobuf_fields
    assert [read(event)["after"] for event in events] == [{"id": 1, "a": "x"}, {"id": 2, "b": 7}]


@pytest.mark.parametrize("name", ["avro", "protobuf"])
async def test_by_name(name, registry_url, readers, topic, written):
    """A sink finds the format by its name, and its calls make an event for each topic."""
    events, route = Events({"type": name, "registry": registry_url}), Routing(f"{topic}.{{schema}}.{{table}}")
    stream = Stream(slot="orders")
    events.open(stream.position)
    table = stream.table("t", column("id", 23, key=True))
    stream.transaction(table.insert("1"))
    (change,) = stream.slices()[0].changes
    await events.prepare([change], route)
    ((part, [(destination, payload, headers)]),) = events.of(change, route)
    assert (destination, dict(headers)) == (f"{topic}.public.t", {})
    read = readers.avro(payload) if name == "avro" else readers.protobuf_fields(payload)
    assert (read["source"]["name"], read["after"]) == ("orders", {"id": 1})
    assert events.key(part, destination) is not None
    assert readers.client.get_latest_version(f"{topic}.public.t-key").version == 1
    assert named({"type": name, "registry": registry_url}).is_text is False
