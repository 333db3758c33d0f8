"""Numbers and booleans: int2, int4, int8, float4, float8, numeric, money, bool.

Python values: ``int``, ``float``, ``Decimal`` (exact, with its scale, up to the 131,072 digits that PostgreSQL
allows), ``bool``; money is ``str``.

money is text because its text is all that is certain: the sign, the grouping and even how many digits stand
behind the point belong to the server's lc_monetary, and the binary form is a bare integer of the smallest unit.
Under binary it is printed as the C and en_US locales do (``-$1,234.56``); where the server has another
lc_monetary, request text.

Source: ``int4send``, ``float8send``, ``numeric_send``, ``numeric_out``, ``cash_send``, ``cash_out``, ``boolsend``.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any, Final

from aiorepl.values.codec import Codec, Malformed, as_sent, codec, quoted
from aiorepl.values.floats import float4_text, float8_text

_NUMERIC: Final = struct.Struct("!HhHH")
_FLOAT4: Final = struct.Struct("!f")
_FLOAT8: Final = struct.Struct("!d")
_MONEY: Final = struct.Struct("!q")

_NUMERIC_SIGNS: Final = {0x0000: "", 0x4000: "-"}
_NUMERIC_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_DIGIT_BASE: Final = 10000
_MAX_DISPLAY_SCALE: Final = 0x3FFF

_BOOL_TEXT: Final = {b"t": True, b"f": False}
_BOOL_BINARY: Final = {b"\x01": True, b"\x00": False}
_BOOL_PRINTED: Final = {b"\x01": "t", b"\x00": "f"}
_BOOL_JSON: Final = {b"t": b"true", b"f": b"false", b"\x01": b"true", b"\x00": b"false"}
json_bool: Final = _BOOL_JSON.__getitem__


def integer(layout: str) -> Codec:
    """The codec of an integer type, ``layout`` being its struct format. Its text is JSON already."""
    unpack = struct.Struct(layout).unpack

    def read(raw: bytes) -> Any:
        (value,) = unpack(raw)
        return value

    return codec(int, read, lambda raw: str(unpack(raw)[0]), as_sent, lambda raw: b"%d" % unpack(raw)[0])


def _read_float4(raw: bytes) -> Any:
    """The text is the shortest that tells float4s apart; the value is the float4 itself, as from binary."""
    return _FLOAT4.unpack(_FLOAT4.pack(float(raw)))[0]


def _read_float4_binary(raw: bytes) -> Any:
    return _FLOAT4.unpack(raw)[0]


def _read_float8_binary(raw: bytes) -> Any:
    return _FLOAT8.unpack(raw)[0]


def _print_float4(raw: bytes) -> str:
    return float4_text(_FLOAT4.unpack(raw)[0])


def _print_float8(raw: bytes) -> str:
    return float8_text(_FLOAT8.unpack(raw)[0])


def json_float(raw: bytes) -> bytes:
    """A finite float ends in a digit; NaN and the infinities are no JSON numbers, so strings."""
    return raw if raw[-1] <= 0x39 else b'"%b"' % raw


def _json_float4_binary(raw: bytes) -> bytes:
    return json_float(_print_float4(raw).encode())


def _json_float8_binary(raw: bytes) -> bytes:
    value = _FLOAT8.unpack(raw)[0]
    text = float8_text(value).encode()
    return text if math.isfinite(value) else b'"%b"' % text


def _read_numeric(raw: bytes) -> Decimal:
    # The constructor is exact; no context, so no rounding and no signals but for what is no number.
    return Decimal(str(raw, "ascii"))


def _read_numeric_binary(raw: bytes) -> Decimal:
    return Decimal(_print_numeric(raw))


def _print_numeric(raw: bytes) -> str:
    """Digits of base 10,000, the first of them worth 10000^weight, cut or filled up to the display scale."""
    count, weight, sign, scale = _NUMERIC.unpack_from(raw)
    if len(raw) != 8 + 2 * count:
        raise Malformed(f"{len(raw)} bytes where {count} digits take {8 + 2 * count}")
    if sign not in _NUMERIC_SIGNS:
        if sign not in _NUMERIC_SPECIAL:
            raise Malformed(f"unknown sign {sign:#06x}")
        return _NUMERIC_SPECIAL[sign]
    if scale > _MAX_DISPLAY_SCALE:
        raise Malformed(f"display scale {scale} is above {_MAX_DISPLAY_SCALE}")
    digits = struct.unpack_from(f"!{count}H", raw, 8)
    if count and max(digits) >= _DIGIT_BASE:
        raise Malformed("a digit is above 9999")
    text = "".join([f"{digit:04d}" for digit in digits])
    point = (weight + 1) * 4
    if point > 0:
        whole, fraction = text[:point].ljust(point, "0").lstrip("0") or "0", text[point:]
    else:
        whole, fraction = "0", "0" * -point + text
    if scale:
        return f"{_NUMERIC_SIGNS[sign]}{whole}.{fraction[:scale].ljust(scale, '0')}"
    return _NUMERIC_SIGNS[sign] + whole


def _print_money(raw: bytes) -> str:
    (cents,) = _MONEY.unpack(raw)
    whole, fraction = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{fraction:02d}"


CODECS: Final = {
    "bool": codec(
        _BOOL_TEXT.__getitem__,
        _BOOL_BINARY.__getitem__,
        _BOOL_PRINTED.__getitem__,
        json_bool,
        json_bool,
    ),
    "int2": integer("!h"),
    "int4": integer("!i"),
    "int8": integer("!q"),
    "float4": codec(_read_float4, _read_float4_binary, _print_float4, json_float, _json_float4_binary),
    "float8": codec(float, _read_float8_binary, _print_float8, json_float, _json_float8_binary),
    "numeric": codec(_read_numeric, _read_numeric_binary, _print_numeric, quoted),
    "money": codec(bytes.decode, _print_money, _print_money),
}
