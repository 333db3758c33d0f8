"""A table's last description, from the segments, or from the history if they were deleted. Runs on the driver; no pyspark."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from aiorepl.formats.arrow.types import arrow_type
from aiorepl.history import files
from aiorepl.journal.reader import JournalReader
from aiorepl.pgoutput.relations import Relation
from aiorepl.spark.reading.blocks import newest_description
from aiorepl.spark.reading.schema_changes import Shape, file_shape, shape
from aiorepl.storage.opening import Location
from aiorepl.table_name import TableName
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo


@dataclass(frozen=True, slots=True)
class Described:
    """A table's last description.

    :param types: the types that are not built in.
    :param kinds: the columns' Arrow types.
    """

    relation: Relation
    types: tuple[TypeInfo, ...]
    kinds: tuple[pa.DataType, ...]
    columns: Shape

    @property
    def registry(self) -> Types:
        """All types, including built-in ones."""
        return Types(self.types)


def describe(reader: JournalReader, journal: Location, table: TableName) -> Described | None:
    """Return the table's last description; ``None`` if neither segments nor history have a change of it.

    :raises JournalError: the journal is damaged.
    """
    found = newest_description(reader, table)
    if found is not None:
        relation, types = found
        kinds = [arrow_type(each.type_oid, each.type_modifier, types) for each in relation.columns]
        return Described(relation, types.added, tuple(kinds), shape(relation, types))
    compacted = files(journal, table.schema, table.name)
    if compacted is None or not compacted.files:
        return None
    last = compacted.files[-1]
    old = last.relation()
    assert old is not None
    fields = [last.schema.field(number) for number in range(len(old.columns))]
    return Described(old, (), tuple(field.type for field in fields), file_shape(old, last.schema))
