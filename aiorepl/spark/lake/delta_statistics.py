"""Removes statistics that are not exact from the log of a Delta table. Uses deltalake; does not use Spark.

deltalake writes the minima and maxima of decimals as floating-point numbers, which have 15 exact digits. Readers skip files by them,
and so does MERGE: a row with a longer key is then not found. ``delta_encoding`` writes no statistics of such columns. Tables of
earlier versions have them, and so have the files that other programs compact with deltalake.
"""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from aiorepl.errors import ConfigurationError

_EXACT_DIGITS: Final = 15
_MARK: Final = Transaction("aiorepl/statistics", 0)


def exact(kind: pa.DataType) -> bool:
    """Whether deltalake writes exact statistics of a type."""
    if pa.types.is_struct(kind):
        return all(exact(field.type) for field in kind)
    return not pa.types.is_decimal(kind) or kind.precision <= _EXACT_DIGITS


def wrong_files(table: DeltaTable) -> pa.Table | None:
    """Return the files whose statistics may be wrong, as ``get_add_actions`` describes them; ``None`` if there are none."""
    schema = pa.schema(table.schema())
    names = [field.name for field in schema if not exact(field.type)]
    # With deletion vectors, only Spark writes the table; describing a file again would drop its vector.
    if not names or "deletionVectors" in (table.protocol().writer_features or ()):
        return None
    files = pa.table(table.get_add_actions(flatten=True))
    wrong = pa.array([False] * files.num_rows, pa.bool_())
    for found in files.column_names:
        bound, _, name = found.partition(".")
        if bound in {"min", "max"} and (
            name in names
            or (name not in schema.names and name.startswith(tuple(f"{each}." for each in names)))
        ):
            wrong = pc.or_(wrong, files[found].is_valid().combine_chunks())
    return files.filter(wrong) if pc.any(wrong).as_py() else None


def was_corrected(table: DeltaTable) -> bool:
    """Whether ``correct`` has run."""
    return table.transaction_version(_MARK.app_id) is not None


def correct(table: DeltaTable, files: pa.Table, properties: CommitProperties) -> None:
    """Describe files again without the statistics that may be wrong, in one commit. The files stay as they are.

    :param files: of ``wrong_files``.
    :raises ConfigurationError: deltalake has not found the same files again, and the table is as it was.
    """
    count, version = len(table.file_uris()), table.version()
    schema = pa.schema(table.schema())
    names = [field.name for field in schema if exact(field.type) and not pa.types.is_struct(field.type)]
    partitions = table.metadata().partition_columns
    actions: list[AddAction | RemoveAction] = [_action(row, names, partitions) for row in _rows(files)]
    marks = [*(properties.app_transactions or ()), _MARK]
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        partitions,
        commit_properties=CommitProperties(
            custom_metadata=properties.custom_metadata, app_transactions=marks
        ),
    )
    table.update_incremental()
    if len(table.file_uris()) != count:
        table.restore(version, commit_properties=properties)
        raise ConfigurationError(
            f"the rounded statistics of the Delta table {table.table_uri} cannot be removed: compact the table with another program, or "
            "move it away and begin it again with a snapshot"
        )


def _rows(files: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as Python values; columns with dates that Python does not have are left out."""
    columns = {}
    for name, column in zip(files.column_names, files.columns, strict=True):
        try:
            columns[name] = column.to_pylist()
        except (OverflowError, ValueError):
            if name.startswith("partition."):
                raise
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _action(row: dict[str, Any], names: list[str], partitions: list[str]) -> AddAction:
    found: dict[str, Any] = {"numRecords": row["num_records"]}
    for key, bound in (("minValues", "min"), ("maxValues", "max")):
        values = {name: _json(row.get(f"{bound}.{name}")) for name in names}
        found[key] = {name: value for name, value in values.items() if value is not None}
    counts = {name: row.get(f"null_count.{name}") for name in names}
    found["nullCount"] = {name: count for name, count in counts.items() if count is not None}
    values = {name: _partition(row[f"partition.{name}"]) for name in partitions}
    return AddAction(
        unquote(row["path"]),  # the log has it as a URL
        row["size_bytes"],
        values,
        row["modification_time"],
        data_change=False,
        stats=json.dumps(found),
    )


def _json(value: Any) -> Any:
    """Return a bound as Delta stores it; ``None`` to leave it out."""
    if isinstance(value, datetime):
        # Readers know that a maximum may be up to a millisecond later.
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return text if value.tzinfo is None else f"{text}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int) else None


def _partition(value: Any) -> str | None:
    """Return a partition's value as Delta stores it."""
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(" ", timespec="microseconds")
        return text if value.tzinfo is None else f"{text.replace(' ', 'T')}Z"
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
