"""Columns become Arrow arrays, without Spark: exactly, or with an error if the type cannot hold the value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.errors import DataError
from aiorepl.formats.arrow import timestamps
from aiorepl.formats.arrow.types import arrow_type
from aiorepl.spark.reading.columns import column
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.values.registry import Types
from aiorepl.values.types import ARRAY, COMPOSITE, DOMAIN, TypeInfo

BOOL, BYTEA, INT8, INT4, TEXT, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, INT4_ARRAY, DATE_ARRAY = (
    16, 17, 20, 23, 25, 701, 1082, 1114, 1184, 1700, 1007, 1182,
)  # fmt: skip
DAY, MOMENT, MOMENT_UTC = pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")


def read(
    oid: int, wanted: pa.DataType, *values: bytes | None, null: bool = False, types: Types | None = None
):
    return column("public.t.c", oid, types or Types(), wanted, null=null)(values)


def test_exact_where_arrow_gives_up() -> None:
    """Years before 1 and after 9999 are converted exactly, beside ordinary ones."""
    days = read(DATE, DAY, b"2026-11-21", b"0044-03-15 BC", b"12345-01-01", None).cast(pa.int32()).to_pylist()
    assert days == [20778, -735160, 3789391, None]
    microseconds = read(TIMESTAMPTZ, MOMENT_UTC, b"0001-12-31 23:59:59.5+00 BC", b"1970-01-01 00:00:00+00")
    assert microseconds.cast(pa.int64()).to_pylist() == [-62135596800_500_000, 0]


def test_offsets_where_none_were_expected() -> None:
    """A timestamp that is read with a time zone is UTC, and vice versa."""
    moment = dt.datetime(2026, 11, 21, 8, 0, 0, 5)
    (value,) = read(TIMESTAMP, MOMENT_UTC, b"2026-11-21 08:00:00.000005").to_pylist()
    assert value == moment.replace(tzinfo=dt.UTC)
    assert read(TIMESTAMPTZ, MOMENT, b"2026-11-21 09:00:00.000005+01").to_pylist() == [moment]


@pytest.mark.parametrize(
    ("oid", "wanted", "value"),
    [
        (DATE, DAY, b"infinity"),
        (TIMESTAMPTZ, MOMENT_UTC, b"-infinity"),
        (TIMESTAMPTZ, MOMENT_UTC, b"999999-12-31 23:59:59+00"),
        (NUMERIC, pa.decimal128(5, 2), b"NaN"),
        (NUMERIC, pa.decimal128(5, 2), b"1000.00"),
        (NUMERIC, pa.decimal128(5, 2), b"1.005"),
        (INT8, pa.int32(), b"4294967296"),
        (TEXT, pa.bool_(), b"maybe"),
        (TEXT, pa.string(), b"\xff"),
        (INT4_ARRAY, pa.list_(pa.int32()), b"{{1},{2}}"),
        (INT4_ARRAY, pa.list_(pa.int32()), b"{4294967296}"),
        (DATE_ARRAY, pa.list_(DAY), b"{infinity}"),
        (TEXT, pa.list_(pa.string()), b"{a}"),
    ],
)
def test_what_a_type_cannot_hold(oid: int, wanted: pa.DataType, value: bytes) -> None:
    """A value that the type cannot hold is an error without the value, or null; the other values are not affected."""
    with pytest.raises(DataError, match=r"public\.t\.c: a value of type") as caught:
        read(oid, wanted, value)
    assert value.decode(errors="replace") not in str(caught.value)
    assert caught.value.__cause__ is None
    result = read(oid, wanted, None, value, null=True).to_pylist()
    assert result[1] in (None, [None])
    assert read(oid, wanted, value, null=True).type == wanted


def test_forms() -> None:
    """Booleans, bytes, domains and their arrays are read from their text forms."""
    assert read(BOOL, pa.bool_(), b"t", None, b"f").to_pylist() == [True, None, False]
    assert read(BYTEA, pa.binary(), b"\\x00ff", b"\\x", None).to_pylist() == [b"\0\xff", b"", None]
    assert read(TEXT, pa.binary(), b"as it is").to_pylist() == [b"as it is"]
    types = Types([TypeInfo(90001, "public", "flag", DOMAIN, BOOL)])
    assert read(90001, pa.bool_(), b"t", types=types).to_pylist() == [True]
    assert read(INT4_ARRAY, pa.list_(pa.int64()), b"{}", None, b"{1,NULL}", b"[0:1]={7,8}").to_pylist() == [
        [], None, [1, None], [7, 8],
    ]  # fmt: skip
    assert read(FLOAT8, pa.float64(), b"1e+300", b"Infinity").to_pylist() == [1e300, float("inf")]
    assert read(NUMERIC, pa.decimal128(38, 0), b"1e3").to_pylist() == [Decimal(1000)]


PAIR, PAIRS, DEEP = 90002, 90003, 90004
COMPOSITES = Types(
    [
        TypeInfo(PAIR, "public", "pair", COMPOSITE, fields=(("a", INT4), ("b", TEXT))),
        TypeInfo(PAIRS, "public", "_pair", ARRAY, PAIR),
        TypeInfo(DEEP, "public", "deep", COMPOSITE, fields=(("pairs", PAIRS), ("days", DATE_ARRAY))),
    ]
)


def test_composites() -> None:
    """Composites are structs, nested as their types are; attributes are matched by name."""
    kind = arrow_type(DEEP, -1, COMPOSITES)
    assert (
        str(kind)
        == "struct<pairs: list<element: struct<a: int32, b: string>>, days: list<element: date32[day]>>"
    )
    values = [rb'("{""(1,x)"",NULL,""(,\\""\\"")""}",{2026-11-21})', None, b"(,)"]
    assert read(DEEP, kind, *values, types=COMPOSITES).to_pylist() == [
        {"pairs": [{"a": 1, "b": "x"}, None, {"a": None, "b": ""}], "days": [dt.date(2026, 11, 21)]},
        None,
        {"pairs": None, "days": None},
    ]
    later = pa.struct([("later", pa.int32()), ("b", pa.string())])
    assert read(PAIR, later, b"(1,x)", types=COMPOSITES).to_pylist() == [{"later": None, "b": "x"}]


@pytest.mark.parametrize(
    ("oid", "value", "rest"),
    [
        (PAIR, b"(x,)", {"a": None, "b": None}),
        (PAIR, b"(1,\xff)", {"a": 1, "b": None}),
        (PAIR, b"(1)", None),
        (PAIR, b"1", None),
        (PAIRS, b'{"(4294967296,)"}', [{"a": None, "b": None}]),
        (PAIRS, b'{"(1,2,3)"}', [None]),
        (DEEP, b"({},{infinity})", {"pairs": [], "days": [None]}),
    ],
)
def test_parts_that_do_not_fit(oid: int, value: bytes, rest: object) -> None:
    """A part that does not fit makes the value unrepresentable, or is null itself."""
    kind = arrow_type(oid, -1, COMPOSITES)
    with pytest.raises(DataError, match=r"public\.t\.c: a value of type"):
        read(oid, kind, value, types=COMPOSITES)
    assert read(oid, kind, value, types=COMPOSITES, null=True).to_pylist() == [rest]


def test_dimensions() -> None:
    """Lists of lists hold arrays of as many dimensions, and empty ones."""
    kind = pa.list_(pa.list_(pa.int32()))
    values = [b"{{1,2},{3,NULL}}", b"{}", None, b"[0:0][5:6]={{4,5}}"]
    assert read(INT4_ARRAY, kind, *values).to_pylist() == [[[1, 2], [3, None]], [], None, [[4, 5]]]
    for value in (b"{1}", b"{{{1}}}"):
        assert read(INT4_ARRAY, kind, value, null=True).to_pylist() == [None]


def test_composites_that_no_file_holds() -> None:
    """A composite without attributes is text, and so is one of composites of composites, however many columns it has."""
    tower = [TypeInfo(100_000, "public", "t0", COMPOSITE, fields=(("a", INT4), ("b", INT4)))]
    tower += [
        TypeInfo(
            100_000 + level,
            "public",
            f"t{level}",
            COMPOSITE,
            fields=tuple((name, 99_999 + level) for name in "ab"),
        )
        for level in range(1, 60)
    ]
    types = Types([*tower, TypeInfo(90005, "public", "none", COMPOSITE)])
    assert arrow_type(100_059, -1, types) == arrow_type(90005, -1, types) == pa.string()
    assert pa.types.is_struct(arrow_type(100_002, -1, types))


@given(st.datetimes())
def test_moments(moment: dt.datetime) -> None:
    """Aiorepl's timestamp parser agrees with Python's within Python's range."""
    text = moment.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0") + f".{moment.microsecond:06}"
    expected = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    assert timestamps.microseconds(text) == expected
    assert timestamps.microseconds(text + "+00") == expected
    assert timestamps.microseconds(text + "-02:30") == expected + 9_000_000_000
    assert timestamps.days(text[:10]) == (moment.date() - dt.date(1970, 1, 1)).days


def test_keys_with_commas_in_their_names():
    """The option names columns as ``--publication`` does: a name with a comma is quoted as in SQL."""
    assert ("id", "a, b") == ReadOptions.parse({"journal": "j", "keys": 'id, "a, b"'}).keys
