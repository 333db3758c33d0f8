"""Converts the columns of a table's rows to those that a query or a mirror wants. Runs on executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.errors import DataError
from aiorepl.formats.arrow.columns import Convert, Raw, Unrepresentable, converter
from aiorepl.formats.arrow.constants import texts
from aiorepl.values.registry import Types

GONE: Final = texts(("delete", "truncate"))
"""The operations whose rows have no values outside of the key's columns."""


def column(name: str, oid: int, types: Types, wanted: pa.DataType, *, null: bool) -> Convert:
    """Return a function that converts a column's values to arrays of type ``wanted``.

    :param name: the column's name, for errors.
    :param null: convert a value that ``wanted`` cannot hold to null, instead of raising DataError.
    """
    convert = converter(oid, types, wanted, null=null)

    def convert_or_explain(values: Sequence[Raw]) -> Any:
        try:
            return convert(values)
        except Unrepresentable:
            raise unfit(name, oid, types, wanted) from None

    return convert_or_explain


def unfit(name: str, oid: int, types: Types, wanted: pa.DataType) -> DataError:
    """Make the error for a value that ``wanted`` cannot hold; parameters as ``column``."""
    return DataError(
        f"{name}: a value of type {types.info(oid) or oid} does not fit into {wanted}: read the column as string with "
        ".schema(...), or set the option unrepresentable to null"
    )


def with_missing(value: pa.Array, operations: pa.Array) -> pa.Array:
    """Return a column that the table did not have when the rows were written.

    :param value: the default with which the column was added, as an array of one element.
    :param operations: the rows' operations. A delete has values only in the key's columns, and a truncate has none.
    """
    gone = pc.is_in(operations, value_set=GONE)
    return value.take(pc.if_else(gone, pa.scalar(None, pa.int32()), 0))


def renamed(lists: Any, names: Mapping[str, str]) -> Any:
    """Return the column ``_unchanged`` with the current names of columns.

    :param lists: the column ``_unchanged``: for each row, a list of column names.
    :param names: the current names of renamed columns, by their names in ``lists``; other columns keep their names.
    """
    if not names or not len(lists.values):
        return lists
    flat = pc.list_flatten(lists)
    indexes = pc.index_in(flat, value_set=texts(names))
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0)).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    values = pc.coalesce(texts(names.values()).take(indexes), flat)
    return pa.ListArray.from_arrays(offsets, values, type=lists.type)
