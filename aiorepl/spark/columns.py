"""A column of a table as Spark wants it, or an error that says what to do. Runs on executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from aiorepl.errors import DataError
from aiorepl.formats.arrow.columns import Convert, Raw, Unrepresentable, converter
from aiorepl.values.registry import Types


def column(name: str, oid: int, types: Types, wanted: pa.DataType, *, null: bool) -> Convert:
    """How to make arrays of type ``wanted`` of a column's values.

    :param name: what errors call the column.
    :param null: make null of what ``wanted`` cannot hold; else it is a DataError, which names table, column and type.
    """
    convert = converter(oid, types, wanted, null=null)
    described = types.info(oid)

    def read(values: Sequence[Raw]) -> Any:
        try:
            return convert(values)
        except Unrepresentable:
            raise DataError(
                f"{name}: a value of type {described or oid} cannot be held by {wanted}: read the column as string "
                "with .schema(...), or set the option unrepresentable to null"
            ) from None

    return read
