"""Operations on reduced changes in memory that all table formats share. Pure pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.formats.arrow.number_texts import number_texts
from aiorepl.spark.lake.columns import COMMIT_LSN, OP, ORDINAL
from aiorepl.spark.lake.table import (
    DELETED,
    IS_CURRENT,
    KEPT,
    ORIGIN,
    VALID_TO,
    VALID_TO_LSN,
    VALID_TO_ORDINAL,
    Mode,
    Part,
    Truncate,
)

PLACE: Final = [COMMIT_LSN, ORDINAL]
ENDS: Final = (VALID_TO_LSN, VALID_TO_ORDINAL, VALID_TO)
"""The columns with the position and the time of a version's end, in the order of a ``Truncate``."""


def bounded(parts: Sequence[Part], size: int) -> list[list[Part]]:
    """Group parts into about ``size`` bytes each."""
    groups: list[list[Part]] = []
    total = 0
    for part in parts:
        if not groups or total + part.size > size:
            groups.append([])
            total = 0
        groups[-1].append(part)
        total += part.size
    return groups


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of ``schema`` in its types; null if ``rows`` lacks one."""
    arrays = [
        in_type(rows[field.name], field.type)
        if field.name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def typed(changes: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return reduced changes in the target's types, which may be wider. The keys in ``_origin`` are converted, too."""
    for number, field in enumerate(changes.schema):
        if field.name in schema.names and field.type != schema.field(field.name).type:
            kind = schema.field(field.name).type
            changes = changes.set_column(number, field.name, in_type(changes[field.name], kind))
    moved = changes[ORIGIN].combine_chunks()
    names = [field.name for field in moved.type]
    keys = [
        in_type(pa.chunked_array([moved.field(name)]), schema.field(name).type).combine_chunks()
        for name in names
    ]
    array = pa.StructArray.from_arrays(keys, names, mask=pc.is_null(moved))
    return changes.set_column(changes.column_names.index(ORIGIN), ORIGIN, array)


def in_type(column: Any, kind: pa.DataType) -> Any:
    """Convert an array or a chunked array to a wider type. Numbers become PostgreSQL's text."""
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([in_type(chunk, kind) for chunk in column.chunks], kind)
    if pa.types.is_string(kind) and not pa.types.is_string(column.type):
        return number_texts(column)
    if pa.types.is_list(kind) and kind != column.type:
        return relisted(column, in_type(pc.list_flatten(column), kind.value_type), kind)
    return column.cast(kind)


def relisted(lists: Any, values: Any, kind: pa.DataType) -> Any:
    """Return lists with other values.

    :param values: a value for each value of the lists, in order.
    :param kind: the type of the result.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)


def of_mode(changes: pa.Table, mode: Mode) -> pa.Table:
    """Append the columns of the mode that depend only on the change."""
    if mode == "soft_delete":
        return changes.append_column(DELETED, pc.equal(changes[OP], "delete"))
    if mode == "history":
        return changes.append_column(IS_CURRENT, pc.is_null(changes[VALID_TO_LSN]))
    return changes


def kept_masks(changes: pa.Table) -> dict[str, pa.Array]:
    """Return, by column, a mask of the rows that keep the target's value. Columns without kept values are left out."""
    kept = changes[KEPT].combine_chunks()
    parents, names = pc.list_parent_indices(kept), pc.list_flatten(kept)
    numbers = pa.array(range(len(kept)), pa.int64())
    return {
        name: pc.is_in(numbers, value_set=parents.filter(pc.equal(names, name)).cast(pa.int64()))
        for name in pc.unique(names).to_pylist()
    }


def lacking_values(changes: pa.Table, mode: Mode) -> pa.Table:
    """Return the rows whose kept values must be read from the target: moved rows; in the mode history, all rows."""
    count = pc.fill_null(pc.list_value_length(changes[KEPT]), 0)
    lacking = changes.filter(pc.greater(count, 0))
    return lacking if mode == "history" else lacking.filter(pc.is_valid(lacking[ORIGIN]))


def zeros(rows: Any, keys: Sequence[str]) -> Any:
    """Return rows with 0 for each -0 in their keys: the two are equal in PostgreSQL, but their bits differ."""
    for name in keys:
        field = rows.schema.field(name)
        if pa.types.is_floating(field.type):
            column = pc.add(rows[name], pa.scalar(0, field.type))
            rows = rows.set_column(rows.schema.get_field_index(name), field, column)
    return rows


