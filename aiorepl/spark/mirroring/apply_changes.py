"""``apply_changes``: mirrors a PostgreSQL table into a Delta table, with exactly-once effect.

Spark reads a micro-batch and finds the last change of each key. ``unchanged`` finds the values that the server did not send.
``delta`` merges the changes in one commit. A batch that Spark runs again changes nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.delta import BatchId, Mirror
from aiorepl.spark.mirroring.unchanged import Kept, Key, Step, resolve
from aiorepl.spark.reading.schema import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, UNCHANGED, XID

_NOT_KEPT: Final = (OP, XID, COMMIT_TS, UNCHANGED)
_RANK: Final = "_aiorepl_rank"
_QUERY_ID: Final = "sql.streaming.queryId"


def apply_changes(
    df: DataFrame,
    target: str | os.PathLike[str],
    keys: Sequence[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> StreamingQuery | None:
    """Mirror a table's changes into the Delta table ``target``.

    The mirror has the columns of ``df`` except ``_op``, ``_xid``, ``_commit_ts`` and ``_unchanged``. Its columns
    ``_commit_lsn`` and ``_ordinal`` are the position of each row's last change. It is created if it is missing, and new
    columns of ``df`` are added to it. Deletes, key changes and truncates are applied. A value that the server did not send,
    because it did not change, stays. One batch is one commit.

    :param df: changes of one table, from ``format("aiorepl")`` with the option ``table``; it may be filtered or have
        additional columns. Under replica identity FULL, set the option ``keys`` as well; otherwise a changed key leaves the
        old row in the mirror.
    :param target: the Delta table's path or URI.
    :param keys: the columns that identify a row; their values must not be null.
    :param checkpoint: the folder of the query's checkpoint; the default is ``_checkpoint`` in the target.
    :param trigger: arguments for ``DataStreamWriter.trigger``, such as ``{"availableNow": True}``.
    :param name: the query's name in Spark.
    :param storage_options: for deltalake, if the target is in an object store.
    :returns: the running query; ``None`` if ``df`` is a batch, which was applied.
    :raises ConfigurationError: ``df`` lacks a key or a column of the source's metadata.
    """
    missing = [column for column in (*keys, OP, COMMIT_LSN, ORDINAL, UNCHANGED) if column not in df.columns]
    if missing or not keys:
        raise ConfigurationError(
            f"apply_changes needs the column {missing[0]!r}: read one table's changes with the option table"
            if missing
            else "apply_changes needs keys, the columns that identify a row"
        )
    batches = _Batches(os.fspath(target), df.schema, tuple(keys), storage_options)
    if not df.isStreaming:
        batches.apply(df, None)
        return None
    folder = os.fspath(target).rstrip("/") + "/_checkpoint" if checkpoint is None else os.fspath(checkpoint)
    writer = df.writeStream.foreachBatch(batches).option("checkpointLocation", folder)
    if name is not None:
        writer = writer.queryName(name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.start()


class _Batches:
    """Applies each micro-batch; Spark calls it in this process."""

    def __init__(
        self, target: str, schema: StructType, keys: tuple[str, ...], storage: Mapping[str, str] | None
    ) -> None:
        kept = StructType([field for field in schema.fields if field.name not in _NOT_KEPT])
        arrow = pa.schema([field.with_nullable(True) for field in to_arrow_schema(kept, timezone="UTC")])
        self._keys = keys
        self._arrow = arrow
        self._mirror = Mirror(target, arrow, keys, storage)

    def __call__(self, batch: DataFrame, number: int) -> None:
        # The checkpoint keeps the query's id. So the id is the same after a restart, and differs for a new checkpoint, where the
        # numbers start again.
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        batch_id = BatchId(f"aiorepl-{query}", number)
        if not self._mirror.applied(batch_id):
            self.apply(batch, batch_id)

    def apply(self, batch: DataFrame, batch_id: BatchId | None) -> None:
        """Apply the last change of each key."""
        last = _last_changes(batch, self._keys).toArrow()
        truncates = last.filter(pc.equal(last[OP], "truncate"))
        truncated = _position(truncates) if truncates.num_rows else None
        if truncated is not None:
            last = last.filter(_is_after(last, truncated))
        values, kept = self._values(batch, last, truncated)
        columns = [values.get(field.name, last[field.name]).cast(field.type) for field in self._arrow]
        changes = pa.table([*columns, last[OP]], schema=self._arrow.append(pa.field(OP, pa.string())))
        if changes.num_rows or truncated is not None:
            self._mirror.apply(changes, kept=kept, truncated=truncated, batch=batch_id)

    def _values(
        self, batch: DataFrame, last: pa.Table, truncated: tuple[int, int] | None
    ) -> tuple[dict[str, pa.ChunkedArray], dict[str, pa.Array]]:
        """Return the columns with the missing values filled in, and a Boolean for each row whose mirror value stays."""
        lacking = pc.greater(pc.list_value_length(last[UNCHANGED]), 0)
        incomplete = last.filter(lacking)
        if not incomplete.num_rows:
            return {}, {}
        columns = _names(incomplete)
        moved = _moves(batch, self._keys)
        known = set(_keys_of(incomplete, self._keys)) | set(moved)
        history = _history(batch, known, self._keys, last.schema)
        if truncated is not None:
            history = history.filter(_is_after(history, truncated))
        steps = _steps(history, self._keys, columns)
        rows = resolve(steps, columns, truncated=truncated is not None)
        other_keys = {
            value.key
            for key, row in rows.items()
            for value in row.values()
            if isinstance(value, Kept) and value.key != key
        }
        mirrored = self._mirror.values(other_keys, columns)

        values: dict[str, list[Any]] = {name: last[name].to_pylist() for name in columns}
        kept: dict[str, list[bool]] = {name: [False] * last.num_rows for name in columns}
        unchanged = last[UNCHANGED].to_pylist()
        for index, key in enumerate(_keys_of(last, self._keys)):
            for name in unchanged[index] or ():
                value = rows.get(key, {}).get(name)
                if isinstance(value, Kept):
                    kept[name][index] = value.key == key
                    value = mirrored.get(value.key, {}).get(name)
                values[name][index] = value
        arrays = {
            name: pa.chunked_array([pa.array(values[name], last.schema.field(name).type)]) for name in columns
        }
        return arrays, {name: pa.array(flags) for name, flags in kept.items()}


def _last_changes(batch: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Select the last row of each key, and the last truncate, because the keys of truncates are null."""
    # A key change is a delete and an insert at the same position. Their keys differ, unless a filter changed them.
    order = Window.partitionBy(*map(_column, keys)).orderBy(
        f.desc(COMMIT_LSN), f.desc(ORDINAL), f.expr(f"{OP} = 'delete'")
    )
    return batch.withColumn(_RANK, f.row_number().over(order)).where(f"{_RANK} = 1").drop(_RANK)


