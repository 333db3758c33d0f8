"""Events of a real server in every format, from text and from binary columns."""

from __future__ import annotations

import base64
import json

import pytest
from cloudevents.core.bindings import http
from cloudevents.core.bindings.http import HTTPMessage

from aiorepl import LSN, Pipeline, Source
from aiorepl.formats import named, names
from aiorepl.formats.format import event_id
from aiorepl.pipeline.registry import load
from aiorepl.testing.faults import MemorySink

# Column names, SQL types and values, including an enum and a domain.
COLUMNS = {
    "id": ("integer", "1"),
    "b": ("boolean", "true"),
    "i8": ("bigint", "9223372036854775807"),
    "f4": ("real", "0.1"),
    "f8": ("double precision", "'NaN'"),
    "n": ("numeric", "12345678901234567890.5"),
    "np": ("numeric(12,2)", "4.5"),
    "m": ("money", "1234.11"),
    "v": ("character varying(20)", "'žš'"),
    "c": ("character(5)", "'abc'"),
    "raw": ("bytea", r"'\x010203'"),
    "d": ("date", "'2016-11-04'"),
    "dinf": ("date", "'infinity'"),
    "t": ("time without time zone", "'24:00:00'"),
    "t3": ("time(3) without time zone", "'13:51:30.123'"),
    "tz": ("time with time zone", "'13:51:30.123789+02'"),
    "ts": ("timestamp without time zone", "'2016-11-04 13:51:30.123456'"),
    "ts3": ("timestamp(3) without time zone", "'2016-11-04 13:51:30.123456'"),
    "bc": ("timestamp without time zone", "'4713-12-31 23:59:59.999999 BC'"),
    "tstz": ("timestamp with time zone", "'2016-11-04 13:51:30+02'"),
    "it": ("interval", "'P1Y2M3DT4H5M6.78S'"),
    "its": ("interval day to second(3)", "'1 day 00:00:01.5'"),
    "u": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    "j": ("json", """'{"bar": "baz"}'"""),
    "jb": ("jsonb", """'{"bar": [1, null]}'"""),
    "bit1": ("bit(1)", "B'1'"),
    "bits": ("bit varying(24)", "B'000000110000001000000001'"),
    "p": ("point", "'(1,1)'"),
    "pa": ("path", "'[(0,0),(1,0)]'"),
    "r": ("int4range", "'[1000,6000)'"),
    "tsv": ("tsvector", "'Old Parr'"),
    "ip": ("inet", "'192.168.2.0/12'"),
    "a": ("integer[]", "'{1,NULL}'"),
    "na": ("numeric(5,2)[]", "'{1.2,3.4}'"),
    "ta": ("timestamp(3) without time zone[]", "'{2016-11-04 13:51:30.123}'"),
    "ba": ("bytea[]", r"ARRAY['\x01'::bytea]"),
    "mood": ('"Mood"', "'glad'"),
    "moods": ('"Mood"[]', "'{glad,sad}'"),
    "price": ("shop.price", "1.5"),
}

DEBEZIUM = {
    "id": 1,
    "b": True,
    "i8": 9223372036854775807,
    "f4": 0.1,
    "f8": "NaN",
    "n": "12345678901234567890.5",
    "np": "4.50",
    "m": "1234.11",
    "v": "žš",
    "c": "abc  ",
    "raw": "AQID",
    "d": 17109,
    "dinf": -2147472692,
    "t": 86400000000,
    "t3": 49890123,
    "tz": "11:51:30.123789Z",
    "ts": 1478267490123456,
    "ts3": 1478267490123,
    "bc": -210831897600000001,
    "tstz": "2016-11-04T11:51:30.000000Z",
    "it": 37091106780000,
    "its": 86401500000,
    "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "j": '{"bar": "baz"}',
    "jb": '{"bar": [1, null]}',
    "bit1": True,
    "bits": base64.b64encode(b"\1\2\3").decode(),
    "p": {"x": 1.0, "y": 1.0, "wkb": "AQEAAAAAAAAAAADwPwAAAAAAAPA/", "srid": None},
    "pa": {
        "wkb": "AQIAAAACAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAPA/AAAAAAAAAAA=",
        "srid": None,
        "extensions": {"type": "path", "closed": "false"},
    },
    "r": "[1000,6000)",
    "tsv": "'Old' 'Parr'",
    "ip": "192.168.2.0/12",
    "a": [1, None],
    "na": ["1.20", "3.40"],
    "ta": [1478267490123],
    "ba": ["AQ=="],
    "mood": "glad",
    "moods": ["glad", "sad"],
    "price": "1.50",
}


@pytest.fixture
async def taken(published):
    """The same changes twice: with text columns, and with binary ones."""
    await published.execute(
        """CREATE TYPE "Mood" AS ENUM ('sad', 'glad')""",
        "CREATE SCHEMA shop",
        "CREATE DOMAIN shop.price AS numeric(12,2)",
        f"CREATE TABLE kinds ({', '.join(f'{name} {kind}' for name, (kind, _) in COLUMNS.items())}, PRIMARY KEY (id))",
    )
    other = f"{published.slot[:50]}_binary"
    await published.create_slot()
    await published.connection.fetchval("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", other)
    await published.commit(
        f"INSERT INTO kinds VALUES ({', '.join(value for _, value in COLUMNS.values())})",
        "UPDATE kinds SET id = 2",
        "DELETE FROM kinds",
        "TRUNCATE kinds, items",
        "SELECT pg_logical_emit_message(true, 'audit', 'text')",
    )
    sinks = MemorySink(), MemorySink()
    await Pipeline(published.source(messages=True), [sinks[0]], until="now").run()
    source = Source(published.dsn, slot=other, publication="p", messages=True, binary=True)
    await Pipeline(source, [sinks[1]], until="now").run()
    return [[part for batch in sink.batches for part in batch.slices] for sink in sinks]


