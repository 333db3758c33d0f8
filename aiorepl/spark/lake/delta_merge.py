"""Delta tables that executors write, with Spark's MERGE and Delta's jars. A batch of any size is one commit.

The session needs the jars (``io.delta:delta-spark``) and Delta's extension and catalog. Only the merge and upkeep run in Spark;
``delta`` reads the log and changes columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar, Final
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.attempts import Attempts
from aiorepl.spark.lake.columns import OP
from aiorepl.spark.lake.delta import DeltaTarget, folder_name
from aiorepl.spark.lake.delta_log import record, unfinished
from aiorepl.spark.lake.own_session import own_session
from aiorepl.spark.lake.rows import kept_names
from aiorepl.spark.lake.statements import Clause, Dialect, Merge, merge, microseconds
from aiorepl.spark.lake.summary import metadata_of, part_metadata
from aiorepl.spark.lake.table import (
    DEFAULT_LAYOUT,
    DEFAULT_UPKEEP,
    DELETED,
    IS_CURRENT,
    KEPT,
    ORIGIN,
    VALID_TO_LSN,
    Commit,
    Layout,
    Mode,
    Part,
    Truncate,
    Upkeep,
)
from aiorepl.spark.session.identifiers import quoted

_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_SETTING: Final = "spark.databricks.delta."
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


class DeltaMergeLake:
    """A folder or URL with a Delta table for each source table, merged by executors; otherwise as ``DeltaLake``.

    :param spark: the session; its configuration must give access to the folder.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        *,
        storage: Mapping[str, str] | None = None,
        upkeep: Upkeep = DEFAULT_UPKEEP,
    ) -> None:
        self._spark = spark
        self._root = root.rstrip("/")
        self._storage = storage
        self._upkeep = upkeep
        self._attempts = Attempts()

    def __repr__(self) -> str:
        return f"<Delta tables in {self._root}, merged by Spark>"

    def table(
        self,
        name: tuple[str, str],
        keys: tuple[str, ...],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
    ) -> DeltaMergeTarget:
        """Return the target of a source table, without creating it."""
        target = "/".join((self._root, *map(folder_name, name)))
        return DeltaMergeTarget(
            self._spark,
            target,
            keys,
            mode,
            layout,
            storage=self._storage,
            upkeep=self._upkeep,
            attempts=self._attempts,
        )


