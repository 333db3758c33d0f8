"""The lines of wal2json's own tests, and the additions of its parameters."""

from __future__ import annotations

import json

import pytest

from aiorepl import UNCHANGED, DataError
from aiorepl.formats.type_names import type_name
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.values.registry import Types
from aiorepl.values.types import BUILTIN, TypeInfo
from aiorepl_sinks.formats.wal2json import Wal2JsonFormat

OIDS = {info.name: info.oid for info in BUILTIN.values()}
NUMERIC_5_3 = (5 << 16 | 3) + 4
DOMAIN, OTHER, TYPE, TYPES_ARRAY, ELSEWHERE = 90001, 90002, 90003, 90004, 90005
USER_TYPES = (
    TypeInfo(DOMAIN, "public", "wal2json_DOMAIN_1", "d", OIDS["int8"]),
    TypeInfo(OTHER, "public", "wal2json_domain_2", "d", OIDS["numeric"]),
    TypeInfo(TYPE, "public", "wal2json_Type", "e"),
    TypeInfo(TYPES_ARRAY, "public", "_wal2json_Type", "a", TYPE),
    TypeInfo(ELSEWHERE, "Other schema", "mood", "e"),
)


@pytest.fixture
def stream():
    """A stream that knows some types of a user."""
    return Stream(types=USER_TYPES)


def lines(stream, **options):
    """Return the lines that the format writes."""
    return [line.decode() for line in Wal2JsonFormat(**options).events(stream.slices())]


def test_a_row_of_many_types(stream):
    """A row of many types is as in wal2json's expected/insert1.out, except for DateStyle, which is ISO here."""
    table = stream.table(
        "table_with_pk",
        column("a", OIDS["int2"], key=True),
        column("b", OIDS["int2"]),
        column("c", OIDS["int4"]),
        column("d", OIDS["int8"]),
        column("e", OIDS["numeric"], type_modifier=NUMERIC_5_3),
        column("f", OIDS["float4"]),
        column("g", OIDS["float8"]),
        column("h", OIDS["bpchar"], type_modifier=14),
        column("i", OIDS["varchar"], type_modifier=34),
        column("j", OIDS["text"]),
        column("k", OIDS["varbit"], type_modifier=20),
        column("l", OIDS["timestamp"]),
        column("m", OIDS["date"]),
        column("n", OIDS["bool"]),
        column("o", OIDS["json"]),
        column("p", OIDS["tsvector"]),
    )
    stream.transaction(
        table.insert(
            *("1", "1", "2", "3", "3.540", "876.563", "1.23", "teste     ", "testando", "um texto longo"),
            *("001110010101010", "2013-11-02 17:30:52", "2013-02-04", "t", '{ "a": 123 }', "'Old' 'Parr'"),
        )
    )
    assert [
        (
            '{"action":"I","schema":"public","table":"table_with_pk","columns":['
            '{"name":"a","type":"smallint","value":1},{"name":"b","type":"smallint","value":1},'
            '{"name":"c","type":"integer","value":2},{"name":"d","type":"bigint","value":3},'
            '{"name":"e","type":"numeric(5,3)","value":3.540},{"name":"f","type":"real","value":876.563},'
            '{"name":"g","type":"double precision","value":1.23},'
            '{"name":"h","type":"character(10)","value":"teste     "},'
            '{"name":"i","type":"character varying(30)","value":"testando"},'
            '{"name":"j","type":"text","value":"um texto longo"},'
            '{"name":"k","type":"bit varying(20)","value":"001110010101010"},'
            '{"name":"l","type":"timestamp without time zone","value":"2013-11-02 17:30:52"},'
            '{"name":"m","type":"date","value":"2013-02-04"},{"name":"n","type":"boolean","value":true},'
            '{"name":"o","type":"json","value":"{ \\"a\\": 123 }"},'
            '{"name":"p","type":"tsvector","value":"\'Old\' \'Parr\'"}]}'
        )
    ] == lines(stream)


def test_updates_and_deletes(stream):
    """Updates and deletes are as in expected/type_oid.out: the identity is the old key, or the new row's if it did not change."""
    table = stream.table("w2j_type_oid", column("a", OIDS["int4"], key=True), column("b", OIDS["bool"]))
    stream.transaction(table.update("3", "t", key=("1", None)))
    stream.transaction(table.update("3", "f"), table.delete("3", None))
    assert [
        '{"action":"B"}',
        (
            '{"action":"U","schema":"public","table":"w2j_type_oid","columns":[{"name":"a","type":"integer","typeoid":23,'
            '"value":3},{"name":"b","type":"boolean","typeoid":16,"value":true}],"identity":[{"name":"a","type":"integer",'
            '"typeoid":23,"value":1}]}'
        ),
        '{"action":"C"}',
        '{"action":"B"}',
        (
            '{"action":"U","schema":"public","table":"w2j_type_oid","columns":[{"name":"a","type":"integer","typeoid":23,'
            '"value":3},{"name":"b","type":"boolean","typeoid":16,"value":false}],"identity":[{"name":"a","type":"integer",'
            '"typeoid":23,"value":3}]}'
        ),
        (
            '{"action":"D","schema":"public","table":"w2j_type_oid","identity":[{"name":"a","type":"integer","typeoid":23,'
            '"value":3}]}'
        ),
        '{"action":"C"}',
    ] == lines(stream, boundaries=True, include_type_oids=True)


