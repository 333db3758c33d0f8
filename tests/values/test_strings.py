"""Text, bytes and bit strings."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, Types

CASES = [
    ("char", "a", "61", "a"),
    ("char", "", "00", ""),
    ("char", "\\377", "ff", "\\377"),
    ("char", "\\200", "80", "\\200"),
    ("bit", "101010101", "00000009aa80", "101010101"),
    ("varbit", "", "00000000", ""),
    ("varbit", "1", "0000000180", "1"),
    ("varbit", "00000001", "0000000801", "00000001"),
    ("varbit", "000000001", "000000090080", "000000001"),
    ("bytea", "\\x", "", b""),
    ("bytea", "\\x00ff", "00ff", b"\x00\xff"),
    ("bytea", "\\x616263", "616263", b"abc"),
    ("xml", "<a>1</a>", "3c613e313c2f613e", "<a>1</a>"),
    ("text", "", "", ""),
    ("text", 'é "quoted" \\ \n\t', "c3a9202271756f74656422205c200a09", 'é "quoted" \\ \n\t'),
    ("varchar", "a", "61", "a"),
    ("bpchar", "a  ", "612020", "a  "),
    ("name", "a", "61", "a"),
    ("refcursor", "c", "63", "c"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb"a\\b", rb"a\b"),
        (rb"\000\377", b"\x00\xff"),
        (b"", b""),
        (rb"\\x41", rb"\x41"),
        (b"'\x7f", b"'\x7f"),
    ],
)
def test_bytea_in_escape_format(types: Types, text: bytes, value: bytes) -> None:
    """The text of ``bytea_output = escape`` is read as well."""
    assert value == types.decoder(17, Format.TEXT)(text)


@pytest.mark.parametrize("text", [rb"\x0", rb"\xzz", rb"\9", rb"\400", rb"a\\\\\b"])
def test_malformed_bytea(types: Types, text: bytes) -> None:
    """Half a byte, no hexadecimal and a lone backslash are no bytea."""
    with pytest.raises(Malformed, match=r"type bytea \(oid 17\) in text"):
        types.decoder(17, Format.TEXT)(text)


def test_char_of_older_servers(types: Types) -> None:
    """Before 15 a "char" above 0x7f comes as a bare byte, which is no UTF-8, and reads as newer servers print it."""
    assert types.decoder(18, Format.TEXT)(b"\xff") == "\\377"
    assert types.json_encoder(18, Format.TEXT)(b"\xff") == b'"\\\\377"'


def test_a_version_in_an_array(types: Types) -> None:
    """The byte of the version before a jsonpath's text is left out also in an array."""
    raw = struct.pack("!iiIiii", 1, 0, 4072, 1, 1, 4) + b"\1$.a"
    assert types.text(4073, Format.BINARY)(raw) == "{$.a}"


def test_not_utf8(types: Types) -> None:
    """Text that is not UTF-8 raises an error that does not quote it."""
    for function in (types.decoder(25, Format.TEXT), types.json_encoder(25, Format.BINARY)):
        with pytest.raises(Malformed, match="these 4 bytes are not UTF-8") as caught:
            function(b"abc\xff")
        assert "abc" not in str(caught.value)


@pytest.mark.parametrize("binary", ["00000009aa", "ffffffff", "00000000aa", "0000"])
def test_malformed_bits(types: Types, binary: str) -> None:
    """The count of bits and the bytes must agree."""
    with pytest.raises(Malformed):
        types.decoder(1560, Format.BINARY)(bytes.fromhex(binary))
