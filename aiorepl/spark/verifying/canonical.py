"""Canonical texts of values. PostgreSQL prints them, and this module also makes them from a lake's columns. Pure.

Dates, times and floating-point numbers are printed as integers, and decimals without their point. So the text depends neither on
settings nor on the side that prints it. Arrays and composites are printed as their parts, each with its length. A value that the
lake's column cannot hold is null on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.values.registry import Types
from aiorepl.values.types import ARRAY, COMPOSITE, TypeInfo
from aiorepl.wire.commands import identifier

_INTEGERS: Final = ("int2", "int4", "int8", "oid")
_TO_2000: Final = 946_684_800_000_000
_FLOATS: Final = {pa.float32(): ("float4", 32, pa.int32()), pa.float64(): ("float8", 64, pa.int64())}


# Half of float8's least positive number, and the limit above which a number becomes infinite.
_LEAST: Final = "2.4703282292062328e-324"
_MOST: Final = "1.7976931348623158e308"


@dataclass(frozen=True, slots=True)
class Canonical:
    """The canonical form of a column's values.

    :param sql: takes an SQL expression; returns the SQL of its text, which is NULL for NULL.
    :param texts: takes an array of the lake; returns an array of texts.
    :param number: whether the text is an integer that sorts as the value does.
    """

    sql: Callable[[str], str]
    texts: Callable[[Any], Any]
    number: bool = False


def canonical(oid: int, types: Types, kind: pa.DataType, *, key: bool = False) -> Canonical | None:
    """Return the canonical form of a column; ``None`` if the two types cannot be compared.

    :param oid: the column's type in PostgreSQL.
    :param kind: the column's type in the lake.
    :param key: whether equal values must have equal texts. Without it, -0 and 0 have different texts.
    """
    info = types.base(oid)
    if _is_text(kind):
        return Canonical(_output, lambda array: array.cast(pa.string()))
    if info is None:
        return None
    if info.kind in (ARRAY, COMPOSITE):
        found = _nested(info, types, kind)
    else:
        # Only built-in types: a user's type may have the same name, and its casts would run with our role's rights.
        found = _scalar(info.name, kind, key=key) if info.namespace == "pg_catalog" else None
    if found is None or info.oid == oid:
        return found
    base = f"{identifier(info.namespace)}.{identifier(info.name)}"
    return Canonical(lambda each: found.sql(f"(({each})::{base})"), found.texts, found.number)


def joined_sql(expressions: Sequence[str]) -> str:
    """Return the SQL of a row's text, which is unambiguous."""
    return " || ".join(_part(each) for each in expressions) or "''"


def joined(columns: Sequence[Any], rows: int) -> Any:
    """Return the texts of rows, as ``joined_sql``."""
    if not columns:
        return pa.array([""] * rows, pa.string())
    return pc.binary_join_element_wise(*[_parts(each) for each in columns], "")


def readable(row: str) -> str:
    """Convert a row's text to its values, separated by commas."""
    found, at = [], 0
    while at < len(row):
        if row[at] == "N":
            found.append("NULL")
            at += 1
            continue
        colon = row.index(":", at)
        end = colon + 1 + int(row[at:colon])
        found.append(row[colon + 1 : end])
        at = end
    return ", ".join(found)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _output(each: str) -> str:
    # format() uses the type's output function, as the stream does; a cast to text strips the blanks of char(n).
    return f"CASE WHEN {each} IS DISTINCT FROM NULL THEN format('%s', {each}) END"


def _scalar(name: str, kind: pa.DataType, *, key: bool) -> Canonical | None:
    if pa.types.is_integer(kind) and name in _INTEGERS:
        return Canonical(lambda each: f"({each})::text", lambda array: array.cast(pa.string()), number=True)
    if pa.types.is_decimal(kind) and name in (*_INTEGERS, "numeric"):
        return _decimal(kind)
    if kind in _FLOATS and name in (*_INTEGERS, "numeric", "float4", "float8"):
        return _float(kind, key=key, numeric=name == "numeric")
    if pa.types.is_boolean(kind) and name == "bool":
        return Canonical(_output, _booleans)
    if pa.types.is_date(kind) and name == "date":
        return Canonical(
            lambda each: f"CASE WHEN isfinite({each}) THEN ({each} - '1970-01-01'::date)::text END",
            lambda array: array.cast(pa.date32()).cast(pa.int32()).cast(pa.string()),
            number=True,
        )
    if pa.types.is_timestamp(kind) and name in ("timestamp", "timestamptz"):
        return Canonical(lambda each: _moment(name, each), _moments, number=True)
    if (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) and name == "bytea":
        return Canonical(lambda each: f"encode({each}, 'hex')", _hex)
    return None


def _decimal(kind: pa.DataType) -> Canonical:
    most, unit = "1" + "0" * (kind.precision - kind.scale), "1" + "0" * kind.scale
    whole = (
        pa.decimal256(kind.precision, 0) if pa.types.is_decimal256(kind) else pa.decimal128(kind.precision)
    )

    def sql(each: str) -> str:
        # NaN and the infinities fail this comparison, so their text is NULL.
        return f"CASE WHEN abs(({each})::numeric) < {most} THEN trunc(({each})::numeric * {unit})::text END"

    def texts(array: Any) -> Any:
        array = pa.concat_arrays([array])  # a copy whose buffers have no offset
        return pa.Array.from_buffers(whole, len(array), array.buffers()).cast(pa.string())

    return Canonical(sql, texts, number=True)


