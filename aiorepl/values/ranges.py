"""Ranges and multiranges.

Python values: ``Range``; a ``tuple`` of them for a multirange. JSON: a string of PostgreSQL's text.

Source: ``range_out``, ``range_send``, ``multirange_out``, ``multirange_send``.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.values.codec import Codec, Malformed, codec
from aiorepl.values.composites import quote, unquote

_LENGTH: Final = struct.Struct("!i")

# rangetypes.h; LB_NULL and UB_NULL are never sent, the last only means something inside of GiST indexes.
_EMPTY, _LOWER_INC, _UPPER_INC, _LOWER_INF, _UPPER_INF = 0x01, 0x02, 0x04, 0x08, 0x10
_SENT: Final = _EMPTY | _LOWER_INC | _UPPER_INC | _LOWER_INF | _UPPER_INF

_BOUND: Final = rb'(?:"((?:[^"\\]++|""|\\.)*+)"|([^,()\[\]"\\]*+))'
_RANGE: Final = re.compile(rb"([\[(])" + _BOUND + rb"," + _BOUND + rb"([\])])|empty", re.DOTALL)
_NEEDS_QUOTES: Final = re.compile(r'\A\Z|["\\()\[\],\s]', re.ASCII)


@dataclass(frozen=True, slots=True)
class Range:
    """A range; a bound that is ``None`` is not there: the range has no end on that side."""

    lower: Any = None
    upper: Any = None
    lower_inc: bool = False
    upper_inc: bool = False
    empty: bool = False


EMPTY: Final = Range(empty=True)


def _from_match(match: re.Match[bytes], subtype: Codec) -> Range:
    opening, lower_quoted, lower, upper_quoted, upper, closing = match.groups()
    if opening is None:
        return EMPTY
    return Range(
        lower=_bound(lower_quoted, lower, subtype),
        upper=_bound(upper_quoted, upper, subtype),
        lower_inc=opening == b"[",
        upper_inc=closing == b"]",
    )


def _bound(quoted: bytes | None, plain: bytes, subtype: Codec) -> Any:
    if quoted is not None:
        return subtype.read_text(unquote(quoted))
    return subtype.read_text(plain) if plain else None


def _take(raw: bytes, position: int) -> tuple[bytes, int]:
    """A value behind its length, and where it ends."""
    (length,) = _LENGTH.unpack_from(raw, position)
    start = position + _LENGTH.size
    if not 0 <= length <= len(raw) - start:
        raise Malformed("a length that does not fit")
    return raw[start : start + length], start + length


def split(raw: bytes) -> tuple[int, bytes | None, bytes | None]:
    """Cut the binary form into flags, lower and upper bound."""
    flags = raw[0]
    if flags & ~_SENT:
        raise Malformed(f"unknown flags {flags:#04x}")
    lower = upper = None
    position = 1
    if not flags & (_EMPTY | _LOWER_INF):
        lower, position = _take(raw, position)
    if not flags & (_EMPTY | _UPPER_INF):
        upper, position = _take(raw, position)
    if position != len(raw):
        raise Malformed("its bounds do not fill its bytes")
    return flags, lower, upper


def split_multirange(raw: bytes) -> list[bytes]:
    """Cut the binary form of a multirange into its ranges."""
    (count,) = _LENGTH.unpack_from(raw)
    if not 0 <= count * _LENGTH.size <= len(raw) - _LENGTH.size:
        raise Malformed("fewer ranges than it says")
    ranges = []
    position = _LENGTH.size
    for _ in range(count):
        item, position = _take(raw, position)
        ranges.append(item)
    if position != len(raw):
        raise Malformed("its ranges do not fill its bytes")
    return ranges


def range_of(subtype: Codec) -> Codec:
    """The codec of a range type over ``subtype``."""

    def read_text(raw: bytes) -> Range:
        match = _RANGE.fullmatch(raw)
        if match is None:
            raise Malformed("neither two bounds nor empty")
        return _from_match(match, subtype)

    def read_binary(raw: bytes) -> Range:
        flags, lower, upper = split(raw)
        if flags & _EMPTY:
            return EMPTY
        return Range(
            lower=None if lower is None else subtype.read_binary(lower),
            upper=None if upper is None else subtype.read_binary(upper),
            lower_inc=bool(flags & _LOWER_INC),
            upper_inc=bool(flags & _UPPER_INC),
        )

    def print_binary(raw: bytes) -> str:
        flags, lower, upper = split(raw)
        if flags & _EMPTY:
            return "empty"
        below = "" if lower is None else quote(subtype.print_binary(lower), _NEEDS_QUOTES)
        above = "" if upper is None else quote(subtype.print_binary(upper), _NEEDS_QUOTES)
        return f"{'[' if flags & _LOWER_INC else '('}{below},{above}{']' if flags & _UPPER_INC else ')'}"

    return codec(read_text, read_binary, print_binary)


def multirange_of(range_codec: Codec) -> Codec:
    """The codec of a multirange type over the range type of ``range_codec``."""

    def read_text(raw: bytes) -> tuple[Range, ...]:
        if raw == b"{}":
            return ()
        if raw[:1] != b"{":
            raise Malformed("no braces around the ranges")
        ranges = []
        position = 1
        while True:
            match = _RANGE.match(raw, position)
            if match is None:
                raise Malformed("neither two bounds nor empty")
            ranges.append(range_codec.read_text(match[0]))
            position = match.end()
            follows = raw[position : position + 1]
            if follows == b"}" and position + 1 == len(raw):
                return tuple(ranges)
            if follows != b",":
                raise Malformed("two ranges without a comma")
            position += 1

    def read_binary(raw: bytes) -> tuple[Range, ...]:
        return tuple([range_codec.read_binary(item) for item in split_multirange(raw)])

    def print_binary(raw: bytes) -> str:
        return "{" + ",".join([range_codec.print_binary(item) for item in split_multirange(raw)]) + "}"

    return codec(read_text, read_binary, print_binary)
