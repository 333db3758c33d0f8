"""Days and microseconds since 2000-01-01, PostgreSQL's epoch, as Python's dates and as ISO text.

Compiled modules use ``calendar.pxd`` beside this file instead, as with ``byteops``: the same names as inline C.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Final

_DAY: Final = 86_400_000_000
_EPOCH: Final = datetime(2000, 1, 1)
_EPOCH_DAY: Final = _EPOCH.toordinal()
# The Gregorian calendar repeats itself, so any year is printed by way of one that Python has.
_YEARS, _DAYS_OF_THEM = 400, 146_097


def day(days: int) -> date:
    """The date.

    :raises ArithmeticError, ValueError: where Python has none.
    """
    return date.fromordinal(days + _EPOCH_DAY)


def moment(microseconds: int, zone: tzinfo | None) -> datetime:
    """The time of ``zone``, which is UTC, or ``None``.

    :raises ArithmeticError, ValueError: where Python has none.
    """
    value = _EPOCH + timedelta(microseconds=microseconds)
    return value if zone is None else value.replace(tzinfo=zone)


def clock(microseconds: int, zone: tzinfo | None) -> time:
    """The time of day, which is before 24:00."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return time(hour, minute, second, fraction, zone)


def day_of(text: bytes) -> date | None:
    """The date that is this text, as far as it is known. Never in Python: ``fromisoformat`` is C already."""
    return None


def moment_of(text: bytes, zone: tzinfo | None) -> datetime | None:
    """The time that is this text, as far as it is known. Never in Python."""
    return None


def clock_of(text: bytes) -> time | None:
    """The time of day that is this text, as far as it is known. Never in Python."""
    return None


def zoned_clock_of(text: bytes, zone: Callable[[int], tzinfo]) -> time | None:
    """The same with an offset from Greenwich, of which ``zone`` makes a zone: so many seconds east. Never in Python."""
    return None


def put_day(out: bytearray, days: int) -> bool:
    """Append a date; says whether it is one before Christ."""
    cycles, place = divmod(days + _EPOCH_DAY - 1, _DAYS_OF_THEM)
    value = date.fromordinal(place + 1)
    year = value.year + cycles * _YEARS
    out += b"%04d-%02d-%02d" % (year if year > 0 else 1 - year, value.month, value.day)
    return year <= 0


def put_moment(out: bytearray, microseconds: int) -> bool:
    """Append date and time; says whether it is one before Christ."""
    days, rest = divmod(microseconds, _DAY)
    before_christ = put_day(out, days)
    out += b" "
    put_clock(out, rest)
    return before_christ


def put_clock(out: bytearray, microseconds: int) -> None:
    """Append a time of day or, of an interval, up to 99 hours, with as many places as it needs."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    out += b"%02d:%02d:%02d" % (*divmod(minutes, 60), second)
    if fraction:
        out += (b".%06d" % fraction).rstrip(b"0")
