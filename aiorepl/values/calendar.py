"""Days and microseconds since 2000-01-01, PostgreSQL's epoch, to Python dates and to ISO text.

Compiled modules use ``calendar.pxd`` instead, which has the same functions as inline C (as ``byteops``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Final

_DAY: Final = 86_400_000_000
_EPOCH: Final = datetime(2000, 1, 1)
_EPOCH_DAY: Final = _EPOCH.toordinal()
# The Gregorian calendar repeats every 400 years, so a year outside Python's range is printed as the equivalent year within it.
_YEARS, _DAYS_OF_THEM = 400, 146_097


def date_of(days: int) -> date:
    """Return the date.

    :raises ArithmeticError, ValueError: the date is outside Python's range.
    """
    return date.fromordinal(days + _EPOCH_DAY)


def datetime_of(microseconds: int, zone: tzinfo | None) -> datetime:
    """Return the timestamp, with tzinfo ``zone`` (UTC or ``None``).

    :raises ArithmeticError, ValueError: the timestamp is outside Python's range.
    """
    value = _EPOCH + timedelta(microseconds=microseconds)
    return value if zone is None else value.replace(tzinfo=zone)


def time_of(microseconds: int, zone: tzinfo | None) -> time:
    """Return the time of day, which is before 24:00."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return time(hour, minute, second, fraction, zone)


def parse_date(text: bytes) -> date | None:
    """Parse a plain ISO date; ``None`` for all other text. Always ``None`` in Python, where ``fromisoformat`` is fast."""
    return None


def parse_datetime(text: bytes, zone: tzinfo | None) -> datetime | None:
    """Parse a plain ISO timestamp; ``None`` for all other text, and always in Python."""
    return None


def parse_time(text: bytes) -> time | None:
    """Parse a plain ISO time of day; ``None`` for all other text, and always in Python."""
    return None


def parse_timetz(text: bytes, zone: Callable[[int], tzinfo]) -> time | None:
    """Parse a time of day with an offset; ``None`` for all other text, and always in Python.

    :param zone: makes a tzinfo of the seconds east of UTC.
    """
    return None


def put_date(out: bytearray, days: int) -> bool:
    """Append a date, and return whether it is BC."""
    cycles, day = divmod(days + _EPOCH_DAY - 1, _DAYS_OF_THEM)
    value = date.fromordinal(day + 1)
    year = value.year + cycles * _YEARS
    out += b"%04d-%02d-%02d" % (year if year > 0 else 1 - year, value.month, value.day)
    return year <= 0


def put_datetime(out: bytearray, microseconds: int) -> bool:
    """Append date and time, and return whether the date is BC."""
    days, rest = divmod(microseconds, _DAY)
    before_christ = put_date(out, days)
    out += b" "
    put_time(out, rest)
    return before_christ


def put_time(out: bytearray, microseconds: int) -> None:
    """Append a time of day, or an interval's hours up to 99, with as many fractional digits as necessary."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    out += b"%02d:%02d:%02d" % (*divmod(minutes, 60), second)
    if fraction:
        out += (b".%06d" % fraction).rstrip(b"0")
