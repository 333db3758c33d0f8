"""Ranges and multiranges: bounds, infinite and quoted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, Range, Types

CASES = [
    ("int4range", "[1,5)", "0200000004000000010000000400000005", Range(1, 5, True, False)),
    ("int4range", "empty", "01", Range(empty=True)),
    ("int4range", "(,)", "18", Range(None, None, False, False)),
    ("int4range", "[1,)", "120000000400000001", Range(1, None, True, False)),
    (
        "tsrange",
        '["2024-01-01 00:00:00",infinity]',
        "06000000080002b0d5d4e94000000000087fffffffffffffff",
        Range(datetime(2024, 1, 1, 0, 0), "infinity", True, True),
    ),
    (
        "numrange",
        "(1.50,2]",
        "040000000c0002000000000002000113880000000a00010000000000000002",
        Range(Decimal("1.50"), Decimal(2), False, True),
    ),
    ("int4multirange", "{}", "00000000", ()),
    (
        "int4multirange",
        "{[1,3),[5,)}",
        "0000000200000011020000000400000001000000040000000300000009120000000400000005",
        (Range(1, 3, True, False), Range(5, None, True, False)),
    ),
    (
        "_tsmultirange",
        '{"{[\\"2024-01-01 00:00:00\\",\\"2024-01-02 00:00:00\\"),[\\"2025-01-01 00:00:00\\",)}"}',
        "0000000100000000000011b5000000010000000100000032000000020000001902000000080002b0d5d4e94000000000080002b0e9f2c0a0000000000d12000000080002cd987ed48000",
        [
            (
                Range(datetime(2024, 1, 1, 0, 0), datetime(2024, 1, 2, 0, 0), True, False),
                Range(datetime(2025, 1, 1, 0, 0), None, True, False),
            )
        ],
        b'["{[\\"2024-01-01 00:00:00\\",\\"2024-01-02 00:00:00\\"),[\\"2025-01-01 00:00:00\\",)}"]',
    ),
    ("textrange", '[a,"b c")', "02000000016100000003622063", Range("a", "b c", True, False)),
    ("textrange", '["","""(\\\\")', "02000000000000000322285c", Range("", '"(\\', True, False)),
    (
        "textmultirange",
        '{[a,b),["c,]",d)}',
        "000000020000000b02000000016100000001620000000d0200000003632c5d0000000164",
        (Range("a", "b", True, False), Range("c,]", "d", True, False)),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


@pytest.mark.parametrize(
    "text", [b"", b"[1,2", b"1,2)", b"[1)", b"[1,2,3)", b"emptyish", b'["1,2)', b"[a,b)", b"[1,2)x"]
)
def test_malformed_text(types: Types, oids: dict[str, int], text: bytes) -> None:
    """Text without two bounds of the subtype raises an error."""
    with pytest.raises(Malformed):
        types.decoder(oids["int4range"], Format.TEXT)(text)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1,2)", b"{[1,2)", b"{[1,2),}", b"{[1,2)[3,4)}", b"{[1,2)}x", b"{{}}"]
)
def test_malformed_multirange(types: Types, oids: dict[str, int], text: bytes) -> None:
    """Braces and commas of a multirange must match."""
    with pytest.raises(Malformed):
        types.decoder(oids["int4multirange"], Format.TEXT)(text)


@pytest.mark.parametrize("binary", ["", "20", "00", "0100", "027fffffff00000001", "18" + "00"])
def test_malformed_binary(types: Types, oids: dict[str, int], binary: str) -> None:
    """Unknown flags, and bounds that do not fill the bytes, raise an error."""
    with pytest.raises(Malformed):
        types.decoder(oids["int4range"], Format.BINARY)(bytes.fromhex(binary))
