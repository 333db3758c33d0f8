"""Convert a column's values from PostgreSQL's text to an Arrow array of a given type. Pure.

Arrow casts a whole column at a time. If the cast fails, the values of that column are converted one by one: years before
1 or after 9999 are kept, and a value that the type cannot represent (infinity, NaN in a decimal, an array with more or fewer
dimensions than the list has levels) raises ``Unrepresentable`` or becomes null, as the caller chose. The parts of arrays and
composites are converted in the same way, a level of all values at a time.

Arrow's error messages quote values, so they are never passed on.
"""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from aiorepl.formats.arrow import timestamps
from aiorepl.formats.arrow.parts import attributes, elements
from aiorepl.formats.arrow.variant import encode, is_variant
from aiorepl.values.registry import Types
from aiorepl.values.types import ARRAY, COMPOSITE, TypeInfo

Raw = bytes | None
Convert = Callable[[Sequence[Raw]], Any]


class Unrepresentable(ValueError):
    """The wanted type cannot represent a value. The message does not contain the value."""


def converter(oid: int, types: Types, wanted: pa.DataType, *, null: bool) -> Convert:
    """Return a function from a column's values to an array of type ``wanted``; it raises ``Unrepresentable``.

    :param null: convert a value that ``wanted`` cannot represent to null instead.
    """
    return _converter(types.base(oid), types, wanted, null=null)


def text_array(values: Sequence[Raw]) -> Any:
    """Return texts as an array. Bytes that are not UTF-8, from a SQL_ASCII database, are escaped with backslashes."""
    try:
        return pa.array(values, pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None else value.decode("utf-8", "backslashreplace") for value in values]
        )


def _converter(info: TypeInfo | None, types: Types, wanted: pa.DataType, *, null: bool) -> Convert:
    if pa.types.is_string(wanted):
        return lambda values: _texts(values, null=null)
    if pa.types.is_binary(wanted):
        is_bytea = info is not None and info.name == "bytea" and info.namespace == "pg_catalog"
        if not is_bytea:
            return lambda values: pa.array(values, wanted)
        return lambda values: _bytea(values, null=null)
    if pa.types.is_list(wanted) and info is not None and info.kind == ARRAY:
        return _list_converter(info, types, wanted, null=null)
    if is_variant(wanted):
        is_json = info is not None and info.name in ("json", "jsonb") and info.namespace == "pg_catalog"
        return lambda values: _variants(values, wanted, encode if is_json else _unconvertible, null=null)
    if pa.types.is_struct(wanted) and info is not None and info.kind == COMPOSITE and not info.problem:
        return _struct_converter(info, types, wanted, null=null)
    if pa.types.is_nested(wanted):
        return lambda values: _each(values, wanted, _unconvertible, null=null)
    if pa.types.is_boolean(wanted):
        return lambda values: _booleans(values, null=null)
    one = _ONE_BY_ONE.get(wanted.id, _by_cast(wanted))
    return lambda values: _cast(values, wanted, one, null=null)


def _cast(values: Sequence[Raw], wanted: pa.DataType, one: Callable[[str], Any], *, null: bool) -> Any:
    # ArrowNotImplementedError: Arrow has no cast from text to times of day.
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array(values, pa.string()).cast(wanted)
    return _each(values, wanted, one, null=null)


def _texts(values: Sequence[Raw], *, null: bool) -> Any:
    with contextlib.suppress(pa.ArrowInvalid):  # a SQL_ASCII database may contain any bytes
        return pa.array(values, pa.string())
    return _each(values, pa.string(), lambda text: text, null=null)


def _booleans(values: Sequence[Raw], *, null: bool) -> Any:
    # Imported here, so that Spark's tasks without Boolean columns start sooner.
    import pyarrow.compute as pc

    texts = _texts(values, null=null)
    found = pc.index_in(texts, value_set=pa.array(["f", "t"]))
    if found.null_count != texts.null_count and not null:
        raise Unrepresentable
    return found.cast(pa.bool_())


def _bytea(values: Sequence[Raw], *, null: bool) -> Any:
    with contextlib.suppress(binascii.Error):
        return pa.array([None if value is None else _unhex(value) for value in values], pa.binary())
    return _each(values, pa.binary(), _bytes, null=null)


def _unhex(raw: bytes) -> bytes:
    # aiorepl's connections set bytea_output = hex: \x0102
    if not raw.startswith(b"\\x"):
        raise binascii.Error
    return binascii.unhexlify(raw[2:])


