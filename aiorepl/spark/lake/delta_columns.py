"""Changes the columns of a Delta table. Uses deltalake; does not use Spark."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake

from aiorepl.spark.lake.columns import Evolution
from aiorepl.spark.lake.delta_encoding import encoding
from aiorepl.spark.lake.rows import fitted
from aiorepl.spark.lake.scanning import scan
from aiorepl.spark.lake.table import IS_CURRENT, NUMBER, Mode


def alter(
    table: DeltaTable, steps: Evolution, mode: Mode, properties: Callable[[], CommitProperties]
) -> None:
    """Add, rename and widen columns, and fill new ones.

    :param properties: returns the properties of each commit.
    """
    if steps.rewrites:
        _rewrite(table, steps, mode, properties())
        table.update_incremental()
        return
    if steps.added:
        fields = Schema.from_arrow(pa.schema(steps.added)).fields
        table.alter.add_columns(fields, commit_properties=properties())
        table.update_incremental()
    for name, number in steps.numbered.items():
        table.alter.set_column_metadata(name, {NUMBER: number}, commit_properties=properties())
        table.update_incremental()


def _rewrite(table: DeltaTable, steps: Evolution, mode: Mode, properties: CommitProperties) -> None:
    """Write all rows again, with new names, types and defaults, in one commit."""
    columns: dict[str, pc.Expression] = {}
    for name in table.schema().to_arrow().names:
        columns[steps.renamed.get(name, name)] = pc.field(name)
    for field in steps.added:
        column = pc.scalar(steps.filled.get(field.name, pa.scalar(None)).cast(field.type))
        if mode == "history":
            column = pc.if_else(pc.field(IS_CURRENT), column, pc.scalar(pa.scalar(None, field.type)))
        columns[field.name] = column
    partitions = [steps.renamed.get(name, name) for name in table.metadata().partition_columns]
    batches = pa.RecordBatchReader.from_batches(
        steps.schema,
        (
            fitted(pa.Table.from_batches([batch]), steps.schema).to_batches()[0]
            for batch in scan(table, columns).to_batches()
            if batch.num_rows
        ),
    )
    write_deltalake(
        table,
        batches,
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=partitions or None,
        writer_properties=encoding(steps.schema),
        commit_properties=properties,
    )