def _float(kind: pa.DataType, *, key: bool, numeric: bool = False) -> Canonical:
    name, bits, integer = _FLOATS[kind]

    def sql(each: str) -> str:
        value = f"({each})::{name}"
        value = f"{value} + '0'::{name}" if key else value
        found = f"('x' || encode({name}send({value}), 'hex'))::bit({bits})::int{bits // 8}::text"
        if not numeric:
            return found
        # PostgreSQL refuses to convert numbers that would become infinite or 0. The lake has NULL for them.
        near = f"abs({each}) BETWEEN {_LEAST} AND {_MOST} OR {each} = 0 OR ({each})::text ~ '[NI]'"
        return f"CASE WHEN {near} THEN {found} END"

    def texts(array: Any) -> Any:
        if key:
            array = pc.add(array, pa.scalar(0, kind))
        one = pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), kind), array)
        return one.view(integer).cast(pa.string())

    return Canonical(sql, texts)


def _booleans(array: Any) -> Any:
    return pc.if_else(array, "t", "f")


def _moment(name: str, each: str) -> str:
    # The latest time that fits into 64 bits, in microseconds since 1970.
    most = f"'294247-01-10 04:00:54.775807+00'::{name}"
    number = f"('x' || encode({name}_send({each}), 'hex'))::bit(64)::bigint::text"
    return f"CASE WHEN isfinite({each}) AND {each} <= {most} THEN {number} END"


def _moments(array: Any) -> Any:
    zone = array.type.tz
    since_1970 = array.cast(pa.timestamp("us", tz=zone)).cast(pa.int64())
    return pc.subtract(since_1970, pa.scalar(_TO_2000)).cast(pa.string())


def _hex(array: Any) -> Any:
    return pa.array([None if each is None else each.hex() for each in array.to_pylist()], pa.string())


def _nested(info: TypeInfo, types: Types, kind: pa.DataType) -> Canonical | None:
    if info.kind == COMPOSITE:
        return _composite(info, types, kind) if pa.types.is_struct(kind) else None
    levels, inner = 0, kind
    element = types.base(info.element)
    while _is_list(inner) and (levels == 0 or element is None or element.kind != ARRAY):
        levels, inner = levels + 1, inner.value_type
    found = canonical(info.element, types, inner) if levels else None
    return None if found is None else _array(found, levels)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _composite(info: TypeInfo, types: Types, kind: pa.DataType) -> Canonical | None:
    oids = dict(info.fields)
    # Compare the attributes that both sides have. The others were added or dropped since.
    names = [field.name for field in kind if field.name in oids]
    fields = [canonical(oids[name], types, kind.field(name).type) for name in names]
    known = [each for each in fields if each is not None]
    if len(known) < len(fields):
        return None

    def sql(each: str) -> str:
        text = joined_sql(
            [field.sql(f"(({each}).{identifier(name)})") for name, field in zip(names, known, strict=True)]
        )
        return f"CASE WHEN {each} IS DISTINCT FROM NULL THEN '(' || {text} || ')' END"

    def texts(array: Any) -> Any:
        columns = dict(zip([field.name for field in kind], array.flatten(), strict=True))
        rows = joined(
            [field.texts(columns[name]) for name, field in zip(names, known, strict=True)], len(array)
        )
        return pc.if_else(pc.is_valid(array), pc.binary_join_element_wise("(", rows, ")", ""), None)

    return Canonical(sql, texts)


def _array(element: Canonical, levels: int) -> Canonical:
    def sql(each: str) -> str:
        # The depth makes the subscript's name unique, so that it does not shadow an outer array's.
        depth = each.count("_s")

        def level(number: int, at: str) -> str:
            if number > levels:
                return element.sql(f"(({each}){at})")
            name = f"_s{depth + number}"
            part = _part(level(number + 1, f"{at}[{name}]"))
            parts = f"SELECT string_agg({part}, '' ORDER BY {name}) FROM generate_subscripts({each}, {number}) AS {name}"
            return f"'[' || coalesce(({parts}), '') || ']'"

        fits = f"coalesce(array_ndims({each}), {levels}) = {levels}"
        empty = f"CASE WHEN cardinality({each}) = 0 THEN '[]' ELSE {level(1, '')} END"
        return f"CASE WHEN {each} IS NOT NULL AND {fits} THEN {empty} END"

    def texts(array: Any) -> Any:
        return _lists(array, element, levels)

    return Canonical(sql, texts)


def _lists(array: Any, element: Canonical, levels: int) -> Any:
    flat = pc.list_flatten(array)
    inner = element.texts(flat) if levels == 1 else _lists(flat, element, levels - 1)
    parts = _parts(inner).to_pylist()
    found: list[str | None] = []
    at = 0
    for length in pc.list_value_length(array).to_pylist():
        if length is None:
            found.append(None)
            continue
        found.append("[" + "".join(parts[at : at + length]) + "]")
        at += length
    return pa.array(found, pa.string())


def _part(each: str) -> str:
    return f"coalesce(length({each}) || ':' || ({each}), 'N')"


def _parts(texts: Any) -> Any:
    lengths = pc.utf8_length(texts).cast(pa.string())
    return pc.fill_null(pc.binary_join_element_wise(lengths, texts, ":"), "N")
