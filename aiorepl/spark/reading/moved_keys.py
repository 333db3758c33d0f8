"""Splits key updates of a history file into a delete and an insert. Pure.

Under REPLICA IDENTITY FULL the server names no key, so a file has an update and the row before it in ``_before``. A query that
names the key gets a delete of the old row and an insert of the new one, with the same identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

BEFORE: Final = "_before"
_UNREPRESENTABLE: Final = "_unrepresentable"


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
    unfit = batch[_UNREPRESENTABLE]
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
    """Return the old rows of updates, as deletes."""
    before = rows[BEFORE]
    struct = before.type
    names = {struct.field(index).name for index in range(struct.num_fields)}
    arrays = []
    for field in rows.schema:
        if field.name in names:
            arrays.append(pc.struct_field(before, field.name))
        elif field.name == "_unchanged":
            arrays.append(pa.array([[]] * rows.num_rows, field.type))
        elif field.name == _UNREPRESENTABLE:
            arrays.append(
                pa.array([_before_of(each) for each in rows[_UNREPRESENTABLE].to_pylist()], field.type)
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
