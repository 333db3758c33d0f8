"""Types that hold the values of two descriptions of a column, and casts that keep every value. Pure.

Structs are matched by the names of their fields, as in Arrow's cast, because a composite may have been altered. A field that a
value lacks is null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

Wider = Callable[[pa.DataType, pa.DataType], "pa.DataType | None"]

_INTEGERS: Final = (pa.int16(), pa.int32(), pa.int64())


def wider(one: pa.DataType, other: pa.DataType, scalar: Wider) -> pa.DataType | None:
    """Return a type that holds the values of both types; ``None`` if there is none.

    :param other: the newer type. Struct fields that only this type has come last.
    :param scalar: returns such a type for two different scalar types; the caller's table format decides.
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
    return scalar(one, other)


def casts(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast keeps every value. Struct fields that ``wanted`` lacks are dropped on purpose."""
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return casts(found.value_type, wanted.value_type)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        own = {field.name: field.type for field in found}
        return all(casts(own[field.name], field.type) for field in wanted if field.name in own)
    return found == wanted or (
        found in _INTEGERS and wanted in _INTEGERS and wanted.bit_width >= found.bit_width
    )
