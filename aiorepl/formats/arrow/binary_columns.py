"""The buffers of Arrow arrays, filled from PostgreSQL's binary form without an object for each value. Pure.

A column refuses a value that has no place in its array (infinity, NaN, bytes that are not UTF-8) or is not a value of
its type. Its row is null then, and the caller converts the value by its text, which knows what to do about it.

Imports nothing of pyarrow, so that it compiles.
"""

from __future__ import annotations

from typing import Any

from aiorepl import byteops
from aiorepl.values.forms import Binary

# C numbers in the compiled form.
_NULL = 0xFFFF_FFFF
_INT32_LEAST, _INT32_MOST = -(2**31), 2**31 - 1
_INT64_LEAST, _INT64_MOST = -(2**63), 2**63 - 1
_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = 946_684_800_000_000
_POSITIVE, _NEGATIVE = 0x0000, 0x4000
# So many groups of four digits fit into 64 bits.
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
    """A column that refuses all values: the base of all others.

    :param rows: the number of rows.
    :ivar refused: row, start and end of each value that was refused.
    """

    def __init__(self, rows: int) -> None:
        self.refused: list[tuple[int, int, int]] = []
        self.nulls = 0
        self.valid = bytearray(b"\xff" * ((rows + 7) // 8))
        self.values = bytearray()
        self.offsets: bytearray | None = None
        self.start(rows)

    def start(self, rows: int) -> None:
        """Make room for the values."""

    def null(self, row: int) -> None:
        """Set a row to null."""
        target: Any = self.valid  # a pointer in the compiled form, as in the other methods
        target[row >> 3] &= 255 ^ (1 << (row & 7))
        self.nulls += 1

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        """Set a row to the value ``data[start:end]``."""
        self.refuse(row, start, end)

    def refuse(self, row: int, start: int, end: int) -> None:
        """Set a row to null, and remember where its value is."""
        self.null(row)
        self.refused.append((row, start, end))


class Skipped(Column):
    """A column that nobody wants."""

    def null(self, row: int) -> None:
        pass

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        pass

    def refuse(self, row: int, start: int, end: int) -> None:
        pass


class _Fixed(Column):
    """Values of ``width`` bytes."""

    def start(self, rows: int) -> None:
        self.values = bytearray(rows * self.width())

    def width(self) -> int:
        """Return the bytes of a value in the array."""
        return 8


class Int16(_Fixed):
    """int2."""

    def width(self) -> int:
        return 2

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        target: Any = self.values
        if end - start == 2:
            byteops.set_int16(target, 2 * row, byteops.int16(data, start))
        else:
            self.refuse(row, start, end)


class Int32(_Fixed):
    """int4, and float4, whose bits are copied."""

    def width(self) -> int:
        return 4

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        target: Any = self.values
        if end - start == 4:
            byteops.set_int32(target, 4 * row, byteops.int32(data, start))
        else:
            self.refuse(row, start, end)


class Int64(_Fixed):
    """int8, and float8, whose bits are copied."""

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        target: Any = self.values
        if end - start == 8:
            byteops.set_int64(target, 8 * row, byteops.int64(data, start))
        else:
            self.refuse(row, start, end)


class Oid(_Fixed):
    """oid, as int64."""

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        target: Any = self.values
        if end - start == 4:
            byteops.set_int64(target, 8 * row, byteops.uint32(data, start))
        else:
            self.refuse(row, start, end)


class Boolean(Column):
    """bool, one bit each."""

    def start(self, rows: int) -> None:
        self.values = bytearray((rows + 7) // 8)

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        target: Any = self.values
        if end - start != 1 or data[start] > 1:
            self.refuse(row, start, end)
        elif data[start]:
            target[row >> 3] |= 1 << (row & 7)


class Date(_Fixed):
    """date, as days since 1970."""

    def width(self) -> int:
        return 4

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        target: Any = self.values
        if end - start != 4:
            self.refuse(row, start, end)
            return
        days = byteops.int32(data, start)
        if days == _INT32_LEAST or days > _INT32_MOST - _DAYS_TO_2000:
            self.refuse(row, start, end)
        else:
            byteops.set_int32(target, 4 * row, days + _DAYS_TO_2000)


class Timestamp(_Fixed):
    """timestamp and timestamptz, as microseconds since 1970."""

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        target: Any = self.values
        if end - start != 8:
            self.refuse(row, start, end)
            return
        time = byteops.int64(data, start)
        if time == _INT64_LEAST or time > _INT64_MOST - _MICROSECONDS_TO_2000:
            self.refuse(row, start, end)
        else:
            byteops.set_int64(target, 8 * row, time + _MICROSECONDS_TO_2000)


class Decimal128(_Fixed):
    """numeric(p,s) of at most 18 digits.

    :param precision: the digits in the array.
    :param scale: how many of them are after the point.

    Source: ``numeric_send``: the number of groups of four digits, the weight of the first one, sign, scale, and the groups.
    """

    def __init__(self, rows: int, precision: int, scale: int) -> None:
        self.scale = scale
        self.limit = _POWERS[min(precision, _MOST_DIGITS)]
        super().__init__(rows)

    def width(self) -> int:
        return 16

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        target: Any = self.values
        groups = byteops.uint16(data, start) if end - start >= 8 else -1
        if end - start != 8 + 2 * groups or groups > _MOST_GROUPS:
            self.refuse(row, start, end)
            return
        weight, sign = byteops.int16(data, start + 2), byteops.uint16(data, start + 4)
        # The power of ten that the last group counts in units of the array.
        power = 4 * (weight + 1 - groups) + self.scale
        if (sign != _POSITIVE and sign != _NEGATIVE) or power < -3 or 4 * groups + power > _MOST_DIGITS:
            if groups or (sign != _POSITIVE and sign != _NEGATIVE):
                self.refuse(row, start, end)
                return
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
                self.refuse(row, start, end)
                return
        if number >= self.limit:
            self.refuse(row, start, end)
            return
        negative = sign == _NEGATIVE and number > 0
        byteops.set_int64(target, 16 * row, -number if negative else number)
        byteops.set_int64(target, 16 * row + 8, -1 if negative else 0)


class _Variable(Column):
    """Values of any length."""

    def start(self, rows: int) -> None:
        self.offsets = bytearray(4 * (rows + 1))

    def null(self, row: int) -> None:
        Column.null(self, row)
        self.end(row)

    def end(self, row: int) -> None:
        """Record where the value of a row ends."""
        target: Any = self.offsets
        byteops.set_int32(target, 4 * (row + 1), len(self.values))


class Bytes(_Variable):
    """bytea."""

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        byteops.put_range(self.values, data, start, end)
        self.end(row)


class Text(_Variable):
    """Types whose binary form is their text, and columns that were selected as text."""

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        if byteops.is_utf8(data, start, end):
            byteops.put_range(self.values, data, start, end)
            self.end(row)
        else:
            self.refuse(row, start, end)


class Jsonb(_Variable):
    """jsonb: its text after a version."""

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        if start < end and data[start] == _JSONB_VERSION and byteops.is_utf8(data, start + 1, end):
            byteops.put_range(self.values, data, start + 1, end)
            self.end(row)
        else:
            self.refuse(row, start, end)


class Printed(_Variable):
    """Types that print themselves as text.

    :param form: the binary form.
    """

    def __init__(self, rows: int, form: Binary) -> None:
        self.form = form
        super().__init__(rows)

    def put(self, row: int, data: Any, start: int, end: int) -> None:
        size = len(self.values)
        try:
            self.form.put(self.values, byteops.cut(data, start, end))
            self.end(row)
        except Exception:  # noqa: BLE001 - the conversion by text raises it again
            byteops.shorten(self.values, size)
            self.refuse(row, start, end)


def fill(columns: list[Column], data: bytes, position: int, rows: int) -> None:
    """Put rows of COPY's binary format into columns.

    :param position: where the first row begins; the data was verified.
    """
    octets: Any = data  # a pointer in the compiled form
    column: Column
    for row in range(rows):
        position += 2
        for index in range(len(columns)):
            length = byteops.uint32(octets, position)
            position += 4
            column = columns[index]
            if length == _NULL:
                column.null(row)
            else:
                column.put(row, octets, position, position + length)
                position += length


def consecutive(first: int, count: int) -> bytearray:
    """Return the numbers from ``first`` on as the values of an int64 array."""
    values = bytearray(8 * count)
    target: Any = values  # a pointer in the compiled form
    for index in range(count):
        byteops.set_int64(target, 8 * index, first + index)
    return values
