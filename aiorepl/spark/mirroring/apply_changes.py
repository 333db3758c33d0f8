"""``apply_changes``: mirrors a DataFrame of one table's changes into a table of a lake, with exactly-once effect.

``staged_rows`` reads a micro-batch once and reduces it; the table merges the result. A batch that Spark runs again changes
nothing. Works in a classic session and under Spark Connect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructField, StructType

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.pgoutput.relations import require_distinct
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.delta_folder import location
from aiorepl.spark.lake.table import (
    DEFAULT_UPKEEP,
    NUMBER,
    Commit,
    DeletionVectors,
    Layout,
    Mode,
    Place,
    Target,
    Upkeep,
    reached,
)
from aiorepl.spark.mirroring import staged_store
from aiorepl.spark.mirroring.column_types import default
from aiorepl.spark.mirroring.selected import require_text
from aiorepl.spark.mirroring.staged_rows import reduce_batch
from aiorepl.spark.reading.schema import (
    COMMIT_LSN,
    COMMIT_TS,
    MASKED,
    META,
    MISSING,
    OP,
    ORDINAL,
    UNCHANGED,
)
from aiorepl.storage.opening import Location, open_store

_BATCH: Final = "aiorepl-batch"
"""The application id for batch DataFrames. A batch's number is its newest commit LSN."""


@checked("apply_changes")
def apply_changes(
    df: DataFrame,
    target: str | os.PathLike[str] | Target,
    keys: list[str] | tuple[str, ...],
    *,
    mode: Mode = "current",
    checkpoint: str | os.PathLike[str] | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    partition_by: list[str] | tuple[str, ...] = (),
    cluster_by: list[str] | tuple[str, ...] = (),
    upkeep: Upkeep = DEFAULT_UPKEEP,
    deletion_vectors: DeletionVectors = "auto",
    staging: str | os.PathLike[str] | None = None,
) -> StreamingQuery | None:
    """Mirror a table's changes into the Delta table ``target``.

    In the mode ``current``, the mirror has the columns of ``df`` except ``_op``, ``_xid``, ``_commit_ts`` and ``_unchanged``. Its
    columns ``_commit_lsn`` and ``_ordinal`` are the position of each row's last change. A missing target is created. Columns that
    are new, renamed or wider in ``df`` are added, renamed or widened in the target. Deletes, key changes and truncates are
    applied. A value that the server did not send, because it did not change, stays. The query's version after a batch has all of
    the batch.

    :param df: changes of one table, from ``format("aiorepl")`` with the option ``table``; it may be filtered or have
        additional columns. Under replica identity FULL, set the option ``keys`` as well; otherwise a changed key leaves the
        old row in the mirror.
    :param target: the Delta table's path or URI; or a table of ``aiorepl.spark.lake``, made with its mode.
    :param keys: the columns that identify a row; their values must not be null.
    :param mode: ``current``, ``history``, ``soft_delete`` or ``changelog``.
    :param checkpoint: the folder of the query's checkpoint; the default is ``_checkpoint`` in the target.
    :param trigger: arguments for ``DataStreamWriter.trigger``, such as ``{"availableNow": True}``.
    :param name: the query's name in Spark.
    :param storage_options: options for deltalake, if the target is in an object store.
    :param partition_by: the columns by which a new table is partitioned.
    :param cluster_by: the columns by which upkeep sorts rows.
    :param upkeep: how often the table is compacted and vacuumed.
    :param deletion_vectors: as in ``DeltaTarget``.
    :param staging: a folder for a batch's rows, writable by executors; the default is ``_staging`` in the target. Each query has a
        folder of its own in it.
    :returns: the running query; ``None`` if ``df`` is a batch DataFrame, which is then applied.
    :raises ConfigurationError: ``df`` lacks a key or a column of the source's metadata.
    :raises PermanentError: a key is masked by a method that may give different values one mask.
    """
    _require_columns(df, keys, mode)
    folder, staging_folder = _folders(df, target, checkpoint, staging, storage_options)
    if isinstance(target, str | os.PathLike):
        target = DeltaTarget(
            os.fspath(target).rstrip("/"),
            mode,
            Layout(tuple(partition_by), tuple(cluster_by)),
            storage=storage_options,
            upkeep=upkeep,
            deletion_vectors=deletion_vectors,
        )
    batches = _Batches(target, df.schema, tuple(keys), staging_folder, folder)
    if not df.isStreaming:
        batches.apply(df, None)
        return None
    return _started(df, batches, folder, name, trigger)