class DeltaMergeTarget(DeltaTarget):
    """The Delta table at ``target``, merged by the executors of ``spark``.

    :param storage: options for deltalake; Spark has its own configuration for object stores.
    :raises ConfigurationError: the session does not have Delta's extension.
    """

    _rounds: ClassVar[bool] = False

    def __init__(
        self,
        spark: SparkSession,
        target: str,
        keys: tuple[str, ...],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
        *,
        storage: Mapping[str, str] | None = None,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        attempts: Attempts | None = None,
    ) -> None:
        super().__init__(target, keys, mode, layout, storage=storage, upkeep=upkeep, attempts=attempts)
        if _EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
            raise ConfigurationError(
                f"the Spark session does not have Delta: start it with the package io.delta:delta-spark, spark.sql.extensions={_EXTENSION} "
                "and spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
            )
        self._spark: SparkSession | None = spark

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_spark": None}

    def merge(
        self,
        parts: Sequence[Part],
        commit: Commit,
        truncates: Sequence[Truncate] = (),
        *,
        ends: bool = True,
    ) -> None:
        if not parts:
            super().merge(parts, commit, truncates, ends=ends)
            return
        table = self._existing()
        self._unite(table, commit)
        if not ends and unfinished(table, commit.application) is None:
            # Spark's MERGE can set only one transaction identifier.
            record(table, self._within(table, commit.application))
        self._require(table, commit.application)
        alone = unfinished(table, commit.application) is None
        with own_session(self._session()) as spark:
            self._merge(spark, parts, commit, truncates, pa.schema(table.schema()), alone=alone)
        table.update_incremental()
        if ends:
            self._finish(table, commit)

    def _merge(
        self,
        spark: SparkSession,
        parts: Sequence[Part],
        commit: Commit,
        truncates: Sequence[Truncate],
        schema: pa.Schema,
        *,
        alone: bool,
    ) -> None:
        """Merge changes in one commit.

        :param alone: whether this commit is the whole batch.
        """
        source = self._source(spark, parts)
        flags: dict[str, str] = {}
        # By default, Delta stores the source first, in case it changes between two reads. Parts do not change.
        settings = {"merge.materializeSource": "none"}
        if self.mode != "changelog":
            kept = _kept(parts)
            if kept and (self.mode == "history" or any(kept.values())):
                settings = {}  # the source then reads the target, too
            source, flags = self._whole(spark, source, kept)
        columns = [name for name in schema.names if name in source.columns]
        statement = merge(columns, self.keys, self.mode, _DIALECT, flags, truncates)
        view = f"aiorepl_{uuid4().hex}"
        source.createOrReplaceTempView(view)
        metadata = metadata_of(commit) if alone else part_metadata(commit.application)
        settings |= {"commitInfo.userMetadata": json.dumps(metadata)}
        # Delta skips a merge whose number it already has, but the batch may have another end now.
        if alone and not self.applied(commit.application, commit.number):
            settings |= {"write.txnAppId": commit.application, "write.txnVersion": str(commit.number)}
        try:
            with _set(spark, settings):
                spark.sql(_sql(self.target, view, statement))
        finally:
            spark.catalog.dropTempView(view)

    def _source(self, spark: SparkSession, parts: Sequence[Part]) -> DataFrame:
        if all(part.path is not None for part in parts):
            return spark.read.parquet(*(str(part.path) for part in parts))
        return spark.createDataFrame(pa.concat_tables([part.read() for part in parts]))

    def _whole(
        self, spark: SparkSession, source: DataFrame, kept: Mapping[str, bool]
    ) -> tuple[DataFrame, dict[str, str]]:
        """Fill in values that the target has under other keys; return, by column, the flags of kept values.

        :param kept: as in ``Part``.
        """
        history = self.mode == "history"
        if history:
            source = source.withColumn(IS_CURRENT, f.col(VALID_TO_LSN).isNull())
        elif self.mode == "soft_delete":
            source = source.withColumn(DELETED, f.col(OP) == "delete")
        if not kept:
            return source, {}
        flags = {name: f"_aiorepl_kept_{number}" for number, name in enumerate(kept)}
        for name, flag in flags.items():
            source = source.withColumn(flag, f.coalesce(f.array_contains(KEPT, name), f.lit(False)))
        if not (history or any(kept.values())):
            return source, flags
        present = spark.read.format("delta").load(self.target)
        if history:
            present = present.where(IS_CURRENT)
        values = [name for name in kept if name in present.columns]
        other = present.select(
            *(f.col(quoted(name)).alias(f"_aiorepl_key_{number}") for number, name in enumerate(self.keys)),
            *(f.col(quoted(name)).alias(f"_aiorepl_value_{number}") for number, name in enumerate(values)),
        )
        same = [
            f.expr(
                f"_aiorepl_key_{number} = CASE WHEN {ORIGIN} IS NULL THEN {quoted(name)} ELSE {ORIGIN}.{quoted(name)} END"
            )
            for number, name in enumerate(self.keys)
        ]
        condition = same[0]
        for each in same[1:]:
            condition &= each
        fills = f.lit(True) if history else f.col(ORIGIN).isNotNull()
        source = source.join(other, condition & (f.size(KEPT) > 0) & fills, "left")
        for number, name in enumerate(values):
            here = f.col(flags[name]) & fills
            source = source.withColumn(
                name, f.when(here, f.col(f"_aiorepl_value_{number}")).otherwise(f.col(quoted(name)))
            )
        for flag in flags.values():
            source = source.withColumn(flag, f.col(flag) & ~fills)
        return source, flags

    def _optimize(self) -> None:
        columns = ", ".join(map(quoted, self._layout.cluster_by))
        order = f" ZORDER BY ({columns})" if columns else ""
        self._session().sql(f"OPTIMIZE delta.{quoted(self.target)}{order}")

    def _vacuum(self, hours: int) -> None:
        with own_session(self._session()) as spark:
            spark.conf.set(_SETTING + "retentionDurationCheck.enabled", "false")
            # Delta lists the table's folders in so many tasks, and Spark's default is 10,000.
            if spark.conf.get(_LISTING, None) is None:
                spark.conf.set(_LISTING, "32")
            spark.sql(f"VACUUM delta.{quoted(self.target)} RETAIN {hours} HOURS")

    def _session(self) -> SparkSession:
        """The session; a copy in a Connect server's process uses that process's session."""
        if self._spark is None:
            self._spark = SparkSession.getActiveSession()
        if self._spark is None:
            raise ConfigurationError(f"there is no Spark session to merge into {self.target}")
        return self._spark


def _kept(parts: Sequence[Part]) -> dict[str, bool]:
    """Return the kept columns of all parts, as ``Part.kept``."""
    found: dict[str, bool] = {}
    for part in parts:
        kept = kept_names(part.read()) if part.kept is None else part.kept
        for name, moved in kept.items():
            found[name] = moved or found.get(name, False)
    return found


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(_SETTING + name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(_SETTING + name)


def _time(moment: datetime | None) -> str:
    if moment is None:
        return "NULL"
    return f"timestamp_micros({microseconds(moment)})"


_DIALECT: Final = Dialect(quoted, _time)


def _sql(target: str, view: str, statement: Merge) -> str:
    lines = [f"MERGE INTO delta.{quoted(target)} AS t USING {view} AS s ON {statement.condition}"]
    lines += map(_clause, statement.clauses)
    return "\n".join(lines)


def _clause(clause: Clause) -> str:
    updates = ", ".join(f"{name} = {value}" for name, value in clause.values.items())
    match clause.kind:
        case "matched_delete":
            return f"WHEN MATCHED AND {clause.condition} THEN DELETE"
        case "matched_update":
            return f"WHEN MATCHED AND {clause.condition} THEN UPDATE SET {updates}"
        case "insert":
            names, values = ", ".join(clause.values), ", ".join(clause.values.values())
            return f"WHEN NOT MATCHED AND {clause.condition} THEN INSERT ({names}) VALUES ({values})"
        case "orphan_delete":
            return f"WHEN NOT MATCHED BY SOURCE AND {clause.condition} THEN DELETE"
        case "orphan_update":
            return f"WHEN NOT MATCHED BY SOURCE AND {clause.condition} THEN UPDATE SET {updates}"
