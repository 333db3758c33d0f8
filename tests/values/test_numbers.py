"""Numbers and booleans, at their extremes."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, Types
from aiorepl.values.floats import float4_text, float8_text

CASES = [
    ("float8", "1e+15", "430c6bf526340000", 1000000000000000.0, b"1e+15"),
    (
        "float8",
        "1.2345678901234568e+17",
        "437b69b4ba630f35",
        1.2345678901234568e17,
        b"1.2345678901234568e+17",
    ),
    ("float8", "-0", "8000000000000000", -0.0, b"-0.0"),
    ("float8", "9.223372049999999e+18", "43e000000061f086", 9.22337205e18, b"9.223372049999999e+18"),
    ("float8", "9.007199254740992e+15", "4340000000000000", 9007199254740992.0, b"9.007199254740992e+15"),
    ("float8", "1e+22", "4480f0cf064dd592", 1e22, b"1e+22"),
    ("float8", "9.999999999999999e+22", "44b52d02c7e14af6", 1e23, b"9.999999999999999e+22"),
    ("float8", "5e-324", "0000000000000001", 5e-324, b"5e-324"),
    (
        "float8",
        "1.7976931348623157e+308",
        "7fefffffffffffff",
        1.7976931348623157e308,
        b"1.7976931348623157e+308",
    ),
    ("float8", "4.503599627370498e+15", "4330000000000002", 4503599627370498.0, b"4.503599627370498e+15"),
    ("float8", "999999999999999.9", "430c6bf52633ffff", 999999999999999.9, b"999999999999999.9"),
    ("float8", "0.0001", "3f1a36e2eb1c432d", 0.0001, b"0.0001"),
    ("float8", "1.234e-05", "3ee9e0fcaf9380fc", 1.234e-05, b"1.234e-05"),
    ("float8", "NaN", "7ff8000000000000", float("nan")),
    ("float8", "-Infinity", "fff0000000000000", float("-inf")),
    (
        "float8",
        "1.8446744073709552e+19",
        "43f0000000000000",
        1.8446744073709552e19,
        b"1.8446744073709552e+19",
    ),
    ("float4", "1e+06", "49742400", 1000000.0, b"1e+06"),
    ("float4", "100000", "47c35000", 100000.0, b"100000"),
    ("float4", "123456", "47f12000", 123456.0, b"123456"),
    ("float4", "1.234567e+06", "4996b438", 1234567.0, b"1.234567e+06"),
    ("float4", "0.0001", "38d1b717", 9.999999747378752e-05, b"0.0001"),
    ("float4", "1e-05", "3727c5ac", 9.999999747378752e-06, b"1e-05"),
    ("float4", "3.14", "4048f5c3", 3.140000104904175, b"3.14"),
    ("float4", "1.1754944e-38", "00800000", 1.1754943508222875e-38, b"1.1754944e-38"),
    ("float4", "1e-45", "00000001", 1.401298464324817e-45, b"1e-45"),
    ("float4", "3.4028235e+38", "7f7fffff", 3.4028234663852886e38, b"3.4028235e+38"),
    ("float4", "-0", "80000000", -0.0, b"-0.0"),
    ("float4", "NaN", "7fc00000", float("nan")),
    ("float4", "1.6777216e+07", "4b800000", 16777216.0, b"1.6777216e+07"),
    ("float4", "3.3554432e+07", "4c000000", 33554432.0, b"3.3554432e+07"),
    ("float4", "8.388608e+06", "4b000000", 8388608.0, b"8.388608e+06"),
    ("float4", "1.17549e-38", "007fffe1", 1.1754900067970481e-38, b"1.17549e-38"),
    ("float4", "4e-45", "00000003", 4.203895392974451e-45, b"4e-45"),
    ("numeric", "0", "0000000000000000", Decimal(0)),
    ("numeric", "0.00", "0000000000000002", Decimal("0.00")),
    ("numeric", "1.50", "000200000000000200011388", Decimal("1.50")),
    (
        "numeric",
        "-12345678901234567890.000012",
        "000700044000000604d2162e23340d801ed2000004b0",
        Decimal("-12345678901234567890.000012"),
    ),
    ("numeric", "NaN", "00000000c0000000", Decimal("NaN")),
    ("numeric", "Infinity", "00000000d0000020", Decimal("Infinity")),
    ("numeric", "-Infinity", "00000000f0000020", Decimal("-Infinity")),
    ("numeric", "10000", "00010001000000000001", Decimal(10000)),
    ("numeric", "0.0001", "0001ffff000000040001", Decimal("0.0001")),
    ("numeric", "0.00001", "0001fffe0000000503e8", Decimal("0.00001")),
    ("numeric", "100000000", "00010002000000000001", Decimal(100000000)),
    ("money", "$0.00", "0000000000000000", "$0.00"),
    ("money", "-$1,234,567.89", "fffffffff8a432eb", "-$1,234,567.89"),
    ("money", "$92,233,720,368,547,758.07", "7fffffffffffffff", "$92,233,720,368,547,758.07"),
    ("money", "-$0.05", "fffffffffffffffb", "-$0.05"),
    ("bool", "t", "01", True, b"true"),
    ("bool", "f", "00", False, b"false"),
    ("int2", "-32768", "8000", -32768, b"-32768"),
    ("int2", "32767", "7fff", 32767, b"32767"),
    ("int4", "-2147483648", "80000000", -2147483648, b"-2147483648"),
    ("int4", "0", "00000000", 0, b"0"),
    ("int8", "-9223372036854775808", "8000000000000000", -(2**63), b"-9223372036854775808"),
    ("int8", "9223372036854775807", "7fffffffffffffff", 2**63 - 1, b"9223372036854775807"),
    ("numeric", "1" + "0" * 131071, "0001" + "7fff" + "0000" + "0000" + "03e8", Decimal("1" + "0" * 131071)),
    (
        "numeric",
        "0." + "0" * 16382 + "1",
        "0001" + "f000" + "0000" + "3fff" + "000a",
        Decimal(1).scaleb(-16383),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


def test_numeric_of_every_digit(types: Types) -> None:
    """131,072 digits before the point and 16,383 after it are read exactly."""
    text = "9" * 131072 + "." + "9" * 16383
    digits = [9999] * (131072 // 4) + [9999] * 4095 + [9990]
    binary = b"".join(part.to_bytes(2, "big") for part in (len(digits), 131072 // 4 - 1, 0, 16383, *digits))
    value = types.decoder(1700, Format.BINARY)(binary)
    assert text == str(value) == types.text(1700, Format.BINARY)(binary)
    assert value == types.decoder(1700, Format.TEXT)(text.encode())


@pytest.mark.parametrize(
    ("binary", "problem"),
    [
        ("0001000000000000", "8 bytes where 1 digits take 10"),
        ("0000000012340000", "unknown sign 0x1234"),
        ("0000000000004000", "display scale 16384 is above 16383"),
        ("00010000000000002710", "a digit is above 9999"),
    ],
)
def test_malformed_numeric(types: Types, binary: str, problem: str) -> None:
    """A numeric that contradicts its header raises an error that says how."""
    with pytest.raises(Malformed, match=f"numeric.* in binary: {problem}"):
        types.decoder(1700, Format.BINARY)(bytes.fromhex(binary))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9.22337205e18, "9.223372049999999e+18"),  # half-way: Python prints the shorter 9.22337205e+18
        (1e23, "9.999999999999999e+22"),
        (2.0**63, "9.223372036854776e+18"),
        (2.0**-1022, "2.2250738585072014e-308"),
        (-123456789012345.6, "-123456789012345.6"),
    ],
)
def test_shortest_float8(value: float, text: str) -> None:
    """The shortest digits are those strictly nearer to this float than to its neighbours."""
    assert text == float8_text(value)
    assert value == float(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0**-96, "1.2621775e-29"),
        (2.0**90, "1.2379401e+27"),
        (2.0**-126, "1.1754944e-38"),
        (-(2.0**-149), "-1e-45"),
        (0.25, "0.25"),
    ],
)
def test_shortest_float4(value: float, text: str) -> None:
    """Powers of two, whose lower neighbour is nearer, and subnormals have PostgreSQL's text."""
    assert text == float4_text(value)
