"""Extended statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, Types

CASES = [
    (
        "pg_ndistinct",
        '{"1, 2": 100, "1, 3": 70, "2, 3": 700, "1, 2, 3": 700}',
        "a4bf52a3010000000400000000000000000059400200000001000200000000000080514002000000010003000000000000e0854002000000020003000000000000e0854003000000010002000300",
        '{"1, 2": 100, "1, 3": 70, "2, 3": 700, "1, 2, 3": 700}',
    ),
    (
        "pg_dependencies",
        '{"2 => 1": 1.000000, "2, 3 => 1": 1.000000}',
        "2c9a54b40100000002000000000000000000f03f020002000100000000000000f03f0300020003000100",
        '{"2 => 1": 1.000000, "2, 3 => 1": 1.000000}',
    ),
    ("pg_mcv_list", "\\x00ff", "00ff", "\\x00ff"),
    (
        "pg_ndistinct",
        '{"1, 2": 7}',
        "a352bfa4" + "00000001" + "00000001" + "401c000000000000" + "00000002" + "00010002",
        '{"1, 2": 7}',
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


def test_malformed(types: Types) -> None:
    """Bytes without the magic number raise an error, because their byte order is unknown."""
    with pytest.raises(Malformed, match="unknown magic number"):
        types.decoder(3361, Format.BINARY)(bytes(12))
