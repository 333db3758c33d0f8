"""Addresses, intervals, figures and the like by steps of our own, held against the library's and PostgreSQL's rules."""

from __future__ import annotations

import ipaddress
import operator
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl.values import Format, Interval, Malformed, Types
from aiorepl.values.addresses import KNOWN, interface
from aiorepl.values.addresses import IPv4Interface as OurIPv4Interface
from aiorepl.values.addresses import IPv6Interface as OurIPv6Interface
from aiorepl.values.network import Cidr, Inet
from aiorepl.values.types import BUILTIN

pytestmark = pytest.mark.by_day

TYPES = Types()
OIDS = {info.name: info.oid for info in BUILTIN.values()}
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def read(name: str, raw: bytes, form: Format = Format.TEXT) -> Any:
    """The value."""
    return TYPES.decoder(OIDS[name], form)(raw)


def text_of(name: str, raw: bytes) -> str:
    """Return the text of the binary form, which is also its JSON."""
    text = TYPES.text(OIDS[name], Format.BINARY)(raw)
    assert f'"{text}"'.encode() == TYPES.json_encoder(OIDS[name], Format.BINARY, typed=False)(raw)
    return text


def outcome(function: Callable[[Any], Any], argument: Any) -> str:
    """Return the result, or that it raises."""
    try:
        return repr(function(argument))
    except (ValueError, ArithmeticError):
        return "refused"


def nearly(whole: str, others: str) -> list[str]:
    """Every beginning of a text, each of its characters left out, doubled, and replaced by any of these."""
    places = range(len(whole))
    return [
        *(whole[:at] for at in places),
        *(whole[:at] + whole[at + 1 :] for at in places),
        *(whole[:at] + other + whole[at:] for at in (*places, len(whole)) for other in others),
        *(whole[:at] + other + whole[at + 1 :] for at in places for other in others),
    ]


def address(number: int, mask: int, bits: int, is_cidr: int = 0) -> bytes:
    """The binary form of inet and cidr."""
    return bytes([2 if bits == 32 else 3, mask, is_cidr, bits // 8]) + number.to_bytes(bits // 8, "big")


ADDRESSES = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32), st.just(32)) | st.tuples(
    st.integers(0, 2**128 - 1) | st.integers(0, 127).map(lambda bit: 1 << bit),
    st.integers(0, 128),
    st.just(128),
)


def assert_same(value: Any, library: Any, *, network: bool = False) -> None:
    """Check that both objects are equal in every public respect."""
    assert isinstance(value, type(library))
    assert (value, hash(value), repr(value), str(value)) == (
        library,
        hash(library),
        repr(library),
        str(library),
    )
    assert library == value
    assert not value < library
    assert type(pickle.loads(pickle.dumps(value))) is type(library)
    assert pickle.loads(pickle.dumps(value)) == library
    for name in dir(library):
        # Python 3.13.0 itself refuses an interface's ``ipv6_mapped``.
        seen = outcome(operator.attrgetter(name), library)
        if not name.startswith("_") and not seen.startswith(("<bound method", "<function")):
            assert seen == outcome(operator.attrgetter(name), value), name
    if network:
        if library.prefixlen > library.max_prefixlen - 8:
            assert list(value.hosts()) == list(library.hosts())
            assert list(value) == list(library)
        # Whatever is made of it is made by the class.
        assert repr(list(value.subnets())[-1:]) == repr(list(library.subnets())[-1:])
        for made in (value.supernet(), pickle.loads(pickle.dumps(value.supernet()))):
            assert repr(made) == repr(library.supernet())
            assert made.netmask == library.supernet().netmask
        assert repr(next(iter(value.supernet().hosts()))) == repr(next(iter(library.supernet().hosts())))
    else:
        assert f"{value:x}" == f"{library:x}"
        assert_same(value.network, library.network, network=True)
        if int(library) < 2**32 - 1:
            assert repr(value + 1) == repr(library + 1)


def test_the_library_is_known() -> None:
    """The library of this Python keeps its parts where they are sought, so that its constructors are not needed."""
    assert KNOWN
    assert_same(interface(OurIPv4Interface, 5, 24), ipaddress.IPv4Interface((5, 24)))
    assert_same(interface(OurIPv6Interface, 5, 24), ipaddress.IPv6Interface((5, 24)))
    assert_same(OurIPv4Interface("1.2.3.4/5"), ipaddress.IPv4Interface("1.2.3.4/5"))


