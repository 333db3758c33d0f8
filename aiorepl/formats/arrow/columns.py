"""Convert a column's values from PostgreSQL's text to an Arrow array of a given type. Pure.

Arrow casts a whole column at a time. If the cast fails, the values of that column are converted one by one: years before
1 or after 9999 are kept, and a value that the type cannot represent (infinity, NaN in a decimal, an array of more than one
dimension) raises ``Unrepresentable`` or becomes null, as the caller chose.

Arrow's error messages quote values, so they are never passed on.
"""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.formats.arrow import timestamps
from aiorepl.values.arrays import parse
from aiorepl.values.codec import Malformed
from aiorepl.values.registry import Types
from aiorepl.values.types import ARRAY, TypeInfo

Raw = bytes | None
Convert = Callable[[Sequence[Raw]], Any]

_BOOLEANS: Final = pa.array(["f", "t"])


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
        return _bytea if is_bytea else lambda values: pa.array(values, wanted)
    if pa.types.is_list(wanted):
        if info is None or info.kind != ARRAY:
            return lambda values: _each(values, wanted, _unconvertible, null=null)
        element = _converter(types.base(info.element), types, wanted.value_type, null=null)
        return lambda values: _lists(values, info.delimiter, element, wanted, null=null)
    if pa.types.is_boolean(wanted):
        return lambda values: _booleans(values, null=null)
    one = _ONE_BY_ONE.get(wanted.id, _by_cast(wanted))
    return lambda values: _cast(values, wanted, one, null=null)


def _cast(values: Sequence[Raw], wanted: pa.DataType, one: Callable[[str], Any], *, null: bool) -> Any:
    with contextlib.suppress(pa.ArrowInvalid):
        return pa.array(values, pa.string()).cast(wanted)
    return _each(values, wanted, one, null=null)


def _texts(values: Sequence[Raw], *, null: bool) -> Any:
    with contextlib.suppress(pa.ArrowInvalid):  # a SQL_ASCII database may contain any bytes
        return pa.array(values, pa.string())
    return _each(values, pa.string(), lambda text: text, null=null)


def _booleans(values: Sequence[Raw], *, null: bool) -> Any:
    texts = pa.array(values, pa.string())
    found = pc.index_in(texts, value_set=_BOOLEANS)
    if found.null_count != texts.null_count and not null:
        raise Unrepresentable
    return found.cast(pa.bool_())


def _bytea(values: Sequence[Raw]) -> Any:
    # aiorepl's connections set bytea_output = hex: \x0102
    return pa.array(
        [None if value is None else binascii.unhexlify(value[2:]) for value in values], pa.binary()
    )


def _lists(
    values: Sequence[Raw], delimiter: str, element: Convert, wanted: pa.DataType, *, null: bool
) -> Any:
    offsets, missing = [0], []
    flat: list[Raw] = []
    for value in values:
        items: list[Any] | None = None
        if value is not None:
            try:
                items = parse(value, delimiter)
            except Malformed:
                raise Unrepresentable from None
            if items and type(items[0]) is list:
                if not null:
                    raise Unrepresentable
                items = None
        flat += items or ()
        offsets.append(len(flat))
        missing.append(items is None)
    mask = pa.array(missing) if any(missing) else None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), element(flat), mask=mask).cast(wanted)


def _each(values: Sequence[Raw], wanted: pa.DataType, one: Callable[[str], Any], *, null: bool) -> Any:
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
    if wanted.id in _ONE_BY_ONE:
        width = pa.int32() if wanted.id == pa.date32().id else pa.int64()
        try:
            return pa.array(read, width).cast(wanted)
        except (OverflowError, pa.ArrowInvalid):
            raise Unrepresentable from None
    return pa.array(read, wanted)


def _by_cast(wanted: pa.DataType) -> Callable[[str], Any]:
    def one(text: str) -> Any:
        try:
            return pa.scalar(text).cast(wanted).as_py()
        except pa.ArrowInvalid:
            return None

    return one


def _unconvertible(text: str) -> None:
    return None


# Parsers with a wider range than Arrow's; they return the number that the type is stored as.
_ONE_BY_ONE: Final[dict[int, Callable[[str], Any]]] = {
    pa.date32().id: timestamps.days,
    pa.timestamp("us").id: timestamps.microseconds,
}
