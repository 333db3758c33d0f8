"""Reads the changes of all tables in common columns, values in PostgreSQL's text form, as record batches. Runs on executors.

For routing and archives: no schema is needed. A column that is NULL is a null value in its map; a column that the server did
not send is missing from the map.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from aiorepl.epoch import since_1970
from aiorepl.errors import ProtocolError
from aiorepl.formats.arrow.columns import text_array
from aiorepl.formats.arrow.header import Header
from aiorepl.formats.texts import Texts
from aiorepl.journal.index import Block
from aiorepl.journal.reader import JournalReader, block_decoder
from aiorepl.journal.segment_format import frames
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark.reading.blocks import Span
from aiorepl.spark.reading.typed import BATCH_BYTES, BATCH_ROWS
from aiorepl.transactions.rows import Raw
from aiorepl.values.registry import Types

Change = m.Insert | m.Update | m.Delete | m.Truncate | m.Message

_OPS: Final = {m.Update: "update", m.Delete: "delete"}
_MAPS: Final = ("key", "before", "after")

# A map from column names to encoded texts: the keys, and the values.
Pairs = tuple[Sequence[str], Sequence[bytes | None]]


@dataclass(frozen=True, slots=True)
class Generic:
    """Reads all tables; pickled to executors.

    :param schema: the Arrow form of ``GENERIC``.
    """

    schema: pa.Schema

    def batches(self, reader: JournalReader, spans: Iterable[Span]) -> Iterator[pa.RecordBatch]:
        """Read all changes in ``spans``, in order.

        :raises JournalError: the journal is damaged.
        """
        rows: list[tuple[Any, ...]] = []
        size = 0
        for span in spans:
            index = reader.index(span.segment)
            types = Types(index.types)
            texts: dict[Relation, Texts] = {}
            for header, ordinal, message in changes(reader, span):
                size += len(message.payload)
                if isinstance(message, m.Insert | m.Update | m.Delete):
                    relation = message.relation
                    if relation not in texts:
                        texts[relation] = Texts(relation, types, binary=index.binary)
                    printed = texts[relation].printed
                    rows.append(_row(header, ordinal, message, texts[relation]))
                    size += texts[relation].printed - printed
                else:
                    rows += _others(header, ordinal, message)
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


def changes(reader: JournalReader, span: Span) -> Iterator[tuple[Header, int, Change]]:
    """Iterate over the rows, truncates and messages of a span, each with its transaction and ordinal.

    The index has the transaction in whose middle a block starts, so blocks can be read in any order, on any machine.

    :raises JournalError: a block's contents are invalid.
    """
    index = reader.index(span.segment)
    for number in span.blocks:
        block = index.blocks[number]
        try:
            for header, ordinal, message in _of_block(
                block, block_decoder(index, block), reader.read(span.segment, block)
            ):
                # The least end LSN: a transaction ends after its commit LSN, a message between transactions at its own LSN.
                least = header.commit_lsn + (header.xid is not None)
                if least > span.after and (not span.until or least <= span.until):
                    yield header, ordinal, message
        except (ProtocolError, IndexError, struct.error) as error:
            raise reader.damaged(span.segment, block, error) from None


def _of_block(block: Block, decoder: Decoder, data: bytes) -> Iterator[tuple[Header, int, Change]]:
    begun, ordinal = block.continuation, 0
    header = Header(None, 0, None)
    if begun is not None:
        header = Header(begun.xid, begun.commit_lsn, since_1970(begun.commit_timestamp))
        ordinal = begun.ordinal
    for payload in frames(data):
        message = decoder.decode(payload)
        if isinstance(message, m.Begin):
            header, ordinal = Header(message.xid, message.final_lsn, since_1970(message.commit_time)), 0
        elif isinstance(message, m.Message) and not message.transactional:
            yield Header(None, message.lsn, None), 0, message
        elif isinstance(message, Change):
            yield header, ordinal, message
            ordinal += 1


def _others(header: Header, ordinal: int, message: m.Truncate | m.Message) -> Iterator[tuple[Any, ...]]:
    position = (header.commit_lsn, ordinal, header.xid, header.time)
    if isinstance(message, m.Message):
        yield "message", None, None, *position, None, None, None, (), message.prefix, message.content
        return
    for relation in message.relations:
        yield "truncate", relation.schema, relation.name, *position, None, None, None, (), None, None


def _row(
    header: Header, ordinal: int, message: m.Insert | m.Update | m.Delete, texts: Texts
) -> tuple[Any, ...]:
    relation, split = message.relation, texts.split
    old = new = before = after = None
    unchanged: tuple[str, ...] = ()
    if not isinstance(message, m.Insert) and message.old is not None:
        old = split(message.old)
        before = _pairs(relation.names, old, relation.key if message.old_kind == "K" else None)
    if not isinstance(message, m.Delete):
        new = split(message.new)
        if UNCHANGED in new:
            unchanged = tuple(name for name, raw in zip(relation.names, new, strict=True) if raw is UNCHANGED)
            if old is not None and message.old_kind == "O":
                new = [was if raw is UNCHANGED else raw for raw, was in zip(new, old, strict=True)]
        after = _pairs(relation.names, new, None)
    key = _pairs(relation.names, old or new or [], relation.key) if relation.key else None
    op = header.new_row if isinstance(message, m.Insert) else _OPS[type(message)]
    position = (header.commit_lsn, ordinal, header.xid, header.time)
    return op, relation.schema, relation.name, *position, key, before, after, unchanged, None, None


def _pairs(names: Sequence[str], columns: list[Raw], indexes: Iterable[int] | None) -> Pairs:
    """Select columns by index, or all columns. Values that the server did not send are left out."""
    if indexes is not None:
        indexes = list(indexes)
        names, columns = [names[index] for index in indexes], [columns[index] for index in indexes]
    if UNCHANGED in columns:
        sent = [(name, raw) for name, raw in zip(names, columns, strict=True) if raw is not UNCHANGED]
        names, columns = [name for name, _ in sent], [raw for _, raw in sent]
    return names, columns  # type: ignore[return-value] # no UNCHANGED is left


def _maps(values: tuple[Pairs | None, ...], wanted: pa.DataType) -> Any:
    offsets: list[int | None] = []
    names: list[str] = []
    texts: list[bytes | None] = []
    for value in values:
        # A null offset makes a null map.
        offsets.append(None if value is None else len(names))
        if value is not None:
            names += value[0]
            texts += value[1]
    offsets.append(len(names))
    maps = pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(names, pa.string()), text_array(texts)
    )
    return maps.cast(wanted)