def codes(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return a number for each row, equal for equal values of these columns."""
    rows = zeros(rows, names)
    encoded: list[pa.Array] = [rows[name].combine_chunks().dictionary_encode("encode") for name in names]

    def both(left: pa.Array, right: pa.Array) -> pa.Array:
        numbers = pc.add(
            pc.multiply(left.indices.cast(pa.int64()), max(1, len(right.dictionary))),
            right.indices.cast(pa.int64()),
        )
        return numbers.dictionary_encode()

    return fold(both, encoded).indices.cast(pa.int64())


def origin_keys(changes: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return, for each row, the key under which the target has its kept values."""
    moved = changes[ORIGIN].combine_chunks()
    there = pc.is_valid(moved)
    arrays = [pc.if_else(there, moved.field(name), changes[name].combine_chunks()) for name in keys]
    return pa.table(arrays, schema=pa.schema([changes.schema.field(name) for name in keys]))


def with_values(changes: pa.Table, found: pa.Table, keys: Sequence[str], *, all_rows: bool) -> pa.Table:
    """Fill the target's values into moved rows, and remove the filled columns from the rows' ``_kept``.

    :param found: rows of the target with the keys and the kept columns.
    :param all_rows: fill the values into all rows, not only into moved ones.
    """
    coded = codes(pa.concat_tables([found.select(keys), origin_keys(changes, keys)]), keys)
    sources = pc.index_in(coded.slice(found.num_rows), value_set=coded.slice(0, found.num_rows))
    moved = pc.is_valid(changes[ORIGIN].combine_chunks()).to_pylist()
    for name, mask in kept_masks(changes).items():
        taken = [all_rows or each for each in moved]
        here = pc.and_(mask, pa.array(taken, pa.bool_()))
        field = changes.schema.field(name)
        if name in found.column_names:
            values = in_type(found[name].combine_chunks().take(sources), field.type)
        else:
            values = pa.nulls(changes.num_rows, field.type)
        array = pc.if_else(here, values, changes[name].combine_chunks())
        changes = changes.set_column(changes.column_names.index(name), field, array)
    stays = pa.array([not (all_rows or each) for each in moved], pa.bool_())
    kept = pc.if_else(stays, changes[KEPT].combine_chunks(), pa.scalar(None, changes[KEPT].type))
    return changes.set_column(changes.column_names.index(KEPT), KEPT, kept)


def without(rows: pa.Table, others: pa.Table, identity: Sequence[str]) -> pa.Table:
    """Return the rows whose identity is not in ``others``."""
    if not others.num_rows:
        return rows
    there = set(zip(*(others[name].to_pylist() for name in identity), strict=True))
    mine = zip(*(rows[name].to_pylist() for name in identity), strict=True)
    return rows.filter(pa.array([each not in there for each in mine], pa.bool_()))


def ended(rows: pa.Table, ends: dict[str, Any], truncates: Sequence[Truncate]) -> pa.Table:
    """Return versions with their ends: ``ends``, or the first truncate after a version's beginning if that comes earlier.

    :param ends: by column of ``ENDS``, its value for each version.
    """
    places, ends = places_of(rows), {**ends}
    until = np.column_stack([_numbers(ends[name], 2**63 - 1) for name in ENDS[:2]])
    for truncate in reversed(truncates):
        place = np.array([truncate.place])
        first = pa.array(before(places, place) & before(place, until))
        for name, value in zip(ENDS, truncate, strict=True):
            ends[name] = pc.if_else(first, pa.scalar(value, ends[name].type), ends[name])
    return fold(lambda found, name: replaced(found, name, ends[name]), ENDS, rows)


def places_of(rows: pa.Table) -> np.ndarray:
    """Return the rows' positions. A row that another program wrote has none, and counts as older than every change."""
    return np.column_stack([_numbers(rows[name], -1) for name in PLACE])


def _numbers(column: Any, null: int) -> np.ndarray:
    found: np.ndarray = pc.fill_null(column, null).to_numpy()
    return found


def before(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return for each pair of positions whether ``one`` comes before ``other``."""
    found: np.ndarray = (one[:, 0] < other[:, 0]) | ((one[:, 0] == other[:, 0]) & (one[:, 1] < other[:, 1]))
    return found


def replaced(rows: pa.Table, name: str, column: Any) -> pa.Table:
    """Replace the values of a column."""
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
