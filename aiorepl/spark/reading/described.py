"""A table's last description, from the segments or the history, and the first block whose description no longer fits a query's schema.

A query has the columns that the table's last description had when the query was loaded. The columns do not change while the
query runs. If it read on, it would lose the values of a column that was added later. So the query ends before that block, and
its restart begins there with the new columns. Runs on the driver; does not use pyspark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa

from aiorepl.errors import SchemaChanged
from aiorepl.formats.arrow.types import column_types
from aiorepl.history import files
from aiorepl.journal.chain import Chain
from aiorepl.journal.index import SegmentIndex
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN
from aiorepl.pgoutput.relations import Relation
from aiorepl.spark.reading.blocks import between, newest_description
from aiorepl.storage.opening import Location
from aiorepl.table_name import TableName
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """The properties of a column on which a query's schema depends.

    :param number: the attribute number; ``None`` if it is not known.
    :param kind: the Arrow type, as text.
    """

    name: str
    number: int | None
    kind: str


Shape = tuple[ColumnShape, ...]


@dataclass(frozen=True, slots=True)
class Inferred:
    """The columns that a table had when Spark asked for its schema.

    :param at: the journal's end at that time.
    """

    columns: Shape
    at: LSN

    @property
    def digest(self) -> str:
        """A digest of the columns, for offsets."""
        text = json.dumps([[each.name, each.number, each.kind] for each in self.columns])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def shape(relation: Relation, kinds: Iterable[pa.DataType]) -> Shape:
    """Return the columns of a description.

    :param kinds: the columns' Arrow types.
    """
    return tuple(
        ColumnShape(
            column.name,
            None if (found := relation.attributes.get(column.name)) is None else found.number,
            str(kind),
        )
        for column, kind in zip(relation.columns, kinds, strict=True)
    )


def differences(before: Shape, now: Shape, only: Collection[str] | None = None) -> list[str]:
    """List the differences of ``now`` that a schema made from ``before`` does not allow. A dropped column is allowed.

    :param only: the columns of a schema that the user gave. The user chose their types, so only renames matter.
    """
    by_number = {each.number: each for each in before if each.number is not None}
    by_name = {each.name: each for each in before}
    found = []
    for each in now:
        old = by_number.get(each.number) if each.number is not None else None
        if old is None:
            old = by_name.get(each.name)
            if old is not None and old.number is not None and each.number is not None:
                old = None  # a new column with the name of a dropped one
        if old is None:
            if only is None:
                found.append(f"column {each.name!r} was added")
        elif old.name != each.name and (only is None or old.name in only):
            found.append(f"column {old.name!r} is {each.name!r} now")
        elif old.kind != each.kind and only is None:
            found.append(f"column {each.name!r} is {each.kind} now, and was {old.kind}")
    return found


class SchemaWatch:
    """Compares the descriptions of later blocks with the columns of a query.

    :param inferred: the query's columns, and the position up to which they are known to fit.
    :param only: as in ``differences``.
    """

    def __init__(self, table: TableName, inferred: Inferred, only: Collection[str] | None) -> None:
        self.table = table
        self._inferred = inferred
        self._only = only
        # Keyed by everything that a shape depends on, not by Relation objects: each segment has its own.
        self._found: dict[object, list[str]] = {}

    def first_change(
        self, reader: JournalReader, chain: Chain, start: BlockPosition, end: BlockPosition
    ) -> tuple[BlockPosition, str] | None:
        """Return the first block between two positions whose description does not fit, and the differences.

        :raises JournalError: the journal is damaged.
        """
        at = self._inferred.at
        if end.lsn < at or (end.lsn == at and not (end.part or end.block)):
            return None
        begin = BlockPosition(at) if start.lsn < at else start
        for segment, first, last in between(reader, chain, self.table, begin, end):
            index = reader.index(segment)
            numbers = index.numbers_of(self.table)
            for block in range(first, last):
                for number in sorted(numbers.intersection(index.blocks[block].rows)):
                    if changed := self._differences(index, number):
                        place = BlockPosition(max(segment.after, begin.lsn), segment.part, block)
                        return place, "; ".join(changed)
        return None

    def _differences(self, index: SegmentIndex, number: int) -> list[str]:
        relation = index.relation(number)
        key = (relation.payload, index.types, frozenset(relation.attributes.items()))
        found = self._found.get(key)
        if found is None:
            now = shape(relation, column_types(relation, Types(index.types)))
            found = self._found[key] = differences(self._inferred.columns, now, self._only)
        return found

    def ended(self, place: BlockPosition, text: str, *, evolve: bool) -> SchemaChanged:
        """Make the error that ends a stream before a block."""
        if self._only is not None:
            remedy = "give the columns by their new names with .schema(...), and start the query again"
        elif evolve:
            remedy = "start the query again, and it continues from here with the new columns"
        else:
            remedy = "give the columns with .schema(...), or set the option onSchemaChange to evolve, and start the query again"
        return SchemaChanged(f"the columns of {self.table} changed after {place.lsn}: {text}. Now {remedy}")

    def outdated(self, place: BlockPosition, text: str) -> SchemaChanged:
        """Make the error for a batch."""
        return SchemaChanged(
            f"the columns of {self.table} changed after {place.lsn}, and after this query was made: {text}. Now load the table "
            "again, and run the query"
        )


@dataclass(frozen=True, slots=True)
class Described:
    """A table's last description.

    :param types: the types that are not built in.
    :param kinds: the columns' Arrow types.
    """

    relation: Relation
    types: tuple[TypeInfo, ...]
    kinds: tuple[pa.DataType, ...]

    @property
    def columns(self) -> Shape:
        """The columns, for ``differences``."""
        return shape(self.relation, self.kinds)

    @property
    def registry(self) -> Types:
        return Types(self.types)


def describe(reader: JournalReader, journal: Location, table: TableName) -> Described | None:
    """Return the table's last description; ``None`` if neither segments nor history have a change of it.

    :raises JournalError: the journal is damaged.
    """
    found = newest_description(reader, table)
    if found is not None:
        relation, types = found
        return Described(relation, types.added, column_types(relation, types))
    compacted = files(journal, table.schema, table.name)
    if compacted is None or not compacted.files:
        return None
    last = compacted.files[-1]
    old = last.relation()
    assert old is not None
    return Described(old, (), tuple(last.schema.types[: len(old.columns)]))
