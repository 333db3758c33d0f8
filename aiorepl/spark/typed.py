"""Reads one table's changes in the table's columns, as record batches. Runs on executors; does not use pyspark.

Columns are matched by name. A column that the table did not have at the time is null; a column that the schema does not have
is left out. ``formats.arrow.rows`` makes the rows of each kind of change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from aiorepl.formats.arrow.header import Header
from aiorepl.formats.arrow.rows import Rows, Shape
from aiorepl.formats.texts import Texts
from aiorepl.journal.reader import JournalReader
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation
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
class Typed:
    """Reads one table; pickled to executors.

    :param schema: the Arrow form of the query's schema: columns of the table and of ``schema.META``.
    :param keys: the columns that identify a row under replica identity FULL, for which the server names none.
    :param null: as in ``columns.column``.
    """

    table: TableName
    schema: pa.Schema
    keys: tuple[str, ...]
    null: bool

    def batches(self, reader: JournalReader, spans: Iterable[Span]) -> Iterator[pa.RecordBatch]:
        """Read the table's changes in ``spans``, in order.

        :raises DataError: a value does not fit into the wanted type.
        :raises JournalError: the journal is damaged.
        """
        layouts: dict[tuple[bytes, tuple[TypeInfo, ...]], _Layout] = {}
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
                        key = (target.payload, index.types)
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
        indexes = {name: index for index, name in enumerate(relation.names)}
        key = relation.key or tuple(indexes[name] for name in wanted.keys if name in indexes)
        converters = {}
        for field in wanted.schema:
            index = indexes.get(field.name)
            if index is not None:
                oid = relation.columns[index].type_oid
                name = f"{relation}.{field.name}"
                converters[field.name] = index, column(name, oid, known, field.type, null=wanted.null)
        super().__init__(wanted.schema, relation.names, key, converters)
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
