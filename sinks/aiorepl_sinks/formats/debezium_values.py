"""Column values as Debezium's PostgreSQL connector writes them in JSON without schemas, from text or binary format. Pure.

Numbers, booleans and text are as in the native format, json and hstore are strings, bytea is base64, bits are base64 of
little-endian bytes (a single bit is a boolean), times are as in ``debezium_times``, and geometric values are objects.
Types that Debezium does not know, and omits by default, are PostgreSQL's text.

Source: Debezium's PostgresValueConverter, UnchangedToastedPlaceholder, WkbWriter.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import struct
import uuid
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, Final

import orjson

from aiorepl.pgoutput.relations import Column
from aiorepl.values.array_text import Tree
from aiorepl.values.arrays import parse
from aiorepl.values.codec import Encoder, Format, Malformed, guard
from aiorepl.values.extensions import CODECS as EXTENSION_CODECS
from aiorepl.values.geometric import CODECS as GEOMETRIC
from aiorepl.values.registry import Types
from aiorepl.values.types import ARRAY, BASE, BUILTIN, NAME_ONLY, TypeInfo
from aiorepl_sinks.formats import debezium_times as times

Converter = Callable[[str], Any]

PLACEHOLDER: Final = "__debezium_unavailable_value"

_DIRECT_DIGITS: Final = 1024
_SPECIAL: Final = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
_EXTENSIONS: Final = ("hstore", "vector", "halfvec", "geometry", "geography")
# Matches money in locales with a decimal point. In other locales 1,50 and 1.234 have another meaning, and do not match.
_MONEY: Final = re.compile(r"[(-]?[^\d,.]*((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d\d)?)\)?")


def encoder(types: Types, column: Column, kind: int, decimals: str) -> Encoder:
    """Return a function from a column's bytes to JSON."""
    convert = converter(types, column.type_oid, column.type_modifier, decimals)
    if convert is None:
        return types.json_encoder(column.type_oid, kind)
    text = types.text(column.type_oid, kind)
    name = f"type {types.info(column.type_oid)} (oid {column.type_oid})"
    return guard(lambda raw: orjson.dumps(convert(text(raw))), name, Format(kind).name.lower())


def converter(types: Types, oid: int, modifier: int, decimals: str) -> Converter | None:
    """Return a function from PostgreSQL's text to a JSON value; ``None`` if ``Types.json_encoder`` writes the same."""
    info = types.base(oid)
    if info is None or not types.readable(oid):
        return None
    if info.kind == ARRAY:
        return _array(types, info, modifier, decimals)
    if info.name == "numeric":
        return _numeric(modifier, decimals)
    if info.name == "money":
        return partial(_money, decimals=decimals)
    if info.name in ("bit", "varbit"):
        return _bits if modifier != 1 else _bit
    if info.name in ("time", "timestamp"):
        if info.name == "timestamp":
            return times.milliseconds if 0 <= modifier <= 3 else times.microseconds
        count = times.clock_microseconds
        return (lambda text: count(text) // 1000) if 0 <= modifier <= 3 else count
    if info.name == "timestamptz":
        return partial(times.zoned, digits=6 if modifier < 0 else modifier)
    # The name alone does not identify a type: a user-defined type may have the same name.
    known = info.oid in BUILTIN or (info.kind in (BASE, NAME_ONLY) and info.name in _EXTENSIONS)
    return _CONVERTERS.get(info.name) if known else None


def unchanged(types: Types, column: Column) -> bytes:
    """Return the JSON placeholder for an unchanged TOASTed value."""
    info = types.base(column.type_oid)
    name = "" if info is None else info.name
    raw = PLACEHOLDER.encode()
    value: Any = PLACEHOLDER
    if name in ("_text", "_varchar", "_bpchar", "_json", "_jsonb"):
        value = [PLACEHOLDER]
    elif name == "bytea":
        value = _base64(raw)
    elif name == "_bytea":
        value = [_base64(raw)]
    elif name in ("_int4", "_int8", "_date"):
        value = list(raw)
    elif name == "_uuid":
        value = [str(uuid.UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3))]
    elif name == "hstore":
        value = orjson.dumps({PLACEHOLDER: PLACEHOLDER}).decode()
    return orjson.dumps(value)


def _array(types: Types, info: TypeInfo, modifier: int, decimals: str) -> Converter | None:
    convert = converter(types, info.element, modifier, decimals)
    if convert is None:
        return None
    element = types.info(info.element)
    delimiter = info.delimiter if element is None else element.delimiter

    def nested(tree: Tree) -> list[Any]:
        return [
            nested(each) if isinstance(each, list) else None if each is None else convert(each.decode())
            for each in tree
        ]

    return lambda text: nested(parse(text.encode(), delimiter))


def _numeric(modifier: int, decimals: str) -> Converter:
    if decimals == "string":
        return lambda text: _SPECIAL.get(text, text)
    if decimals == "double":
        return _double
    if modifier < 0:
        return _variable_scale
    # The scale has eleven bits, signed since PostgreSQL 15.
    scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    return lambda text: _base64(_unscaled(text, scale))


def _double(text: str) -> float | str:
    return _number(float(text))


