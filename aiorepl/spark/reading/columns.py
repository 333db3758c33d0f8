"""Converts the columns of a table's rows to those that a query or a mirror wants, and splits key updates. Runs on executors.

Under REPLICA IDENTITY FULL the server names no key, so a history file has an update and the row before it in ``_before``. A query
that names the key gets a delete of the old row and an insert of the new one, with the same identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.errors import DataError
from aiorepl.formats.arrow.collected import BEFORE
from aiorepl.formats.arrow.columns import Convert, Raw, Unrepresentable, converter
from aiorepl.formats.arrow.constants import texts
from aiorepl.formats.arrow.types import UNREPRESENTABLE
from aiorepl.spark.lake.rows import relisted
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
    return relisted(lists, pc.coalesce(texts(names.values()).take(indexes), flat), lists.type)


def assembled(
    schema: pa.Schema, own: Mapping[str, Any], missing: Mapping[str, pa.Array], metadata: Mapping[str, Any]
) -> pa.RecordBatch:
    """Return rows in the columns of ``schema``. A column that none of the mappings has is null.

    :param own: the columns of the table that the rows have.
    :param missing: for each column that was added with a default, its value in older rows, as an array of one element.
    :param metadata: the metadata columns of the rows, including ``_op``.
    """
    operations = metadata["_op"]
    arrays = []
    for field in schema:
        if field.name in own:
            arrays.append(own[field.name])
        elif field.name in missing:
            arrays.append(with_missing(missing[field.name], operations))
        elif field.name in metadata:
            arrays.append(metadata[field.name].cast(field.type))
        else:
            arrays.append(pa.nulls(len(operations), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def split_moves(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """Replace each update whose key differs in ``_before`` by a delete and an insert.

    :param batch: rows with the key's columns, ``_op``, ``_unchanged``, ``_unrepresentable`` and ``_before``.
    :param keys: the names of the key's columns in the file.
    """
    before = batch[BEFORE]
    if before.null_count == batch.num_rows:
        return batch
    updates = pc.and_(pc.equal(batch["_op"], "update"), before.is_valid())
    chosen = pc.indices_nonzero(pc.and_(updates, _differ(batch, before, keys)))
    moved = chosen.to_pylist()
    if not moved:
        return batch
    rows = batch.take(chosen)
    both = pa.concat_batches([batch, _deletes(rows), _with_op(rows, "insert")])
    # Keep the order of the rows. A delete and an insert take the place of their update.
    count, replaced = batch.num_rows, {row: number for number, row in enumerate(moved)}
    order: list[int] = []
    for row in range(count):
        number = replaced.get(row)
        order += (row,) if number is None else (count + number, count + len(replaced) + number)
    return both.take(pa.array(order, pa.int64()))


def _differ(batch: pa.RecordBatch, before: Any, keys: Sequence[str]) -> Any:
    found = pa.array([False] * batch.num_rows)
    for key in keys:
        new, old = batch[key], pc.struct_field(before, key)
        if pa.types.is_nested(new.type):
            # Not by values of Python, whose dates and times end with the year 9999.
            differ = pa.array(
                [not new.slice(row, 1).equals(old.slice(row, 1)) for row in range(batch.num_rows)]
            )
        else:
            # Here null equals null, and NaN equals NaN.
            missing = pc.not_equal(new.is_null(nan_is_null=True), old.is_null(nan_is_null=True))
            differ = pc.or_(missing, pc.fill_null(_not_equal(new, old), False))
        found = pc.or_(found, differ)
    unfit = batch[UNREPRESENTABLE.name]
    if unfit.null_count == batch.num_rows:
        return found
    texts = [dict(each or ()) for each in unfit.to_pylist()]
    other = [any(each.get(key) != each.get(f"{BEFORE}.{key}") for key in keys) for each in texts]
    return pc.or_(found, pa.array(other))


def _not_equal(new: Any, old: Any) -> Any:
    if pa.types.is_floating(new.type):
        return pc.and_(pc.not_equal(new, old), pc.invert(pc.and_(pc.is_nan(new), pc.is_nan(old))))
    return pc.not_equal(new, old)


def _deletes(rows: pa.RecordBatch) -> pa.RecordBatch:
    before = rows[BEFORE]
    struct = before.type
    names = {struct.field(index).name for index in range(struct.num_fields)}
    arrays = []
    for field in rows.schema:
        if field.name in names:
            arrays.append(pc.struct_field(before, field.name))
        elif field.name == "_unchanged":
            arrays.append(pa.array([[]] * rows.num_rows, field.type))
        elif field.name == UNREPRESENTABLE.name:
            arrays.append(
                pa.array([_before_of(each) for each in rows[UNREPRESENTABLE.name].to_pylist()], field.type)
            )
        elif field.name == BEFORE:
            arrays.append(pa.nulls(rows.num_rows, field.type))
        else:
            arrays.append(rows[field.name])
    return _with_op(pa.RecordBatch.from_arrays(arrays, schema=rows.schema), "delete")


def _before_of(texts: list[tuple[str, str]] | None) -> list[tuple[str, str]] | None:
    prefix = f"{BEFORE}."
    found = [(name[len(prefix) :], text) for name, text in texts or () if name.startswith(prefix)]
    return found or None


def _with_op(rows: pa.RecordBatch, op: str) -> pa.RecordBatch:
    index = rows.schema.get_field_index("_op")
    return rows.set_column(index, rows.schema.field(index), pa.array([op] * rows.num_rows, pa.string()))