def _require_columns(df: DataFrame, keys: Sequence[str], mode: Mode) -> None:
    needed = (*keys, OP, COMMIT_LSN, ORDINAL, UNCHANGED, *((COMMIT_TS,) if mode == "history" else ()))
    missing = [column for column in needed if column not in df.columns]
    if missing or not (keys or mode == "changelog"):
        raise ConfigurationError(
            f"apply_changes needs the column {missing[0]!r}: read one table's changes with the option table"
            if missing
            else "apply_changes needs keys, the columns that identify a row"
        )
    if mode != "changelog":
        require_distinct("df", {name: (df.schema[name].metadata or {}).get(MASKED, "") for name in keys})


def _folders(
    df: DataFrame,
    target: str | os.PathLike[str] | Target,
    checkpoint: str | os.PathLike[str] | None,
    staging: str | os.PathLike[str] | None,
    storage: Mapping[str, str] | None,
) -> tuple[str, Location]:
    """Return the folders of the checkpoint and of staged rows."""
    folder = "" if checkpoint is None else os.fspath(checkpoint)
    if isinstance(target, str | os.PathLike):
        place = os.fspath(target).rstrip("/")
        folder = folder or f"{place}/_checkpoint"
        if staging is None:
            return folder, location(f"{place}/_staging", storage)
    elif staging is None or (df.isStreaming and not folder):
        raise ConfigurationError(
            "apply_changes needs checkpoint and staging, unless target is the path of a Delta table"
        )
    # A batch DataFrame for a table of a lake has no checkpoint.
    return folder, staged_store.folder_of(folder or uuid4().hex, location(os.fspath(staging), storage))


def _started(
    df: DataFrame, batches: _Batches, checkpoint: str, name: str | None, trigger: Mapping[str, Any] | None
) -> StreamingQuery:
    writer = df.writeStream.foreachBatch(batches).option("checkpointLocation", checkpoint)
    writer = writer if name is None else writer.queryName(name)
    return (writer if trigger is None else writer.trigger(**trigger)).start()


class _Batches:
    """Applies each micro-batch. Spark calls it in this process; under Connect, it calls a copy in a process of the server."""

    def __init__(
        self, table: Target, schema: StructType, keys: tuple[str, ...], staging: Location, checkpoint: str
    ) -> None:
        self._table = table
        self._keys = keys
        self._staging = staging
        self._checkpoint = checkpoint
        self._schema = pa.schema([_field(field) for field in schema.fields if field.name not in META.names])
        self._defaults = {
            field.name: default(field.name, field.metadata[MISSING], self._schema.field(field.name).type)
            for field in schema.fields
            if MISSING in (field.metadata or {})
        }
        self._masked = {field.name for field in schema.fields if MASKED in (field.metadata or {})}
        self._application: str | None = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        if self._application is None:
            self._application = self._query(batch)
            self._clean()
            open_store(self._staging).clean()
        if self._table.applied(self._application, number):
            # If the checkpoint lost the batch's plan, Spark has planned the batch again, perhaps with a later end.
            after = reached(self._table, self._application)
            if after is not None:
                batch = batch.where(_is_after(after))
        self.apply(batch, number)
        self._table.maintain()

    def apply(self, batch: DataFrame, number: int | None) -> None:
        """Apply a batch.

        :param number: the batch's number in its query; ``None`` for a batch DataFrame, which belongs to no query.
        """
        try:
            run, last = reduce_batch(batch, self._staging, self._keys, self._table.mode)
            if last is None:
                return
            if self._masked and (columns := self._table.schema()) is not None:
                require_text(self._masked, columns)
            application = _BATCH if number is None else str(self._application)
            commit = Commit(application, last[0] if number is None else number, LSN(last[0]), last)
            self._table.apply(commit, [run], self._schema, self._defaults)
        finally:
            self._clean()

    def _clean(self) -> None:
        staged_store.clean(open_store(self._staging))

    def _query(self, batch: DataFrame) -> str:
        # The checkpoint keeps the query's id. A new checkpoint, whose batch numbers start again, has another id. Spark reads the
        # id, because only Spark may know the checkpoint's file system.
        lines = batch.sparkSession.read.text(f"{self._checkpoint}/metadata").collect()
        return f"aiorepl-{json.loads(''.join(line.value for line in lines))['id']}"


def _is_after(place: Place) -> Column:
    lsn, ordinal = f.col(COMMIT_LSN), f.col(ORDINAL)
    return (lsn > place[0]) | ((lsn == place[0]) & (ordinal > place[1]))


def _field(field: StructField) -> pa.Field:
    number = (field.metadata or {}).get(NUMBER)
    kind = to_arrow_type(field.dataType, timezone="UTC")
    return pa.field(field.name, kind, metadata=None if number is None else {NUMBER: str(number)})
