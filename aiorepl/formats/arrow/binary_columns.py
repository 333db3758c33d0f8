"""The buffers of Arrow arrays, filled from PostgreSQL's binary form without an object for each value. Pure.

A column refuses a value that its array cannot hold (infinity, NaN, bytes that are not UTF-8), or that is not valid for its
type. The row is null then, and the caller converts the value's text instead.

Imports nothing of pyarrow, so that it compiles.
"""

from __future__ import annotations

from typing import Any

from aiorepl import byteops
from aiorepl.values.forms import Binary

# The compiled form declares these names as C numbers.
_INT32_LEAST, _INT32_MOST = -(2**31), 2**31 - 1
_INT64_LEAST, _INT64_MOST = -(2**63), 2**63 - 1
_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = 946_684_800_000_000
_POSITIVE, _NEGATIVE = 0x0000, 0x4000
# The most groups of four digits that fit into 64 bits.
_MOST_GROUPS = 4
_MOST_DIGITS = 18
_JSONB_VERSION = 1
_POWERS = [
    1,
    10,
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
    100_000_000_000,
    1_000_000_000_000,
    10_000_000_000_000,
    100_000_000_000_000,
    1_000_000_000_000_000,
    10_000_000_000_000_000,
    100_000_000_000_000_000,
    1_000_000_000_000_000_000,
]


