"""One table's changes in its own columns, as record batches. Runs on executors; knows no pyspark.

Columns go by name: what the table did not have at the time is null, what the schema does not have is left out. An
update that changed the key is a delete of the old key and an insert of the new one, with the same identity. A delete
has the key's columns, or the whole row under replica identity FULL. A truncate has no columns. An unchanged TOASTed
value is taken from the old row where that was sent, else it is null and ``_unchanged`` names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.journal.reader import JournalReader
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.tuples import UNCHANGED, TupleData
from aiorepl.spark.blocks import Span, TableName
from aiorepl.spark.columns import Convert, column
from aiorepl.spark.texts import Texts
from aiorepl.spark.walk import Header, Walk
from aiorepl.transactions.changes import Raw
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
                walk = Walk(reader, span.segment, index.blocks[number], self.table.is_of)
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


class _Layout:
    """How a description's tuples become the wanted columns."""

    def __init__(
        self, shape: Typed, relation: Relation, types: tuple[TypeInfo, ...], *, binary: bool
    ) -> None:
        known = Types(types)
        places = {name: place for place, name in enumerate(relation.names)}
        self.relation = relation
        self.schema = shape.schema
        self.width = len(relation.columns)
        self.key = relation.key or tuple(places[name] for name in shape.keys if name in places)
        self.split = Texts(relation, known, binary=binary).split
        self.converters: dict[str, tuple[int, Convert]] = {}
        for field in shape.schema:
            place = places.get(field.name)
            if place is not None:
                oid = relation.columns[place].type_oid
                name = f"{relation}.{field.name}"
                self.converters[field.name] = place, column(name, oid, known, field.type, null=shape.null)


class _Rows:
    """Rows of one layout, until they make a batch."""

    def __init__(self, layout: _Layout) -> None:
        self.layout = layout
        self._size = 0
        self._rows: list[list[Raw]] = []
        self._ops: list[str] = []
        self._ordinals: list[int] = []
        self._headers: list[Header] = []
        self._ends: list[int] = []
        self._header: Header | None = None
        self._unchanged: dict[int, list[str]] = {}

    @property
    def full(self) -> bool:
        """Whether to make a batch before adding more."""
        return len(self._rows) >= BATCH_ROWS or self._size >= BATCH_BYTES

    def add(self, header: Header, ordinal: int, payload: bytes, walk: Walk) -> None:
        """The row or rows of one message."""
        if header is not self._header:
            if self._header is not None:
                self._headers.append(self._header)
                self._ends.append(len(self._rows))
            self._header = header
        self._size += len(payload)
        kind = payload[0]
        if kind == _INSERT:
            self._append("insert", ordinal, self.layout.split(TupleData(payload, _TUPLE_AT)))
        elif kind == _UPDATE:
            if payload[_KIND_AT] == _NEW:
                self._append("update", ordinal, self.layout.split(TupleData(payload, _TUPLE_AT)))
            else:
                message = walk.decode(payload)
                assert isinstance(message, m.Update)
                self._update(ordinal, message)
        elif kind == _DELETE:
            old = self.layout.split(TupleData(payload, _TUPLE_AT))
            self._append("delete", ordinal, old if payload[_KIND_AT] == _OLD else self._only_key(old))
        else:
            self._append("truncate", ordinal, [None] * self.layout.width)

    def _update(self, ordinal: int, message: m.Update) -> None:
        """An update of which the old key or row was sent."""
        assert message.old is not None
        layout = self.layout
        old, new = layout.split(message.old), layout.split(message.new)
        whole = message.old_kind == "O"
        known = range(layout.width) if whole else layout.key
        for place in known:
            if new[place] is UNCHANGED:
                new[place] = old[place]
        if any(old[place] != new[place] for place in layout.key):
            self._append("delete", ordinal, old if whole else self._only_key(old))
            self._append("insert", ordinal, new)
        else:
            self._append("update", ordinal, new)

    def _only_key(self, old: list[Raw]) -> list[Raw]:
        kept: list[Raw] = [None] * self.layout.width
        for place in self.layout.key:
            kept[place] = old[place]
        return kept

    def _append(self, op: str, ordinal: int, row: list[Raw]) -> None:
        if UNCHANGED in row:
            names = self.layout.relation.names
            self._unchanged[len(self._rows)] = [
                names[place] for place, raw in enumerate(row) if raw is UNCHANGED
            ]
            row = [None if raw is UNCHANGED else raw for raw in row]
        self._rows.append(row)
        self._ops.append(op)
        self._ordinals.append(ordinal)

    def batch(self) -> pa.RecordBatch:
        """All rows, as the schema has them."""
        assert self._header is not None
        count = len(self._rows)
        headers, ends = [*self._headers, self._header], [*self._ends, count]
        columns: list[Sequence[Any]] = list(zip(*self._rows, strict=True))
        arrays = []
        for field in self.layout.schema:
            if field.name in self.layout.converters:
                place, convert = self.layout.converters[field.name]
                arrays.append(convert(columns[place]))
            elif field.name == "_op":
                arrays.append(pa.array(self._ops, pa.string()))
            elif field.name == "_ordinal":
                arrays.append(pa.array(self._ordinals, pa.int64()))
            elif field.name == "_commit_lsn":
                arrays.append(_spread([header.commit_lsn for header in headers], ends, pa.int64()))
            elif field.name == "_xid":
                arrays.append(_spread([header.xid for header in headers], ends, pa.int64()))
            elif field.name == "_commit_ts":
                arrays.append(_spread([header.time for header in headers], ends, pa.int64()).cast(field.type))
            elif field.name == "_unchanged":
                arrays.append(name_lists(self._unchanged, count).cast(field.type))
            else:
                arrays.append(pa.nulls(count, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.layout.schema)


def _spread(values: list[Any], ends: list[int], kind: pa.DataType) -> Any:
    """Each value repeated up to its end: a transaction's columns, made once a transaction."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values, kind))
    return pc.run_end_decode(runs)


def name_lists(named: dict[int, list[str]], count: int) -> Any:
    """``count`` lists of names, empty but for the rows in ``named``."""
    if not named:
        return pa.ListArray.from_arrays(pa.array([0] * (count + 1), pa.int32()), pa.array([], pa.string()))
    return pa.array([named.get(row, ()) for row in range(count)], pa.list_(pa.string()))
