"""Any table's changes in the same columns, values as PostgreSQL's text, as record batches. Runs on executors.

For routing and archiving: nothing is interpreted, and no schema has to be known. NULL is a null value in a map;
a column that was not sent is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from aiorepl.journal.index import SegmentIndex
from aiorepl.journal.reader import JournalReader
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.tuples import BINARY, UNCHANGED, TupleData
from aiorepl.spark.blocks import Span
from aiorepl.spark.typed import BATCH_BYTES, BATCH_ROWS
from aiorepl.spark.walk import Header, Walk
from aiorepl.values.registry import Types

_OPS: Final = {m.Insert: "insert", m.Update: "update", m.Delete: "delete"}
_MAPS: Final = ("key", "before", "after")

# A map on its way into Arrow.
Pairs = list[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class Generic:
    """What to read: everything; pickled to executors.

    :param schema: the Arrow form of ``GENERIC``.
    """

    schema: pa.Schema

    def batches(self, reader: JournalReader, spans: Iterable[Span]) -> Iterator[pa.RecordBatch]:
        """All changes in ``spans``, in order.

        :raises JournalError: when the journal is damaged.
        """
        rows: list[tuple[Any, ...]] = []
        size = 0
        for span in spans:
            index = reader.index(span.segment)
            texts = _Texts(index)
            for number in span.blocks:
                walk = Walk(reader, span.segment, index.blocks[number], lambda relation: True)
                for header, ordinal, _, payload in walk.rows():
                    rows += _rows(header, ordinal, walk.decode(payload), texts)
                    size += len(payload)
                    if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
                        yield self._batch(rows)
                        rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        columns = zip(*rows, strict=True)
        arrays = []
        for field, column in zip(self.schema, columns, strict=True):
            if field.name in _MAPS:
                arrays.append(_maps(column, field.type))
            elif field.name == "commit_ts":
                arrays.append(pa.array(column, pa.int64()).cast(field.type))
            else:
                arrays.append(pa.array(column, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Texts:
    """Tuples to maps."""

    def __init__(self, index: SegmentIndex) -> None:
        self._types = Types(index.types)
        self._binary = index.binary

    def map(self, relation: Relation, row: TupleData, places: Iterable[int] | None = None) -> Pairs:
        """The columns that were sent, or those of them that stand at ``places``."""
        columns = row.split()
        kinds = row.kinds() if self._binary else None
        pairs: Pairs = []
        for place in range(len(columns)) if places is None else places:
            raw = columns[place]
            if raw is UNCHANGED:
                continue
            described = relation.columns[place]
            text: str | None = None
            if isinstance(raw, bytes):
                if kinds is not None and kinds[place] == BINARY:
                    text = self._types.text(described.type_oid, BINARY)(raw)
                else:
                    text = raw.decode("utf-8", "backslashreplace")
            pairs.append((described.name, text))
        return pairs


def _rows(header: Header, ordinal: int, message: m.AnyMessage, texts: _Texts) -> Iterator[tuple[Any, ...]]:
    who = (header.commit_lsn, ordinal, header.xid, header.time)
    if isinstance(message, m.Truncate):
        for relation in message.relations:
            yield "truncate", relation.schema, relation.name, *who, None, None, None, (), None, None
    elif isinstance(message, m.Message):
        yield "message", None, None, *who, None, None, None, (), message.prefix, message.content
    elif isinstance(message, m.Insert | m.Update | m.Delete):
        relation = message.relation
        before = after = None
        unchanged: tuple[str, ...] = ()
        if not isinstance(message, m.Insert) and message.old is not None:
            before = texts.map(relation, message.old, relation.key if message.old_kind == "K" else None)
        if not isinstance(message, m.Delete):
            after = texts.map(relation, message.new)
            if len(after) < len(relation.columns):
                sent = {name for name, _ in after}
                unchanged = tuple(name for name in relation.names if name not in sent)
                if before is not None and unchanged:
                    after += [(name, text) for name, text in before if name in unchanged]
        names = {relation.names[place] for place in relation.key}
        key = [pair for pair in before or after or () if pair[0] in names] if names else None
        who_and_where = (_OPS[type(message)], relation.schema, relation.name, *who)
        yield *who_and_where, key, before, after, unchanged, None, None


def _maps(values: tuple[Pairs | None, ...], wanted: pa.DataType) -> Any:
    offsets: list[int | None] = []
    names: list[str] = []
    texts: list[str | None] = []
    for value in values:
        # A null offset makes a null map.
        offsets.append(None if value is None else len(names))
        for name, text in value or ():
            names.append(name)
            texts.append(text)
    offsets.append(len(names))
    made = pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(texts, pa.string())
    )
    return made.cast(wanted)
