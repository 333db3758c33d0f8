"""Stages the rows of a batch part by part in one transaction of an Iceberg table. Memory is bounded, and a batch becomes visible at once.

pyiceberg has no MERGE, so rows with the changed keys are read, merged in memory (``merged``) and written again. Rows that a
truncate removes are rewritten in bounded pieces, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions
from pyiceberg.table import DataScan, Transaction
from pyiceberg.table import Table as IcebergTable

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.columns import COMMIT_LSN, OP, ORDINAL, Evolution
from aiorepl.spark.lake.iceberg_columns import columns_of, omit_bounds
from aiorepl.spark.lake.merged import merged
from aiorepl.spark.lake.rows import (
    fitted,
    lacking_values,
    of_mode,
    origins,
    typed,
    values_of,
    with_values,
    without,
)
from aiorepl.spark.lake.soft_deletes import of_keys, shared_keys, survivors
from aiorepl.spark.lake.table import DELETED, IS_CURRENT, KEPT, Mode, Truncate

# Its type annotations reject valid arguments of the constructors.
_is: Any = expressions
Condition = expressions.BooleanExpression


class StagedBatch:
    """Rows of a run that one transaction of a table will commit.

    :param summary: the summary of the snapshots.
    :param part_bytes: about how many bytes of rows are rewritten at a time.
    """

    def __init__(
        self,
        transaction: Transaction,
        keys: Sequence[str],
        mode: Mode,
        summary: Mapping[str, str],
        part_bytes: int,
    ) -> None:
        self._transaction = transaction
        self._io = transaction._table.io
        self._before = transaction.table_metadata
        self._keys = keys
        self._mode = mode
        self._summary = dict(summary)
        self._part_bytes = part_bytes
        self._schema = columns_of(self._before)

    def merge(self, changes: pa.Table, truncates: Sequence[Truncate]) -> None:
        """Stage reduced changes of some keys. No key may be in two parts of a batch.

        :param truncates: the batch's truncates, ascending.
        :raises ConfigurationError: a key is an infinite ``float4``.
        """
        if self._mode == "changelog":
            self._append(fitted(self._fresh(changes), self._schema))
            return
        changes = typed(changes, self._schema)
        _require_finite(changes, self._keys)
        reduced = of_mode(self._filled(changes), self._mode)
        keyed = _with_keys(reduced, self._keys)
        present = fitted(self._scan(keyed).to_arrow(), self._schema)
        result = merged(present, reduced, self._keys, self._mode, truncates, rest=False)
        if present.num_rows:
            self._delete(keyed)
        self._append(result)

    def unite(self) -> None:
        """Stage the removal of deleted rows whose key another row has too, after a change of the key columns."""
        keys = tuple(self._keys)
        gone = _is.EqualTo(DELETED, True)
        deleted = self._scan(gone, keys).to_arrow()
        if not deleted.num_rows:
            return
        live = self._scan(_is.Or(_is.IsNull(DELETED), _is.EqualTo(DELETED, False)), keys)
        shared = shared_keys(deleted, live.to_arrow_batch_reader(), keys)
        if not shared.num_rows:
            return
        condition = _is.And(gone, _with_keys(shared, keys))
        rows = fitted(self._scan(condition).to_arrow(), self._schema)
        kept = survivors(rows, shared, keys)
        self._delete(condition)
        self._append(pa.concat_tables([kept, of_keys(rows, shared, keys, others=True)]))
        self._before = self._transaction.table_metadata

    def truncate(self, truncates: Sequence[Truncate]) -> None:
        """Stage the truncates, after all changes: remove, mark or end the rows that are older."""
        if self._mode == "changelog":
            return
        older = _older(truncates[-1])
        if self._mode == "history":
            older = _is.And(_is.EqualTo(IS_CURRENT, True), older)
        elif self._mode == "soft_delete":
            older = _is.And(_is.Or(_is.IsNull(DELETED), _is.EqualTo(DELETED, False)), older)
        if not self._scan(older, (COMMIT_LSN,), limit=1).to_arrow().num_rows:
            return
        rows = self._scan(older).to_arrow_batch_reader()
        self._delete(older)
        if self._mode == "current":
            return
        none = fitted(self._schema.empty_table(), self._schema)
        none = none.append_column(OP, pa.array([], pa.string()))
        none = none.append_column(KEPT, pa.array([], pa.list_(pa.string())))
        for present in bounded_tables(rows, self._part_bytes):
            of_these = fitted(present, self._schema)
            self._append(merged(of_these, none, self._keys, self._mode, truncates, rest=True))

    def _append(self, rows: pa.Table) -> None:
        if rows.num_rows:
            omit_bounds(self._transaction, rows)
            self._transaction.append(rows, snapshot_properties=self._summary)

    def _delete(self, condition: Condition) -> None:
        self._transaction.delete(condition, snapshot_properties=self._summary)

    def _scan(
        self, condition: Condition, columns: tuple[str, ...] = ("*",), limit: int | None = None
    ) -> DataScan:
        """Scan the rows as the transaction has them so far."""
        return DataScan(
            table_metadata=self._transaction.table_metadata,
            io=self._io,
            row_filter=condition,
            selected_fields=columns,
            limit=limit,
        )

    def _filled(self, changes: pa.Table) -> pa.Table:
        """Fill in kept values that the target has under another key; in the mode history, all kept values."""
        lacking = lacking_values(changes, self._mode)
        if not lacking.num_rows:
            return changes
        wanted = set(origins(lacking, self._keys))
        condition: Condition = reduce(
            _is.And,
            (
                _is.In(name, set(values))
                for name, values in zip(self._keys, zip(*wanted, strict=True), strict=True)
            ),
        )
        if self._mode == "history":
            condition = _is.And(condition, _is.EqualTo(IS_CURRENT, True))
        # As of before the first part, because an earlier part may have moved the row.
        found = DataScan(table_metadata=self._before, io=self._io, row_filter=condition).to_arrow()
        return with_values(changes, found, self._keys, all_rows=self._mode == "history")

    def _fresh(self, changes: pa.Table) -> pa.Table:
        """Return the changes that a changelog does not have yet."""
        if not changes.num_rows:
            return changes
        first, last = pc.min(changes[COMMIT_LSN]).as_py(), pc.max(changes[COMMIT_LSN]).as_py()
        identity = (COMMIT_LSN, ORDINAL, OP)
        within = _is.And(_is.LessThanOrEqual(COMMIT_LSN, last), _is.GreaterThanOrEqual(COMMIT_LSN, first))
        return without(changes, self._scan(within, identity).to_arrow(), identity)


def fill(
    table: IcebergTable,
    transaction: Transaction,
    steps: Evolution,
    mode: Mode,
    part_bytes: int,
    summary: Mapping[str, str],
) -> None:
    """Write all rows again with the values of new columns.

    :param summary: the summary of the snapshots.
    """
    properties = dict(summary)
    back = {new: old for old, new in steps.renamed.items()}
    added = {field.name for field in steps.added}
    if has_rows(table):
        transaction.delete(_is.AlwaysTrue(), snapshot_properties=properties)
    for rows in bounded_tables(table.scan().to_arrow_batch_reader(), part_bytes):
        arrays = {}
        for field in steps.schema:
            old = back.get(field.name, field.name)
            value = steps.filled.get(field.name)
            if value is not None:
                column = pa.repeat(value.cast(field.type), rows.num_rows)
                if mode == "history":
                    column = pc.if_else(rows[IS_CURRENT], column, pa.scalar(None, field.type))
                arrays[field.name] = column
            elif old in rows.column_names and field.name not in added:
                arrays[field.name] = rows[old]
        filled = fitted(pa.table(arrays), steps.schema)
        omit_bounds(transaction, filled)
        transaction.append(filled, snapshot_properties=properties)


def has_rows(table: IcebergTable) -> bool:
    """Whether a table may have rows. pyiceberg warns of a delete without rows."""
    return next(iter(table.scan().plan_files()), None) is not None


def bounded_tables(batches: pa.RecordBatchReader, size: int) -> Iterator[pa.Table]:
    """Yield the rows in tables of about ``size`` bytes."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= size:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _require_finite(changes: pa.Table, keys: Sequence[str]) -> None:
    for name in keys:
        if pa.types.is_float32(changes[name].type) and pc.any(pc.is_inf(changes[name])).as_py():
            # pyiceberg treats it as out of range, and finds no row.
            raise ConfigurationError(
                f"a change has an infinite value in the key column {name!r}, by which pyiceberg finds no row: name other columns as keys"
            )


def _with_keys(changes: pa.Table, keys: Sequence[str]) -> Condition:
    condition: Condition = reduce(_is.And, (_is.In(name, set(values_of(changes[name]))) for name in keys))
    return condition


def _older(truncate: Truncate) -> Condition:
    """Rows before a truncate. A row that another writer wrote has no position, and counts as older than every change."""
    same = _is.And(_is.EqualTo(COMMIT_LSN, truncate.lsn), _is.LessThan(ORDINAL, truncate.ordinal))
    condition: Condition = _is.Or(
        _is.IsNull(COMMIT_LSN), _is.Or(_is.LessThan(COMMIT_LSN, truncate.lsn), same)
    )
    return condition
