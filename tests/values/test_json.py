"""JSON documents, as values and as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.values import Format, Malformed, Types
from aiorepl.values.styles import Style, put_styled

# The borders of what UTF-8 can say, and what lies beside them.
_BORDERS = [
    *(chr(point).encode() for point in (0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)),
    *(
        b"\xc1\xbf",
        b"\xe0\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
    ),
    *(b"\x80", b"\xc2", b"\xe2\x82", b"\xf0\x9f\x98", b"\xff", b"\n", b"x"),
]


@given(st.lists(st.one_of(st.sampled_from(_BORDERS), st.binary(max_size=4)), max_size=5).map(b"".join))
def test_only_utf8_is_passed_on(document: bytes) -> None:
    """A document of an SQL_ASCII database that is not UTF-8 raises an error."""
    try:
        document.decode()
        good = True
    except UnicodeDecodeError:
        good = False

    out = bytearray()
    passed = put_styled(out, b"before" + document + b"after", 6, 6 + len(document), Style.DOCUMENT)
    assert (good and b"\n" not in document and b"\r" not in document) is passed
    assert (document if passed else b"") == bytes(out)

    for oid, form, raw in (
        (114, Format.TEXT, document),
        (114, Format.BINARY, document),
        (3802, Format.BINARY, b"\1" + document),
    ):
        encode = Types().json_encoder(oid, form)
        if good:
            assert document.translate(bytes.maketrans(b"\n\r", b"  ")) == encode(raw)
        else:
            with pytest.raises(Malformed, match="not UTF-8, which SQL_ASCII databases allow"):
                encode(raw)


CASES = [
    ("json", '{"a":\n 1, "a": 2}', "7b2261223a0a20312c202261223a20327d", {"a": 2}, b'{"a":  1, "a": 2}'),
    ("json", "null", "6e756c6c", None, b"null"),
    ("json", "1e400", "3165343030", float("inf"), b"1e400"),
    ("json", '"\\ud800"', "225c756438303022", "\ud800", b'"\\ud800"'),
    (
        "jsonb",
        '{"a": [1, 2.50, null]}',
        "017b2261223a205b312c20322e35302c206e756c6c5d7d",
        {"a": [1, 2.5, None]},
        b'{"a": [1, 2.50, null]}',
    ),
    ("jsonb", "null", "016e756c6c", None, b"null"),
    ("jsonpath", '$."a"[*]?(@ > 1)', "01242e2261225b2a5d3f2840203e203129", '$."a"[*]?(@ > 1)'),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


@pytest.mark.parametrize(
    ("document", "line"),
    [
        (b'{"a": 1.50, "a": 2}', b'{"a": 1.50, "a": 2}'),
        (b"[1,\r\n\t2]\n", b"[1,  \t2] "),
        (b'"a\\nb"', b'"a\\nb"'),
        (b"1" + b"0" * 100, b"1" + b"0" * 100),
    ],
)
def test_kept_on_one_line(types: Types, document: bytes, line: bytes) -> None:
    """Digits, duplicate keys and spaces stay; line ends become spaces."""
    assert (
        line
        == types.json_encoder(114, Format.TEXT)(document)
        == types.json_encoder(114, Format.BINARY)(document)
    )


def test_long_integer(types: Types) -> None:
    """An integer that Python refuses to convert is a Decimal, and its shorter neighbours stay int."""
    digits = "7" * (sys.get_int_max_str_digits() + 1)
    value = types.decoder(3802, Format.TEXT)(f"[1, {digits}]".encode())
    assert [1, Decimal(digits)] == value
    assert type(value[0]) is int


def test_deep_document(types: Types) -> None:
    """A document deeper than Python's stack stays text."""
    document = b"[" * 100_000 + b"]" * 100_000
    assert document.decode() == types.decoder(114, Format.TEXT)(document)


@pytest.mark.parametrize("document", [b"", b"{", b"NaN", b"[1,]", b"\xff", b'"\n"'])
def test_malformed(types: Types, document: bytes) -> None:
    """Text that is not JSON raises an error."""
    with pytest.raises(Malformed, match=r"type json \(oid 114\) in text"):
        types.decoder(114, Format.TEXT)(document)


def test_unknown_version(types: Types) -> None:
    """A binary form of a later version is not read as if it were the first."""
    with pytest.raises(Malformed, match="version 2 of the binary form is not known"):
        types.decoder(3802, Format.BINARY)(b"\x02{}")
