"""Geometric types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, Types
from aiorepl.values.geometric import Path

CASES = [
    ("point", "(1,2)", "3ff00000000000004000000000000000", (1.0, 2.0)),
    ("point", "(1e+300,-0)", "7e37e43c8800759c8000000000000000", (1e300, -0.0)),
    ("point", "(NaN,Infinity)", "7ff80000000000007ff0000000000000", (float("nan"), float("inf"))),
    ("line", "{1,-2,3.5}", "3ff0000000000000c000000000000000400c000000000000", (1.0, -2.0, 3.5)),
    (
        "lseg",
        "[(1,2),(3,4)]",
        "3ff0000000000000400000000000000040080000000000004010000000000000",
        ((1.0, 2.0), (3.0, 4.0)),
    ),
    (
        "box",
        "(3,4),(1,2)",
        "400800000000000040100000000000003ff00000000000004000000000000000",
        ((3.0, 4.0), (1.0, 2.0)),
    ),
    (
        "path",
        "((1,2),(3,4))",
        "01000000023ff0000000000000400000000000000040080000000000004010000000000000",
        Path(closed=True, points=((1.0, 2.0), (3.0, 4.0))),
    ),
    (
        "path",
        "[(1,2)]",
        "00000000013ff00000000000004000000000000000",
        Path(closed=False, points=((1.0, 2.0),)),
    ),
    (
        "polygon",
        "((1,2),(3,4),(5,6e+20))",
        "000000033ff00000000000004000000000000000400800000000000040100000000000004014000000000000444043561a882930",
        ((1.0, 2.0), (3.0, 4.0), (5.0, 6e20)),
    ),
    ("circle", "<(1,2),3>", "3ff000000000000040000000000000004008000000000000", ((1.0, 2.0), 3.0)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


@pytest.mark.parametrize(
    ("name", "text"), [("point", b"(1)"), ("box", b"(1,2)"), ("polygon", b"((1,2),3)"), ("line", b"{}")]
)
def test_malformed(types: Types, oids: dict[str, int], name: str, text: bytes) -> None:
    """Too few numbers make no figure."""
    with pytest.raises(Malformed):
        types.decoder(oids[name], Format.TEXT)(text)


def test_claimed_points(types: Types) -> None:
    """Two thousand million points are not believed."""
    with pytest.raises(Malformed, match="the number of points does not fit"):
        types.decoder(604, Format.BINARY)(b"\x7f\xff\xff\xff" + bytes(16))
