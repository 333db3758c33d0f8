"""Values of fields, from the bytes of columns. Pure.

Dates are days, times and timestamps microseconds, both since 1970 where they have a day. Infinity is the greatest number of the field,
and -infinity the least: no date and no timestamp has these numbers. A value without a form raises ``Malformed``, which names the
problem and not the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiorepl.values.arrays import parse
from aiorepl.values.codec import Format, Malformed, guard
from aiorepl.values.registry import Types
from aiorepl_schema_registry.shapes import FieldType, Kind
from aiorepl_sinks.formats import debezium_times as times

Converter = Callable[[str], Any]
_INT32, _INT64 = 2**31 - 1, 2**63 - 1


def reader(types: Types, oid: int, kind: int, field: FieldType) -> Callable[[bytes], Any]:
    """Return a function from a column's bytes to the value of its field.

    :param kind: the kind of the bytes, ``t`` or ``b``.
    """
    text, convert = types.text(oid, kind), converter(field)
    if convert is str:
        return text
    name = f"type {types.info(oid)} (oid {oid})"
    return guard(lambda raw: convert(text(raw)), name, Format(kind).name.lower())


def converter(field: FieldType) -> Converter:
    """Return a function from PostgreSQL's text to the value of a field."""
    if field.kind == "decimal":
        return lambda text: unscaled(text, field.precision, field.scale)
    if field.kind == "array":
        return _array(field)
    return _CONVERTERS.get(field.kind, str)


def unscaled(text: str, precision: int, scale: int) -> bytes:
    """Return the unscaled number in big-endian two's complement, in as few bytes as possible.

    :raises Malformed: NaN, infinity, or a number with more digits than ``precision`` and ``scale`` have.
    """
    if text[-1:] in "Ny":
        raise Malformed('NaN or infinity, which a decimal does not have: set decimals = "string"')
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    whole, _, fraction = digits.partition(".")
    kept, rest = fraction[:scale].ljust(scale, "0"), fraction[scale:]
    if rest.strip("0") or len((whole + kept).lstrip("0")) > precision:
        raise Malformed(f'more digits than decimal({precision}, {scale}) has: set decimals = "string"')
    number = sign * int(whole + kept)
    length = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(length, "big", signed=True)


def _array(field: FieldType) -> Converter:
    assert field.element is not None
    convert, delimiter = converter(field.element), field.delimiter

    def read(text: str) -> list[Any]:
        elements = parse(text.encode(), delimiter)
        if any(isinstance(each, list) for each in elements):
            raise Malformed(
                'an array of several dimensions, which the schema cannot have: set arrays = "string"'
            )
        return [None if each is None else convert(each.decode()) for each in elements]

    return read


def _boolean(text: str) -> bool:
    if text not in ("t", "f"):
        raise ValueError
    return text == "t"


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise Malformed("not in hexadecimal; is bytea_output hex?")
    return bytes.fromhex(text[2:])


def _limited(convert: Callable[[str], int], limit: int) -> Converter:
    """Return a function that gives infinity the limits, which no other value may have."""
    infinite = {"infinity": limit, "-infinity": -limit - 1}

    def read(text: str) -> int:
        if text in infinite:
            return infinite[text]
        number = convert(text)
        if not -limit - 1 < number < limit:
            raise Malformed(f"too far from 1970 for {limit.bit_length() + 1} bits")
        return number

    return read


_CONVERTERS: Final[dict[Kind, Converter]] = {
    "boolean": _boolean,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": _bytes,
    "date": _limited(times.days, _INT32),
    "time": times.clock_microseconds,
    "timestamp": _limited(times.microseconds, _INT64),
    "local_timestamp": _limited(times.microseconds, _INT64),
}
