"""The Spark type of each PostgreSQL type, and the metadata columns beside a table's columns.

The types are those of ``formats.arrow.types``. A schema in the query overrides them; string is always PostgreSQL's text form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
)

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.types import META as ARROW_META
from aiorepl.formats.arrow.types import column_types
from aiorepl.pgoutput.relations import Attribute, Relation
from aiorepl.spark.reading.selected import SelectedTable
from aiorepl.values.registry import Types

OP, COMMIT_LSN, ORDINAL, XID, COMMIT_TS = "_op", "_commit_lsn", "_ordinal", "_xid", "_commit_ts"
UNCHANGED: Final = "_unchanged"
NUMBER: Final = "aiorepl.number"
"""The metadata of a column: its attribute number, as text, if it is known. A rename keeps it."""
MISSING: Final = "aiorepl.missing"
"""The metadata of a column that was added with a default: its value in older rows, as PostgreSQL's text."""

MASKED: Final = "aiorepl.masked"
"""The metadata of a column that the query masks: ``HIDES``, or the name of a method by which different values may have one mask."""
HIDES: Final = "true"

META: Final[StructType] = from_arrow_schema(ARROW_META)
"""The columns besides a table's own. ``_op`` is insert, update, delete or truncate, or read for a row of a snapshot; there
``_xid`` is 0. ``(_commit_lsn, _ordinal)`` identifies a change, and sorts in commit order; ``_commit_lsn`` is the LSN as a
number. ``_unchanged`` lists the columns whose TOASTed value the server did not send; they are null in the row.
"""

_TEXTS: Final = MapType(StringType(), StringType())

GENERIC: Final = StructType(
    [
        StructField("op", StringType(), nullable=False),
        StructField("schema", StringType()),
        StructField("table", StringType()),
        StructField("commit_lsn", LongType(), nullable=False),
        StructField("ordinal", LongType(), nullable=False),
        StructField("xid", LongType()),
        StructField("commit_ts", TimestampType()),
        StructField("key", _TEXTS),
        StructField("before", _TEXTS),
        StructField("after", _TEXTS),
        StructField("unchanged", ArrayType(StringType(), containsNull=False)),
        StructField("prefix", StringType()),
        StructField("content", BinaryType()),
    ]
)
"""The columns for the changes of all tables, values in PostgreSQL's text form. ``op`` can also be message, with ``prefix`` and
``content``. A message that is not transactional has no xid and time; ``commit_lsn`` is its own LSN, and ``ordinal`` is 0."""

_READABLE: Final = (
    StringType,
    BinaryType,
    BooleanType,
    ShortType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DecimalType,
    DateType,
    TimestampType,
    TimestampNTZType,
    TimeType,
    VariantType,
)


def table_schema(relation: Relation, types: Types) -> StructType:
    """Return the schema of a table's changes.

    :param relation: the table's description.
    :raises ConfigurationError: the table has a column with the name of a metadata column.
    """
    return described_schema(relation, column_types(relation, types))


def described_schema(
    relation: Relation, kinds: Sequence[pa.DataType], selected: SelectedTable | None = None
) -> StructType:
    """Return the schema of a table's changes.

    :param kinds: the columns' Arrow types.
    :param selected: the selection of the table's columns.
    :raises ConfigurationError: the table has a column with the name of a metadata column.
    """
    hidden = None if selected is None else selected.hidden(relation)
    masked: dict[str, str] = {}
    if hidden is not None:
        masked = dict.fromkeys(map(relation.names.__getitem__, hidden.masks), HIDES)
        relation, kinds = hidden.target, hidden.kinds(kinds)
    # Without a method that the query uses, the column may have been masked before the journal was written.
    masked |= {column.name: column.merging for column in relation.columns if column.merging}
    fields = [
        StructField(
            column.name,
            from_arrow_type(kind),
            metadata=_metadata(relation.attributes.get(column.name), masked.get(column.name)),
        )
        for column, kind in zip(relation.columns, kinds, strict=True)
    ]
    taken = set(META.names) & set(relation.names)
    if taken:
        raise ConfigurationError(
            f"{relation} has a column {min(taken)!r}, which is the name of a metadata column: read it without the option "
            "table, or leave the column out of the publication"
        )
    return StructType(fields + META.fields)


def _metadata(attribute: Attribute | None, masked: str | None) -> dict[str, str] | None:
    """Return a column's metadata: its number and, unless NULL, the text of its value in rows from before it was added."""
    metadata = {} if masked is None else {MASKED: masked}
    if attribute is not None:
        metadata[NUMBER] = str(attribute.number)
        if attribute.missing is not None:
            metadata[MISSING] = attribute.missing
    return metadata or None


def require_readable(schema: StructType) -> None:
    """Check the query's own schema.

    :raises ConfigurationError: no value can be read as one of the schema's types.
    """
    for field in schema.fields:
        if field.name in META.names:
            # Compared as text, because a schema from DDL has no nullability.
            expected, found = META[field.name].dataType.simpleString(), field.dataType.simpleString()
            if expected != found:
                raise ConfigurationError(f"column {field.name!r} is {expected}, not {found}")
            continue
        if (kind := _unreadable(field.dataType)) is not None:
            raise ConfigurationError(
                f"column {field.name!r} cannot be read as {kind.simpleString()}: read it as string and convert it"
            )


def _unreadable(kind: DataType) -> DataType | None:
    """Return the part of a type that no value can be read as; ``None`` if every part can be read."""
    if isinstance(kind, ArrayType):
        return _unreadable(kind.elementType)
    if isinstance(kind, StructType):
        return next(filter(None, (_unreadable(field.dataType) for field in kind.fields)), None)
    return None if isinstance(kind, _READABLE) else kind


def quoted(name: str) -> str:
    """Return a column's name between backticks. Spark needs them if the name has a dot or other special characters."""
    return "`" + name.replace("`", "``") + "`"
