"""Types that hold the values of two descriptions of a column, and casts that keep every value. Pure.

A composite that was altered has other attributes: structs are matched by the names of their fields, as Arrow's cast does it. A
field that a value does not have is null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

Wider = Callable[[pa.DataType, pa.DataType], "pa.DataType | None"]

_INTEGERS: Final = (pa.int16(), pa.int32(), pa.int64())
_FLOATS: Final = (pa.float32(), pa.float64())
_MAX_PRECISION: Final = 38


def wider(one: pa.DataType, other: pa.DataType, scalar: Wider | None = None) -> pa.DataType | None:
    """Return the type that has the values of both; ``None`` if there is none but text.

    :param other: the newer one; fields of structs that only it has come last.
    :param scalar: does the same for different types that are not nested, as a target wants it.
    """
    if one == other:
        return one
    if pa.types.is_list(one) and pa.types.is_list(other):
        element = wider(one.value_type, other.value_type, scalar)
        return None if element is None else pa.list_(pa.field("element", element))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            known = fields.get(field.name, field.type)
            kind = wider(known, field.type, scalar)
            if kind is None:
                return None
            fields[field.name] = kind
        return pa.struct(list(fields.items()))
    return (scalar or _wider)(one, other)


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    for family in (_INTEGERS, _FLOATS):
        if one in family and other in family:
            return max(one, other, key=family.index)
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= _MAX_PRECISION else None
    return None


def casts(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast keeps every value that ``wanted`` has a place for; it may lack fields of a struct."""
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return casts(found.value_type, wanted.value_type)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        own = {field.name: field.type for field in found}
        return all(casts(own[field.name], field.type) for field in wanted if field.name in own)
    return found == wanted or (
        found in _INTEGERS and wanted in _INTEGERS and wanted.bit_width >= found.bit_width
    )
