"""Parses what Arrow's cast does not: years before 1 and after 9999, unwanted offsets, and times of day. Pure.

Results are days or microseconds since 1970 in the proleptic Gregorian calendar, as in PostgreSQL, Arrow and Spark.
"""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(
    r"(\d{4,7})-(\d\d)-(\d\d)"
    r"(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?"
    r"(?:([+-])(\d\d)(?::(\d\d)(?::(\d\d))?)?)?"
    r"( BC)?"
)
_CLOCK: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_DAY: Final = 86_400_000_000


def days(text: str) -> int | None:
    """Return days since 1970-01-01; ``None`` for infinity and other text that is not a date."""
    match = _FORM.fullmatch(text)
    return None if match is None else _days(match)


def microseconds(text: str) -> int | None:
    """Return microseconds since 1970-01-01 00:00, in UTC if the text has an offset.

    ``None`` for text that is not a timestamp, and for a timestamp that does not fit 64 bits.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    hour, minute, second, fraction, sign, *offset = match.group(4, 5, 6, 7, 8, 9, 10, 11)
    moment = _days(match) * _DAY + _seconds(hour, minute, second) * 1_000_000
    moment += int((fraction or "").ljust(6, "0"))
    if sign is not None:
        moment -= (-1 if sign == "-" else 1) * _seconds(*offset) * 1_000_000
    return moment if -(2**63) <= moment < 2**63 else None


def nanoseconds_of_day(text: str) -> int | None:
    """Return nanoseconds since midnight; ``None`` for 24:00:00, a time with an offset, and other text."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second, fraction = match.groups()
    moment = _seconds(hour, minute, second) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return moment * 1000 if moment < _DAY else None


def _seconds(hour: str | None, minute: str | None, second: str | None) -> int:
    return int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)


def _days(match: re.Match[str]) -> int:
    """Source: "days_from_civil" of Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms"."""
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if match[12]:
        year = 1 - year
    year -= month <= 2
    cycle, year_of_cycle = divmod(year, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return (
        cycle * 146_097
        + year_of_cycle * 365
        + year_of_cycle // 4
        - year_of_cycle // 100
        + day_of_year
        - 719_468
    )