def test_truncates_and_messages(stream):
    """Truncates and messages are as in expected/truncate.out and expected/message.out."""
    first = stream.table("table_truncate_5", column("a", OIDS["int4"]))
    second = stream.table("table_truncate_6", column("a", OIDS["int4"]))
    stream.transaction(
        build.truncate(relations=[first.oid, second.oid]),
        build.message(transactional=True, lsn=1, prefix="wal2json", content=b"this is a\\ message"),
    )
    stream.message("wal2json", b'this is "another" message')
    stream.message("bytes", b"\xff\0rest")
    assert [
        '{"action":"B"}',
        '{"action":"T","schema":"public","table":"table_truncate_5"}',
        '{"action":"T","schema":"public","table":"table_truncate_6"}',
        '{"action":"M","transactional":true,"prefix":"wal2json","content":"this is a\\\\ message"}',
        '{"action":"C"}',
        '{"action":"M","transactional":false,"prefix":"wal2json","content":"this is \\"another\\" message"}',
        '{"action":"M","transactional":false,"prefix":"bytes","content":"\ufffd"}',
    ] == lines(stream, boundaries=True)


def test_the_whole_old_row_and_what_was_not_sent(stream):
    """Under FULL the identity is all of the old row; a column that was not sent is left out."""
    whole = stream.table(
        "whole", column("a", OIDS["int4"], key=True), column("b", key=True), replica_identity="f"
    )
    items = stream.table("items", column("a", OIDS["int4"], key=True), column("b"))
    stream.transaction(whole.update("2", None, old=("1", "x")), items.update("1", UNCHANGED))
    first, second = map(json.loads, lines(stream, include_types=False))
    assert [{"name": "a", "value": 2}, {"name": "b", "value": None}] == first["columns"]
    assert [{"name": "a", "value": 1}, {"name": "b", "value": "x"}] == first["identity"]
    assert ([{"name": "a", "value": 1}],) * 2 == (second["columns"], second["identity"])


def test_what_the_parameters_add(stream):
    """Parameters add xid, times and LSNs in wal2json's order, and the identity of the event."""
    items = stream.table("items", column("a", OIDS["int4"], key=True))
    end = stream.transaction(items.insert("1"))
    alone = stream.message("p", b"x")
    lsn, time = str(type(end)(end - 0x30)), "2025-05-08 06:13:21+00"
    options = ("include_xids", "include_timestamp", "include_lsn", "include_event_id", "include_pk")
    found = lines(stream, boundaries=True, include_schemas=False, **dict.fromkeys(options, True))
    head = f'"xid":701,"timestamp":"{time}","lsn":"{lsn}"'
    assert [
        f'{{"action":"B",{head}}}',
        (
            f'{{"action":"I",{head},"id":"{lsn}-0","table":"items","columns":[{{"name":"a","type":"integer","value":1}}],'
            '"pk":[{"name":"a","type":"integer"}]}'
        ),
        f'{{"action":"C",{head},"nextlsn":"{end}"}}',
        (
            f'{{"action":"M","xid":null,"timestamp":null,"lsn":"{alone}","id":"{alone}-message","transactional":false,'
            '"prefix":"p","content":"x"}'
        ),
    ] == found


@pytest.mark.parametrize("identity", ["f", "i", "n"])
def test_the_primary_key_is_known_where_it_is_the_identity(stream, identity):
    """The primary key is written if it is the replica identity; pgoutput names no other."""
    items = stream.table("items", column("a", OIDS["int4"], key=identity != "n"), replica_identity=identity)
    stream.transaction(items.insert("1"))
    (event,) = map(json.loads, lines(stream, include_pk=True))
    assert [] == event["pk"]


