"""Reads the rows of a Delta table that a batch's changes need. Uses deltalake; does not use Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from aiorepl.spark.lake.columns import COMMIT_LSN, OP, ORDINAL
from aiorepl.spark.lake.rows import lacking_values, origins, values_of, with_values, without
from aiorepl.spark.lake.scanning import scan
from aiorepl.spark.lake.soft_deletes import shared_keys, survivors
from aiorepl.spark.lake.table import DELETED, IS_CURRENT, KEPT, Mode


def filled(changes: pa.Table, keys: Sequence[str], mode: Mode, earlier: Callable[[], DeltaTable]) -> pa.Table:
    """Fill in kept values that the target has under another key; in the mode history, all kept values.

    :param earlier: opens the target as it was before the first of the changes, with its present columns.
    """
    lacking = lacking_values(changes, mode)
    if not lacking.num_rows:
        return changes
    names = pc.unique(pc.list_flatten(lacking[KEPT])).to_pylist()
    wanted = list(dict.fromkeys(origins(lacking, keys)))
    table = earlier()
    schema = pa.schema(table.schema())
    condition = pc.field(IS_CURRENT) if mode == "history" else None
    for name, values in zip(keys, zip(*wanted, strict=True), strict=True):
        part = _isin(schema.field(name), set(values))
        condition = part if condition is None else condition & part
    present = [name for name in (*keys, *names) if name in schema.names]
    found = scan(table, present, condition).to_table()
    return with_values(changes, found, keys, all_rows=mode == "history")


def shared(table: DeltaTable, keys: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the keys that a deleted row shares with another row, and those of these deleted rows that stay."""
    gone = pc.field(DELETED)
    deleted = scan(table, keys, gone).to_table()
    if not deleted.num_rows:
        return deleted, deleted
    live = scan(table, keys, gone.is_null() | ~gone).to_batches()
    found = shared_keys(deleted, live, keys)
    schema = pa.schema(table.schema())
    condition = gone
    for name in keys:
        condition &= _isin(schema.field(name), set(values_of(found[name])))
    return found, survivors(scan(table, schema.names, condition).to_table(), found, keys)


def fresh(table: DeltaTable, changes: pa.Table) -> pa.Table:
    """Return the changes that a changelog does not have yet."""
    if not changes.num_rows:
        return changes
    first, last = pc.min(changes[COMMIT_LSN]), pc.max(changes[COMMIT_LSN])
    actions = pa.table(table.get_add_actions(flatten=True))
    if not actions.num_rows:
        return changes
    newest = f"max.{COMMIT_LSN}"
    known = newest in actions.column_names and not actions[newest].null_count
    if known and pc.less(pc.max(actions[newest]), first).as_py():
        return changes
    within = (pc.field(COMMIT_LSN) >= first) & (pc.field(COMMIT_LSN) <= last)
    identity = [COMMIT_LSN, ORDINAL, OP]
    return without(changes, scan(table, identity, within).to_table(), identity)


def _isin(field: pa.Field, values: set[Any]) -> pc.Expression:
    column, wanted = pc.field(field.name), pa.array(values, field.type)
    # deltalake writes the statistics of merged files as string views, which pyarrow does not compare with strings, and reads those
    # of times that Python does not have as nulls. A cast makes pyarrow ignore the statistics.
    others = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    kind = pa.int64() if pa.types.is_timestamp(field.type) else others.get(field.type)
    return column.isin(wanted) if kind is None else column.cast(kind).isin(wanted.cast(kind))
