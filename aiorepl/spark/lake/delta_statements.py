"""Runs the statements that merge changes into a Delta table with deltalake, in this process. Does not use Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from aiorepl.spark.lake.columns import OP
from aiorepl.spark.lake.delta_encoding import encoding, encoding_of
from aiorepl.spark.lake.rows import fitted, kept_masks
from aiorepl.spark.lake.statements import Dialect, merge, microseconds, truncate
from aiorepl.spark.lake.table import DELETED, Mode, Truncate


def run_merge(
    table: DeltaTable,
    changes: pa.Table,
    keys: Sequence[str],
    mode: Mode,
    truncates: Sequence[Truncate],
    properties: CommitProperties,
    *,
    rest: bool,
) -> None:
    """Merge reduced changes in one commit.

    :param changes: with the mode's columns, and with the kept values of other keys filled in.
    :param rest: as in ``statements.merge``.
    """
    schema = pa.schema(table.schema())
    kept = {}
    for number, (name, mask) in enumerate(kept_masks(changes).items()):
        kept[name] = f"_aiorepl_kept_{number}"
        changes = changes.append_column(kept[name], mask)
    columns = [name for name in schema.names if name in changes.column_names]
    statement = merge(columns, keys, mode, _DIALECT, kept, truncates, rest=rest)
    merger = table.merge(
        fitted(changes, pa.schema([schema.field(name) for name in columns]), (OP, *kept.values())),
        statement.condition,
        source_alias="s",
        target_alias="t",
        # Files outside the range of the source's keys are then skipped.
        streamed_exec=False,
        writer_properties=encoding(schema),
        commit_properties=properties,
    )
    for clause in statement.clauses:
        match clause.kind:
            case "matched_delete":
                merger = merger.when_matched_delete(clause.condition)
            case "matched_update":
                merger = merger.when_matched_update(dict(clause.values), clause.condition)
            case "insert":
                merger = merger.when_not_matched_insert(dict(clause.values), clause.condition)
            case "orphan_delete":
                merger = merger.when_not_matched_by_source_delete(clause.condition)
            case "orphan_update":
                merger = merger.when_not_matched_by_source_update(dict(clause.values), clause.condition)
    merger.execute()


def run_delete(table: DeltaTable, rows: pa.Table, keys: Sequence[str], properties: CommitProperties) -> None:
    """Remove the deleted rows with the keys of ``rows``, in one commit."""
    names = [_quoted(name) for name in keys]
    condition = " AND ".join([*(f"s.{name} = t.{name}" for name in names), f"t.{DELETED}"])
    table.merge(
        rows.select(list(keys)),
        condition,
        source_alias="s",
        target_alias="t",
        streamed_exec=False,
        writer_properties=encoding_of(table),
        commit_properties=properties,
    ).when_matched_delete().execute()


def run_truncate(
    table: DeltaTable, mode: Mode, truncates: Sequence[Truncate], properties: CommitProperties
) -> None:
    """Apply truncates without other changes, in one commit."""
    clause, encoded = truncate(mode, _DIALECT, truncates, ""), encoding_of(table)
    if clause.kind == "orphan_delete":
        table.delete(clause.condition, writer_properties=encoded, commit_properties=properties)
    else:
        table.update(
            dict(clause.values),
            predicate=clause.condition,
            writer_properties=encoded,
            commit_properties=properties,
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _time(moment: datetime | None) -> str:
    if moment is None:
        return "NULL"
    return f"arrow_cast({microseconds(moment)}, 'Timestamp(Microsecond, Some(\"UTC\"))')"


_DIALECT: Final = Dialect(_quoted, _time)
