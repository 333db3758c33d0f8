"""The columns of an Iceberg table: their types, their attribute numbers in PostgreSQL, and the steps by which they change.

An Iceberg field has no metadata. So a table property maps the ids of the fields, which a rename keeps, to the attribute numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import _pyarrow_schema_ensure_small_types, _pyarrow_to_schema_without_ids
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.columns import Evolution, number_of
from aiorepl.spark.lake.table import NUMBER

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
    fields = {field.name: field for field in _iceberg_fields(steps.schema)}
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


def _iceberg_fields(schema: pa.Schema) -> Sequence[Any]:
    return _pyarrow_to_schema_without_ids(without_metadata(schema)).fields