@pytest.mark.parametrize(
    ("name", "text", "as_number", "as_string"),
    [
        ("int8", "9223372036854775807", "9223372036854775807", '"9223372036854775807"'),
        (
            "numeric",
            "1234567890987654321.1234567890987654321",
            "1234567890987654321.1234567890987654321",
            None,
        ),
        ("float8", "1e+300", "1e+300", '"1e+300"'),
        ("float4", "NaN", "null", '"NaN"'),
        ("float8", "-Infinity", "null", '"-Infinity"'),
        ("numeric", "Infinity", "null", '"Infinity"'),
        ("bool", "f", "false", "false"),
        ("bytea", "\\x54617069727573", '"54617069727573"', '"54617069727573"'),
        ("_int4", "{1,NULL}", '"{1,NULL}"', '"{1,NULL}"'),
        ("jsonb", '{"a": 1}', '"{\\"a\\": 1}"', '"{\\"a\\": 1}"'),
    ],
)
def test_values(stream, name, text, as_number, as_string):
    """Numbers are numbers with all their digits, unless they are none; arrays and JSON are text."""
    table = stream.table("t", column("v", OIDS[name]))
    stream.transaction(table.insert(text))
    slices = stream.slices()
    for option, expected in ((False, as_number), (True, as_string or f'"{text}"')):
        (line,) = Wal2JsonFormat(numeric_data_types_as_string=option).events(slices)
        assert line.decode().endswith(f'"value":{expected}}}]}}')


def test_users_types(stream):
    """Domains and arrays are as in expected/include_domain_data_type.out."""
    table = stream.table(
        "t",
        column("d", DOMAIN),
        column("e", OTHER),
        column("b", TYPES_ARRAY),
        column("c", TYPE),
        column("f", ELSEWHERE),
    )
    stream.transaction(table.insert("3", "3.540", "{b,c}", "b", "happy"))
    slices = stream.slices()
    domains = ['"wal2json_DOMAIN_1"', '"wal2json_domain_2"']
    # A domain's own length and scale are not sent.
    for option, (first, second) in ((False, domains), (True, ['"bigint"', '"numeric"'])):
        (line,) = Wal2JsonFormat(include_domain_data_type=option).events(slices)
        assert line.decode().endswith(
            f'{{"name":"d","type":{first},"value":"3"}},{{"name":"e","type":{second},"value":"3.540"}},'
            '{"name":"b","type":"\\"wal2json_Type\\"[]","value":"{b,c}"},'
            '{"name":"c","type":"wal2json_Type","value":"b"},'
            '{"name":"f","type":"\\"Other schema\\".mood","value":"happy"}]}'
        )


def test_names_with_quotes(stream):
    """Quoted names are as in expected/insert1.out."""
    table = stream.table(
        "test \" with 'quotes'", column('col"quotes', OIDS["int4"]), namespace='test "schema'
    )
    stream.transaction(table.insert("3"))
    assert [
        (
            '{"action":"I","schema":"test \\"schema","table":"test \\" with \'quotes\'","columns":['
            '{"name":"col\\"quotes","type":"integer","value":3}]}'
        )
    ] == lines(stream)


@pytest.mark.parametrize(
    ("name", "modifier", "spelled"),
    [
        ("numeric", (3 << 16 | (-2 & 0x7FF)) + 4, "numeric(3,-2)"),
        ("time", 3, "time(3) without time zone"),
        ("timetz", 0, "time(0) with time zone"),
        ("timestamp", 6, "timestamp(6) without time zone"),
        ("timestamptz", 3, "timestamp(3) with time zone"),
        ("timestamptz", -1, "timestamp with time zone"),
        ("interval", -1, "interval"),
        ("interval", 0x7FFF << 16 | 3, "interval(3)"),
        ("interval", 6 << 16 | 0xFFFF, "interval year to month"),
        ("interval", 4 << 16 | 0xFFFF, "interval year"),
        ("interval", 0x1C08 << 16 | 2, "interval day to second(2)"),
        ("bit", 1, "bit(1)"),
        ("bpchar", 5, "character(1)"),
        ("bpchar", -1, "bpchar"),
        ("char", -1, "char"),
        ("_varchar", 24, "character varying(20)[]"),
        ("_numeric", NUMERIC_5_3, "numeric(5,3)[]"),
        ("_int4", -1, "integer[]"),
        ("uuid", -1, "uuid"),
        ("int4range", -1, "int4range"),
    ],
)
def test_type_names(name, modifier, spelled):
    """Type names are those of ``format_type``; tests/live/test_formats.py compares them with a server."""
    assert spelled == type_name(Types(), OIDS[name], modifier)


def test_a_type_that_is_not_known():
    """There is only its number."""
    assert "99999" == type_name(Types(), 99999)


def test_a_value_that_is_not_what_its_type_says():
    """Relation and column are named, the value is not."""
    stream = Stream(binary=True)
    table = stream.table("items", column("n", OIDS["numeric"]))
    stream.transaction(table.insert(build.Binary(b"secret")))
    with pytest.raises(DataError, match=r"public\.items\.n") as raised:
        lines(stream)
    assert "secret" not in str(raised.value)