def _bytes(text: str) -> bytes | None:
    try:
        return _unhex(text.encode())
    except binascii.Error:
        return None


def _list_converter(info: TypeInfo, types: Types, wanted: pa.DataType, *, null: bool) -> Convert:
    element = types.base(info.element)
    levels, inner = 1, wanted.value_type
    # A nested list is another dimension of the same array, except if the element type is a domain over arrays.
    while pa.types.is_list(inner) and (element is None or element.kind != ARRAY):
        levels, inner = levels + 1, inner.value_type
    delimiter = info.delimiter if element is None else element.delimiter
    convert = _converter(element, types, inner, null=null)

    def lists(values: Sequence[Raw]) -> Any:
        found = elements(values, delimiter, levels)
        if found.unfit and not null:
            raise Unrepresentable
        return _nested_lists(wanted, found.offsets, found.missing, convert(found.flat))

    return lists


def _nested_lists(
    wanted: pa.DataType, offsets: Sequence[Sequence[int]], missing: Sequence[bool], flat: Any
) -> Any:
    first, *inner = offsets
    values = _nested_lists(wanted.value_type, inner, (), flat) if inner else flat
    mask = pa.array(missing) if any(missing) else None
    return pa.ListArray.from_arrays(pa.array(first, pa.int32()), values, type=wanted, mask=mask)


def _struct_converter(info: TypeInfo, types: Types, wanted: pa.DataType, *, null: bool) -> Convert:
    """Match attributes by name. An attribute that the composite lacks is null, as in values before ``ADD ATTRIBUTE``."""
    names = [name for name, _ in info.fields]
    oids = dict(info.fields)
    fields = list(wanted)
    converters = [
        _converter(types.base(oids[field.name]), types, field.type, null=null)
        if field.name in oids
        else lambda values, kind=field.type: pa.nulls(len(values), kind)
        for field in fields
    ]

    def structs(values: Sequence[Raw]) -> Any:
        found = attributes(values, names)
        if found.unfit and not null:
            raise Unrepresentable
        nothing: list[Raw] = [None] * len(values)
        arrays = [
            convert(found.columns.get(field.name, nothing))
            for field, convert in zip(fields, converters, strict=True)
        ]
        mask = pa.array(found.missing) if any(found.missing) else None
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    return structs


def _variants(values: Sequence[Raw], wanted: pa.DataType, one: Callable[[str], Any], *, null: bool) -> Any:
    found = _read(values, one, null=null)
    documents = [(b"", b"") if each is None else each for each in found]
    arrays = [pa.array([each[part] for each in documents], field.type) for part, field in enumerate(wanted)]
    mask = pa.array([each is None for each in found]) if None in found else None
    return pa.StructArray.from_arrays(arrays, fields=list(wanted), mask=mask)


def _each(values: Sequence[Raw], wanted: pa.DataType, one: Callable[[str], Any], *, null: bool) -> Any:
    read = _read(values, one, null=null)
    if wanted.id in _ONE_BY_ONE:
        width = pa.int32() if wanted.id == pa.date32().id else pa.int64()
        try:
            return pa.array(read, width).cast(wanted)
        except (OverflowError, pa.ArrowInvalid):
            raise Unrepresentable from None
    return pa.array(read, wanted)


def _read(values: Sequence[Raw], one: Callable[[str], Any], *, null: bool) -> list[Any]:
    read: list[Any] = []
    for value in values:
        item = None
        if value is not None:
            try:
                item = one(value.decode())
            except UnicodeDecodeError:
                item = None
            if item is None and not null:
                raise Unrepresentable
        read.append(item)
    return read


def _by_cast(wanted: pa.DataType) -> Callable[[str], Any]:
    def one(text: str) -> Any:
        try:
            return pa.scalar(text).cast(wanted).as_py()
        except pa.ArrowInvalid:
            return None

    return one


def _unconvertible(text: str) -> None:
    return None


# Parsers with a wider range than Arrow's casts. They return the integer that Arrow stores.
_ONE_BY_ONE: Final[dict[int, Callable[[str], Any]]] = {
    pa.date32().id: timestamps.days,
    pa.timestamp("us").id: timestamps.microseconds,
    pa.time64("ns").id: timestamps.nanoseconds_of_day,
}
