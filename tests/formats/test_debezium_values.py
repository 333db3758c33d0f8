"""Columns as Debezium has them: the values of its own tests, and the limits of each type."""

from __future__ import annotations

import base64
import json
from decimal import Decimal

import pytest

from aiorepl import DataError
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.values.types import BUILTIN, TypeInfo
from aiorepl_sinks.formats.debezium import DebeziumFormat

OIDS = {info.name: info.oid for info in BUILTIN.values()}
HSTORE, MOOD, PRICE, VECTOR, GEOMETRY, LABEL = 90001, 90002, 90003, 90004, 90005, 90006
USER_TYPES = (
    TypeInfo(HSTORE, "public", "hstore", "b"),
    TypeInfo(MOOD, "public", "mood", "e"),
    TypeInfo(PRICE, "public", "price", "d", OIDS["numeric"]),
    TypeInfo(VECTOR, "public", "vector", "b"),
    TypeInfo(GEOMETRY, "public", "geometry", "b"),
    TypeInfo(LABEL, "public", "halfvec", "e"),  # a user's own type, with a name that an extension has too
)


def written(oid, text, *, modifier=-1, **options):
    """Return the value that a column of this text becomes."""
    stream = Stream(types=USER_TYPES)
    table = stream.table("t", column("v", oid, type_modifier=modifier))
    stream.transaction(table.insert(text))
    (event,) = DebeziumFormat(**options).events(stream.slices())
    return json.loads(event)["after"]["v"]


def numeric(precision, scale):
    """The modifier of a numeric."""
    return (precision << 16 | scale & 0x7FF) + 4


def base64_of(*values):
    """Bytes as JSON has them."""
    return base64.b64encode(bytes(value & 0xFF for value in values)).decode()


@pytest.mark.parametrize(
    ("name", "modifier", "text", "value"),
    [
        ("timestamp", -1, "2016-11-04 13:51:30.123456", 1478267490123456),
        ("timestamp", 6, "1936-10-25 22:10:12.608", -1047174587392000),
        ("timestamp", 3, "2016-11-04 13:51:30.123", 1478267490123),
        ("timestamp", 0, "1969-12-31 23:59:59", -1000),
        ("timestamp", 4, "2016-11-04 13:51:30.1235", 1478267490123500),
        ("timestamp", -1, "21016-11-04 13:51:30.123456", 601060312290123456),
        ("timestamp", 3, "21016-11-04 13:51:30.124", 601060312290124),
        ("timestamp", -1, "294247-01-01 23:59:59.999999", 9223371331200000000 - 1),
        ("timestamp", -1, "294247-01-10 04:00:54.775807", 2**63 - 1),
        ("timestamp", 3, "294276-12-31 23:59:59.999", 9224318015999999),
        ("timestamp", -1, "4713-12-31 23:59:59.999999 BC", -210831897600000001),
        ("timestamp", -1, "infinity", 9223372036825200000),
        ("timestamp", -1, "-infinity", -9223372036832400000),
        ("timestamptz", -1, "2016-11-04 11:51:30.123456+00", "2016-11-04T11:51:30.123456Z"),
        ("timestamptz", -1, "21016-11-04 06:51:30.123456+00", "+21016-11-04T06:51:30.123456Z"),
        ("timestamptz", -1, "21016-11-04 06:51:30+00", "+21016-11-04T06:51:30.000000Z"),
        ("timestamptz", 3, "2016-11-04 11:51:30.1+00", "2016-11-04T11:51:30.100Z"),
        ("timestamptz", 0, "2016-11-04 11:51:30+00", "2016-11-04T11:51:30Z"),
        ("timestamptz", -1, "294247-01-01 23:59:59.999999+00", "+294247-01-01T23:59:59.999999Z"),
        ("timestamptz", -1, "4714-12-31 23:59:59.999999+00 BC", "-4713-12-31T23:59:59.999999Z"),
        ("timestamptz", -1, "infinity", "infinity"),
        ("timestamptz", -1, "-infinity", "-infinity"),
        ("date", -1, "2016-11-04", 17109),
        ("date", -1, "1969-12-31", -1),
        ("date", -1, "0001-01-01 BC", -719528),
        ("date", -1, "5874897-12-31", 2145042905),
        ("date", -1, "infinity", -2147472692),
        ("date", -1, "-infinity", -2147472691),
        ("time", -1, "13:51:30", 49890000000),
        ("time", 3, "13:51:30.123", 49890123),
        ("time", -1, "24:00:00", 86400000000),
        ("timetz", -1, "13:51:30.123789+02", "11:51:30.123789Z"),
        ("timetz", 3, "13:51:30.123+02", "11:51:30.123Z"),
        ("timetz", -1, "00:00:00+05:30", "18:30:00Z"),
        ("timetz", -1, "23:00:00-02:00:01", "01:00:01Z"),
        ("timetz", -1, "24:00:00+00", "24:00:00Z"),
        ("interval", -1, "1 year 2 mons 3 days 04:05:06.78", 37091106780000),
        ("interval", -1, "-1 mons +1 day -00:00:01", -2629800000000 + 86400000000 - 1000000),
        ("interval", -1, "infinity", 2**63 - 1),
        ("interval", -1, "-infinity", -(2**63)),
    ],
)
def test_times(name, modifier, text, value):
    """Times have the precision of the column, in every year, and infinity."""
    assert value == written(OIDS[name], text, modifier=modifier)


