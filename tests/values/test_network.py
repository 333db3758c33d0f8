"""Network addresses, and the many ways to write one of IPv6."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, Types

CASES = [
    ("inet", "1.2.3.4", "0220000401020304", IPv4Interface("1.2.3.4/32")),
    ("inet", "1.2.3.4/24", "0218000401020304", IPv4Interface("1.2.3.4/24")),
    ("inet", "::1", "0380001000000000000000000000000000000001", IPv6Interface("::1/128")),
    ("inet", "::", "0380001000000000000000000000000000000000", IPv6Interface("::/128")),
    (
        "inet",
        "::ffff:1.2.3.4",
        "0380001000000000000000000000ffff01020304",
        IPv6Interface("::ffff:102:304/128"),
    ),
    ("inet", "::1.2.3.4", "0380001000000000000000000000000001020304", IPv6Interface("::102:304/128")),
    ("inet", "1:0:0:2::3", "0380001000010000000000020000000000000003", IPv6Interface("1:0:0:2::3/128")),
    ("inet", "2001:db8::/32", "0320001020010db8000000000000000000000000", IPv6Interface("2001:db8::/32")),
    ("inet", "1::", "0380001000010000000000000000000000000000", IPv6Interface("1::/128")),
    (
        "inet",
        "1:2:3:4:5:6:7:0",
        "0380001000010002000300040005000600070000",
        IPv6Interface("1:2:3:4:5:6:7:0/128"),
    ),
    (
        "inet",
        "0:2:3:4:5:6:7:8",
        "0380001000000002000300040005000600070008",
        IPv6Interface("0:2:3:4:5:6:7:8/128"),
    ),
    ("inet", "::1:2:3", "0380001000000000000000000000000100020003", IPv6Interface("::1:2:3/128")),
    ("inet", "::ffff:0.0.0.0", "0380001000000000000000000000ffff00000000", IPv6Interface("::ffff:0:0/128")),
    (
        "inet",
        "::ffff:0.1.0.2/100",
        "0364001000000000000000000000ffff00010002",
        IPv6Interface("::ffff:1:2/100"),
    ),
    (
        "inet",
        "1:0:2:0:3:0:4:0",
        "0380001000010000000200000003000000040000",
        IPv6Interface("1:0:2:0:3:0:4:0/128"),
    ),
    ("cidr", "1.2.3.0/24", "0218010401020300", IPv4Network("1.2.3.0/24")),
    ("cidr", "1.2.3.4/32", "0220010401020304", IPv4Network("1.2.3.4/32")),
    ("cidr", "::/0", "0300011000000000000000000000000000000000", IPv6Network("::/0")),
    ("cidr", "2001:db8::/32", "0320011020010db8000000000000000000000000", IPv6Network("2001:db8::/32")),
    ("cidr", "10.0.0.0/8", "020801040a000000", IPv4Network("10.0.0.0/8")),
    ("macaddr", "08:00:2b:01:02:03", "08002b010203", "08:00:2b:01:02:03"),
    ("macaddr8", "08:00:2b:01:02:03:04:05", "08002b0102030405", "08:00:2b:01:02:03:04:05"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


@pytest.mark.parametrize(
    "binary", ["", "02200004010203", "0420000401020304", "0221000401020304", "0320000401020304"]
)
def test_malformed(types: Types, binary: str) -> None:
    """Family, mask and length must agree."""
    with pytest.raises(Malformed):
        types.decoder(869, Format.BINARY)(bytes.fromhex(binary))