def _number(value: float) -> float | str:
    """Return a float as Kafka Connect's JSON converter writes it."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"


def _variable_scale(text: str) -> dict[str, Any]:
    scale = len(text.partition(".")[2].rstrip("0"))
    return {"scale": scale, "value": _base64(_unscaled(text, scale))}


def _unscaled(text: str, scale: int) -> bytes:
    """Return the unscaled value in big-endian two's complement, as Java's ``BigInteger.toByteArray`` does."""
    if text in _SPECIAL:
        raise Malformed(
            'NaN or infinity, which decimals="precise" cannot represent: use "string" or "double"'
        )
    sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
    whole, _, fraction = text.partition(".")
    digits = whole + fraction[: max(scale, 0)].ljust(scale, "0") if scale >= 0 else whole[:scale] or "0"
    number = sign * _integer(digits)
    length = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(length, "big", signed=True)


def _integer(digits: str) -> int:
    """Parse a number of any length: ``int`` limits the digits, and takes quadratic time, as ``Decimal`` does."""
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError
    if len(digits) <= _DIRECT_DIGITS:
        return int(digits)
    size = _DIRECT_DIGITS
    while 2 * size < len(digits):
        size *= 2
    return (_integer(digits[:-size]) * _power_of_five(size) << size) + _integer(digits[-size:])


@lru_cache(maxsize=16)
def _power_of_five(exponent: int) -> int:
    half = exponent // 2
    return (
        5**exponent if exponent <= _DIRECT_DIGITS else _power_of_five(half) * _power_of_five(exponent - half)
    )


def _money(text: str, decimals: str) -> Any:
    match = _MONEY.fullmatch(text)
    if match is None:
        raise Malformed("not in the form of lc_monetary C or en_US")
    amount = ("-" if text[0] in "(-" else "") + match[1].replace(",", "")
    if decimals == "precise":
        return _base64(_unscaled(amount, 2))
    return float(amount) if decimals == "double" else amount


def _bit(text: str) -> bool:
    return text == "1"


def _bits(text: str) -> str:
    number = int(text or "0", 2)
    return _base64(number.to_bytes((number.bit_length() + 7) // 8, "little"))


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _hstore(text: str) -> str:
    return orjson.dumps(EXTENSION_CODECS["hstore"].read_text(text.encode())).decode()


def _geometric(name: str, build: Callable[[Any], dict[str, Any]]) -> Converter:
    read = GEOMETRIC[name].read_text
    return lambda text: build(read(text.encode()))


def _point(point: tuple[float, float]) -> dict[str, Any]:
    wkb = struct.pack("<BI2d", 1, 1, *point)
    return {"x": _number(point[0]), "y": _number(point[1]), "wkb": _base64(wkb), "srid": None}


def _shape(kind: str, points: Iterable[tuple[float, float]], *, ring: bool, **more: str) -> dict[str, Any]:
    """Return well-known binary of a line or, with ``ring``, of a polygon with one closed ring."""
    points = list(points)
    if ring and points[0] != points[-1]:
        points.append(points[0])
    head = struct.pack("<BII", 1, 3, 1) if ring else struct.pack("<BI", 1, 2)
    coordinates = b"".join(struct.pack("<2d", *point) for point in points)
    wkb = head + struct.pack("<I", len(points)) + coordinates
    return {"wkb": _base64(wkb), "srid": None, "extensions": {"type": kind, **more}}


def _box(box: tuple[tuple[float, float], tuple[float, float]]) -> dict[str, Any]:
    (x1, y1), (x2, y2) = box
    return _shape("box", [(x1, y1), (x1, y2), (x2, y2), (x2, y1), (x1, y1)], ring=True)


def _postgis(text: str) -> dict[str, Any]:
    """Read extended well-known binary in hexadecimal, as PostGIS sends it; the SRID, if any, follows the type."""
    raw = bytes.fromhex(text)
    order = "<" if raw[0] else ">"
    (kind,) = struct.unpack_from(f"{order}I", raw, 1)
    srid = struct.unpack_from(f"{order}i", raw, 5)[0] if kind & 0x20000000 else None
    return {"wkb": _base64(raw), "srid": srid}


_CONVERTERS: Final[dict[str, Converter]] = {
    "json": str,
    "jsonb": str,
    "bytea": lambda text: _base64(bytes.fromhex(text[2:])),
    "date": times.days,
    "timetz": times.zoned_clock,
    "interval": times.duration,
    "hstore": _hstore,
    "vector": orjson.loads,
    "halfvec": orjson.loads,
    "geometry": _postgis,
    "geography": _postgis,
    "point": _geometric("point", _point),
    "line": _geometric("line", lambda line: dict(zip("abc", map(_number, line), strict=True))),
    "circle": _geometric(
        "circle", lambda circle: {"center": _point(circle[0]), "radius": _number(circle[1])}
    ),
    "lseg": _geometric("lseg", lambda points: _shape("lseg", points, ring=False)),
    "box": _geometric("box", _box),
    "polygon": _geometric("polygon", lambda points: _shape("polygon", points, ring=True)),
    "path": _geometric(
        "path", lambda path: _shape("path", path.points, ring=False, closed=str(path.closed).lower())
    ),
}
