"""One table's changes in its own columns, as record batches. Runs on executors; knows no pyspark.

Columns go by name: what the table did not have at the time is null, what the schema does not have is left out.
``formats.arrow.rows`` says what becomes of each kind of change.
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
from aiorepl.spark.blocks import Span, TableName
from aiorepl.spark.columns import column
from aiorepl.spark.walk import Walk
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 * 1024 * 1024

_INSERT, _UPDATE, _DELETE, _TRUNCATE = b"IUDT"
_NEW, _KEY, _OLD = b"NKO"
# Where a row stands in its message: type, relation (4 bytes), tuple kind, then the tuple.
_KIND_AT, _TUPLE_AT = 5, 6


@dataclass(frozen=True, slots=True)
class Typed:
    """What to read of a table, and as what; pickled to executors.

    :param schema: the Arrow form of the query's schema: the wanted columns and ours.
    :param keys: what identifies a row under replica identity FULL, where the server does not say it.
    :param null: see ``columns.column``.
    """

    table: TableName
    schema: pa.Schema
    keys: tuple[str, ...]
    null: bool

    def batches(self, reader: JournalReader, spans: Iterable[Span]) -> Iterator[pa.RecordBatch]:
        """The table's changes in ``spans``, in order.

        :raises DataError: when a value cannot be held by the wanted type.
        :raises JournalError: when the journal is damaged.
        """
        layouts: dict[tuple[bytes, tuple[TypeInfo, ...]], _Layout] = {}
        rows: _Rows | None = None
        for span in spans:
            index = reader.index(span.segment)
            seen: dict[Relation, _Layout] = {}
            for number in span.blocks:
                walk = Walk(reader, span.segment, index.blocks[number], self.table.is_of, span.after)
                for header, ordinal, relation, payload in walk.rows():
                    target: Relation | None = relation
                    if target is None:
                        target = self._truncated(walk, payload)
                        if target is None:
                            continue
                    layout = seen.get(target)
                    if layout is None:
                        # The same description has another object in every segment.
                        key = (target.payload, index.types)
                        layout = layouts.get(key)
                        if layout is None:
                            layout = layouts[key] = _Layout(self, target, index.types, binary=index.binary)
                        seen[target] = layout
                    if rows is None or rows.layout is not layout or rows.full:
                        if rows is not None:
                            yield rows.batch()
                        rows = _Rows(layout)
                    rows.add(header, ordinal, payload, walk)
        if rows is not None:
            yield rows.batch()

    def _truncated(self, walk: Walk, payload: bytes) -> Relation | None:
        if payload[0] != _TRUNCATE:
            return None
        message = walk.decode(payload)
        assert isinstance(message, m.Truncate)
        return next((relation for relation in message.relations if self.table.is_of(relation)), None)


class _Layout(Shape):
    """How a description's tuples become the wanted columns."""

    def __init__(
        self, wanted: Typed, relation: Relation, types: tuple[TypeInfo, ...], *, binary: bool
    ) -> None:
        known = Types(types)
        places = {name: place for place, name in enumerate(relation.names)}
        key = relation.key or tuple(places[name] for name in wanted.keys if name in places)
        converters = {}
        for field in wanted.schema:
            place = places.get(field.name)
            if place is not None:
                oid = relation.columns[place].type_oid
                name = f"{relation}.{field.name}"
                converters[field.name] = place, column(name, oid, known, field.type, null=wanted.null)
        super().__init__(wanted.schema, relation.names, key, converters)
        self.texts = Texts(relation, known, binary=binary)


class _Rows(Rows):
    """Rows of one layout, from messages."""

    def __init__(self, layout: _Layout) -> None:
        super().__init__(layout)
        self.layout = layout
        self._size = 0

    @property
    def full(self) -> bool:
        """Whether to make a batch before adding more."""
        return len(self) >= BATCH_ROWS or self._size >= BATCH_BYTES

    def add(self, header: Header, ordinal: int, payload: bytes, walk: Walk) -> None:
        """The row or rows of one message."""
        self.begin(header)
        split, before = self.layout.texts.split, self.layout.texts.printed
        kind = payload[0]
        if kind == _INSERT:
            self.insert(ordinal, split(TupleData(payload, _TUPLE_AT)))
        elif kind == _UPDATE:
            if payload[_KIND_AT] == _NEW:
                self.update(ordinal, split(TupleData(payload, _TUPLE_AT)))
            else:
                message = walk.decode(payload)
                assert isinstance(message, m.Update)
                assert message.old is not None
                self.update(ordinal, split(message.new), split(message.old), whole=message.old_kind == "O")
        elif kind == _DELETE:
            old = split(TupleData(payload, _TUPLE_AT))
            self.delete(ordinal, old, whole=payload[_KIND_AT] == _OLD)
        else:
            self.truncate(ordinal)
        self._size += len(payload) + self.layout.texts.printed - before
