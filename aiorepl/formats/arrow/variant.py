"""JSON as VARIANT, the binary form of semi-structured values that Spark, Delta, Iceberg and Parquet share. Pure.

Numbers keep all their digits: decimals up to 38 digits, otherwise floating-point numbers that print the same.

Source: "Variant Binary Encoding" of apache/parquet-format.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn

import pyarrow as pa

_VERSION: Final = 1
_SORTED: Final = 0x10
_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_NULL, _TRUE, _FALSE, _INT8, _INT16, _INT32, _INT64, _DOUBLE, _DECIMAL4, _DECIMAL8, _DECIMAL16 = range(11)
_LONG_STRING: Final = 16
_MOST_SHORT: Final = 63
_MOST_SMALL: Final = 255
_MOST_BYTES: Final = 16 * 1024 * 1024
"""The size of the largest document that Spark reads."""
_INTEGERS: Final = ((_INT8, 1), (_INT16, 2), (_INT32, 4), (_INT64, 8))
_DECIMALS: Final = ((_DECIMAL4, 9, 4), (_DECIMAL8, 18, 8), (_DECIMAL16, 38, 16))


def is_variant(wanted: pa.DataType) -> bool:
    """Return whether an Arrow type is pyspark's form of VARIANT."""
    return (
        pa.types.is_struct(wanted)
        and wanted.num_fields == 2
        and (wanted.field(1).metadata or {}).get(b"variant") == b"true"
    )


def encode(text: str) -> tuple[bytes, bytes] | None:
    """Return value and metadata of a document; ``None`` if VARIANT cannot represent it.

    VARIANT cannot represent an object with a duplicate key, a number of more than 38 digits that no floating-point number
    equals, an unpaired surrogate, and a document of more than 16 MiB. Nesting is limited by Python's recursion limit.
    """
    names: dict[str, int] = {}
    try:
        document = _DECODER.decode(text)
        _collect(document, names)
        keys = sorted(names)
        names = {key: number for number, key in enumerate(keys)}
        metadata = _dictionary([key.encode() for key in keys])
        value = _value(document, names)
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return None if max(len(value), len(metadata)) > _MOST_BYTES else (value, metadata)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=Decimal, parse_constant=_refuse)


def _collect(value: Any, names: dict[str, int]) -> None:
    if isinstance(value, dict):
        names.update(dict.fromkeys(value, 0))
        value = value.values()
    elif not isinstance(value, list):
        return
    for each in value:
        _collect(each, names)


def _dictionary(keys: Sequence[bytes]) -> bytes:
    offsets = _offsets(keys)
    size = _size(max(offsets[-1], len(keys)))
    head = bytes([_VERSION | _SORTED | (size - 1) << 6])
    return head + _packed([len(keys), *offsets], size) + b"".join(keys)


def _value(value: Any, names: Mapping[str, int]) -> bytes:
    if isinstance(value, str):
        return _string(value.encode())
    if value is None or isinstance(value, bool):
        return _primitive(_NULL if value is None else _TRUE if value else _FALSE)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, list):
        return _container(_ARRAY, 0, b"", [_value(each, names) for each in value])
    ordered = sorted(value.items(), key=lambda item: names[item[0]])
    ids = [names[name] for name, _ in ordered]
    size = _size(max(ids, default=0))
    return _container(_OBJECT, size, _packed(ids, size), [_value(each, names) for _, each in ordered])


def _container(kind: int, id_size: int, ids: bytes, values: Sequence[bytes]) -> bytes:
    offsets = _offsets(values)
    size, large = _size(offsets[-1]), len(values) > _MOST_SMALL
    head = (size - 1) | (large << 2 if kind == _ARRAY else (id_size - 1) << 2 | large << 4)
    count = _packed([len(values)], 4 if large else 1)
    return bytes([kind | head << 2]) + count + ids + _packed(offsets, size) + b"".join(values)


def _string(text: bytes) -> bytes:
    if len(text) <= _MOST_SHORT:
        return bytes([_SHORT_STRING | len(text) << 2]) + text
    return _primitive(_LONG_STRING) + struct.pack("<I", len(text)) + text


def _integer(value: int) -> bytes:
    for kind, size in _INTEGERS:
        if -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
            return _primitive(kind) + value.to_bytes(size, "little", signed=True)
    return _decimal(Decimal(value))


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale)
    fitting = next(((kind, size) for kind, most, size in _DECIMALS if precision <= most), None)
    if fitting is None:
        number = float(value)
        if Decimal(repr(number)) != value:
            raise ValueError("the number has too many digits")
        return _primitive(_DOUBLE) + struct.pack("<d", number)
    kind, size = fitting
    unscaled = int("".join(map(str, digits))) * int(10 ** max(exponent, 0))
    return (
        _primitive(kind)
        + bytes([scale])
        + (-unscaled if sign else unscaled).to_bytes(size, "little", signed=True)
    )


def _primitive(kind: int) -> bytes:
    return bytes([_PRIMITIVE | kind << 2])


def _offsets(parts: Sequence[bytes]) -> list[int]:
    found = [0]
    for part in parts:
        found.append(found[-1] + len(part))
    return found


def _size(most: int) -> int:
    return max((most.bit_length() + 7) // 8, 1)


def _packed(numbers: Sequence[int], size: int) -> bytes:
    return b"".join(number.to_bytes(size, "little") for number in numbers)
