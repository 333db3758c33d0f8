"""Dates and times as Debezium writes them with ``time.precision.mode=adaptive``, from PostgreSQL's text. Pure.

date: days since 1970. time and timestamp: microseconds, or milliseconds for a precision of 3 or less. interval:
microseconds, with 30.4375 days to a month. timestamptz and timetz: ISO 8601 in UTC. Infinity is the number that Debezium
uses for it.

Source: Debezium's PostgresValueConverter, DateTimeFormat, ZonedTimestamp, MicroDuration.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Final

from aiorepl.values.codec import Format, Malformed
from aiorepl.values.intervals import Interval
from aiorepl.values.registry import Types

_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY: Final = 86_400_000_000
_MONTH: Final = 2_629_800_000_000  # 365.25 days / 12
_INT64: Final = 2**63

_DATE: Final = re.compile(r"(\d{4,7})-(\d\d)-(\d\d)( BC)?")
_MOMENT: Final = re.compile(r"(\d{4,7}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,6})?)(\+00)?( BC)?")
_CLOCK: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_OFFSET: Final = re.compile(r"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?")

_read_interval: Final = Types().decoder(1186, Format.TEXT)


def _days_of(year: int, month: int, day: int) -> int:
    """Return days since 1970 in the proleptic Gregorian calendar, which repeats every 400 years."""
    cycles, of_cycle = divmod(year, 400)
    return date(of_cycle + 400, month, day).toordinal() + (cycles - 1) * 146_097 - _EPOCH


# Debezium writes infinite dates as the days -5877611-06-21 and -22, infinite timestamps as the JDBC driver does.
_INFINITE_DAYS: Final = {"infinity": _days_of(-5877611, 6, 21), "-infinity": _days_of(-5877611, 6, 22)}
_INFINITE_MICROSECONDS: Final = {
    "infinity": 9_223_372_036_825_200_000,
    "-infinity": -9_223_372_036_832_400_000,
}


def days(text: str) -> int:
    """Convert a date to days since 1970."""
    if text in _INFINITE_DAYS:
        return _INFINITE_DAYS[text]
    year, month, day = _ymd(text)
    return _days_of(year, month, day)


def _since_1970(text: str) -> int:
    if text in _INFINITE_MICROSECONDS:
        return _INFINITE_MICROSECONDS[text]
    day, clock, _, era = _moment(text)
    return days(day + era) * _DAY + clock_microseconds(clock)


def milliseconds(text: str) -> int:
    """Convert a timestamp to milliseconds since 1970."""
    return _since_1970(text) // 1000


def microseconds(text: str) -> int:
    """Convert a timestamp to microseconds since 1970.

    :raises Malformed: the microseconds do not fit into 64 bits. PostgreSQL's do, because it counts from 2000.
    """
    count = _since_1970(text)
    if count >= _INT64:
        raise Malformed(
            "after 294247-01-10 04:00:54.775807, the last moment of 64 bits of microseconds since 1970"
        )
    return count


def clock_microseconds(text: str) -> int:
    """Convert a time to microseconds; 24:00:00 is a whole day."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise Malformed("not a time of day; is DateStyle ISO?")
    hour, minute, second, fraction = match.groups("0")
    seconds = (int(hour) * 60 + int(minute)) * 60 + int(second)
    return seconds * 1_000_000 + int(fraction.ljust(6, "0"))


def zoned(text: str, digits: int) -> str:
    """Convert a timestamptz to ISO 8601 with ``digits`` decimals; 0 keeps the decimals of the text."""
    if text in _INFINITE_MICROSECONDS:
        return text
    day, clock, zone, era = _moment(text)
    if not zone:
        raise Malformed("not in UTC; is TimeZone UTC?")
    year, month, of_month = _ymd(day + era)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    whole, _, fraction = clock.partition(".")
    fraction = fraction[:digits].ljust(digits, "0") if digits else fraction
    return f"{sign}{abs(year):04d}-{month:02d}-{of_month:02d}T{whole}{'.' if fraction else ''}{fraction}Z"


def zoned_clock(text: str) -> str:
    """Convert a timetz to ISO 8601 in UTC."""
    sign_at = max(text.find("+"), text.find("-"))
    match = _OFFSET.fullmatch(text, max(sign_at, 0))
    if match is None:
        raise Malformed("without an offset; is DateStyle ISO?")
    clock = clock_microseconds(text[:sign_at])
    sign, hours, minutes, seconds = match.groups("0")
    offset = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000
    if clock == _DAY and not offset:
        return "24:00:00Z"
    whole, fraction = divmod((clock - offset if sign == "+" else clock + offset) % _DAY, 1_000_000)
    minute, second = divmod(whole, 60)
    hour, minute = divmod(minute, 60)
    decimals = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{hour:02d}:{minute:02d}:{second:02d}{decimals}Z"


def duration(text: str) -> int:
    """Convert an interval to microseconds, limited to 64 bits; infinity becomes the limit."""
    value = _read_interval(text.encode())
    if not isinstance(value, Interval):
        return -_INT64 if text.startswith("-") else _INT64 - 1
    total = value.months * _MONTH + value.days * _DAY + value.microseconds
    return max(-_INT64, min(total, _INT64 - 1))


def _ymd(text: str) -> tuple[int, int, int]:
    """Return year, month and day, with astronomical years: 1 BC is 0."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise Malformed("not a date; is DateStyle ISO?")
    year = int(match[1])
    return 1 - year if match[4] else year, int(match[2]), int(match[3])


def _moment(text: str) -> tuple[str, str, str, str]:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise Malformed("not a timestamp; are DateStyle ISO and TimeZone UTC?")
    return match[1], match[2], match[3] or "", match[4] or ""
