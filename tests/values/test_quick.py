"""aiorepl's own parsers and printers agree with Python's, for every value and for invalid text."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl.values import Format, Malformed, Types
from aiorepl.values.floats import float4_text, float8_text, put_float4, put_float8
from aiorepl.values.forms import FunctionForm, form_of
from aiorepl.values.types import BUILTIN

pytestmark = pytest.mark.by_day

TYPES = Types()
OIDS = {info.name: info.oid for info in BUILTIN.values()}
WIDTHS = {"bool": 1, "int2": 2, "int4": 4, "int8": 8, "oid": 4, "float4": 4, "float8": 8, "uuid": 16}
WIDTHS |= {"date": 4, "time": 8, "timetz": 12, "timestamp": 8, "timestamptz": 8, "interval": 16, "money": 8}
WIDTHS |= {"xid": 4, "cid": 4, "xid8": 8, "pg_lsn": 8, "tid": 6, "regclass": 4, "macaddr": 6, "macaddr8": 8}
WIDTHS |= {"point": 16, "line": 24, "lseg": 32, "box": 32, "circle": 24}


def outcome(function: Callable[[Any], Any], argument: Any) -> str:
    """Return the result, or that it raises."""
    try:
        return repr(function(argument))
    except (ValueError, ArithmeticError):
        return "refused"


def printed(put: Callable[[bytearray, float], None], value: float) -> str:
    """Return what is appended after other text."""
    out = bytearray(b"before ")
    put(out, value)
    return out.removeprefix(b"before ").decode()


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("typed", [True, False])
def test_another_width_is_refused(name: str, typed: bool) -> None:
    """Too few or too many bytes raise an error, and nothing after the last one is read."""
    oid = OIDS[name]
    for width in set(range(40)) - {WIDTHS[name]}:
        for function in (
            TYPES.decoder(oid, Format.BINARY),
            TYPES.text(oid, Format.BINARY),
            TYPES.json_encoder(oid, Format.BINARY, typed=typed),
        ):
            with pytest.raises(Malformed, match="in binary"):
                function(bytes(width))


@pytest.mark.parametrize("name", ["numeric", "jsonb"])
def test_nothing_but_a_beginning(name: str) -> None:
    """A value that is cut anywhere raises an error."""
    raw = bytes.fromhex("0002000000000002" + "00011388") if name == "numeric" else b'\1{"a": 1}'
    for end in range(len(raw)):
        with pytest.raises(Malformed):
            TYPES.decoder(OIDS[name], Format.BINARY)(raw[:end])


@given(st.integers(-(10**25), 10**25) | st.sampled_from([s * 10**n for n in range(16, 21) for s in (1, -1)]))
def test_integers(number: int) -> None:
    """Integers may have any number of digits, even more than a column can have."""
    assert number == TYPES.decoder(OIDS["int8"], Format.TEXT)(str(number).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"-",
        b"+5",
        b" 7 ",
        b"007",
        b"-0",
        b"--1",
        b"1-",
        b"1_0",
        b"1 ",
        b"\xd9\xa1",
        b"1\0",
        b"9/",
        b"1:",
    ],
)
def test_integers_that_no_server_sends(text: bytes) -> None:
    """Text that no server sends is read as Python reads it."""
    assert outcome(int, text) == outcome(TYPES.decoder(OIDS["int4"], Format.TEXT), text)


@st.composite
def numerics(draw: st.DrawFn) -> tuple[bytes, Decimal, int]:
    """A numeric's bytes, what it is worth, and its scale; also with zeros that a server would have cut off."""
    weight, scale = draw(st.integers(-6, 6)), draw(st.integers(0, 30))
    negative = draw(st.booleans())
    digits = draw(st.lists(st.just(0) | st.integers(0, 9999), max_size=8))
    exact = Context(prec=200)
    worth = Decimal(0)
    for place, digit in enumerate(digits):
        worth = exact.add(worth, exact.scaleb(Decimal(digit), 4 * (weight - place)))
    raw = struct.pack(f"!HhHH{len(digits)}H", len(digits), weight, 0x4000 if negative else 0, scale, *digits)
    return raw, worth.copy_sign(Decimal(-1 if negative else 1)), scale


@settings(max_examples=2 * settings().max_examples)
@given(numerics())
def test_numeric(case: tuple[bytes, Decimal, int]) -> None:
    """The sum of its digits, cut or filled up to its scale."""
    raw, worth, scale = case
    exact = Context(prec=200, rounding="ROUND_DOWN")
    text = format(exact.quantize(worth, Decimal(1).scaleb(-scale)), "f")
    assert text == TYPES.text(OIDS["numeric"], Format.BINARY)(raw)
    assert repr(Decimal(text)) == repr(TYPES.decoder(OIDS["numeric"], Format.BINARY)(raw))


@settings(max_examples=4 * settings().max_examples)
@given(
    st.floats()
    | st.builds(
        lambda digits, places: digits / 10**places, st.integers(-(10**15), 10**15), st.integers(0, 18)
    )
    | st.builds(math.nextafter, st.builds(float, st.integers(0, 10**9)), st.sampled_from([0.0, math.inf]))
    | st.sampled_from([0.0, -0.0, 1e-4, 1e-3, 1e9, 1e15, math.nextafter(1e15, 0), 0.1 + 0.2, 5e-324])
)
def test_float8(value: float) -> None:
    """Few digits or many, by any of the ways: the shortest."""
    assert float8_text(value) == printed(put_float8, value)
    if 1e-4 <= abs(value) < 1e15:
        assert repr(value).removesuffix(".0") == printed(put_float8, value)


