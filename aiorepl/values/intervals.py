"""interval, which ``timedelta`` cannot represent: a month has no fixed number of days, nor a day of hours.

Python value: ``Interval``. ``infinity`` and ``-infinity`` (PostgreSQL 17) stay ``str``.

Source: ``interval_send``, ``EncodeInterval`` with IntervalStyle postgres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aiorepl import byteops
from aiorepl.values import calendar, objects
from aiorepl.values.codec import Malformed, form_codec
from aiorepl.values.forms import Binary, Form

# C constants in the compiled form.
_LOWEST, _HIGHEST, _MOST = -(2**63), 2**63 - 1, 2**63 - 1  # _MOST is an unsigned number
_LOWEST_PART, _HIGHEST_PART = -(2**31), 2**31 - 1
_HUNDRED_HOURS, _MOST_HOURS = 360_000_000_000, 2_562_047_788
_YEARS, _MONTHS, _DAYS, _CLOCK = 1, 2, 3, 4
_ZERO, _NINE, _PLUS, _MINUS, _COLON, _POINT, _SPACE = b"09+-:. "
_UNITS: Final = (b" year", b" mon", b" day")


@dataclass(frozen=True, slots=True)
class Interval:
    """Months, days and microseconds, kept apart as PostgreSQL keeps them. ``str()`` gives PostgreSQL's text."""

    months: int = 0
    days: int = 0
    microseconds: int = 0

    def __str__(self) -> str:
        out = byteops.buffer()
        put_interval(out, self.months, self.days, self.microseconds)
        return byteops.text(out)


def put_interval(out: bytearray, months: int, days: int, microseconds: int) -> None:
    """Append PostgreSQL's text."""
    years = byteops.magnitude(months) // 12
    begun = negative = False
    for index in range(3):
        value = days
        if index < 2:
            value = years if index == 0 else byteops.magnitude(months) % 12
            if months < 0:
                value = -value
        if not value:
            continue
        if begun:
            byteops.put(out, b" ")
        # A plus sign is written only after a negative part.
        if negative and value > 0:
            byteops.put(out, b"+")
        byteops.put_number(out, value)
        byteops.put(out, _UNITS[index])
        if value != 1:
            byteops.put(out, b"s")
        begun = True
        negative = value < 0
    if begun and not microseconds:
        return
    if begun:
        byteops.put(out, b" ")
    if microseconds < 0:
        byteops.put(out, b"-")
    elif negative:
        byteops.put(out, b"+")
    size = byteops.magnitude(microseconds)
    hundreds = size // _HUNDRED_HOURS
    if hundreds:
        byteops.put_unsigned(out, hundreds)
    calendar.put_time(out, size - hundreds * _HUNDRED_HOURS)


def _interval(months: int, days: int, microseconds: int) -> Interval:
    """Return ``Interval(…)`` in a fifth of the time."""
    value: Interval = objects.bare(Interval)
    objects.set_field(value, "months", months)
    objects.set_field(value, "days", days)
    objects.set_field(value, "microseconds", microseconds)
    return value


class IntervalBinary(Binary):
    """Microseconds, days and months."""

    def read(self, raw: bytes) -> Any:
        infinity = _infinity(raw)
        if infinity is not None:
            return infinity.decode()
        data: Any = raw  # a pointer in the compiled form
        return _interval(byteops.int32(data, 12), byteops.int32(data, 8), byteops.int64(data, 0))

    def put(self, out: bytearray, raw: bytes) -> None:
        infinity = _infinity(raw)
        if infinity is not None:
            byteops.put(out, infinity)
            return
        data: Any = raw  # a pointer in the compiled form
        put_interval(out, byteops.int32(data, 12), byteops.int32(data, 8), byteops.int64(data, 0))


