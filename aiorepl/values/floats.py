"""Floating point as PostgreSQL prints it: the shortest digits that read back the same.

Python's ``repr`` finds the shortest digits too, but differs in two details. PostgreSQL changes to an exponent at 1e15
(float8) and 1e6 (float4), Python at 1e16. PostgreSQL's Ryu is built without STRICTLY_SHORTEST: it does not accept digits that
lie exactly half-way between two floats, which Python's reader rounds to even. Half-way decimals of 17 digits exist only between
2^53 and about 1e40.

This is PostgreSQL 12 and later. Older servers print up to 17 digits under extra_float_digits 3, shortest or not.

Source: ``double_to_shortest_decimal_buf``, ``float_to_shortest_decimal_buf`` (src/common/d2s.c, f2s.c).
"""

from __future__ import annotations

import math
import struct
from decimal import Context, Decimal
from typing import Final

import orjson

from aiorepl import byteops

_FLOAT4: Final = struct.Struct("!f")
_BITS: Final = struct.Struct("!I")
_EXACT: Final = Context(prec=200)
_TWO_53: Final = 2.0**53
_NO_MIDPOINT_ABOVE: Final = 1e40
_FLOAT4_NORMAL: Final = 2.0**-126
_FLOAT4_LARGE: Final = 2.0**127


def put_float8(out: bytearray, value: float) -> None:
    """Append ``float8_text``."""
    if byteops.put_short(out, value):
        return
    if 1e-3 <= abs(value) < 1e15:
        # Gives the digits of ``repr`` in a fifth of the time; without an exponent the form is the same too.
        text = orjson.dumps(value)
        byteops.put_part(out, text, 0, len(text) - (2 if text.endswith(b".0") else 0))
    elif 1e15 <= abs(value) < _TWO_53 or _NO_MIDPOINT_ABOVE <= abs(value) < math.inf:
        byteops.put(out, _laid_out(orjson.dumps(value), 15))
    else:
        byteops.put(out, float8_text(value).encode())


