"""Converts a table's column to the Arrow type that the query wants. Runs on executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from aiorepl.errors import DataError
from aiorepl.formats.arrow.columns import Convert, Raw, Unrepresentable, converter
from aiorepl.values.registry import Types


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
