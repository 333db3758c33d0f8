"""Converts PostgreSQL's text of a column's default to the column's Arrow type. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from aiorepl.errors import DataError
from aiorepl.formats.arrow.columns import Unrepresentable, converter
from aiorepl.values.registry import Types

_OIDS: Final[tuple[tuple[Callable[[Any], bool], tuple[int, int]], ...]] = (
    (pa.types.is_boolean, (16, 1000)),
    (pa.types.is_int16, (21, 1005)),
    (pa.types.is_int32, (23, 1007)),
    (pa.types.is_int64, (20, 1016)),
    (pa.types.is_float32, (700, 1021)),
    (pa.types.is_float64, (701, 1022)),
    (pa.types.is_decimal, (1700, 1231)),
    (pa.types.is_date32, (1082, 1182)),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is None, (1114, 1115)),
    (pa.types.is_timestamp, (1184, 1185)),
    (pa.types.is_binary, (17, 1001)),
    (pa.types.is_string, (25, 1009)),
)
"""By Arrow type: the oids of the built-in type and of its array type, whose input the text is. The column may be a domain."""


def default(name: str, text: str, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a column in rows from before it was added.

    :param name: the column, for errors.
    :raises DataError: the text cannot be read as the column's type, or the value does not fit into the type.
    """
    is_list = pa.types.is_list(kind)
    base = kind.value_type if is_list else kind
    oid = next((oids[is_list] for known, oids in _OIDS if known(base)), None)
    try:
        if oid is None:
            raise Unrepresentable
        return converter(oid, Types(), kind, null=False)([text.encode()])[0]
    except (Unrepresentable, ValueError):
        raise DataError(
            f"{name}: its value in rows from before it was added cannot be read as {kind}: add the column to the target"
        ) from None