def put_float4(out: bytearray, value: float) -> None:
    """Append ``float4_text``, in 1/50 of the time without an exponent and in 1/5 with one.

    Without an exponent the arithmetic is exact: a float4 has 24 bits, its half-way points have 25, 5 ** 11 has 26, and their
    product fits the 53 bits of a float8.
    """
    size = abs(value)
    if not _FLOAT4_NORMAL <= size < _FLOAT4_LARGE:
        byteops.put(out, float4_text(value).encode())
        return
    low = (byteops.single_beside(size, -1) + size) / 2
    high = (byteops.single_beside(size, 1) + size) / 2
    if not 1e-3 <= size < 1e6:
        byteops.put(out, _float4_with_exponent(value, low, high))
        return
    power = 1.0
    for places in range(12):
        digits = (size * power + 0.5) // 1
        if digits - size * power == 0.5 and digits % 2:
            digits -= 1
        if digits <= low * power:  # floats are closer below a power of two
            digits += 1
        if low * power < digits < high * power:
            if value < 0:
                byteops.put(out, b"-")
            byteops.put_number(out, int(digits // power))
            if places:
                byteops.put(out, b".")
                byteops.put_padded(out, int(digits % power), places)
            return
        power *= 10
    byteops.put(out, float4_text(value).encode())


def _float4_with_exponent(value: float, low: float, high: float) -> bytes:
    """Return the fewest digits between the half-way points, at least six.

    The decimal is rounded to a float8, which may hit a half-way point. In that case, and below a power of two, where the
    points are not equally far, exact arithmetic decides.
    """
    size = abs(value)
    if high - size == size - low:
        for precision in range(5, 9):
            text = b"%.*e" % (precision, value)
            nearest = abs(float(text))
            if low < nearest < high:
                return _laid_out(text, 6)
            if nearest in (low, high):
                break
    return float4_text(value).encode()


def float8_text(value: float) -> str:
    """Return the text of ``float8out`` with extra_float_digits 3."""
    size = abs(value)
    if size < 1e15:
        text = repr(value)
        return text.removesuffix(".0")
    if not math.isfinite(value):
        return _not_finite(value)
    sign = "-" if value < 0 else ""
    digits = Decimal(repr(size))
    if _TWO_53 <= size < _NO_MIDPOINT_ABOVE:
        below, here, above = int(math.nextafter(size, 0)), int(size), int(math.nextafter(size, math.inf))
        low, high = _EXACT.divide(below + here, 2), _EXACT.divide(here + above, 2)
        if digits in (low, high):
            digits = _shortest(Decimal(here), low, high, range(1, 18))
    return sign + _layout(digits, 15)


def float4_text(value: float) -> str:
    """Return the text of ``float4out`` with extra_float_digits 3; ``value`` is exactly a float4."""
    if not math.isfinite(value):
        return _not_finite(value)
    size = abs(value)
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if size == 0:
        return sign + "0"
    (bits,) = _BITS.unpack(_FLOAT4.pack(size))
    (below,) = _FLOAT4.unpack(_BITS.pack(bits - 1))
    # The upper neighbour of the largest float4 is infinity; its half-way point is computed as if the float4s continued.
    above = 2.0**128 if bits == 0x7F7FFFFF else _FLOAT4.unpack(_BITS.pack(bits + 1))[0]
    # Half-way points of float4 are exact in float8. A float4 that is not subnormal keeps 6 digits (FLT_DIG), so the search
    # begins there.
    precisions = range(6, 10) if size >= _FLOAT4_NORMAL else range(1, 10)
    low, high = Decimal((size + below) / 2), Decimal((size + above) / 2)
    return sign + _layout(_shortest(Decimal(size), low, high, precisions), 6)


def _shortest(value: Decimal, low: Decimal, high: Decimal, precisions: range) -> Decimal:
    """Return the decimal with the fewest digits strictly between ``low`` and ``high``, nearest to ``value``."""
    for precision in precisions:
        nearest = Decimal(f"{value:.{precision - 1}e}")
        if low < nearest < high:
            return nearest
        # Below a power of two floats are closer than above it, so the nearest decimal may lie outside on that
        # side while its upper neighbour is inside.
        if nearest <= low:
            neighbour = _EXACT.add(nearest, Decimal((0, (1,), int(nearest.as_tuple().exponent))))
            if low < neighbour < high:
                return neighbour
    return value


def _layout(digits: Decimal, fixed_below: int) -> str:
    """Return a number that is not negative in the layout of ``_laid_out``."""
    return _laid_out(f"{digits:e}".encode(), fixed_below).decode()


def _laid_out(decimal: bytes, fixed_below: int) -> bytes:
    """Return a decimal other than zero with a point or an exponent, as ``to_chars`` of d2s.c and f2s.c chooses."""
    mantissa, _, exponent = decimal.partition(b"e")
    sign = b"-" if mantissa.startswith(b"-") else b""
    whole, _, fraction = mantissa.removeprefix(sign).partition(b".")
    digits = (whole + fraction).lstrip(b"0")
    power = int(exponent or b"0") + len(digits) - len(fraction) - 1
    digits = digits.rstrip(b"0")
    if power < -4 or power >= fixed_below:
        point = b"." if len(digits) > 1 else b""
        return b"%b%b%b%be%b%02d" % (
            sign,
            digits[:1],
            point,
            digits[1:],
            b"-" if power < 0 else b"+",
            abs(power),
        )
    if power < 0:
        return b"%b0.%b%b" % (sign, b"0" * (-power - 1), digits)
    fraction = digits[power + 1 :]
    return b"%b%b%b%b" % (
        sign,
        digits[: power + 1].ljust(power + 1, b"0"),
        b"." if fraction else b"",
        fraction,
    )


def _not_finite(value: float) -> str:
    if value != value:  # noqa: PLR0124 - only NaN differs from itself
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