@settings(max_examples=4 * settings().max_examples)
@given(
    st.floats(width=32)
    | st.builds(lambda number: struct.unpack("f", struct.pack("f", number))[0], st.floats(1e-4, 1e7))
    | st.integers(-149, 127).map(lambda exponent: 2.0**exponent)
    | st.builds(lambda whole, part: whole + part / 64, st.integers(0, 2**17), st.integers(0, 63))
)
def test_float4(value: float) -> None:
    """The shortest digits, where a float8 is exact enough to find them and where it is not."""
    assert float4_text(value) == printed(put_float4, value)


@settings(max_examples=2 * settings().max_examples)
@given(st.integers(-730119, 2921939) | st.sampled_from([-730119, -59, -58, 59, 60, 2921939]))
def test_days(days: int) -> None:
    """Every day that Python has, in both forms."""
    value = date(2000, 1, 1) + timedelta(days)
    raw = struct.pack("!i", days)
    assert value == TYPES.decoder(OIDS["date"], Format.BINARY)(raw)
    assert value.isoformat() == TYPES.text(OIDS["date"], Format.BINARY)(raw)
    assert value == TYPES.decoder(OIDS["date"], Format.TEXT)(value.isoformat().encode())


@settings(max_examples=2 * settings().max_examples)
@given(st.datetimes())
def test_moments(value: datetime) -> None:
    """Every microsecond that Python has, in both forms, with and without a zone."""
    raw = struct.pack("!q", (value - datetime(2000, 1, 1)) // timedelta(microseconds=1))
    for name, zone, suffix in (("timestamp", None, ""), ("timestamptz", UTC, "+00")):
        text = f"{value}{suffix}".encode()
        expected = value.replace(tzinfo=zone, fold=0)
        for form, sent in ((Format.BINARY, raw), (Format.TEXT, text)):
            assert repr(expected) == repr(TYPES.decoder(OIDS[name], form)(sent))


@pytest.mark.parametrize("name", ["date", "timestamp", "timestamptz"])
def test_texts_that_are_nearly_times(name: str) -> None:
    """Times that are cut or have a wrong character give the same value or error as Python's parser."""
    whole = "2024-02-29 23:59:59.123456+00"
    whole = {"date": whole[:10], "timestamp": whole[:26]}.get(name, whole)
    parse = date.fromisoformat if name == "date" else datetime.fromisoformat
    texts = [whole[:end] for end in range(len(whole))]
    texts += [whole[:at] + other + whole[at + 1 :] for at in range(len(whole)) for other in "09:-+ ./x"]
    texts += [f"{whole}0", f"{whole}+00", whole.replace("2024", "0000"), whole.replace("2024", "2023")]
    beyond = 0
    for text in texts:
        expected = outcome(parse, text)
        read = TYPES.decoder(OIDS[name], Format.TEXT)
        if name == "timestamptz" and expected != "refused":
            value = datetime.fromisoformat(text)
            assert value.astimezone(UTC) == read(text.encode())
        else:
            found = outcome(read, text.encode())
            # What PostgreSQL has and Python has not stays text.
            beyond += found == repr(text)
            assert found in (expected, repr(text))
    assert beyond < 5


DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**63 - 2, 2**64 + 2)
    | st.integers(-(2**63) - 2, -(2**63) + 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=2 * settings().max_examples)
@given(DOCUMENTS, st.booleans())
def test_documents(document: Any, ascii_only: bool) -> None:
    """Documents have the same types and values as with ``json.loads``, from both forms, even long integers."""
    try:
        text = json.dumps(document, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    expected = repr(json.loads(text))
    assert expected == repr(TYPES.decoder(OIDS["jsonb"], Format.TEXT)(text))
    assert expected == repr(TYPES.decoder(OIDS["jsonb"], Format.BINARY)(b"\1" + text))


@pytest.mark.parametrize(
    "text",
    [
        *("-0", "-0.0", "1e400", "-1E400", "1e-400", "0.1234567890123456789012345", "18446744073709551616"),
        *('{"a": 1, "b": 2, "a": 3}', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', " [1 ,\n2]\t", "[" * 500 + "]" * 500),
        *("", "01", "1.", ".5", "+1", "NaN", "[Infinity]", "[1,]", '{"a"}', '"\t"', "nul", "[]]", "\x7f", "'a'"),
    ],
)  # fmt: skip
def test_documents_at_the_edges(text: str) -> None:
    """Numbers beyond a float, half a surrogate pair, keys that repeat, and what is no document."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    strict = json.JSONDecoder(parse_constant=refuse).decode
    assert outcome(strict, text) == outcome(TYPES.decoder(OIDS["json"], Format.TEXT), text.encode())


@given(st.uuids())
def test_uuids(value: UUID) -> None:
    """Equal to, hashed and printed like one that was made in the usual way."""
    for form, raw in ((Format.TEXT, str(value).encode()), (Format.BINARY, value.bytes)):
        read = TYPES.decoder(OIDS["uuid"], form)(raw)
        assert (value, hash(value), str(value), value.is_safe) == (read, hash(read), str(read), read.is_safe)
    assert value.hex == TYPES.decoder(OIDS["uuid"], Format.TEXT)(b"{%b}" % value.hex.encode()).hex


def test_which_functions_are_forms() -> None:
    """A form is found by its own method and by no other; any other function is called."""
    form = TYPES.writer(OIDS["int4"], Format.BINARY)
    assert form is not None
    assert form_of(form.read) is form
    for function in (form.text, form.json, bytes.decode, int):
        assert isinstance(form_of(function), FunctionForm)
    assert TYPES.writer(OIDS["int4"], Format.TEXT) is None
    assert TYPES.writer(99999, Format.BINARY) is None