@settings(max_examples=60)
@given(ADDRESSES, st.booleans())
def test_inet(case: tuple[int, int, int], known: bool) -> None:
    """From either form the library's object, whichever way it is made."""
    number, mask, bits = case
    made = ipaddress.IPv4Interface if bits == 32 else ipaddress.IPv6Interface
    library = made((number, mask))
    raw = address(number, mask, bits)
    assert_same(Inet(known=known).read(raw), library)
    assert_same(read("inet", raw, Format.BINARY), library)
    for text in (text_of("inet", raw), str(library), f"{library.ip.exploded}/{mask}"):
        assert_same(read("inet", text.encode()), library)


@settings(max_examples=60)
@given(ADDRESSES)
def test_cidr(case: tuple[int, int, int]) -> None:
    """A cidr is a network; one with bits after its mask raises an error."""
    number, mask, bits = case
    made = ipaddress.IPv4Network if bits == 32 else ipaddress.IPv6Network
    library = made((number, mask), strict=False)
    raw = address(int(library.network_address), mask, bits, 1)
    for value in (read("cidr", raw, Format.BINARY), read("cidr", text_of("cidr", raw).encode())):
        assert_same(value, library, network=True)
    assert_same(Cidr(known=False).read(raw), library, network=True)
    if number != int(library.network_address):
        with pytest.raises(Malformed):
            read("cidr", address(number, mask, bits, 1), Format.BINARY)


@pytest.mark.parametrize(
    "whole",
    [
        "192.168.10.255/24",
        "2001:db8::1:0/64",
        "::ffff:1.2.3.4",
        "1:2:3:4:5:6:7:8/128",
        "::",
        "1::/0",
        "::1.2.3.4",
    ],
)
def test_texts_that_are_nearly_addresses(whole: str) -> None:
    """Text that resembles an address is read as the library reads it."""
    for text in nearly(whole, "0:./fgA1%"):
        assert outcome(ipaddress.ip_interface, text) == outcome(
            lambda raw: read("inet", raw), text.encode()
        ), text


STYLE = re.compile(
    r"(?:([+-]?\d+) years?)? ?(?:([+-]?\d+) mons?)? ?(?:([+-]?\d+) days?)? ?"
    r"(?:([+-]?)(\d+):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?)?"
)


def interval_of(text: str) -> Interval:
    """Parse an interval by a regular expression."""
    match = STYLE.fullmatch(text)
    if match is None or not text.strip():
        raise ValueError
    years, months, days, sign, hours, minutes, seconds, fraction = match.groups("0")
    clock = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    microseconds = clock * 1_000_000 + int(fraction.ljust(6, "0"))
    return Interval(12 * int(years) + int(months), int(days), -microseconds if sign == "-" else microseconds)


@settings(max_examples=2 * settings().max_examples)
@given(
    INT32 | st.integers(-30, 30),
    INT32 | st.integers(-3, 3),
    INT64
    | st.integers(-(10**9), 10**9)
    | st.sampled_from([0, -(2**63), 2**63 - 1, 360 * 10**9, 360 * 10**9 - 1]),
)
def test_intervals(months: int, days: int, microseconds: int) -> None:
    """Three numbers, from either form, and the class's own text."""
    value = Interval(months, days, microseconds)
    raw = struct.pack("!qii", microseconds, days, months)
    text = text_of("interval", raw)
    if text.endswith("infinity"):
        return
    assert (
        value == read("interval", raw, Format.BINARY) == read("interval", text.encode()) == interval_of(text)
    )
    assert text == str(value)


def test_an_interval_is_as_its_class_makes_it() -> None:
    """Equal, hashed, printed, pickled and frozen alike."""
    value, own = read("interval", b"1 mon -2 days +00:00:00.000003"), Interval(1, -2, 3)
    assert (value, hash(value), repr(value)) == (own, hash(own), repr(own))
    assert type(value) is Interval
    assert pickle.loads(pickle.dumps(value)) == own
    with pytest.raises(FrozenInstanceError):
        value.months = 2


