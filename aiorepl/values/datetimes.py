"""Dates and times: date, time, timetz, timestamp, timestamptz. (``intervals`` has interval.)

Python values: ``date``, ``time``, ``datetime``; timestamptz is aware, in UTC; timetz keeps its offset. Values outside
Python's range are PostgreSQL's text, a ``str``, from either form: ``infinity`` and ``-infinity``, years
before 1 (``0044-03-15 BC``) or after 9999, and the time ``24:00:00``.

Text is that of DateStyle ISO and TimeZone UTC. Binary counts days or microseconds from 2000-01-01.

Source: ``date_send``, ``timestamptz_send``, ``timetz_send``, ``EncodeDateTime``; ranges in datatype/timestamp.h.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Final

from aiorepl import byteops
from aiorepl.values import calendar
from aiorepl.values.codec import Malformed, form_codec
from aiorepl.values.forms import Binary, Form

# C constants in the compiled form.
_DAY = 86_400_000_000
_FIRST_DAY, _END_OF_DAYS = -2451545, 2145031949
_FIRST_MOMENT, _END_OF_MOMENTS = -211813488000000000, 9223371331200000000
_MAX_OFFSET = 16 * 3600

_OFFSET: Final = r"(?:[+-]\d\d(?::\d\d){0,2})?"
_BEYOND: Final = re.compile(
    rf"-?infinity|24:00:00{_OFFSET}|"
    rf"(?=\d{{5}}|.* BC$)\d{{4,7}}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d{{1,6}})?{_OFFSET})?(?: BC)?"
)


def _beyond(text: str) -> str:
    """Return well-formed text that is outside Python's range."""
    if _BEYOND.fullmatch(text) is None:
        raise Malformed("neither ISO nor infinity; is DateStyle ISO?")
    return text


def _parsed(parse: Callable[[str], Any], raw: bytes) -> Any:
    text = raw.decode("ascii")
    try:
        return parse(text)
    except ValueError:
        return _beyond(text)


def _parse_time(text: str) -> time | str:
    # Newer versions of Python read 24:00 as 00:00, which is another time.
    return _beyond(text) if text.startswith("24") else time.fromisoformat(text)


def _parse_timestamptz(text: str) -> datetime | str:
    value = datetime.fromisoformat(text)
    if value.tzinfo is UTC:
        return value
    try:
        return value.astimezone(UTC)
    except OverflowError:
        return text