def _infinity(raw: bytes) -> bytes | None:
    """Return the text of an infinite interval; ``None`` for a finite one.

    Before PostgreSQL 17 these bytes are the extremes of the range. They print as infinite here as well, because the
    server's version is not known in this module.
    """
    if len(raw) != 16:
        raise ValueError
    data: Any = raw  # a pointer in the compiled form
    microseconds, days, months = byteops.int64(data, 0), byteops.int32(data, 8), byteops.int32(data, 12)
    if microseconds == _HIGHEST and days == _HIGHEST_PART and months == _HIGHEST_PART:
        return b"infinity"
    if microseconds == _LOWEST and days == _LOWEST_PART and months == _LOWEST_PART:
        return b"-infinity"
    return None


class IntervalText(Form):
    """Years, months, days and a time, each optional, in this order."""

    def read(self, raw: bytes) -> Any:
        size = len(raw)
        data: Any = raw  # a pointer in the compiled form
        at = last = months = days = 0
        clock = 0
        negative = False
        while at < size:
            if last:
                if data[at] != _SPACE:
                    raise _strange()
                at += 1
            negative = at < size and data[at] == _MINUS
            if negative or (at < size and data[at] == _PLUS):
                at += 1
            start = at
            number = 0
            while at < size and at - start < 10 and _ZERO <= data[at] <= _NINE:
                number = number * 10 + data[at] - _ZERO
                at += 1
            if at == start or last == _CLOCK:
                if raw in (b"infinity", b"-infinity"):
                    return raw.decode()
                raise _strange()
            value = -number if negative else number
            if byteops.has_at(raw, at, b" year") and last < _YEARS:
                last = _YEARS
                at += 5
                months = 12 * value
            elif byteops.has_at(raw, at, b" mon") and last < _MONTHS:
                last = _MONTHS
                at += 4
                months += value
            elif byteops.has_at(raw, at, b" day") and last < _DAYS:
                last = _DAYS
                at += 4
                days = value
            elif at < size and data[at] == _COLON:
                last = _CLOCK
                clock = _clock(data, number, at, size)
                at = size
            else:
                raise _strange()
            if at < size and byteops.has_at(raw, at, b"s"):
                at += 1
        if not last:
            raise _strange()
        # The negative range is larger by one.
        if not (
            _LOWEST_PART <= months <= _HIGHEST_PART
            and _LOWEST_PART <= days <= _HIGHEST_PART
            and (clock <= _MOST or (negative and clock - 1 == _MOST))
        ):
            raise Malformed("out of PostgreSQL's range")
        # The time is the last part, so ``negative`` is its sign.
        microseconds = _LOWEST if clock > _MOST else clock
        if negative and clock <= _MOST:
            microseconds = -microseconds
        return _interval(months, days, microseconds)


def _clock(data: Any, hours: int, at: int, size: int) -> int:
    """Return the microseconds of a time that begins with ``hours``; the first colon is at ``at``."""
    minutes = _two(data, at + 1, size)
    if at + 3 >= size or data[at + 3] != _COLON:
        raise _strange()
    seconds = _two(data, at + 4, size)
    if hours > _MOST_HOURS or minutes > 59 or seconds > 59:
        raise Malformed("out of PostgreSQL's range")
    fraction = 0
    places = 6
    if at + 6 < size:
        if data[at + 6] != _POINT or not 8 <= size - at <= 13:
            raise _strange()
        for index in range(at + 7, size):
            if not _ZERO <= data[index] <= _NINE:
                raise _strange()
            fraction = fraction * 10 + data[index] - _ZERO
            places -= 1
        while places:
            fraction *= 10
            places -= 1
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction


def _two(data: Any, at: int, size: int) -> int:
    """Return the number of two digits."""
    if at + 2 > size or not (_ZERO <= data[at] <= _NINE and _ZERO <= data[at + 1] <= _NINE):
        raise _strange()
    number: int = (data[at] - _ZERO) * 10 + data[at + 1] - _ZERO
    return number


def _strange() -> Malformed:
    return Malformed("not in IntervalStyle postgres")


CODECS: Final = {"interval": form_codec(IntervalText(), IntervalBinary())}
