"""Numbers and booleans: int2, int4, int8, float4, float8, numeric, money, bool.

Python values: ``int``, ``float``, ``Decimal`` (exact, with its scale, up to the 131,072 digits that PostgreSQL
allows), ``bool``; money is ``str``.

money is text: its sign, grouping and number of decimals depend on the server's lc_monetary, and the binary form is an
integer of the smallest unit. The binary form is printed as in the C and en_US locales (``-$1,234.56``). If the server has
another lc_monetary, request text.

Source: ``int4send``, ``float8send``, ``numeric_send``, ``numeric_out``, ``cash_send``, ``cash_out``, ``boolsend``.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from aiorepl import byteops
from aiorepl.values.codec import Malformed, as_sent, form_codec, string
from aiorepl.values.floats import put_float4, put_float8
from aiorepl.values.forms import AS_TEXT, Binary, Form

# C constants in the compiled form.
_POSITIVE, _NEGATIVE = 0x0000, 0x4000
_DIGIT_BASE, _MAX_DISPLAY_SCALE = 10000, 0x3FFF
_FEW_DIGITS = 256
_T, _F = b"tf"
_NUMERIC_SPECIAL: Final = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}
_CUT: Final = (10000, 1000, 100, 10)  # 10 ** (4 - n): the divisor that keeps n of four digits
_BOOL_JSON: Final = {b"t": b"true", b"f": b"false"}
json_bool: Final = _BOOL_JSON.__getitem__


class Integer(Binary):
    """Integers of ``width`` bytes. Their text is JSON."""

    def __init__(self, width: int, *, signed: bool = True) -> None:
        self._width = width
        self._signed = signed

    def number(self, raw: bytes, start: int, end: int) -> int:
        """Return the value of ``raw[start:end]``, as a C integer in the compiled form."""
        if end - start != self._width:
            raise ValueError
        data: Any = raw  # a pointer in the compiled form
        if self._width == 8:
            return byteops.int64(data, start)
        if self._width == 2:
            return byteops.int16(data, start)
        return byteops.int32(data, start) if self._signed else byteops.uint32(data, start)

    def read(self, raw: bytes) -> Any:
        return self.number(raw, 0, len(raw))

    def read_in(self, raw: bytes, start: int, end: int) -> Any:
        return self.number(raw, start, end)

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put_number(out, self.number(raw, 0, len(raw)))

    def put_json(self, out: bytearray, raw: bytes) -> None:
        byteops.put_number(out, self.number(raw, 0, len(raw)))

    def put_json_in(self, out: bytearray, raw: bytes, start: int, end: int) -> None:
        byteops.put_number(out, self.number(raw, start, end))


class IntegerText(Form):
    """Integers as text."""

    def read(self, raw: bytes) -> Any:
        return byteops.integer(raw)

    def read_in(self, raw: bytes, start: int, end: int) -> Any:
        return byteops.integer_in(raw, start, end)


class Float4(Binary):
    """Floats. The JSON of a finite float is a number; the JSON of negative zero is ``-0.0``."""

    def read(self, raw: bytes) -> Any:
        return _float4(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        put_float4(out, _float4(raw))

    def put_json(self, out: bytearray, raw: bytes) -> None:
        if _is_finite(raw, 0x7F80):
            value = _float4(raw)
            put_float4(out, value)
            if value == 0 and raw[0] != 0:
                byteops.put(out, b".0")
        else:
            self.put_string(out, raw)


class Float4Text(Form):
    """float4 as text. The Python value is the nearest float4, as from binary."""

    def read(self, raw: bytes) -> Any:
        return byteops.single(byteops.decimal(raw, 0, len(raw)))

    def read_in(self, raw: bytes, start: int, end: int) -> Any:
        return byteops.single(byteops.decimal(raw, start, end))


class Float8(Binary):
    """Floats. The JSON of a finite float is a number; the JSON of negative zero is ``-0.0``."""

    def read(self, raw: bytes) -> Any:
        return _float8(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        put_float8(out, _float8(raw))

    def put_json(self, out: bytearray, raw: bytes) -> None:
        if _is_finite(raw, 0x7FF0):
            value = _float8(raw)
            put_float8(out, value)
            if value == 0 and raw[0] != 0:
                byteops.put(out, b".0")
        else:
            self.put_string(out, raw)


class Float8Text(Form):
    """float8 as text, with NaN and Infinity."""

    def read(self, raw: bytes) -> Any:
        return byteops.decimal(raw, 0, len(raw))

    def read_in(self, raw: bytes, start: int, end: int) -> Any:
        return byteops.decimal(raw, start, end)


def _float4(raw: bytes) -> float:
    if len(raw) != 4:
        raise ValueError
    data: Any = raw  # a pointer in the compiled form
    return byteops.float32(data, 0)


def _float8(raw: bytes) -> float:
    if len(raw) != 8:
        raise ValueError
    data: Any = raw  # a pointer in the compiled form
    return byteops.float64(data, 0)


def _is_finite(raw: bytes, mask: int) -> bool:
    """Return whether the float is finite: not all bits of its exponent are set."""
    if len(raw) < 2:
        raise ValueError
    data: Any = raw  # a pointer in the compiled form
    return (byteops.uint16(data, 0) & mask) != mask


def json_float(raw: bytes) -> bytes:
    """Encode a float's text: NaN and the infinities, which do not end in a digit, become strings.

    Readers take ``-0`` for the integer 0, which has no sign.
    """
    if raw == b"-0":
        return b"-0.0"
    return raw if raw[-1] <= 0x39 else b'"%b"' % raw


class Numeric(Binary):
    """Digits of base 10,000; the first is worth 10000^weight; the last are cut or padded to the display scale."""

    def read(self, raw: bytes) -> Any:
        return Decimal(self.text(raw))

    def put(self, out: bytearray, raw: bytes) -> None:
        size = len(raw)
        if size < 8:
            raise ValueError
        data: Any = raw  # a pointer in the compiled form
        count = byteops.uint16(data, 0)
        weight = byteops.int16(data, 2)
        sign = byteops.uint16(data, 4)
        scale = byteops.uint16(data, 6)
        if size != 8 + 2 * count:
            raise Malformed(f"{size} bytes where {count} digits take {8 + 2 * count}")
        if sign != _POSITIVE and sign != _NEGATIVE:
            if sign not in _NUMERIC_SPECIAL:
                raise Malformed(f"unknown sign {sign:#06x}")
            byteops.put(out, _NUMERIC_SPECIAL[sign])
            return
        if scale > _MAX_DISPLAY_SCALE:
            raise Malformed(f"display scale {scale} is above {_MAX_DISPLAY_SCALE}")
        for at in range(count):
            if byteops.uint16(data, 8 + 2 * at) >= _DIGIT_BASE:
                raise Malformed("a digit is above 9999")
        if sign == _NEGATIVE:
            byteops.put(out, b"-")
        begun = False
        for at in range(weight + 1):
            digit = byteops.uint16(data, 8 + 2 * at) if at < count else 0
            if begun:
                byteops.put_padded(out, digit, 4)
            elif digit:
                byteops.put_number(out, digit)
                begun = True
        if not begun:
            byteops.put(out, b"0")
        if not scale:
            return
        byteops.put(out, b".")
        at = weight + 1
        while scale > 0:
            digit = byteops.uint16(data, 8 + 2 * at) if 0 <= at < count else 0
            if scale < 4:
                byteops.put_padded(out, digit // _CUT[scale], scale)
            else:
                byteops.put_padded(out, digit, 4)
            scale -= 4
            at += 1

    def expands(self) -> bool:
        return True

    def expansion(self, raw: bytes, start: int, end: int) -> int:
        if end - start < 8:
            return 0
        data: Any = raw  # a pointer in the compiled form
        digits = 4 * (byteops.int16(data, start + 2) + 1)
        digits = max(digits, 0)
        digits += byteops.uint16(data, start + 6)
        return digits if digits > _FEW_DIGITS else 0


class NumericText(Form):
    """Digits, NaN and Infinity."""

    def read(self, raw: bytes) -> Any:
        # The constructor is exact: it does not round, and raises only for text that is no number.
        return Decimal(raw.decode("ascii"))


class Boolean(Binary):
    """``t`` and ``f``; true and false in JSON."""

    def read(self, raw: bytes) -> Any:
        return _truth(raw, 1, 0)

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, b"t" if _truth(raw, 1, 0) else b"f")

    def put_json(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, b"true" if _truth(raw, 1, 0) else b"false")


class BooleanText(Form):
    """``t`` and ``f``."""

    def read(self, raw: bytes) -> Any:
        return _truth(raw, _T, _F)


def _truth(raw: bytes, true: int, false: int) -> bool:
    if len(raw) == 1:
        if raw[0] == true:
            return True
        if raw[0] == false:
            return False
    raise ValueError


class Money(Binary):
    """Cents, printed with thousands separators. The Python value is the text."""

    def read(self, raw: bytes) -> Any:
        return self.text(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        if len(raw) != 8:
            raise ValueError
        data: Any = raw  # a pointer in the compiled form
        cents = byteops.int64(data, 0)
        size = byteops.magnitude(cents)
        rest = size // 100
        group = 1
        while rest // group >= 1000:
            group *= 1000
        byteops.put(out, b"-$" if cents < 0 else b"$")
        byteops.put_unsigned(out, rest // group)
        while group > 1:
            rest %= group
            group //= 1000
            byteops.put(out, b",")
            byteops.put_padded(out, rest // group, 3)
        byteops.put(out, b".")
        byteops.put_padded(out, size % 100, 2)


INTEGER_TEXT: Final = IntegerText()
CODECS: Final = {
    "bool": form_codec(BooleanText(), Boolean(), json_bool),
    "int2": form_codec(INTEGER_TEXT, Integer(2), as_sent),
    "int4": form_codec(INTEGER_TEXT, Integer(4), as_sent),
    "int8": form_codec(INTEGER_TEXT, Integer(8), as_sent),
    "float4": form_codec(Float4Text(), Float4(), json_float),
    "float8": form_codec(Float8Text(), Float8(), json_float),
    "numeric": form_codec(NumericText(), Numeric()),
    "money": form_codec(AS_TEXT, Money(), string),
}