def test_a_timestamp_past_64_bits():
    """A timestamp whose microseconds do not fit is an error, not a number that readers cannot take."""
    with pytest.raises(DataError, match="after 294247-01-10"):
        written(OIDS["timestamp"], "294247-01-10 04:00:54.775808", modifier=-1)


@pytest.mark.parametrize(
    ("modifier", "text", "string", "double", "precise"),
    [
        (numeric(3, 2), "1.10", "1.10", 1.1, base64_of(110)),
        (numeric(4, 0), "10", "10", 10.0, base64_of(10)),
        (numeric(5, 2), "-1.28", "-1.28", -1.28, base64_of(-128)),
        (numeric(5, 2), "1.28", "1.28", 1.28, base64_of(0, 128)),
        (numeric(5, 2), "0.00", "0.00", 0.0, base64_of(0)),
        (numeric(5, -2), "1200", "1200", 1200.0, base64_of(12)),
        (numeric(5, -2), "0", "0", 0.0, base64_of(0)),
        (-1, "10.1111", "10.1111", 10.1111, {"scale": 4, "value": base64_of(0x01, 0x8A, 0xF7)}),
        (-1, "22.2200", "22.2200", 22.22, {"scale": 2, "value": base64_of(0x08, 0xAE)}),
        (-1, "-100", "-100", -100.0, {"scale": 0, "value": base64_of(-100)}),
    ],
)
def test_decimals(modifier, text, string, double, precise):
    """Each of Debezium's ways to handle them."""
    found = {
        way: written(OIDS["numeric"], text, modifier=modifier, decimals=way)
        for way in ("string", "double", "precise")
    }
    assert {"string": string, "double": double, "precise": precise} == found


