"""Types of PostgreSQL's own extensions, found by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, Types

CASES = [
    ("citext", "Ab", "4162", "Ab"),
    (
        "hstore",
        '"a"=>"1", "b"=>NULL, "c \\""=>"x,\\"=>\\\\"',
        "00000003000000016100000001310000000162ffffffff0000000363202200000006782c223d3e5c",
        {"a": "1", "b": None, 'c "': 'x,"=>\\'},
    ),
    ("hstore", "", "00000000", {}),
    (
        "_hstore",
        '{"\\"a\\"=>\\"1\\""}',
        "00000001000000000000408f00000001000000010000000e0000000100000001610000000131",
        [{"a": "1"}],
        b'["\\"a\\"=>\\"1\\""]',
    ),
    ("ltree", "a.b", "01612e62", "a.b"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


@pytest.mark.parametrize(
    "text", [b'"a"', b'"a"=>1', b'"a"=>"1""b"=>"2"', b'"a"=>"1",', b"a=>1", b'"a"=>"1"x']
)
def test_malformed_text(types: Types, oids: dict[str, int], text: bytes) -> None:
    """Pairs have quotes and arrows, and commas between them."""
    with pytest.raises(Malformed):
        types.decoder(oids["hstore"], Format.TEXT)(text)


@pytest.mark.parametrize("binary", ["7fffffff", "00000001ffffffff00000000", "0000000100000000", "0000000000"])
def test_malformed_binary(types: Types, oids: dict[str, int], binary: str) -> None:
    """Counts and lengths beyond the bytes, and NULL keys, raise an error."""
    with pytest.raises(Malformed):
        types.decoder(oids["hstore"], Format.BINARY)(bytes.fromhex(binary))
