"""The buffers of Arrow arrays, filled from PostgreSQL's text without an object for each value. Pure.

As in ``binary_columns``, a column refuses special values: infinity, years before 1 and after 9999, NaN, more than 18 digits of a
numeric. The caller converts refused values by ``columns``.

Imports nothing of pyarrow, so that it compiles.
"""

from __future__ import annotations

from typing import Any

from aiorepl import byteops
from aiorepl.formats.arrow.binary_columns import Column, _Fixed, _Variable

# The compiled form declares these names as C numbers.
_ZERO, _MINUS, _PLUS, _POINT, _COLON, _HYPHEN, _SPACE = b"0-+.:- "
_TRUE, _FALSE, _BACKSLASH, _X = b"tf\\x"
_MOST_DIGITS = 18
# The first 18 digits of the largest 64-bit integer; its last digit is 7.
_INT64_HEAD = 922_337_203_685_477_580
_SECOND, _DAY = 1_000_000, 86_400_000_000
_NOTHING = -(2**63)
_POWERS = [10**power for power in range(19)]


class Integer(_Fixed):
    """int2, int4, int8 and oid, in ``size`` bytes.

    :param size: 2, 4 or 8.
    """

    def __init__(self, rows: int, size: int) -> None:
        self.size = size
        self.limit = 1 << (8 * size - 1) if size < 8 else 0
        super().__init__(rows)

    def width(self) -> int:
        return self.size

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        negative = start < end and data[start] == _MINUS
        first = start + 1 if negative else start
        digits = end - first
        if digits <= _MOST_DIGITS:
            number = _number(data, first, end)
        elif digits == _MOST_DIGITS + 1:
            number = _number(data, first, end - 1)
            last = _number(data, end - 1, end)
            number = 10 * number + last if 0 <= number < _INT64_HEAD and last >= 0 else -1
        else:
            number = -1
        if number < 0 or (self.limit and number >= self.limit + negative):
            return False
        if negative:
            number = -number
        if self.size == 8:
            byteops.set_int64(target, 8 * row, number)
        elif self.size == 4:
            byteops.set_int32(target, 4 * row, number)
        else:
            byteops.set_int16(target, 2 * row, number)
        return True


class Boolean(Column):
    """bool, one bit each."""

    def reserve(self, rows: int) -> None:
        Column.reserve(self, rows)
        self.values += bytes((rows + 7) // 8 - len(self.values))

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        if end - start != 1 or (data[start] != _TRUE and data[start] != _FALSE):
            return False
        if data[start] == _TRUE:
            target[row >> 3] |= 1 << (row & 7)
        return True


class Date(_Fixed):
    """date, as days since 1970."""

    def width(self) -> int:
        return 4

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        days = _days(data, start) if end - start == 10 else _NOTHING
        if days == _NOTHING:
            return False
        byteops.set_int32(target, 4 * row, days)
        return True


class Timestamp(_Fixed):
    """timestamp and timestamptz, as microseconds since 1970."""

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        days = _days(data, start) if end - start >= 19 and data[start + 10] == _SPACE else _NOTHING
        clock = start + 11
        stop = clock + 8
        while stop < end and data[stop] != _PLUS and data[stop] != _HYPHEN:
            stop += 1
        time = _clock(data, clock, stop) if days != _NOTHING else _NOTHING
        east = _offset(data, stop, end) if time != _NOTHING else _NOTHING
        if east == _NOTHING:
            return False
        byteops.set_int64(target, 8 * row, days * _DAY + time - east * _SECOND)
        return True


class Decimal128(_Fixed):
    """numeric(p,s) of at most 18 digits.

    :param precision: the digits in the array.
    :param scale: the number of digits after the point.
    """

    def __init__(self, rows: int, precision: int, scale: int) -> None:
        self.scale = scale
        self.limit = _POWERS[min(precision, _MOST_DIGITS)]
        super().__init__(rows)

    def width(self) -> int:
        return 16

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        negative = start < end and data[start] == _MINUS
        at = start + 1 if negative else start
        point = at
        while point < end and data[point] != _POINT:
            point += 1
        places = end - point - 1 if point < end else 0
        missing = self.scale - places
        if point - at + self.scale > _MOST_DIGITS or missing < 0 or (point < end and not places):
            return False
        number = _number(data, at, point)
        if places and number >= 0:
            fraction = _number(data, point + 1, end)
            power = _POWERS[places]
            number = number * power + fraction if fraction >= 0 else -1
        if number >= 0:
            power = _POWERS[missing]
            number *= power
        if number < 0 or number >= self.limit:
            return False
        if negative:
            number = -number
        byteops.set_int64(target, 16 * row, number)
        byteops.set_int64(target, 16 * row + 8, -1 if number < 0 else 0)
        return True


class Hex(_Variable):
    """bytea in PostgreSQL's hex format."""

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        if end - start < 2 or data[start] != _BACKSLASH or data[start + 1] != _X:
            return False
        size = len(self.values)
        try:
            byteops.put(self.values, byteops.unhex(byteops.cut(data, start + 2, end), 0))
        except ValueError:
            byteops.shorten(self.values, size)
            return False
        self.end(row)
        return True


def _number(data: Any, start: int, end: int) -> int:
    """Return the number of up to 18 digits in ``data[start:end]``; -1 if there is something else."""
    number = 0
    if start >= end:
        return -1
    for at in range(start, end):
        digit = data[at] - _ZERO
        if digit < 0 or digit > 9:
            return -1
        number = number * 10 + digit
    return number


def _days(data: Any, start: int) -> int:
    """Return the days since 1970 of the date in the ten characters from ``start`` on, or ``_NOTHING``.

    Source: "days_from_civil" of Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms".
    """
    year, month = _number(data, start, start + 4), _number(data, start + 5, start + 7)
    day = _number(data, start + 8, start + 10)
    if data[start + 4] != _HYPHEN or data[start + 7] != _HYPHEN or year < 1 or month < 1 or day < 1:
        return _NOTHING
    if month > 12 or day > 31:
        return _NOTHING
    if month <= 2:
        year -= 1
        month += 9
    else:
        month -= 3
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * month + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _clock(data: Any, start: int, end: int) -> int:
    """Return the microseconds of the time of day in ``data[start:end]``, at least 8 characters, or ``_NOTHING``."""
    hour, minute = _number(data, start, start + 2), _number(data, start + 3, start + 5)
    second = _number(data, start + 6, start + 8)
    if data[start + 2] != _COLON or data[start + 5] != _COLON or hour < 0 or minute < 0 or second < 0:
        return _NOTHING
    if hour > 23 or minute > 59 or second > 59:
        return _NOTHING
    fraction = 0
    if end - start > 8:
        places = end - start - 9
        if data[start + 8] != _POINT or places < 1 or places > 6:
            return _NOTHING
        fraction = _number(data, start + 9, end)
        if fraction < 0:
            return _NOTHING
        power = _POWERS[6 - places]
        fraction *= power
    return (hour * 3600 + minute * 60 + second) * _SECOND + fraction


def _offset(data: Any, start: int, end: int) -> int:
    """Return the seconds east of UTC in ``data[start:end]``: nothing, or +HH, +HH:MM or +HH:MM:SS; else ``_NOTHING``."""
    seconds = 0
    weight = 3600
    if (end - start) % 3 or end - start > 9:
        return _NOTHING
    for at in range(start, end, 3):
        part = _number(data, at + 1, at + 3)
        if part < 0 or (at > start and data[at] != _COLON):
            return _NOTHING
        seconds += part * weight
        weight //= 60
    return -seconds if start < end and data[start] == _HYPHEN else seconds