def _moves(batch: DataFrame, keys: Sequence[str]) -> Iterator[Key]:
    """Find the old and new keys of rows whose key changed and that lack a value."""
    inserts = batch.where(f"{OP} = 'insert' AND size({UNCHANGED}) > 0")
    positions = inserts.select(COMMIT_LSN, ORDINAL)
    rows = batch.join(f.broadcast(positions), [COMMIT_LSN, ORDINAL], "leftsemi")
    return _keys_of(rows.select(*map(_column, keys)).toArrow(), keys)


def _history(batch: DataFrame, known: set[Key], keys: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Select all changes of these keys."""
    arrays = [
        pa.array(column, schema.field(name).type)
        for name, column in zip(keys, zip(*known, strict=True), strict=True)
    ]
    wanted = batch.sparkSession.createDataFrame(pa.table(arrays, names=list(keys)))
    return batch.join(f.broadcast(wanted), list(keys), "leftsemi").toArrow()


def _steps(history: pa.Table, keys: Sequence[str], columns: Sequence[str]) -> Iterator[Step]:
    for row in history.select(
        [*dict.fromkeys([*keys, OP, COMMIT_LSN, ORDINAL, UNCHANGED, *columns])]
    ).to_pylist():
        unchanged = row[UNCHANGED] or ()
        yield Step(
            row[OP],
            (row[COMMIT_LSN], row[ORDINAL]),
            tuple(row[name] for name in keys),
            {name: row[name] for name in columns if name not in unchanged},
        )


def _keys_of(table: pa.Table, keys: Sequence[str]) -> Iterator[Key]:
    return zip(*(table[name].to_pylist() for name in keys), strict=True)


def _names(table: pa.Table) -> list[str]:
    """List the columns of the table that some row lacks."""
    named = set(itertools.chain.from_iterable(table[UNCHANGED].to_pylist()))
    return [name for name in table.column_names if name in named]


def _position(table: pa.Table) -> tuple[int, int]:
    return table[COMMIT_LSN][0].as_py(), table[ORDINAL][0].as_py()


def _is_after(table: pa.Table, truncated: tuple[int, int]) -> Any:
    """A Boolean for each row: whether its change is after the truncate."""
    lsn, ordinal = truncated
    return pc.or_(
        pc.greater(table[COMMIT_LSN], lsn),
        pc.and_(pc.equal(table[COMMIT_LSN], lsn), pc.greater(table[ORDINAL], ordinal)),
    )


def _column(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