class Column:
    """The base of all columns. By itself it refuses every value.

    :param rows: the number of rows.
    :ivar refused: row, start and end of each value that was refused.
    """

    def __init__(self, rows: int) -> None:
        self.refused: list[tuple[int, int, int]] = []
        self.nulls = 0
        self.valid = bytearray()
        self.values = bytearray()
        self.offsets: bytearray | None = None
        self.reserve(rows)

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows in total."""
        self.valid += b"\xff" * ((rows + 7) // 8 - len(self.valid))

    def null(self, row: int) -> None:
        """Set a row to null."""
        target: Any = self.valid  # a pointer in the compiled form, as in the other methods
        target[row >> 3] &= 255 ^ (1 << (row & 7))
        self.nulls += 1

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        """Set a row to the value ``data[start:end]``; return whether the array can hold the value."""
        return False

    def put_all(self, row: int, count: int, data: Any, fields: Any, at: int, step: int) -> None:
        """Set ``count`` rows from ``row`` on.

        :param fields: start and end of each value in ``data``, eight bytes each; the end of NULL is -1.
        :param at: where in ``fields`` the first value is.
        :param step: the distance from one value to the next in ``fields``.
        """
        for number in range(row, row + count):
            start, end = byteops.native_int64(fields, at), byteops.native_int64(fields, at + 8)
            if end < 0:
                self.null(number)
            elif not self.put(number, data, start, end):
                self.refuse(number, start, end)
            at += step

    def refuse(self, row: int, start: int, end: int) -> None:
        """Set a row to null, and remember where the refused value is."""
        self.null(row)
        self.refused.append((row, start, end))


class Skipped(Column):
    """A column that is left out: it stores nothing."""

    def null(self, row: int) -> None:
        pass

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        return True

    def refuse(self, row: int, start: int, end: int) -> None:
        pass


class _Fixed(Column):
    """Values of ``width`` bytes."""

    def reserve(self, rows: int) -> None:
        Column.reserve(self, rows)
        self.values += bytes(rows * self.width() - len(self.values))

    def width(self) -> int:
        """Return the bytes of a value in the array."""
        return 8


class Int16(_Fixed):
    """int2."""

    def width(self) -> int:
        return 2

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        if end - start != 2:
            return False
        byteops.set_int16(target, 2 * row, byteops.int16(data, start))
        return True


class Int32(_Fixed):
    """int4, and float4, whose bits are copied."""

    def width(self) -> int:
        return 4

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        if end - start != 4:
            return False
        byteops.set_int32(target, 4 * row, byteops.int32(data, start))
        return True


class Int64(_Fixed):
    """int8, and float8, whose bits are copied."""

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        if end - start != 8:
            return False
        byteops.set_int64(target, 8 * row, byteops.int64(data, start))
        return True


class Oid(_Fixed):
    """oid, as int64."""

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        if end - start != 4:
            return False
        byteops.set_int64(target, 8 * row, byteops.uint32(data, start))
        return True


class Boolean(Column):
    """bool, one bit each."""

    def reserve(self, rows: int) -> None:
        Column.reserve(self, rows)
        self.values += bytes((rows + 7) // 8 - len(self.values))

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        if end - start != 1 or data[start] > 1:
            return False
        if data[start]:
            target[row >> 3] |= 1 << (row & 7)
        return True


class Date(_Fixed):
    """date, as days since 1970."""

    def width(self) -> int:
        return 4

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        if end - start != 4:
            return False
        days = byteops.int32(data, start)
        if days == _INT32_LEAST or days > _INT32_MOST - _DAYS_TO_2000:
            return False
        byteops.set_int32(target, 4 * row, days + _DAYS_TO_2000)
        return True


class Timestamp(_Fixed):
    """timestamp and timestamptz, as microseconds since 1970."""

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        if end - start != 8:
            return False
        time = byteops.int64(data, start)
        if time == _INT64_LEAST or time > _INT64_MOST - _MICROSECONDS_TO_2000:
            return False
        byteops.set_int64(target, 8 * row, time + _MICROSECONDS_TO_2000)
        return True


class Decimal128(_Fixed):
    """numeric(p,s) of at most 18 digits.

    :param precision: the digits in the array.
    :param scale: the number of digits after the point.

    Source: ``numeric_send``: the number of groups of four digits, the weight of the first one, sign, scale, and the groups.
    """

    def __init__(self, rows: int, precision: int, scale: int) -> None:
        self.scale = scale
        self.limit = _POWERS[min(precision, _MOST_DIGITS)]
        super().__init__(rows)

    def width(self) -> int:
        return 16

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        target: Any = self.values
        groups = byteops.uint16(data, start) if end - start >= 8 else -1
        if end - start != 8 + 2 * groups or groups > _MOST_GROUPS:
            return False
        weight, sign = byteops.int16(data, start + 2), byteops.uint16(data, start + 4)
        # The last group of digits counts in units of 10 ** power, at the array's scale.
        power = 4 * (weight + 1 - groups) + self.scale
        if (sign != _POSITIVE and sign != _NEGATIVE) or power < -3 or 4 * groups + power > _MOST_DIGITS:
            if groups or (sign != _POSITIVE and sign != _NEGATIVE):
                return False
            power = 0
        number = 0
        at = start + 8
        for _ in range(groups):
            number = number * 10_000 + byteops.uint16(data, at)
            at += 2
        if power >= 0:
            number *= _POWERS[power]
        else:
            rest = number
            number //= _POWERS[-power]
            if number * _POWERS[-power] != rest:
                return False
        if number >= self.limit:
            return False
        negative = sign == _NEGATIVE and number > 0
        byteops.set_int64(target, 16 * row, -number if negative else number)
        byteops.set_int64(target, 16 * row + 8, -1 if negative else 0)
        return True


class _Variable(Column):
    """Values of any length."""

    def reserve(self, rows: int) -> None:
        Column.reserve(self, rows)
        if self.offsets is None:
            self.offsets = bytearray(4)
        self.offsets += bytes(4 * (rows + 1) - len(self.offsets))

    def null(self, row: int) -> None:
        Column.null(self, row)
        self.end(row)

    def end(self, row: int) -> None:
        """Record where the value of a row ends."""
        target: Any = self.offsets
        byteops.set_int32(target, 4 * (row + 1), len(self.values))


class _Copied(_Variable):
    """Values whose bytes are copied. ``values`` may be longer than its content."""

    def __init__(self, rows: int) -> None:
        self.used = 0
        super().__init__(rows)

    def end(self, row: int) -> None:
        target: Any = self.offsets
        byteops.set_int32(target, 4 * (row + 1), self.used)

    def copy(self, row: int, data: Any, start: int, end: int) -> bool:
        """Set a row to the bytes ``data[start:end]``."""
        used = self.used + end - start
        if used > len(self.values):
            byteops.extend(self.values, used - len(self.values) + used // 2)
        target: Any = self.values
        byteops.copy_into(target, self.used, data, start, end)
        self.used = used
        self.end(row)
        return True


class Bytes(_Copied):
    """bytea."""

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        return self.copy(row, data, start, end)


class Text(_Copied):
    """Types whose binary form is their text, and columns that were selected as text."""

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        return self.copy(row, data, start, end) if byteops.is_utf8(data, start, end) else False

    def put_all(self, row: int, count: int, data: Any, fields: Any, at: int, step: int) -> None:
        # Copy the texts before they are verified: most texts are ASCII, and one check of all bytes is the fastest.
        first = used = self.used
        nulls = 0
        place = at
        for _ in range(count):
            start, end = byteops.native_int64(fields, place), byteops.native_int64(fields, place + 8)
            if end >= 0:
                used += end - start
            place += step
        if used > len(self.values):
            byteops.extend(self.values, used - len(self.values) + used // 2)
        target: Any = self.values
        ends: Any = self.offsets
        used = first
        place = at
        for number in range(row, row + count):
            start, end = byteops.native_int64(fields, place), byteops.native_int64(fields, place + 8)
            if end < 0:
                nulls += 1
            else:
                byteops.copy_into(target, used, data, start, end)
                used += end - start
            byteops.set_int32(ends, 4 * (number + 1), used)
            place += step
        if not byteops.is_ascii(target, first, used):
            Column.put_all(self, row, count, data, fields, at, step)
            return
        self.used = used
        if nulls:
            for number in range(row, row + count):
                if byteops.native_int64(fields, at + 8) < 0:
                    Column.null(self, number)
                at += step


class Jsonb(_Copied):
    """jsonb: a version byte, then the text."""

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        if start < end and data[start] == _JSONB_VERSION and byteops.is_utf8(data, start + 1, end):
            return self.copy(row, data, start + 1, end)
        return False


class Printed(_Variable):
    """Types whose binary form is converted to PostgreSQL's text.

    :param form: converts the type's binary form.
    """

    def __init__(self, rows: int, form: Binary) -> None:
        self.form = form
        super().__init__(rows)

    def put(self, row: int, data: Any, start: int, end: int) -> bool:
        size = len(self.values)
        try:
            self.form.put(self.values, byteops.cut(data, start, end))
        except Exception:  # noqa: BLE001 - the conversion by text raises it again
            byteops.shorten(self.values, size)
            return False
        target: Any = self.values
        if not byteops.is_utf8(target, size, len(self.values)):  # texts within the value may not be UTF-8
            byteops.shorten(self.values, size)
            return False
        self.end(row)
        return True


def consecutive(first: int, count: int) -> bytearray:
    """Return the numbers from ``first`` on as the values of an int64 array."""
    values = bytearray(8 * count)
    target: Any = values  # a pointer in the compiled form
    for index in range(count):
        byteops.set_int64(target, 8 * index, first + index)
    return values