@pytest.mark.parametrize(
    "whole", ["-1 years +2 mons -3 days +100:05:06.7", "1 day", "00:00:00", "-2562047788:00:54.775808"]
)
def test_texts_that_are_nearly_intervals(whole: str) -> None:
    """Text that resembles an interval is read exactly, or raises an error."""
    taken = 0
    for text in nearly(whole, "09-+ :.sdmyx"):
        found = outcome(lambda raw: read("interval", raw), text.encode())
        taken += found != "refused"
        assert found in (outcome(interval_of, text), "refused"), text
    assert taken >= (10 if len(whole) > 5 else 1)


@pytest.mark.parametrize(
    "text",
    [
        "178956971 years",
        "2147483648 days",
        "2562047788:00:54.775808",
        "-2562047788:00:54.775809",
        "2562047789:00:00",
    ],
)
def test_intervals_out_of_range(text: str) -> None:
    """An interval out of range raises an error, and is not cut."""
    with pytest.raises(Malformed, match="out of PostgreSQL's range"):
        read("interval", text.encode())


@pytest.mark.parametrize(
    "whole",
    ["23:59:59.123456+05:30", "00:00:00-15:59:59", "08:00:00+02", "08:00:00.5+00", "24:00:00+00", "08:00:00"],
)
def test_texts_that_are_nearly_clocks(whole: str) -> None:
    """Times with and without zone give the same value or error as Python's parser; 24:00 stays text."""
    for text in nearly(whole, "09:-+ .T"):
        expected = {outcome(time.fromisoformat, text)}
        if text.startswith("24"):
            expected = {repr(text), "refused"}
        for name in ("time", "timetz"):
            assert outcome(lambda raw, name=name: read(name, raw), text.encode()) in expected, text


@given(st.integers(0, 86_400_000_000 - 1), st.integers(-57599, 57599))
def test_zoned_clocks(microseconds: int, west: int) -> None:
    """A time with a zone is the same from both forms."""
    raw = struct.pack("!qi", microseconds, west)
    text = text_of("timetz", raw)
    value = read("timetz", raw, Format.BINARY)
    assert repr(value) == repr(read("timetz", text.encode())) == repr(time.fromisoformat(text))


@settings(max_examples=2 * settings().max_examples)
@given(
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(["", "-", "+", "--"]),
        st.text("0123456789", max_size=19),
        st.just("") | st.text("0123456789", max_size=19).map(".{}".format),
        st.sampled_from(["", "", "", "e5", "e-300", "e400", "_", " ", "x", "."]),
    )
    | st.text("1_0.e+-", max_size=8)
    | st.sampled_from(["1e+_06", "1e_06", "1_e6", "_1e6", "1e6_", "1_0e1_0", "1._5", "1_.5", "inf_", "1__0"])
    | st.sampled_from(["NaN", "Infinity", "-Infinity", "-0", "9007199254740993", "9007199254740991.5"])
)
def test_floats_as_text(text: str) -> None:
    """Every decimal is rounded as Python does."""
    assert outcome(float, text) == outcome(lambda raw: read("float8", raw), text.encode())
    if outcome(float, text) != "refused":
        assert repr((float(text), 1.0)) == repr(read("point", f"({text},1)".encode()))


FLOATS = st.floats() | st.integers(-1000, 1000).map(lambda number: number / 8)
FIGURES: dict[str, tuple[int, Callable[..., Any]]] = {
    "point": (2, lambda a, b: (a, b)),
    "line": (3, lambda a, b, c: (a, b, c)),
    "lseg": (4, lambda a, b, c, d: ((a, b), (c, d))),
    "box": (4, lambda a, b, c, d: ((a, b), (c, d))),
    "circle": (3, lambda a, b, c: ((a, b), c)),
}


@given(st.sampled_from(sorted(FIGURES)), st.lists(FLOATS, min_size=4, max_size=4))
def test_figures(name: str, floats: list[float]) -> None:
    """The floats that were sent, in the type's shape."""
    count, shape = FIGURES[name]
    expected = repr(shape(*floats[:count]))
    raw = struct.pack(f"!{count}d", *floats[:count])
    assert expected == repr(read(name, raw, Format.BINARY)) == repr(read(name, text_of(name, raw).encode()))


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=5), st.booleans())
def test_polygons_and_paths(points: list[tuple[float, float]], closed: bool) -> None:
    """Any number of points; open or closed."""
    raw = struct.pack("!i", len(points)) + b"".join(struct.pack("!2d", *point) for point in points)
    text = text_of("polygon", raw)
    assert (
        repr(tuple(points))
        == repr(read("polygon", raw, Format.BINARY))
        == repr(read("polygon", text.encode()))
    )
    raw = bytes([closed]) + raw
    for path in (read("path", raw, Format.BINARY), read("path", text_of("path", raw).encode())):
        assert repr((closed, tuple(points))) == repr(tuple(path))


