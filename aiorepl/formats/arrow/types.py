"""The one mapping of PostgreSQL's types: to Arrow and Parquet, and from there to Spark (``spark.reading.schema``). Pure.

    int2, int4, int8, oid         int16, int32, int64, int64
    float4, float8, bool          float, double, bool
    numeric(p,s), p up to 38      decimal128(p,s)
    numeric                       string: it may have 131,072 digits
    bytea                         binary
    date                          date32
    timestamp, timestamptz        timestamp[us], timestamp[us, UTC]
    a composite                   struct, by the names of its attributes
    a domain                      as its base type
    an array of these             list: one-dimensional values only
    every other type              string: PostgreSQL's text (json, jsonb, uuid, enums, ranges, time, interval …)

A numeric(p,s) in a domain or a composite is a string, because pgoutput does not send its precision. Spark reads no file with a
Parquet TIME or with a decimal of more than 38 digits, not even its other columns; so these are strings, too. Parquet has no
struct without fields, so a composite without attributes is a string.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from aiorepl.pgoutput.relations import Relation
from aiorepl.values.registry import Types
from aiorepl.values.types import ARRAY, COMPOSITE, TypeInfo

META: Final = pa.schema(
    [
        pa.field("_op", pa.string(), nullable=False),
        pa.field("_commit_lsn", pa.int64(), nullable=False),
        pa.field("_ordinal", pa.int64(), nullable=False),
        pa.field("_xid", pa.int64()),
        pa.field("_commit_ts", pa.timestamp("us", tz="UTC")),
        pa.field("_unchanged", pa.list_(pa.field("element", pa.string(), nullable=False))),
    ]
)
"""The metadata columns of a table's changes, also in ``spark.reading.schema``."""

UNREPRESENTABLE: Final = pa.field("_unrepresentable", pa.map_(pa.string(), pa.string()))
"""In files: by column name, PostgreSQL's text of a value that the column's type cannot represent."""

_SCALARS: Final = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
_MAX_PRECISION: Final = 38
_MOST_COLUMNS: Final = 1000
"""A struct with more columns becomes a string, because a reader holds a page of each column in memory."""


def column_types(relation: Relation, types: Types) -> tuple[pa.DataType, ...]:
    """Return the Arrow types of a description's columns."""
    return tuple(arrow_type(each.type_oid, each.type_modifier, types) for each in relation.columns)


def arrow_type(oid: int, modifier: int, types: Types) -> pa.DataType:
    """Return the Arrow type of a column."""
    info = types.base(oid)
    if info is None or not types.readable(oid):
        return pa.string()
    if info.oid != oid:
        # A column of a domain type has no type modifier of its own.
        modifier = -1
    if info.kind == ARRAY:
        element = arrow_type(info.element, modifier, types)
        return pa.string() if pa.types.is_list(element) else pa.list_(pa.field("element", element))
    if info.kind == COMPOSITE:
        return _struct(info, types)
    if info.namespace != "pg_catalog":
        return pa.string()
    if info.name == "numeric":
        return _decimal(modifier)
    return _SCALARS.get(info.name, pa.string())


def decimal_digits(modifier: int) -> tuple[int, int] | None:
    """Return precision and scale of a decimal that holds every value of numeric(p,s); ``None`` for plain numeric.

    Source: ``numeric_typmod_precision`` and ``numeric_typmod_scale``; the scale has 11 bits, signed.
    """
    if modifier < 4:
        return None
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    # A negative scale rounds left of the point; a scale above the precision fixes zeros right of it.
    precision = precision - scale if scale < 0 else max(precision, scale)
    return precision, max(scale, 0)


def _struct(info: TypeInfo, types: Types) -> pa.DataType:
    if not info.fields or _columns(info, types, {}) > _MOST_COLUMNS:
        return pa.string()
    return pa.struct([pa.field(name, arrow_type(oid, -1, types)) for name, oid in info.fields])


def _columns(info: TypeInfo | None, types: Types, known: dict[int, int]) -> int:
    """Return the number of columns that a type takes in a file."""
    if info is None or info.kind not in (ARRAY, COMPOSITE):
        return 1
    if info.oid not in known:
        parts = [info.element] if info.kind == ARRAY else [oid for _, oid in info.fields]
        known[info.oid] = sum(_columns(types.base(oid), types, known) for oid in parts)
    return known[info.oid]


def _decimal(modifier: int) -> pa.DataType:
    digits = decimal_digits(modifier)
    return pa.string() if digits is None or digits[0] > _MAX_PRECISION else pa.decimal128(*digits)
