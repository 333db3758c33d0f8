"""What a mirror keeps in the metadata of an Iceberg table: the columns with their attribute numbers, and the records of its batches.

An Iceberg field has no metadata. So a table property maps the ids of the fields, which a rename keeps, to the attribute numbers. The
summary of a batch's snapshot has the application, the batch's number and its end. Uses pyiceberg; does not use Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import _pyarrow_schema_ensure_small_types, _pyarrow_to_schema_without_ids
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.columns import Evolution, number_of
from aiorepl.spark.lake.table import NUMBER, Commit, TargetVersion, commit_of

_NUMBERS: Final = "aiorepl.numbers"


def columns_of(table: TableMetadata) -> pa.Schema:
    """Return a table's columns. The metadata of a field has its attribute number (``NUMBER``), if that is known."""
    numbers = json.loads(table.properties.get(_NUMBERS, "{}"))
    arrow = _pyarrow_schema_ensure_small_types(table.schema().as_arrow())
    fields = []
    for mine, field in zip(table.schema().fields, arrow, strict=True):
        number = numbers.get(str(mine.field_id))
        fields.append(field.remove_metadata().with_metadata(None if number is None else {NUMBER: number}))
    return pa.schema(fields)


def storable(schema: pa.Schema) -> pa.Schema:
    """Replace the types that pyiceberg cannot write: 16-bit integers, and list elements that are not nullable."""
    return pa.schema([field.with_type(_storable_type(field.type)) for field in schema])


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Return the columns without metadata, as pyiceberg requires."""
    return pa.schema([field.remove_metadata() for field in schema])


def set_numbers(transaction: Transaction, schema: pa.Schema) -> None:
    """Record the attribute numbers in ``schema``, which has the table's columns."""
    ids = {field.name: field.field_id for field in transaction.table_metadata.schema().fields}
    numbers = {str(ids[field.name]): number for field in schema if (number := number_of(field))}
    transaction.set_properties({_NUMBERS: json.dumps(numbers)})


def change(transaction: Transaction, steps: Evolution, name: str) -> None:
    """Add, rename and widen columns; only metadata changes.

    :param name: the table's name, for errors.
    :raises ConfigurationError: Iceberg cannot widen a column.
    """
    fields = {
        field.name: field for field in _pyarrow_to_schema_without_ids(without_metadata(steps.schema)).fields
    }
    with transaction.update_schema() as update:
        # First to temporary names, because columns may swap their names.
        for place, old in enumerate(steps.renamed):
            update.rename_column(old, f"_aiorepl_{place}")
    with transaction.update_schema() as update:
        for place, new in enumerate(steps.renamed.values()):
            update.rename_column(f"_aiorepl_{place}", new)
    with transaction.update_schema() as update:
        for column in steps.widened:
            try:
                update.update_column(column, fields[column].field_type)
            except Exception as error:
                raise ConfigurationError(
                    f"column {column!r} of the Iceberg table {name} cannot become {steps.widened[column]}: cast it in the DataFrame, or "
                    "mirror into a new table"
                ) from error
        for added in steps.added:
            # As a tuple, because a dot in a text separates the parts of a path.
            update.add_column((added.name,), fields[added.name].field_type)
    set_numbers(transaction, steps.schema)


def _storable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _storable_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_storable_type(field.type)) for field in kind])
    return pa.int32() if kind == pa.int16() else kind


def rolled_back(table: IcebergTable, source: str | None = None) -> bool:
    """Whether the table was rolled back to a snapshot before its last batch, or before the last batch of a source."""
    ends = ((each, commit_of(summary_of(each))) for each in reversed(table.metadata.snapshots))
    last = next((each for each, commit in ends if commit is not None and commit.source == source), None)
    if last is None:
        return False
    oldest: Snapshot | None = None
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.snapshot_id == last.snapshot_id:
            return False
        oldest = snapshot
    if oldest is None or _number(oldest) < _number(last):
        return True
    # The batch is no known ancestor. If snapshots in between have expired, as their missing numbers show, it may be an ancestor all the
    # same: pyiceberg removes an expired parent's id from its children. Format version 1 has no numbers; there, files of the batch show it.
    if table.metadata.format_version == 1 and _has_files_of(table, last):
        return False
    between = sum(_number(last) < _number(each) < _number(oldest) for each in table.metadata.snapshots)
    return oldest.parent_snapshot_id is None and between >= _number(oldest) - _number(last) - 1


def _has_files_of(table: IcebergTable, snapshot: Snapshot) -> bool:
    """Whether the present snapshot still has files that ``snapshot`` added."""
    present = table.current_snapshot()
    manifests = [] if present is None else present.manifests(table.io)
    return any(
        entry.snapshot_id == snapshot.snapshot_id
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io)
    )


def versions(table: IcebergTable) -> Iterator[TargetVersion]:
    """Yield the snapshots at the ends of batches, newest first."""
    seen: set[Commit] = set()
    for snapshot in reversed(table.metadata.snapshots):
        commit = commit_of(summary_of(snapshot))
        # The snapshot of a compaction is the end of the same batch as the one before.
        if commit is not None and commit not in seen:
            seen.add(commit)
            time = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
            yield TargetVersion(snapshot.snapshot_id, commit, time)


def summary_of(snapshot: Snapshot) -> Mapping[str, Any]:
    """Return the properties of a snapshot's summary. pyiceberg's ``Summary`` itself says of every key that it has it."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0