@given(INT64)
def test_money(cents: int) -> None:
    """Commas between thousands."""
    whole, fraction = divmod(abs(cents), 100)
    text = f"{'-' if cents < 0 else ''}${whole:,}.{fraction:02d}"
    assert (
        text
        == text_of("money", struct.pack("!q", cents))
        == read("money", struct.pack("!q", cents), Format.BINARY)
    )


@given(st.integers(0, 2**64 - 1))
def test_numbers_of_64_bits(number: int) -> None:
    """xid8 in decimal, pg_lsn in hexadecimal."""
    raw = struct.pack("!Q", number)
    assert str(number) == text_of("xid8", raw)
    assert f"{number >> 32:X}/{number & 0xFFFFFFFF:X}" == text_of("pg_lsn", raw)
    for name in ("xid8", "pg_lsn"):
        assert number == read(name, raw, Format.BINARY) == read(name, text_of(name, raw).encode())


@given(st.uuids(), st.binary(max_size=20), st.booleans())
def test_hexadecimal(value: UUID, byteops: bytes, upper: bool) -> None:
    """Digits of uuid and bytea, in small letters and in large ones."""
    uuid, digits = str(value), byteops.hex()
    if upper:
        uuid, digits = uuid.upper(), digits.upper()
    assert value == read("uuid", uuid.encode())
    assert byteops == read("bytea", b"\\x" + digits.encode())


def test_texts_that_are_nearly_hexadecimal() -> None:
    """Text that resembles hexadecimal is read as the library reads it."""
    for text in nearly("550e8400-e29b-41d4-a716-44665544abcd", "/:@G`g-fF "):
        assert outcome(UUID, text) == outcome(lambda raw: read("uuid", raw), text.encode()), text
    for text in nearly("00ffAB", "/:@G`g-"):
        assert outcome(bytes.fromhex, text) == outcome(
            lambda raw: read("bytea", b"\\x" + raw), text.encode()
        ), text


LEXEME = b"it's \\ \xc3\xa9\0"
WHOLE = {
    "inet": "0220000401020304",
    "cidr": "0380011020010db8000000000000000000000001",
    "varbit": "00000009aa80",
    "polygon": "00000001" + "00" * 16,
    "path": "0100000001" + "00" * 16,
    "tsvector": "00000002" + LEXEME.hex() + "0002c0018002" + "6200" + "0000",
    "jsonpath": "01242e61",
}


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_but_all_of_it(name: str) -> None:
    """A value that is cut anywhere, or followed by more, raises an error."""
    raw = bytes.fromhex(WHOLE[name])
    assert read(name, raw, Format.BINARY) == read(name, TYPES.text(OIDS[name], Format.BINARY)(raw).encode())
    ends = range(1) if name == "jsonpath" else range(len(raw))
    for part in (*(raw[:end] for end in ends), *([] if name == "jsonpath" else [raw + b"\0"])):
        for function in (
            TYPES.decoder(OIDS[name], Format.BINARY),
            TYPES.text(OIDS[name], Format.BINARY),
            TYPES.json_encoder(OIDS[name], Format.BINARY),
        ):
            with pytest.raises(Malformed):
                function(part)


def test_lexemes_in_json() -> None:
    """Lexemes with characters to escape are escaped once, without remains of the first attempt."""
    raw = bytes.fromhex(WHOLE["tsvector"])
    expected = b"\"'it''s \\\\\\\\ \xc3\xa9':1A,2B 'b'\""
    form = TYPES.writer(OIDS["tsvector"], Format.BINARY)
    assert form is not None
    out = bytearray(b"before ")
    form.put_string(out, raw)
    assert b"before " + expected == out
    assert expected == TYPES.json_encoder(OIDS["tsvector"], Format.BINARY)(raw)