class Timestamp(Binary):
    """timestamp and timestamptz: microseconds.

    :param zone: the tzinfo of the Python value, UTC or ``None``.
    :param suffix: the end of the text.
    """

    def __init__(self, zone: tzinfo | None, suffix: bytes) -> None:
        self._zone = zone
        self._suffix = suffix

    def read(self, raw: bytes) -> Any:
        try:
            return calendar.datetime_of(_int64(raw), self._zone)
        except ArithmeticError:
            return self.text(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        microseconds = _int64(raw)
        if not _FIRST_MOMENT <= microseconds < _END_OF_MOMENTS:
            byteops.put(out, _infinity(microseconds, -(2**63), 2**63 - 1))
            return
        before_christ = calendar.put_datetime(out, microseconds)
        byteops.put(out, self._suffix)
        if before_christ:
            byteops.put(out, b" BC")


class TimestampText(Form):
    """timestamp and timestamptz, in ISO.

    :param parse: reads text that ``calendar.parse_datetime`` rejects.
    """

    def __init__(self, zone: tzinfo | None, parse: Callable[[str], Any]) -> None:
        self._zone = zone
        self._parse = parse

    def read(self, raw: bytes) -> Any:
        value = calendar.parse_datetime(raw, self._zone)
        return _parsed(self._parse, raw) if value is None else value


class Date(Binary):
    """The type date. Its binary form is a number of days since 2000-01-01."""

    def read(self, raw: bytes) -> Any:
        try:
            return calendar.date_of(_int32(raw))
        except (ArithmeticError, ValueError):
            return self.text(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        days = _int32(raw)
        if not _FIRST_DAY <= days < _END_OF_DAYS:
            byteops.put(out, _infinity(days, -(2**31), 2**31 - 1))
        elif calendar.put_date(out, days):
            byteops.put(out, b" BC")


class DateText(Form):
    """date, in ISO."""

    def read(self, raw: bytes) -> Any:
        value = calendar.parse_date(raw)
        return _parsed(date.fromisoformat, raw) if value is None else value


class Time(Binary):
    """The type time. Its binary form is the microseconds since midnight."""

    def read(self, raw: bytes) -> Any:
        microseconds = _clock(raw)
        return self.text(raw) if microseconds == _DAY else calendar.time_of(microseconds, None)

    def put(self, out: bytearray, raw: bytes) -> None:
        calendar.put_time(out, _clock(raw))


class TimeText(Form):
    """time, in ISO."""

    def read(self, raw: bytes) -> Any:
        value = calendar.parse_time(raw)
        return _parsed(_parse_time, raw) if value is None else value


class TimeTz(Binary):
    """timetz: microseconds, then the zone's offset in seconds west of UTC."""

    def read(self, raw: bytes) -> Any:
        microseconds = _timetz_microseconds(raw)
        if microseconds == _DAY:
            return self.text(raw)
        data: Any = raw  # a pointer in the compiled form
        return calendar.time_of(microseconds, _zone(-byteops.int32(data, 8)))

    def put(self, out: bytearray, raw: bytes) -> None:
        calendar.put_time(out, _timetz_microseconds(raw))
        data: Any = raw  # a pointer in the compiled form
        west = byteops.int32(data, 8)
        seconds = byteops.magnitude(west)
        byteops.put(out, b"-" if west > 0 else b"+")
        # Minutes and seconds of the offset are printed only if they are not zero.
        byteops.put_padded(out, seconds // 3600, 2)
        if seconds % 3600:
            byteops.put(out, b":")
            byteops.put_padded(out, seconds // 60 % 60, 2)
        if seconds % 60:
            byteops.put(out, b":")
            byteops.put_padded(out, seconds % 60, 2)


class TimeTzText(Form):
    """timetz, in ISO."""

    def read(self, raw: bytes) -> Any:
        value = calendar.parse_timetz(raw, _zone)
        return _parsed(_parse_time, raw) if value is None else value


@lru_cache(maxsize=256)
def _zone(east: int) -> tzinfo:
    return timezone(timedelta(seconds=east)) if east else UTC


def _timetz_microseconds(raw: bytes) -> int:
    """Return the microseconds of a timetz, verified to be in PostgreSQL's range."""
    if len(raw) != 12:
        raise ValueError
    data: Any = raw  # a pointer in the compiled form
    microseconds, west = byteops.int64(data, 0), byteops.int32(data, 8)
    if not 0 <= microseconds <= _DAY or not -_MAX_OFFSET < west < _MAX_OFFSET:
        raise Malformed("out of PostgreSQL's range")
    return microseconds


def _int64(raw: bytes) -> int:
    if len(raw) != 8:
        raise ValueError
    data: Any = raw  # a pointer in the compiled form
    return byteops.int64(data, 0)


def _int32(raw: bytes) -> int:
    if len(raw) != 4:
        raise ValueError
    data: Any = raw  # a pointer in the compiled form
    return byteops.int32(data, 0)


def _clock(raw: bytes) -> int:
    microseconds = _int64(raw)
    if not 0 <= microseconds <= _DAY:
        raise Malformed("out of PostgreSQL's range")
    return microseconds


def _infinity(value: int, negative: int, positive: int) -> bytes:
    if value == positive:
        return b"infinity"
    if value == negative:
        return b"-infinity"
    raise Malformed("out of PostgreSQL's range")


CODECS: Final = {
    "date": form_codec(DateText(), Date()),
    "time": form_codec(TimeText(), Time()),
    "timetz": form_codec(TimeTzText(), TimeTz()),
    "timestamp": form_codec(TimestampText(None, datetime.fromisoformat), Timestamp(None, b"")),
    "timestamptz": form_codec(TimestampText(UTC, _parse_timestamptz), Timestamp(UTC, b"+00")),
}
