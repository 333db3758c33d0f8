"""Intervals: three parts that do not convert into each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiorepl.values import Format, Interval, Malformed, Types

CASES = [
    ("interval", "00:00:00", "00000000000000000000000000000000", Interval(0, 0, 0)),
    ("interval", "1 year", "0000000000000000000000000000000c", Interval(12, 0, 0)),
    ("interval", "-1 years", "000000000000000000000000fffffff4", Interval(-12, 0, 0)),
    (
        "interval",
        "-10 mons -3 days +04:00:00",
        "000000035a4e9000fffffffdfffffff6",
        Interval(-10, -3, 14400000000),
    ),
    ("interval", "1 mon -1 days +00:00:00.5", "000000000007a120ffffffff00000001", Interval(1, -1, 500000)),
    ("interval", "-00:00:00.5", "fffffffffff85ee00000000000000000", Interval(0, 0, -500000)),
    ("interval", "2 years 1 day", "00000000000000000000000100000018", Interval(24, 1, 0)),
    (
        "interval",
        "-1 years -1 mons +5 days 00:00:01",
        "00000000000f424000000005fffffff3",
        Interval(-13, 5, 1000000),
    ),
    (
        "interval",
        "178956970 years 6 mons 2147483647 days 2562047788:00:54.775806",
        "7ffffffffffffffe7fffffff7ffffffe",
        Interval(2147483646, 2147483647, 9223372036854775806),
    ),
    ("interval", "infinity", "7fffffffffffffff7fffffff7fffffff", "infinity"),
    ("interval", "-infinity", "80000000000000008000000080000000", "-infinity"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


@pytest.mark.parametrize("text", [b"", b" ", b"P1Y", b"1 fortnight", b"1:2:3", b"+00:00:00.1234567"])
def test_malformed_text(types: Types, text: bytes) -> None:
    """Text of another IntervalStyle raises an error."""
    with pytest.raises(Malformed, match="not in IntervalStyle postgres"):
        types.decoder(1186, Format.TEXT)(text)