@pytest.mark.parametrize("digits", [1, 1023, 1024, 1025, 2047, 2048, 2049, 5000, 131_072])
@pytest.mark.parametrize("sign", [1, -1])
def test_many_digits(digits, sign):
    """``precise`` is exact for as many digits as a numeric can have."""
    for number in (sign * 10 ** (digits - 1), sign * (10**digits - 1), sign * (10**digits // 7 or 1)):
        sent = written(OIDS["numeric"], str(Decimal(number)), decimals="precise")
        assert 0 == sent["scale"]
        assert number == int.from_bytes(base64.b64decode(sent["value"]), "big", signed=True)


@pytest.mark.parametrize("text", ["1_0", " 1", "1 ", "\u0663", "", "-", "--1", "1e5", "+1"])
def test_digits_that_no_server_sends(text):
    """``precise`` takes digits and nothing else."""
    with pytest.raises(DataError):
        written(OIDS["numeric"], text, decimals="precise")


@pytest.mark.parametrize(
    ("text", "string", "double"),
    [
        ("NaN", "NAN", "NaN"),
        ("Infinity", "POSITIVE_INFINITY", "Infinity"),
        ("-Infinity", "NEGATIVE_INFINITY", "-Infinity"),
    ],
)
def test_special_numbers(text, string, double):
    """Debezium's names for them; precise has none, and says what to choose."""
    assert string == written(OIDS["numeric"], text)
    assert double == written(OIDS["numeric"], text, decimals="double")
    assert text == written(OIDS["float8"], text)
    with pytest.raises(DataError, match=r'public\.t\.v: .* use "string" or "double"'):
        written(OIDS["numeric"], text, decimals="precise")


def test_a_number_of_many_digits():
    """More than Python reads as an int by default."""
    digits = "9" * 5000
    found = written(OIDS["numeric"], digits, decimals="precise")
    assert 10**5000 - 1 == int.from_bytes(base64.b64decode(found["value"]), "big", signed=True)


@pytest.mark.parametrize(
    ("text", "string", "precise"),
    [
        ("$1,234.11", "1234.11", base64_of(0x01, 0xE2, 0x13)),
        ("-$1,234.11", "-1234.11", base64_of(-2, 0x1D, 0xED)),
        ("\uffe51,234", "1234", base64_of(1, 0xE2, 0x08)),
    ],
)
def test_money(text, string, precise):
    """A decimal of two digits; what another locale wrote is not guessed."""
    assert string == written(OIDS["money"], text)
    assert float(string) == written(OIDS["money"], text, decimals="double")
    assert precise == written(OIDS["money"], text, decimals="precise")


@pytest.mark.parametrize(
    "text", ["1.234,11 €", "€ 1,50", "R$ 1.234,56", "$1.234", "$", "$,1", "$1,23", "$1.5"]
)
def test_money_of_another_locale(text):
    """nl_NL, pt_BR and es_CL give commas and points another meaning."""
    with pytest.raises(DataError, match="lc_monetary"):
        written(OIDS["money"], text)


@pytest.mark.parametrize(
    ("name", "modifier", "text", "value"),
    [
        ("bit", 1, "0", False),
        ("bit", 1, "1", True),
        ("varbit", 1, "1", True),
        ("bit", 2, "11", base64_of(3)),
        ("bit", 7, "1000000", base64_of(64)),
        ("varbit", 2, "00", ""),
        ("varbit", 24, "000000110000001000000001", base64_of(1, 2, 3)),
        ("varbit", 64, "1" + "0" * 63, base64_of(0, 0, 0, 0, 0, 0, 0, -128)),
        ("varbit", -1, "101", base64_of(5)),
        ("varbit", -1, "111011010001000110000001000000001", base64_of(1, 2, 35, -38, 1)),
        ("varbit", -1, "", ""),
        ("bytea", -1, "\\x010203", base64_of(1, 2, 3)),
        ("bool", -1, "t", True),
        ("int2", -1, "1", 1),
        ("int8", -1, "1234567890123", 1234567890123),
        ("oid", -1, "4000000000", 4000000000),
        ("float4", -1, "3.3", 3.3),
        ("bpchar", 8, "abc ", "abc "),
        ("json", -1, '{"bar": "baz"}', '{"bar": "baz"}'),
        ("jsonb", -1, "null", "null"),
        ("xml", -1, "<foo>bar</foo>", "<foo>bar</foo>"),
        ("uuid", -1, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("inet", -1, "192.168.2.0/12", "192.168.2.0/12"),
        ("int4range", -1, "[1000,6000)", "[1000,6000)"),
        ("tsquery", -1, "'fat' <-> 'cat'", "'fat' <-> 'cat'"),
        ("_int4", -1, "{1,2,NULL}", [1, 2, None]),
        ("_text", -1, '{one,"t,wo"}', ["one", "t,wo"]),
        ("_date", -1, "{2016-11-04,2016-11-05,NULL}", [17109, 17110, None]),
        ("_numeric", numeric(5, 2), "{1.20,3.40}", ["1.20", "3.40"]),
        ("_json", -1, '{"{\\"bar\\": \\"baz\\"}"}', ['{"bar": "baz"}']),
        ("_bytea", -1, '{"\\\\x000102","\\\\x030405"}', [base64_of(0, 1, 2), base64_of(3, 4, 5)]),
        ("_timestamptz", -1, '{"2016-11-04 11:51:30+00"}', ["2016-11-04T11:51:30.000000Z"]),
        ("_timestamp", 3, '{{"2016-11-04 13:51:30.123"},{NULL}}', [[1478267490123], [None]]),
    ],
)
def test_other_types(name, modifier, text, value):
    """Numbers and text as they are, bytes in base64, JSON as a string, arrays of any of these."""
    assert value == written(OIDS[name], text, modifier=modifier)


def test_decimals_in_arrays():
    """Each element has the column's scale."""
    found = written(OIDS["_numeric"], "{1.20,NULL}", modifier=numeric(5, 2), decimals="precise")
    assert [base64_of(120), None] == found


def test_users_types():
    """A string of JSON for hstore, an enum its label, a domain its base type; known by name only where they are."""
    assert '{"key1":"val1","key2":null}' == written(HSTORE, '"key1"=>"val1", "key2"=>NULL')
    assert "happy" == written(MOOD, "happy")
    assert "1.50" == written(PRICE, "1.50")
    assert {"scale": 1, "value": base64_of(15)} == written(PRICE, "1.50", decimals="precise")
    assert [1, 2.5] == written(VECTOR, "[1,2.5]")
    assert "[1]" == written(LABEL, "[1]")


def test_geometric_types():
    """Well-known binary, little-endian, with what it cannot say beside it."""
    wkb = "AQEAAAAAAAAAAADwPwAAAAAAAPA/"
    assert {"x": 1.0, "y": 1.0, "wkb": wkb, "srid": None} == written(OIDS["point"], "(1,1)")
    assert {"a": 1.0, "b": -1.0, "c": "Infinity"} == written(OIDS["line"], "{1,-1,Infinity}")
    circle = written(OIDS["circle"], "<(1,1),2.5>")
    assert (wkb, 2.5) == (circle["center"]["wkb"], circle["radius"])
    segment = written(OIDS["lseg"], "[(0,0),(1,0)]")
    assert (
        "010200000002000000" + "00" * 16 + "000000000000f03f" + "00" * 8
        == base64.b64decode(segment["wkb"]).hex()
    )
    box, polygon, path = (
        written(OIDS["box"], "(1,1),(0,0)"),
        written(OIDS["polygon"], "((0,0),(1,0),(0,1))"),
        written(OIDS["path"], "[(0,0),(1,0)]"),
    )
    assert [5, 4] == [base64.b64decode(shape["wkb"])[9] for shape in (box, polygon)]
    assert ({"type": "box"}, {"type": "polygon"}) == (box["extensions"], polygon["extensions"])
    assert {"type": "path", "closed": "false"} == path["extensions"]
    assert "true" == written(OIDS["path"], "((0,0),(1,0))")["extensions"]["closed"]


def test_postgis():
    """Extended well-known binary as it is, and the reference system that it names."""
    raw = "0101000020730C00001C7C613255DE6540787AA52C435C42C0"
    expected = {"wkb": base64.b64encode(bytes.fromhex(raw)).decode(), "srid": 3187}
    assert expected == written(GEOMETRY, raw)


@pytest.mark.parametrize("name", ["date", "timestamp", "timestamptz", "time", "timetz", "interval", "point"])
def test_what_is_not_of_its_type(name):
    """Relation, column and type are named, the value is not."""
    with pytest.raises(DataError, match=rf"public\.t\.v: type {name}") as raised:
        written(OIDS[name], "secret")
    assert "secret" not in str(raised.value)
