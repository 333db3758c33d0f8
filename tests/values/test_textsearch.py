"""Text search: positions, weights and parentheses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, Types

CASES = [
    (
        "tsvector",
        "'a':1A,2B 'b\\\\\\\\c' 'cat':4 'fat':3C 'it''s':5",
        "0000000561000002c0018002625c5c6300000063617400000100046661740000014003697427730000010005",
        "'a':1A,2B 'b\\\\\\\\c' 'cat':4 'fat':3C 'it''s':5",
    ),
    ("tsvector", "", "00000000", ""),
    ("tsquery", "'a' & 'b' | 'c'", "0000000502030100006300020201000062000100006100", "'a' & 'b' | 'c'"),
    (
        "tsquery",
        "'a' & ( 'b' | !'c' )",
        "00000006020202030201010000630001000062000100006100",
        "'a' & ( 'b' | !'c' )",
    ),
    ("tsquery", "!( 'a' & 'b' )", "000000040201020201000062000100006100", "!( 'a' & 'b' )"),
    ("tsquery", "!!'a'", "00000003020102010100006100", "!!'a'"),
    (
        "tsquery",
        "'a' <-> 'b' <-> 'c'",
        "000000050204000101000063000204000101000062000100006100",
        "'a' <-> 'b' <-> 'c'",
    ),
    (
        "tsquery",
        "'a' <-> ( 'b' <-> 'c' )",
        "000000050204000102040001010000630001000062000100006100",
        "'a' <-> ( 'b' <-> 'c' )",
    ),
    (
        "tsquery",
        "'a' <3> ( 'b' | 'c' )",
        "00000005020400030203010000630001000062000100006100",
        "'a' <3> ( 'b' | 'c' )",
    ),
    (
        "tsquery",
        "( 'a' & 'b' ) <-> 'c'",
        "00000005020400010100006300020201000062000100006100",
        "( 'a' & 'b' ) <-> 'c'",
    ),
    ("tsquery", "'foo':*AB & 'bar':D", "00000003020201010062617200010c01666f6f00", "'foo':*AB & 'bar':D"),
    ("tsquery", "", "00000000", ""),
    (
        "tsquery",
        "( 'a' | 'b' ) & ( 'c' | 'd' )",
        "000000070202020301000064000100006300020301000062000100006100",
        "( 'a' | 'b' ) & ( 'c' | 'd' )",
    ),
    ("tsquery", "!( 'a' <-> 'b' )", "0000000402010204000101000062000100006100", "!( 'a' <-> 'b' )"),
    ("tsquery", "'a' <0> 'b'", "000000030204000001000062000100006100", "'a' <0> 'b'"),
    ("tsquery", "'x''y'", "0000000101000078277900", "'x''y'"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


def test_deep_query(types: Types) -> None:
    """A query deeper than the stack prints in a time that grows with its length alone."""
    depth = 50_000
    binary = (2 * depth + 1).to_bytes(4, "big") + (b"\x02\x02\x01\0\0b\0") * depth + b"\x01\0\0a\0"
    assert "'a'" + " & 'b'" * depth == types.text(3615, Format.BINARY)(binary)


@pytest.mark.parametrize(
    "binary",
    ["7fffffff", "000000010202", "0000000103", "00000001010000610000", "0000000201000061000100006100"],
)
def test_malformed_query(types: Types, binary: str) -> None:
    """Operators without operands, operands without an operator and unknown items raise an error."""
    with pytest.raises(Malformed):
        types.decoder(3615, Format.BINARY)(bytes.fromhex(binary))
