"""Dates and times, and those that Python does not have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, Types

CASES = [
    ("date", "infinity", "7fffffff", "infinity"),
    ("date", "-infinity", "80000000", "-infinity"),
    ("date", "0044-03-15 BC", "fff49d7b", "0044-03-15 BC"),
    ("date", "0001-01-01 BC", "fff4da8b", "0001-01-01 BC"),
    ("date", "0001-01-01", "fff4dbf9", date(1, 1, 1)),
    ("date", "9999-12-31", "002c95d3", date(9999, 12, 31)),
    ("date", "10000-01-01", "002c95d4", "10000-01-01"),
    ("date", "5874897-12-31", "7fda970c", "5874897-12-31"),
    ("date", "4714-11-24 BC", "ffda97a7", "4714-11-24 BC"),
    ("timestamp", "infinity", "7fffffffffffffff", "infinity"),
    ("timestamp", "4714-11-24 00:00:00 BC", "fd0f7cc1411fa000", "4714-11-24 00:00:00 BC"),
    ("timestamp", "294276-12-31 23:59:59.999999", "7fffff5bb3b29fff", "294276-12-31 23:59:59.999999"),
    ("timestamp", "0001-12-31 23:59:59.5 BC", "ff1fe2ffc594bee0", "0001-12-31 23:59:59.5 BC"),
    ("timestamp", "2024-02-29 01:02:03.4", "0002b579937af340", datetime(2024, 2, 29, 1, 2, 3, 400000)),
    ("timestamp", "0001-01-01 00:00:00", "ff1fe2ffc59c6000", datetime(1, 1, 1, 0, 0)),
    (
        "timestamp",
        "9999-12-31 23:59:59.999999",
        "0380e70b913b7fff",
        datetime(9999, 12, 31, 23, 59, 59, 999999),
    ),
    ("timestamp", "10000-01-01 00:00:00", "0380e70b913b8000", "10000-01-01 00:00:00"),
    ("timestamptz", "infinity", "7fffffffffffffff", "infinity"),
    ("timestamptz", "-infinity", "8000000000000000", "-infinity"),
    ("timestamptz", "4714-11-24 00:00:00+00 BC", "fd0f7cc1411fa000", "4714-11-24 00:00:00+00 BC"),
    ("timestamptz", "294276-12-31 23:59:59.999999+00", "7fffff5bb3b29fff", "294276-12-31 23:59:59.999999+00"),
    (
        "timestamptz",
        "2024-02-29 01:02:03.4+00",
        "0002b579937af340",
        datetime(2024, 2, 29, 1, 2, 3, 400000, tzinfo=UTC),
    ),
    ("time", "24:00:00", "000000141dd76000", "24:00:00"),
    ("time", "00:00:00", "0000000000000000", time(0, 0)),
    ("time", "23:59:59.999999", "000000141dd75fff", time(23, 59, 59, 999999)),
    ("time", "01:02:03.1", "00000000dde9ff60", time(1, 2, 3, 100000)),
    ("timetz", "24:00:00+00", "000000141dd7600000000000", "24:00:00+00"),
    (
        "timetz",
        "00:00:00-15:59:59",
        "00000000000000000000e0ff",
        time(0, 0, tzinfo=timezone(timedelta(days=-1, seconds=28801))),
    ),
    (
        "timetz",
        "23:59:59.999999+05:30",
        "000000141dd75fffffffb2a8",
        time(23, 59, 59, 999999, tzinfo=timezone(timedelta(seconds=19800))),
    ),
    ("timetz", "01:02:03.1+00", "00000000dde9ff6000000000", time(1, 2, 3, 100000, tzinfo=UTC)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


def test_session_in_another_zone(types: Types) -> None:
    """A timestamptz is in UTC, wherever the session that printed it believed to be."""
    read = types.decoder(1184, Format.TEXT)
    assert datetime(2024, 1, 1, 10, tzinfo=UTC) == read(b"2024-01-01 12:00:00+02")
    assert read(b"2024-01-01 12:00:00+02").tzinfo is UTC
    assert datetime(1890, 1, 1, tzinfo=UTC) == read(b"1890-01-01 00:19:32+00:19:32")
    assert read(b"0001-01-01 00:00:00+14") == "0001-01-01 00:00:00+14"


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (1082, b"31.12.2024"),
        (1082, b"2024-13-01"),
        (1082, b""),
        (1083, b"25:00:00"),
        (1083, b"24:00:01"),
        (1114, b"Mon Jan 01 00:00:00 2024"),
        (1114, b"2024-02-30 00:00:00"),
        (1184, b"12024-01-01 00:00:00+0"),
    ],
)
def test_malformed_text(types: Types, oid: int, text: bytes) -> None:
    """Text that is neither ISO nor infinity is not returned as a value out of Python's range."""
    with pytest.raises(Malformed):
        types.decoder(oid, Format.TEXT)(text)


@pytest.mark.parametrize(
    ("oid", "binary"),
    [
        (1082, "80000001"),
        (1082, "7ffffffe"),
        (1083, "ffffffffffffffff"),
        (1083, "000000141dd76001"),
        (1114, "8000000000000001"),
        (1184, "7ffffffffffffffe"),
        (1266, "00000000000000000000e100"),
        (1266, "0000000000000000"),
    ],
)
def test_malformed_binary(types: Types, oid: int, binary: str) -> None:
    """A value out of PostgreSQL's range, except infinity, raises an error."""
    for function in (types.decoder(oid, Format.BINARY), types.text(oid, Format.BINARY)):
        with pytest.raises(Malformed):
            function(bytes.fromhex(binary))
