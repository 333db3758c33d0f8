"""Reads one table's changes in the table's columns, as record batches. Runs on executors; does not use pyspark.

Columns are matched by attribute number, so that rows from before a rename are read under the new name; or by name, where a
number is not known. A column that the table did not have at the time has the value with which it was added, as far as that is
known, otherwise null. A column that the schema does not have is left out. ``formats.arrow.rows`` makes the rows of each kind of change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from aiorepl.formats.arrow.header import Header
from aiorepl.formats.arrow.rows import Rows, Shape
from aiorepl.formats.texts import Texts
from aiorepl.journal.reader import JournalReader
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Attribute, Relation
from aiorepl.pgoutput.tuples import TupleData
from aiorepl.spark.block_reader import BlockReader
from aiorepl.spark.blocks import Span, TableName
from aiorepl.spark.columns import column
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 * 1024 * 1024

_INSERT, _UPDATE, _DELETE, _TRUNCATE = b"IUDT"
_NEW, _KEY, _OLD = b"NKO"
# Offsets in a row's message: type, relation (4 bytes), tuple kind, then the tuple.
_KIND_AT, _TUPLE_AT = 5, 6


@dataclass(frozen=True, slots=True)
class Newest:
    """The names and missing values that the table's last description gives to the columns of earlier rows.

    :param numbers: the columns' attribute numbers.
    :param missing: an array of one element for each column that was added with a default: its value in older rows.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, pa.Array] = field(default_factory=dict)

    def names(self, relation: Relation) -> tuple[str, ...]:
        """Return the names that the columns of an earlier description have now; dropped ones keep theirs if it is free."""
        now = {number: name for name, number in self.numbers.items()}
        names = []
        for name in relation.names:
            found = relation.attributes.get(name)
            if found is not None and found.number in now:
                names.append(now[found.number])
            elif found is not None and name in self.numbers:
                names.append(f"........pg.dropped.{found.number}........")
            else:
                names.append(name)
        return tuple(names)

    @classmethod
    def of(cls, relation: Relation, types: Types, schema: pa.Schema, *, null: bool) -> Newest:
        """Convert the attributes of the last description to the types of ``schema``.

        :param null: as in ``columns.column``.
        :raises DataError: a value does not fit into the wanted type.
        """
        missing = {}
        for each in relation.columns:
            found = relation.attributes.get(each.name)
            if found is not None and found.missing is not None and each.name in schema.names:
                wanted = schema.field(each.name).type
                convert = column(f"{relation}.{each.name}", each.type_oid, types, wanted, null=null)
                missing[each.name] = convert([found.missing.encode()])
        return cls({name: found.number for name, found in relation.attributes.items()}, missing)


_UNKNOWN: Final = Newest()


@dataclass(frozen=True, slots=True)
class Typed:
    """Reads one table; pickled to executors.

    :param schema: the Arrow form of the query's schema: columns of the table and of ``schema.META``.
    :param keys: the columns that identify a row under replica identity FULL, for which the server names none.
    :param null: as in ``columns.column``.
    :param newest: what the table's last description says of rows with earlier ones.
    """

    table: TableName
    schema: pa.Schema
    keys: tuple[str, ...]
    null: bool
    newest: Newest = _UNKNOWN

    def batches(self, reader: JournalReader, spans: Iterable[Span]) -> Iterator[pa.RecordBatch]:
        """Read the table's changes in ``spans``, in order.

        :raises DataError: a value does not fit into the wanted type.
        :raises JournalError: the journal is damaged.
        """
        layouts: dict[tuple[bytes, tuple[TypeInfo, ...], frozenset[tuple[str, Attribute]]], _Layout] = {}
        rows: _Rows | None = None
        for span in spans:
            index = reader.index(span.segment)
            segment_layouts: dict[Relation, _Layout] = {}
            for number in span.blocks:
                block = BlockReader(reader, span.segment, index.blocks[number], self.table.is_of, span.after)
                for header, ordinal, relation, payload in block.rows():
                    target: Relation | None = relation
                    if target is None:
                        target = self._truncated(block, payload)
                        if target is None:
                            continue
                    layout = segment_layouts.get(target)
                    if layout is None:
                        # The same description is a different object in every segment.
                        key = (target.payload, index.types, frozenset(target.attributes.items()))
                        layout = layouts.get(key)
                        if layout is None:
                            layout = layouts[key] = _Layout(self, target, index.types, binary=index.binary)
                        segment_layouts[target] = layout
                    if rows is None or rows.layout is not layout or rows.full:
                        if rows is not None:
                            yield rows.batch()
                        rows = _Rows(layout)
                    rows.add(header, ordinal, payload, block)
        if rows is not None:
            yield rows.batch()

    def _truncated(self, block: BlockReader, payload: bytes) -> Relation | None:
        if payload[0] != _TRUNCATE:
            return None
        message = block.decode(payload)
        assert isinstance(message, m.Truncate)
        return next((relation for relation in message.relations if self.table.is_of(relation)), None)


class _Layout(Shape):
    """Converts the tuples of one description to the wanted columns."""

    def __init__(
        self, wanted: Typed, relation: Relation, types: tuple[TypeInfo, ...], *, binary: bool
    ) -> None:
        known = Types(types)
        names = wanted.newest.names(relation)
        indexes = {name: index for index, name in enumerate(names)}
        key = relation.key or tuple(indexes[name] for name in wanted.keys if name in indexes)
        converters = {}
        for each in wanted.schema:
            index = indexes.get(each.name)
            if index is not None:
                oid = relation.columns[index].type_oid
                name = f"{relation}.{relation.names[index]}"
                converters[each.name] = index, column(name, oid, known, each.type, null=wanted.null)
        missing = {name: value for name, value in wanted.newest.missing.items() if name not in converters}
        super().__init__(wanted.schema, names, key, converters, missing)
        self.texts = Texts(relation, known, binary=binary)


class _Rows(Rows):
    """Collects rows of one layout from messages."""

    def __init__(self, layout: _Layout) -> None:
        super().__init__(layout)
        self.layout = layout
        self._size = 0

    @property
    def full(self) -> bool:
        """Whether to make a batch before more rows are added."""
        return len(self) >= BATCH_ROWS or self._size >= BATCH_BYTES

    def add(self, header: Header, ordinal: int, payload: bytes, block: BlockReader) -> None:
        """Add the row or rows of one message."""
        self.begin(header)
        split, before = self.layout.texts.split, self.layout.texts.printed
        kind = payload[0]
        if kind == _INSERT:
            self.insert(header.new_row, ordinal, split(TupleData(payload, _TUPLE_AT)))
        elif kind == _UPDATE:
            if payload[_KIND_AT] == _NEW:
                self.update(ordinal, split(TupleData(payload, _TUPLE_AT)))
            else:
                message = block.decode(payload)
                assert isinstance(message, m.Update)
                assert message.old is not None
                self.update(ordinal, split(message.new), split(message.old), whole=message.old_kind == "O")
        elif kind == _DELETE:
            old = split(TupleData(payload, _TUPLE_AT))
            self.delete(ordinal, old, whole=payload[_KIND_AT] == _OLD)
        else:
            self.truncate(ordinal)
        self._size += len(payload) + self.layout.texts.printed - before
