"""A column's values, as PostgreSQL's text, into one Arrow array of a wanted type. Pure.

Arrow's own casts do the work, a column at a time. Where a cast refuses, the values of that column are looked at one
by one: what is exact after all (years before 1 or after 9999) is kept, and what the type cannot hold (infinity, NaN
in a decimal, an array of more than one dimension) is ``Unrepresentable`` or null, as the caller chose.

Arrow's own messages quote values, so they are never passed on.
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
    """A value that the wanted type cannot hold. Says nothing of it."""


def converter(oid: int, types: Types, wanted: pa.DataType, *, null: bool) -> Convert:
    """How to make arrays of type ``wanted`` of a column's values; the call raises ``Unrepresentable``.

    :param null: make null of what ``wanted`` cannot hold instead.
    """
    return _converter(types.base(oid), types, wanted, null=null)


def text_array(values: Sequence[Raw]) -> Any:
    """Texts as they are; what is not UTF-8, from a database in SQL_ASCII, stays readable and distinct."""
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
            return lambda values: _each(values, wanted, _refuse, null=null)
        element = _converter(types.base(info.element), types, wanted.value_type, null=null)
        return lambda values: _lists(values, info.delimiter, element, wanted, null=null)
    if pa.types.is_boolean(wanted):
        return lambda values: _booleans(values, null=null)
    if pa.types.is_time(wanted):
        return lambda values: _times(values, wanted, null=null)
    one = _ONE_BY_ONE.get(wanted.id, _by_cast(wanted))
    return lambda values: _cast(values, wanted, one, null=null)


def _cast(values: Sequence[Raw], wanted: pa.DataType, one: Callable[[str], Any], *, null: bool) -> Any:
    with contextlib.suppress(pa.ArrowInvalid):
        return pa.array(values, pa.string()).cast(wanted)
    return _each(values, wanted, one, null=null)


def _texts(values: Sequence[Raw], *, null: bool) -> Any:
    with contextlib.suppress(pa.ArrowInvalid):  # a database in SQL_ASCII holds what it likes
        return pa.array(values, pa.string())
    return _each(values, pa.string(), lambda text: text, null=null)


def _booleans(values: Sequence[Raw], *, null: bool) -> Any:
    texts = pa.array(values, pa.string())
    found = pc.index_in(texts, value_set=_BOOLEANS)
    if found.null_count != texts.null_count and not null:
        raise Unrepresentable
    return found.cast(pa.bool_())


def _times(values: Sequence[Raw], wanted: pa.DataType, *, null: bool) -> Any:
    # Arrow reads no times of day, so they are read as moments of one day. 24:00:00 is none of that day.
    with contextlib.suppress(pa.ArrowInvalid):
        return _on_one_day(pa.array(values, pa.string())).cast(wanted)

    def one(text: str) -> Any:
        with contextlib.suppress(pa.ArrowInvalid):
            return _on_one_day(pa.array([text])).cast(wanted)[0].as_py()
        return None

    return _each(values, wanted, one, null=null)


def _on_one_day(times: Any) -> Any:
    return pc.binary_join_element_wise("1970-01-01", times, " ").cast(pa.timestamp("us"))


def _bytea(values: Sequence[Raw]) -> Any:
    # bytea_output is hex on our connections: \x0102
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


def _refuse(text: str) -> None:
    return None


# Types whose values are made of numbers, by the parser that goes further than Arrow's.
_ONE_BY_ONE: Final[dict[int, Callable[[str], Any]]] = {
    pa.date32().id: timestamps.days,
    pa.timestamp("us").id: timestamps.microseconds,
}
