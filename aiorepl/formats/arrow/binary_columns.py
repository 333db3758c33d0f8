"""The buffers of Arrow arrays, filled from PostgreSQL's binary form without an object for each value. Pure.

Rows are read in blocks: first the places of all values are found, then each column is filled by a loop of its own.

A column gives up if a value has no place in its array (infinity, NaN, 24:00:00, bytes that are not UTF-8) or is not a value of
its type. The caller then converts the whole column by its text, which knows what to do about such values.

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
_MICROSECONDS_OF_DAY = 86_400_000_000
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
# The rows of a block: their bytes and places shall stay in the CPU's cache.
_BLOCK = 256


class Column:
    """A column that is not filled: the base of all others.

    :param rows: the number of rows.
    :ivar failed: whether a value could not be represented; the buffers are then worthless.
    """

    def __init__(self, rows: int) -> None:
        self.failed = True
        self.nulls = 0
        self.valid = bytearray(b"\xff" * ((rows + 7) // 8))
        self.values = bytearray()
        self.offsets: bytearray | None = None
        self.start(rows)

    def start(self, rows: int) -> None:
        """Make room for the values."""

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        """Set ``count`` rows from ``row`` on.

        :param places: where the values begin in ``data``, as eight bytes each; -1 for null. The four bytes before a value are
            its length.
        :param first: the number of the place of ``row``.
        """

    def null(self, row: int) -> None:
        """Set a row to null."""
        target: Any = self.valid  # a pointer in the compiled form, as in the other methods
        target[row >> 3] &= 255 ^ (1 << (row & 7))
        self.nulls += 1


class _Fixed(Column):
    """Values of ``width`` bytes."""

    def start(self, rows: int) -> None:
        self.failed = False
        self.values = bytearray(rows * self.width())

    def width(self) -> int:
        """Return the bytes of a value in the array."""
        return 8


class Int16(_Fixed):
    """int2."""

    def width(self) -> int:
        return 2

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        target: Any = self.values
        for index in range(count):
            at = byteops.native64(places, 8 * (first + index))
            if at < 0:
                self.null(row + index)
            elif byteops.uint32(data, at - 4) != 2:
                self.failed = True
            else:
                byteops.set_int16(target, 2 * (row + index), byteops.int16(data, at))


class Int32(_Fixed):
    """int4, and float4, whose bits are copied."""

    def width(self) -> int:
        return 4

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        target: Any = self.values
        for index in range(count):
            at = byteops.native64(places, 8 * (first + index))
            if at < 0:
                self.null(row + index)
            elif byteops.uint32(data, at - 4) != 4:
                self.failed = True
            else:
                byteops.set_int32(target, 4 * (row + index), byteops.int32(data, at))


class Int64(_Fixed):
    """int8, and float8, whose bits are copied."""

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        target: Any = self.values
        for index in range(count):
            at = byteops.native64(places, 8 * (first + index))
            if at < 0:
                self.null(row + index)
            elif byteops.uint32(data, at - 4) != 8:
                self.failed = True
            else:
                byteops.set_int64(target, 8 * (row + index), byteops.int64(data, at))


class Oid(_Fixed):
    """oid, as int64."""

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        target: Any = self.values
        for index in range(count):
            at = byteops.native64(places, 8 * (first + index))
            if at < 0:
                self.null(row + index)
            elif byteops.uint32(data, at - 4) != 4:
                self.failed = True
            else:
                byteops.set_int64(target, 8 * (row + index), byteops.uint32(data, at))


class Boolean(Column):
    """bool, one bit each."""

    def start(self, rows: int) -> None:
        self.failed = False
        self.values = bytearray((rows + 7) // 8)

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        target: Any = self.values
        for index in range(row, row + count):
            at = byteops.native64(places, 8 * (first + index - row))
            if at < 0:
                self.null(index)
            elif byteops.uint32(data, at - 4) != 1 or data[at] > 1:
                self.failed = True
            elif data[at]:
                target[index >> 3] |= 1 << (index & 7)


class Date(_Fixed):
    """date, as days since 1970."""

    def width(self) -> int:
        return 4

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        target: Any = self.values
        for index in range(count):
            at = byteops.native64(places, 8 * (first + index))
            if at < 0:
                self.null(row + index)
            elif byteops.uint32(data, at - 4) != 4:
                self.failed = True
            else:
                days = byteops.int32(data, at)
                if days == _INT32_LEAST or days > _INT32_MOST - _DAYS_TO_2000:
                    self.failed = True
                else:
                    byteops.set_int32(target, 4 * (row + index), days + _DAYS_TO_2000)


class Timestamp(_Fixed):
    """timestamp and timestamptz, as microseconds since 1970."""

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        target: Any = self.values
        for index in range(count):
            at = byteops.native64(places, 8 * (first + index))
            if at < 0:
                self.null(row + index)
            elif byteops.uint32(data, at - 4) != 8:
                self.failed = True
            else:
                time = byteops.int64(data, at)
                if time == _INT64_LEAST or time > _INT64_MOST - _MICROSECONDS_TO_2000:
                    self.failed = True
                else:
                    byteops.set_int64(target, 8 * (row + index), time + _MICROSECONDS_TO_2000)


class Time(_Fixed):
    """time, as microseconds of the day."""

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        target: Any = self.values
        for index in range(count):
            at = byteops.native64(places, 8 * (first + index))
            if at < 0:
                self.null(row + index)
            elif byteops.uint32(data, at - 4) != 8:
                self.failed = True
            else:
                time = byteops.int64(data, at)
                if 0 <= time < _MICROSECONDS_OF_DAY:
                    byteops.set_int64(target, 8 * (row + index), time)
                else:
                    self.failed = True


class Decimal128(_Fixed):
    """numeric(p,s) of at most 18 digits.

    :param scale: the digits after the point in the array.

    Source: ``numeric_send``: the number of groups of four digits, the weight of the first one, sign, scale, and the groups.
    """

    def __init__(self, rows: int, scale: int) -> None:
        self.scale = scale
        super().__init__(rows)

    def width(self) -> int:
        return 16

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        target: Any = self.values
        scale = self.scale
        for index in range(count):
            at = byteops.native64(places, 8 * (first + index))
            if at < 0:
                self.null(row + index)
                continue
            length = byteops.uint32(data, at - 4)
            groups = byteops.uint16(data, at) if length >= 8 else -1
            if length != 8 + 2 * groups or groups > _MOST_GROUPS:
                self.failed = True
                return
            weight, sign = byteops.int16(data, at + 2), byteops.uint16(data, at + 4)
            # The power of ten that the last group counts in units of the array.
            power = 4 * (weight + 1 - groups) + scale
            if (sign != _POSITIVE and sign != _NEGATIVE) or power < -3 or 4 * groups + power > _MOST_DIGITS:
                if groups or (sign != _POSITIVE and sign != _NEGATIVE):
                    self.failed = True
                    return
                power = 0
            number = 0
            for group in range(groups):
                number = number * 10_000 + byteops.uint16(data, at + 8 + 2 * group)
            if power >= 0:
                number *= _POWERS[power]
            else:
                rest = number
                number //= _POWERS[-power]
                if number * _POWERS[-power] != rest:
                    self.failed = True
                    return
            negative = sign == _NEGATIVE and number > 0
            byteops.set_int64(target, 16 * (row + index), -number if negative else number)
            byteops.set_int64(target, 16 * (row + index) + 8, -1 if negative else 0)


class _Variable(Column):
    """Values of any length.

    :ivar used: the bytes of ``values`` that are filled.
    """

    def start(self, rows: int) -> None:
        self.failed = False
        self.used = 0
        self.rows = rows
        self.offsets = bytearray(4 * (rows + 1))

    def copy(self, row: int, count: int, data: Any, places: Any, first: int, skip: int) -> None:
        """Append the values without their first ``skip`` bytes, which all of them have."""
        size = 0
        for index in range(first, first + count):
            at = byteops.native64(places, 8 * index)
            if at >= 0:
                size += byteops.uint32(data, at - 4) - skip
        end = self.used
        self.used += size
        if self.used > len(self.values):
            # As much as all rows need if they are like those so far, within limits: one may be very large.
            wanted = min(self.used // (row + count) * self.rows * 9 // 8, 4 * self.used)
            byteops.extend(self.values, max(wanted, self.used) - len(self.values))
        target: Any = self.values
        ends: Any = self.offsets
        for index in range(count):
            at = byteops.native64(places, 8 * (first + index))
            if at < 0:
                self.null(row + index)
            else:
                size = byteops.uint32(data, at - 4)
                byteops.copy_into(target, end, data, at + skip, at + size)
                end += size - skip
            byteops.set_int32(ends, 4 * (row + index + 1), end)


class Bytes(_Variable):
    """bytea."""

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        self.copy(row, count, data, places, first, 0)


class Text(_Variable):
    """Types whose binary form is their text, and columns that were selected as text."""

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        self.copy_text(row, count, data, places, first, 0)

    def copy_text(self, row: int, count: int, data: Any, places: Any, first: int, skip: int) -> None:
        """``copy`` values that shall be UTF-8."""
        begin = self.used
        self.copy(row, count, data, places, first, skip)
        target: Any = self.values
        if byteops.is_ascii(target, begin, self.used):
            return
        # Each by itself, because two invalid ones can make a valid one together.
        for index in range(first, first + count):
            at = byteops.native64(places, 8 * index)
            if at >= 0 and not byteops.is_utf8(data, at + skip, at + byteops.uint32(data, at - 4)):
                self.failed = True


class Jsonb(Text):
    """jsonb: its text after a version."""

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        for index in range(first, first + count):
            at = byteops.native64(places, 8 * index)
            if at >= 0 and (not byteops.uint32(data, at - 4) or data[at] != _JSONB_VERSION):
                self.failed = True
                return
        self.copy_text(row, count, data, places, first, 1)


class Printed(_Variable):
    """Types that print themselves as text.

    :param form: the binary form.
    """

    def __init__(self, rows: int, form: Binary) -> None:
        self.form = form
        super().__init__(rows)

    def put(self, row: int, count: int, data: Any, places: Any, first: int) -> None:
        ends: Any = self.offsets
        for index in range(count):
            at = byteops.native64(places, 8 * (first + index))
            if at < 0:
                self.null(row + index)
            else:
                try:
                    self.form.put(self.values, byteops.cut(data, at, at + byteops.uint32(data, at - 4)))
                except Exception:  # noqa: BLE001 - the conversion by text raises it again
                    self.failed = True
                    return
            byteops.set_int32(ends, 4 * (row + index + 1), len(self.values))


def fill(columns: list[Column], data: bytes, position: int, rows: int) -> None:
    """Put rows of COPY's binary format into columns.

    :param position: where the first row begins; the data was verified.
    """
    octets: Any = data  # a pointer in the compiled form
    column: Column
    places = bytearray(8 * _BLOCK * len(columns))
    found: Any = places  # a pointer, too
    row = 0
    while row < rows:
        count = min(_BLOCK, rows - row)
        position = find_places(found, octets, position, count, len(columns))
        for index in range(len(columns)):
            column = columns[index]
            if not column.failed:
                column.put(row, count, octets, found, _BLOCK * index)
        row += count


def find_places(places: Any, octets: Any, position: int, rows: int, columns: int) -> int:
    """Record where the values of some rows begin, as ``Column.put`` takes it; return where the next row begins."""
    for row in range(rows):
        position += 2
        for index in range(columns):
            length = byteops.uint32(octets, position)
            position += 4
            if length == _NULL:
                byteops.set_int64(places, 8 * (_BLOCK * index + row), -1)
            else:
                byteops.set_int64(places, 8 * (_BLOCK * index + row), position)
                position += length
    return position


def consecutive(first: int, count: int) -> bytearray:
    """Return the numbers from ``first`` on as the values of an int64 array."""
    values = bytearray(8 * count)
    target: Any = values  # a pointer in the compiled form
    for index in range(count):
        byteops.set_int64(target, 8 * index, first + index)
    return values


def values_of(data: bytes, position: int, rows: int, wanted: int) -> list[bytes | None]:
    """Return the bytes of one column of rows of COPY's binary format.

    :param wanted: the index of the column.
    """
    found: list[bytes | None] = []
    octets: Any = data  # a pointer in the compiled form
    for _ in range(rows):
        columns = byteops.uint16(octets, position)
        position += 2
        for index in range(columns):
            length = byteops.uint32(octets, position)
            position += 4
            if length == _NULL:
                if index == wanted:
                    found.append(None)
            else:
                if index == wanted:
                    found.append(byteops.cut(octets, position, position + length))
                position += length
    return found
