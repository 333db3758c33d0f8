"""Composite types: fields by name, nested."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, TypeInfo, Types

CASES = [
    (
        "comp",
        '(1,"a""b\\\\c",,"{1,2}")',
        "0000000400000017000000040000000100000019000000056122625c63000041ebffffffff000003ef00000024000000010000000000000017000000020000000100000004000000010000000400000002",
        {"a": 1, "b": 'a"b\\c', "c d": None, "e": [1, 2]},
    ),
    (
        "comp",
        '(,"",,)',
        "0000000400000017ffffffff0000001900000000000041ebffffffff000003efffffffff",
        {"a": None, "b": "", "c d": None, "e": None},
    ),
    (
        "comp",
        '(1,"x y","(1,""a,b"")",{})',
        "000000040000001700000004000000010000001900000003782079000041eb0000002100000002000006a40000000a000100000000000000010000001900000003612c62000003ef0000000c000000000000000000000017",
        {"a": 1, "b": "x y", "c d": {"n": Decimal(1), "t": "a,b"}, "e": []},
    ),
    ("emptycomp", "()", "00000000", {}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


@pytest.mark.parametrize(
    "text", [b"", b"(", b"1,2", b'(1,"a,,)', b"(1,a)b,,)", b'(1,a"b,,)', b"(1,,)", b"(1,,,,)"]
)
def test_malformed_text(types: Types, oids: dict[str, int], text: bytes) -> None:
    """Parentheses and quotes that do not match, and another number of fields, raise an error."""
    with pytest.raises(Malformed):
        types.decoder(oids["comp"], Format.TEXT)(text)


def test_one_field(types: Types) -> None:
    """The only field of a composite may be NULL."""
    types.add(TypeInfo(99999, "public", "single", "c", fields=(("a", 25),)))
    read = types.decoder(99999, Format.TEXT)
    assert read(b"()") == {"a": None}
    assert read(b'("")') == {"a": ""}


def test_altered_type(types: Types, oids: dict[str, int]) -> None:
    """A field of another type than the catalog had is not read as if nothing had happened."""
    with pytest.raises(Malformed, match="a field of another type than the catalog has; the type has changed"):
        types.decoder(oids["inner_"], Format.BINARY)(
            bytes.fromhex("00000002 00000019ffffffff 00000019ffffffff")
        )
    with pytest.raises(Malformed, match="3 fields where the catalog has 2; the type has changed"):
        types.decoder(oids["inner_"], Format.TEXT)(b"(1,a,b)")
    assert types.json_encoder(oids["inner_"], Format.TEXT)(b"(1,a,b)") == b'"(1,a,b)"'
