"""The types of columns, and values that have a special form or none."""

from __future__ import annotations

from decimal import Decimal

import pytest

from aiorepl.pgoutput.tuples import TEXT
from aiorepl.values.registry import Types
from aiorepl.values.types import ARRAY, BASE, DOMAIN, ENUM, TypeInfo
from aiorepl_schema_registry.shapes import Choices, FieldType
from aiorepl_schema_registry.values import reader

MOOD, MOODS, AMOUNT, FAKE = 50_001, 50_002, 50_003, 50_004
TYPES = Types(
    [
        TypeInfo(MOOD, "public", "mood", ENUM),
        TypeInfo(MOODS, "public", "_mood", ARRAY, MOOD),
        TypeInfo(AMOUNT, "public", "amount", DOMAIN, 20),
        TypeInfo(FAKE, "public", "int4", BASE),
    ]
)
CHOICES = Choices("aiorepl", decimals=True, arrays=True)


def modifier(precision, scale):
    return (precision << 16 | scale & 0x7FF) + 4


def read(oid, text, modifier=-1, choices=CHOICES):
    return reader(TYPES, oid, TEXT, choices.type_of(TYPES, oid, modifier))(text.encode())


def number(raw, scale):
    return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale)


@pytest.mark.parametrize(
    ("oid", "modifier", "expected"),
    [
        (1700, -1, FieldType("string")),
        (1700, modifier(12, 2), FieldType("decimal", 12, 2)),
        (1700, modifier(5, 5), FieldType("decimal", 5, 5)),
        (1700, modifier(3, -2), FieldType("string")),
        (1700, modifier(2, 4), FieldType("string")),
        (1231, modifier(12, 2), FieldType("array", element=FieldType("decimal", 12, 2))),
        (AMOUNT, -1, FieldType("long")),
        (MOOD, -1, FieldType("string")),
        (MOODS, -1, FieldType("array", element=FieldType("string"))),
        (1020, -1, FieldType("array", element=FieldType("string"), delimiter=";")),
        (FAKE, -1, FieldType("string")),
        (99_999, -1, FieldType("string")),
        (3802, -1, FieldType("string")),
        (1266, -1, FieldType("string")),
    ],
)
def test_types(oid, modifier, expected):
    """Numeric is a decimal only if the decimal has every value of the column; unknown types are text."""
    assert CHOICES.type_of(TYPES, oid, modifier) == expected


@pytest.mark.parametrize(
    "text", ["0.00", "-0.01", "1.28", "-1.28", "-1.29", "9999999999.99", "-9999999999.99", "0.05"]
)
def test_decimals(text):
    """The unscaled number has the value of the text, in the fewest bytes."""
    raw = read(1700, text, modifier(12, 2))
    assert number(raw, 2) == Decimal(text)
    assert len(raw) == 1 or number(raw[1:], 2) != Decimal(text)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "10000000000.00", "0.001"])
def test_what_a_decimal_does_not_have(text):
    """NaN, infinity and numbers with too many digits are refused, without the value; strings have them."""
    with pytest.raises(ValueError, match='set decimals = "string"') as caught:
        read(1700, text, modifier(12, 2))
    assert text not in str(caught.value).replace("NaN or infinity", "")
    assert read(1700, text, modifier(12, 2), Choices("a", decimals=False, arrays=True)) == text


def test_infinity():
    """Infinity is a number that no date and no timestamp has, and it is greater than each of them."""
    assert read(1082, "infinity") == 2**31 - 1 > read(1082, "5874897-12-31")
    assert read(1082, "-infinity") == -(2**31) < read(1082, "4714-11-24 BC")
    assert read(1184, "infinity") == 2**63 - 1 > read(1184, "294247-01-10 04:00:54.775806+00")
    assert read(1184, "-infinity") == -(2**63) < read(1184, "4714-11-24 00:00:00+00 BC")


@pytest.mark.parametrize("text", ["294247-01-10 04:00:54.775807", "294276-12-31 23:59:59.999999"])
def test_a_timestamp_out_of_range(text):
    """A timestamp after the last one of 64 bits, or at infinity's number, is refused."""
    with pytest.raises(ValueError, match="1970") as caught:
        read(1114, text)
    assert "04:00:54.775807" not in str(caught.value) or "last moment" in str(caught.value)


def test_arrays():
    """Elements have their values; several dimensions are refused, and strings have them."""
    assert read(1016, "{1,NULL,-3}") == [1, None, -3]
    assert read(1000, "{t,f}") == [True, False]
    assert read(1001, '{"\\\\x00ff"}') == [b"\x00\xff"]
    assert read(1182, "{infinity,1970-01-02}") == [2**31 - 1, 1]
    assert read(1020, "{(1,1),(0,0);(2,2),(1,1)}") == ["(1,1),(0,0)", "(2,2),(1,1)"]
    assert read(1007, "[0:1]={7,8}") == [7, 8]
    assert read(1007, "{}") == []
    with pytest.raises(ValueError, match='set arrays = "string"'):
        read(1007, "{{1,2},{3,4}}")
    assert read(1007, "{{1,2},{3,4}}", choices=Choices("a", decimals=True, arrays=False)) == "{{1,2},{3,4}}"
