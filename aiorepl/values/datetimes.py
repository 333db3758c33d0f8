"""Dates and times: date, time, timetz, timestamp, timestamptz. (interval is next door.)

Python values: ``date``, ``time``, ``datetime``; timestamptz is aware, in UTC, timetz keeps its offset. What
Python cannot hold stays PostgreSQL's text, a ``str``, from either form: ``infinity`` and ``-infinity``, years
before 1 (``0044-03-15 BC``) or after 9999, and the time ``24:00:00``.

Text is that of DateStyle ISO and TimeZone UTC. Binary counts days or microseconds from 2000-01-01.

Source: ``date_send``, ``timestamptz_send``, ``timetz_send``, ``EncodeDateTime``; ranges in datatype/timestamp.h.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from aiorepl.values.codec import Malformed, codec, quoted

_DATE: Final = struct.Struct("!i")
_MICROSECONDS: Final = struct.Struct("!q")
_TIMETZ: Final = struct.Struct("!qi")

_EPOCH_DAY: Final = date(2000, 1, 1).toordinal()
_EPOCH: Final = datetime(2000, 1, 1)
_EPOCH_UTC: Final = _EPOCH.replace(tzinfo=UTC)
_DAY: Final = 86_400_000_000
# The Gregorian calendar repeats itself, so any year is printed by way of one that Python has.
_YEARS, _DAYS_OF_THEM = 400, 146_097

_DATE_LIMITS: Final = range(-2451545, 2145031949)
_TIMESTAMP_LIMITS: Final = range(-211813488000000000, 9223371331200000000)
_DATE_INFINITY: Final = {-(2**31): "-infinity", 2**31 - 1: "infinity"}
_TIMESTAMP_INFINITY: Final = {-(2**63): "-infinity", 2**63 - 1: "infinity"}
_MAX_OFFSET: Final = 16 * 3600

_OFFSET: Final = r"(?:[+-]\d\d(?::\d\d){0,2})?"
_BEYOND: Final = re.compile(
    rf"-?infinity|24:00:00{_OFFSET}|"
    rf"(?=\d{{5}}|.* BC$)\d{{4,7}}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d{{1,6}})?{_OFFSET})?(?: BC)?"
)


def _beyond(text: str) -> str:
    """Text that is well formed and yet no value of Python's."""
    if _BEYOND.fullmatch(text) is None:
        raise Malformed("neither ISO nor infinity; is DateStyle ISO?")
    return text


def _reader(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    def read(raw: bytes) -> Any:
        text = str(raw, "ascii")
        try:
            return parse(text)
        except ValueError:
            return _beyond(text)

    return read


def _parse_time(text: str) -> time | str:
    # Newer Pythons take 24:00 for the midnight before, which is another time.
    return _beyond(text) if text.startswith("24") else time.fromisoformat(text)


def _parse_timestamptz(text: str) -> datetime | str:
    value = datetime.fromisoformat(text)
    if value.tzinfo is UTC:
        return value
    try:
        return value.astimezone(UTC)
    except OverflowError:
        return text


def _print_days(days: int) -> tuple[str, str]:
    """A day as ``("0044-03-15", " BC")``: a time may stand between the two."""
    cycles, day = divmod(days + _EPOCH_DAY - 1, _DAYS_OF_THEM)
    value = date.fromordinal(day + 1)
    year = value.year + cycles * _YEARS
    era = ""
    if year <= 0:
        year, era = 1 - year, " BC"
    return f"{year:04d}-{value.month:02d}-{value.day:02d}", era


def _print_clock(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def _print_offset(west: int) -> str:
    """Seconds west of Greenwich, as timetz counts, in the ISO way: east is plus, no more parts than needed."""
    minutes, second = divmod(abs(west), 60)
    hour, minute = divmod(minutes, 60)
    text = f"{'-' if west > 0 else '+'}{hour:02d}"
    if second:
        return f"{text}:{minute:02d}:{second:02d}"
    return f"{text}:{minute:02d}" if minute else text


def _print_date(raw: bytes) -> str:
    (days,) = _DATE.unpack(raw)
    if days not in _DATE_LIMITS:
        return _infinity(_DATE_INFINITY, days)
    return "".join(_print_days(days))


def _infinity(names: dict[int, str], value: int) -> str:
    if value not in names:
        raise Malformed("out of PostgreSQL's range")
    return names[value]


def _print_moment(raw: bytes, zone: str) -> str:
    (microseconds,) = _MICROSECONDS.unpack(raw)
    if microseconds not in _TIMESTAMP_LIMITS:
        return _infinity(_TIMESTAMP_INFINITY, microseconds)
    days, clock = divmod(microseconds, _DAY)
    day, era = _print_days(days)
    return f"{day} {_print_clock(clock)}{zone}{era}"


def _print_timestamp(raw: bytes) -> str:
    return _print_moment(raw, "")


def _print_timestamptz(raw: bytes) -> str:
    return _print_moment(raw, "+00")


def _print_time(raw: bytes) -> str:
    (microseconds,) = _MICROSECONDS.unpack(raw)
    if not 0 <= microseconds <= _DAY:
        raise Malformed("out of PostgreSQL's range")
    return _print_clock(microseconds)


def _print_timetz(raw: bytes) -> str:
    microseconds, west = _TIMETZ.unpack(raw)
    if not 0 <= microseconds <= _DAY or not -_MAX_OFFSET < west < _MAX_OFFSET:
        raise Malformed("out of PostgreSQL's range")
    return _print_clock(microseconds) + _print_offset(west)


def _read_date_binary(raw: bytes) -> date | str:
    (days,) = _DATE.unpack(raw)
    try:
        return date.fromordinal(days + _EPOCH_DAY)
    except (ValueError, OverflowError):
        return _print_date(raw)


def _read_timestamp_binary(raw: bytes) -> datetime | str:
    try:
        return _EPOCH + timedelta(microseconds=_MICROSECONDS.unpack(raw)[0])
    except OverflowError:
        return _print_timestamp(raw)


def _read_timestamptz_binary(raw: bytes) -> datetime | str:
    try:
        return _EPOCH_UTC + timedelta(microseconds=_MICROSECONDS.unpack(raw)[0])
    except OverflowError:
        return _print_timestamptz(raw)


def _read_time_binary(raw: bytes) -> time | str:
    return _parse_time(_print_time(raw))


def _read_timetz_binary(raw: bytes) -> time | str:
    return _parse_time(_print_timetz(raw))


CODECS: Final = {
    "date": codec(_reader(date.fromisoformat), _read_date_binary, _print_date, quoted),
    "time": codec(_reader(_parse_time), _read_time_binary, _print_time, quoted),
    "timetz": codec(_reader(_parse_time), _read_timetz_binary, _print_timetz, quoted),
    "timestamp": codec(_reader(datetime.fromisoformat), _read_timestamp_binary, _print_timestamp, quoted),
    "timestamptz": codec(_reader(_parse_timestamptz), _read_timestamptz_binary, _print_timestamptz, quoted),
}