@pytest.mark.parametrize(
    "chosen",
    [*names(), {"type": "debezium", "decimals": "precise"}, {"type": "debezium", "decimals": "double"}],
    ids=str,
)
async def test_text_and_binary_say_the_same(taken, chosen):
    """Text and binary columns give the same bytes, for a row of many types."""
    as_text, in_binary = (list(named(chosen, boundaries=True).events(parts)) for parts in taken)
    assert as_text == in_binary
    assert len(as_text) > 5


async def test_debezium(taken):
    """Values are as Debezium's connector writes them, also a changed key and the number of events."""
    begin, *events, end = map(json.loads, named("debezium", boundaries=True).events(taken[0]))
    assert ("BEGIN", "END", 7) == (begin["status"], end["status"], end["event_count"])
    assert ["c", "d", "c", "d", "t", "t", "m"] == [event["op"] for event in events]
    assert list(range(1, 8)) == [event["transaction"]["total_order"] for event in events]
    assert DEBEZIUM == events[0]["after"]
    assert [None, {"id": 1}, None, {"id": 2}] == [event["before"] for event in events[:4]]
    assert DEBEZIUM | {"id": 2} == events[2]["after"]
    assert {"prefix": "audit", "content": "dGV4dA=="} == events[6]["message"]


async def test_wal2json(taken, published):
    """Types are spelled as the server does; values are text, numbers and booleans."""
    names = await published.connection.fetch(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'kinds'::regclass AND attnum > 0 ORDER BY attnum"
    )
    spelled = {
        name: kind[1:-1] if kind.startswith('"') and kind.endswith('"') else kind for name, kind in names
    }
    begin, insert, update, delete, *truncates, message, end = map(
        json.loads, named("wal2json", boundaries=True).events(taken[0])
    )
    assert spelled == {column["name"]: column["type"] for column in insert["columns"]}
    values = {column["name"]: column["value"] for column in insert["columns"]}
    texts = {
        "b": True,
        "f8": None,
        "np": 4.5,
        "raw": "010203",
        "a": "{1,NULL}",
        "jb": '{"bar": [1, null]}',
        "price": "1.50",
    }
    assert texts == {name: values[name] for name in texts}
    assert ["B", "U", "D", "T", "T", "M", "C"] == [
        line["action"] for line in (begin, update, delete, *truncates, message, end)
    ]
    assert [[{"name": "id", "type": "integer", "value": number}] for number in (1, 2)] == [
        line["identity"] for line in (update, delete)
    ]


async def test_cloudevents(taken):
    """The SDK reads the events; their ids are the changes' identities on both connections."""
    changes = [change for part in taken[1] for change in part.changes]
    events = [
        http.from_structured_event(HTTPMessage({"content-type": "application/cloudevents+json"}, line))
        for line in named("cloudevents").events(taken[0])
    ]
    assert list(map(event_id, changes)) == [event.get_id() for event in events]
    assert [change.transaction.commit_time for change in changes] == [event.get_time() for event in events]
    assert 1 == events[0].get_data()["new"]["id"]


async def test_pretty(taken):
    """One change is one line."""
    lines = [line.decode() for line in named("pretty").events(taken[0])]
    verbs = ["INSERT", "UPDATE", "DELETE", "TRUNCATE", "MESSAGE"]
    assert verbs == [line.split(" ")[2] for line in lines]
    assert all(LSN.parse(line.split(" ")[1].partition("-")[0]) for line in lines)
    assert lines[3].endswith("TRUNCATE public.kinds, public.items")


async def test_rows_that_were_there_before(published, tmp_path):
    """Events of the initial snapshot differ from those of the stream."""
    await published.execute("INSERT INTO items VALUES (1, 'a')")
    sink, journal = MemorySink(), str(tmp_path / "journal")
    await Pipeline(published.source(), [sink], journal=journal, snapshot=True, until="now").run()
    await published.execute("INSERT INTO items VALUES (2, 'b')")
    await Pipeline(published.source(), [sink], journal=journal, until="now").run()
    form = named("debezium")
    events = [json.loads(line) for batch in sink.batches for line in form.events(batch.slices)]
    assert [("r", "true"), ("c", "false")] == [(event["op"], event["source"]["snapshot"]) for event in events]


@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_events_name_the_database(published, tmp_path, interface):
    """Sinks know the database, and Debezium's events name it without an option."""
    sink = MemorySink()
    options = {"journal": str(tmp_path / "journal"), "until": "now"}
    files = load("jsonl")(path=tmp_path / "events", format="debezium")
    await Pipeline(published.source(interface=interface), [sink, files], **options).run()
    await published.execute("INSERT INTO items VALUES (1)")
    await Pipeline(published.source(interface=interface), [sink, files], **options).run()
    name = await published.connection.fetchval("SELECT current_database()")
    assert sink.context is not None
    assert name == sink.context.database
    (line,) = [line for file in (tmp_path / "events").iterdir() for line in file.read_text().splitlines()]
    source = json.loads(line)["source"]
    assert (name, published.slot) == (source["db"], source["name"])
