"""Ranges and multiranges.

Python values: ``Range``; a ``tuple`` of them for a multirange. JSON: a string of PostgreSQL's text.

Source: ``range_out``, ``range_send``, ``multirange_out``, ``multirange_send``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aiorepl import byteops
from aiorepl.values import delimiters, objects
from aiorepl.values.codec import Codec, Malformed, binary_form, form_codec, string
from aiorepl.values.composites import field_end, put_field, read_field
from aiorepl.values.forms import Binary, Container, Form, form_of

# C constants in the compiled form. Flags as in rangetypes.h; LB_NULL and UB_NULL are never sent, RANGE_CONTAIN_EMPTY has a
# meaning only inside GiST indexes.
_EMPTY, _LOWER_INC, _UPPER_INC, _LOWER_INF, _UPPER_INF = 0x01, 0x02, 0x04, 0x08, 0x10
_SENT = _EMPTY | _LOWER_INC | _UPPER_INC | _LOWER_INF | _UPPER_INF
_LENGTH = 4  # size
_INC_OPEN, _EXC_OPEN, _INC_CLOSE, _EXC_CLOSE, _COMMA, _OPEN, _CLOSE = b"[(]),{}"

_ENDS: Final = delimiters.any_of(b',()[]"\\')
_NEEDS_QUOTES: Final = delimiters.any_of(b'"\\()[], \t\n\v\f\r')


@dataclass(frozen=True, slots=True)
class Range:
    """A range. A bound that is ``None`` is infinite."""

    lower: Any = None
    upper: Any = None
    lower_inc: bool = False
    upper_inc: bool = False
    empty: bool = False


EMPTY: Final = Range(empty=True)


def _range(lower: Any, upper: Any, lower_inc: bool, upper_inc: bool) -> Range:
    """Return ``Range(…)`` in a quarter of the time: assignments to a frozen class are slow."""
    value: Range = objects.bare(Range)
    objects.set_field(value, "lower", lower)
    objects.set_field(value, "upper", upper)
    objects.set_field(value, "lower_inc", lower_inc)
    objects.set_field(value, "upper_inc", upper_inc)
    objects.set_field(value, "empty", False)
    return value


class RangeText(Form):
    """Two bounds in square brackets (inclusive) or parentheses (exclusive), or ``empty``."""

    def __init__(self, subtype: Form) -> None:
        self._subtype = subtype

    def read(self, raw: bytes) -> Any:
        if raw == b"empty":
            return EMPTY
        data: Any = raw  # a pointer in the compiled form
        comma, end = _bounds(raw, 0)
        if end + 1 != len(raw):
            raise Malformed("there is text after the upper bound")
        return _range(
            read_field(self._subtype, raw, 1, comma),
            read_field(self._subtype, raw, comma + 1, end),
            data[0] == _INC_OPEN,
            data[end] == _INC_CLOSE,
        )


def _bounds(raw: bytes, at: int) -> tuple[int, int]:
    """Return where the lower and the upper bound end, of the range that begins at ``at``."""
    data: Any = raw  # a pointer in the compiled form
    size = len(raw)
    if at >= size or (data[at] != _INC_OPEN and data[at] != _EXC_OPEN):
        raise Malformed("neither two bounds nor empty")
    comma = field_end(raw, at + 1, size, _ENDS)
    if comma >= size or data[comma] != _COMMA:
        raise Malformed("no comma after the lower bound")
    end = field_end(raw, comma + 1, size, _ENDS)
    if end >= size or (data[end] != _INC_CLOSE and data[end] != _EXC_CLOSE):
        raise Malformed("no bracket after the upper bound")
    return comma, end


class RangeBinary(Container):
    """Flags, then the finite bounds, each preceded by its length."""

    def __init__(self, subtype: Binary) -> None:
        self._subtype = subtype

    def read(self, raw: bytes) -> Any:
        lower_end, flags = _lower_end(raw)
        if flags & _EMPTY:
            return EMPTY
        lower = upper = None
        if not flags & _LOWER_INF:
            lower = self._subtype.read_in(raw, 1 + _LENGTH, lower_end)
        if not flags & _UPPER_INF:
            upper = self._subtype.read_in(raw, lower_end + _LENGTH, len(raw))
        return _range(lower, upper, flags & _LOWER_INC != 0, flags & _UPPER_INC != 0)

    def put(self, out: bytearray, raw: bytes) -> None:
        data: Any = raw  # a pointer in the compiled form
        lower_end, flags = _lower_end(raw)
        if flags & _EMPTY:
            byteops.put(out, b"empty")
            return
        byteops.put(out, b"[" if flags & _LOWER_INC else b"(")
        if not flags & _LOWER_INF:
            put_field(out, self._subtype, byteops.cut(data, 1 + _LENGTH, lower_end), _NEEDS_QUOTES)
        byteops.put(out, b",")
        if not flags & _UPPER_INF:
            put_field(out, self._subtype, byteops.cut(data, lower_end + _LENGTH, len(raw)), _NEEDS_QUOTES)
        byteops.put(out, b"]" if flags & _UPPER_INC else b")")

    def expands(self) -> bool:
        return self._subtype.expands()

    def expansion(self, raw: bytes, start: int, end: int) -> int:
        return _swelling(self._subtype, raw, start + 1, end)


def _swelling(of: Binary, raw: bytes, at: int, end: int) -> int:
    """Estimate the expansion of consecutive values, each preceded by its length."""
    data: Any = raw  # a pointer in the compiled form
    total = 0
    while end - at >= _LENGTH:
        length = byteops.int32(data, at)
        at += _LENGTH
        if not 0 <= length <= end - at:
            break
        total += of.expansion(raw, at, at + length)
        at += length
    return total


def _lower_end(raw: bytes) -> tuple[int, int]:
    """Return where the lower bound ends, and the flags; a finite upper bound takes the rest."""
    data: Any = raw  # a pointer in the compiled form
    size = len(raw)
    if not size:
        raise Malformed("no flags")
    flags = data[0]
    if flags & ~_SENT:
        raise Malformed(f"unknown flags {flags:#04x}")
    at = 1
    if not flags & (_EMPTY | _LOWER_INF):
        at = _item_end(raw, at)
    if (at if flags & (_EMPTY | _UPPER_INF) else _item_end(raw, at)) != size:
        raise Malformed("its bounds do not fill its bytes")
    return at, flags


def _item_end(raw: bytes, at: int) -> int:
    """Return the end of the value; its length is at ``at``."""
    data: Any = raw  # a pointer in the compiled form
    rest = len(raw) - at - _LENGTH
    length = byteops.int32(data, at) if rest >= 0 else -1
    if not 0 <= length <= rest:
        raise Malformed("a length that does not fit")
    return at + _LENGTH + length


class MultirangeText(Form):
    """Ranges in braces."""

    def __init__(self, range_form: Form) -> None:
        self._range = range_form

    def read(self, raw: bytes) -> Any:
        if raw == b"{}":
            return ()
        if not raw or raw[0] != _OPEN:
            raise Malformed("no braces around the ranges")
        ranges = []
        at = 1
        while True:
            end = _range_end(raw, at)
            ranges.append(self._range.read(raw[at:end]))
            if end == len(raw) - 1 and raw[end] == _CLOSE:
                return tuple(ranges)
            if end >= len(raw) or raw[end] != _COMMA:
                raise Malformed("two ranges without a comma")
            at = end + 1


def _range_end(raw: bytes, at: int) -> int:
    """Return where the range that begins at ``at`` ends."""
    if raw.startswith(b"empty", at):
        return at + 5
    _, end = _bounds(raw, at)
    return end + 1


class MultirangeBinary(Container):
    """A count, then the ranges, each preceded by its length."""

    def __init__(self, range_form: Binary) -> None:
        self._range = range_form

    def read(self, raw: bytes) -> Any:
        ranges = []
        at = _LENGTH
        for _ in range(_count(raw)):
            end = _item_end(raw, at)
            ranges.append(self._range.read(raw[at + _LENGTH : end]))
            at = end
        _whole(raw, at)
        return tuple(ranges)

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, b"{")
        at = _LENGTH
        for index in range(_count(raw)):
            if index:
                byteops.put(out, b",")
            end = _item_end(raw, at)
            self._range.put(out, raw[at + _LENGTH : end])
            at = end
        _whole(raw, at)
        byteops.put(out, b"}")

    def expands(self) -> bool:
        return self._range.expands()

    def expansion(self, raw: bytes, start: int, end: int) -> int:
        return _swelling(self._range, raw, start + _LENGTH, end)


def _count(raw: bytes) -> int:
    """Return the number of ranges, verified against the number of bytes."""
    data: Any = raw  # a pointer in the compiled form
    rest = len(raw) - _LENGTH
    count = byteops.int32(data, 0) if rest >= 0 else -1
    if not 0 <= count * _LENGTH <= rest:
        raise Malformed("fewer ranges than it says")
    return count


def _whole(raw: bytes, end: int) -> None:
    if end != len(raw):
        raise Malformed("its ranges do not fill its bytes")


def range_of(subtype: Codec) -> Codec:
    """Build the codec of a range type over ``subtype``."""
    return form_codec(RangeText(form_of(subtype.read_text)), RangeBinary(binary_form(subtype)), string)


def multirange_of(of: Codec) -> Codec:
    """Build the codec of a multirange type over the range type of this codec."""
    return form_codec(MultirangeText(form_of(of.read_text)), MultirangeBinary(binary_form(of)), string)
