"""Reads the changes of a block, each with its transaction and ordinal. Runs on executors; does not use pyspark or Arrow.

The index has the transaction in whose middle a block starts, so blocks can be read in any order, on any machine. Rows are not
decoded here. Many rows of a block may belong to other tables; skipping one takes only its first five bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from aiorepl.epoch import since_1970
from aiorepl.errors import JournalError, ProtocolError
from aiorepl.formats.arrow.header import Header
from aiorepl.journal.index import Block
from aiorepl.journal.reader import JournalReader, block_decoder
from aiorepl.journal.segment_format import frames
from aiorepl.journal.segments import Segment
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation

# A row: its transaction's header, ordinal, relation and payload.
Row = tuple[Header, int, Relation | None, bytes]

_OID: Final = struct.Struct(">I").unpack_from
_BEGIN, _COMMIT, _TRUNCATE, _MESSAGE = b"BCTM"
_ROWS: Final = frozenset(b"IUD")


class BlockReader:
    """Reads one block, once.

    :param wanted: whether to return the rows of a relation.
    :param after: skip the transactions that ended at or before this LSN; 0 skips none.
    :param until: skip the transactions that ended after this LSN; 0 skips none.
    """

    def __init__(
        self,
        reader: JournalReader,
        segment: Segment,
        block: Block,
        wanted: Callable[[Relation], bool],
        after: LSN = ZERO,
        until: LSN = ZERO,
    ) -> None:
        index = reader.index(segment)
        self._source = reader, segment, block
        self._after = after
        self._until = until
        self._data = reader.read(segment, block)
        self._decoder = block_decoder(index, block)
        self._attributes_of = index.attributes_of
        self._wanted = wanted
        continuation = block.continuation
        self._header = (
            Header(None, 0, None)
            if continuation is None
            else Header(continuation.xid, continuation.commit_lsn, since_1970(continuation.commit_timestamp))
        )
        self._ordinal = 0 if continuation is None else continuation.ordinal

    def rows(self) -> Iterator[Row]:
        """Iterate over the wanted rows, and over all truncates and messages. Truncates and messages have no relation.

        :raises JournalError: the block's contents are invalid.
        """
        return self._rows_between() if self._after or self._until else self._rows()

    def _rows_between(self) -> Iterator[Row]:
        for row in self._rows():
            header = row[0]
            # The least end LSN: a transaction ends after its commit LSN, a message between transactions at its own LSN.
            least = header.commit_lsn + (header.xid is not None)
            if least > self._after and (not self._until or least <= self._until):
                yield row

    def _rows(self) -> Iterator[Row]:
        decode, views = self._decoder.decode, self._decoder.views
        header, ordinal = self._header, self._ordinal
        relations: dict[int, Relation | None] = {}
        try:
            for payload in frames(self._data):
                kind = payload[0]
                if kind in _ROWS:
                    (oid,) = _OID(payload, 1)
                    try:
                        relation = relations[oid]
                    except KeyError:
                        found = views.find(oid, "row")
                        relation = relations[oid] = found if self._wanted(found) else None
                    if relation is not None:
                        yield header, ordinal, relation, payload
                    ordinal += 1
                elif kind == _BEGIN:
                    begin = decode(payload)
                    assert isinstance(begin, m.Begin)
                    header = Header(begin.xid, begin.final_lsn, since_1970(begin.commit_time))
                    ordinal = 0
                elif kind == _TRUNCATE:
                    yield header, ordinal, None, payload
                    ordinal += 1
                elif kind == _MESSAGE:
                    if payload[1]:
                        yield header, ordinal, None, payload
                        ordinal += 1
                    else:
                        message = decode(payload)
                        assert isinstance(message, m.Message)
                        yield Header(None, message.lsn, None), 0, None, payload
                elif kind != _COMMIT:
                    # Relation, Type and Origin messages update the decoder's state.
                    described = decode(payload)
                    if type(described) is Relation:
                        described.attributes.update(self._attributes_of(described))
                    relations = {}
        except (ProtocolError, JournalError, IndexError, struct.error) as error:
            reader, segment, block = self._source
            raise reader.damaged(segment, block, error) from None

    def decode(self, payload: bytes) -> m.AnyMessage:
        """Decode the payload that ``rows`` has just returned."""
        return self._decoder.decode(payload)
