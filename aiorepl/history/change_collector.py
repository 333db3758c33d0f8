"""Collects changes by table and description, for one pass of compaction or one task of Spark."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from aiorepl.errors import ProtocolError
from aiorepl.formats.arrow.block_scan import BlockScan, Collectors
from aiorepl.formats.arrow.collected import CollectedRows, truncate_row
from aiorepl.formats.arrow.header import Header
from aiorepl.formats.arrow.hidden import Hidden
from aiorepl.formats.arrow.row_collector import BlockScanner, RowCollector
from aiorepl.formats.arrow.table import MESSAGES, MessageRow, message_rows
from aiorepl.history.buffers import Buffers, TableBuffer
from aiorepl.history.manifest import MESSAGES_TABLE, TableVersion
from aiorepl.history.uncompacted import blocks
from aiorepl.journal.index import Block, SegmentIndex
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import Segment
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Relation
from aiorepl.table_name import TableName
from aiorepl.transactions.rows import Layout
from aiorepl.values.registry import Types

Known = Callable[[TableName], tuple[TableVersion, ...]]

_OF_MESSAGES: Final = TableVersion(0, (), MESSAGES)


class ChangeCollector:
    """Puts the changes of segments into buffers.

    :param known: returns the versions of a table that the history has.
    :param wanted: the tables whose changes are collected, without messages; ``None``: all tables, and messages.
    :param hide: returns the dropped and masked columns of a description; ``None`` if no column is hidden.
    """

    def __init__(
        self,
        reader: JournalReader,
        buffers: Buffers,
        known: Known,
        wanted: Callable[[TableName], bool] | None = None,
        hide: Callable[[Relation], Hidden | None] = lambda relation: None,
    ) -> None:
        self._reader = reader
        self._buffers = buffers
        self._known = known
        self._wanted = wanted
        self._hide = hide
        self._versions: dict[tuple[TableName, object], TableVersion] = {}
        # Keyed by everything that a conversion depends on, not by Relation objects: each segment has its own.
        self._conversions: dict[object, tuple[TableVersion, CollectedRows]] = {}
        self._of_segment: dict[Relation, tuple[TableVersion, CollectedRows]] = {}
        self._messages: list[MessageRow] = []

    def segment(self, segment: Segment, numbers: Iterable[int] | None = None, after: LSN = ZERO) -> None:
        """Collect the changes of a segment.

        :param numbers: the numbers of the blocks to collect; ``None``: all blocks.
        :param after: skip the transactions that ended at or before this LSN.
        :raises JournalError: the segment is damaged.
        :raises DataError: a value in binary format does not match its type.
        """
        self._of_segment = {}
        for index, block, data, decoder in blocks(self._reader, segment, numbers):
            try:
                self._block(index, block, data, decoder, after)
            except (ProtocolError, IndexError, struct.error) as error:
                raise self._reader.damaged(segment, block, error) from None
            self._buffers.relieve()

    def _block(self, index: SegmentIndex, block: Block, data: bytes, decoder: Decoder, after: LSN) -> None:
        message = self._message if self._wanted is None else None
        scan = BlockScan(partial(self._collector, index), partial(self._truncate, index), message)
        scan.run(data, block.continuation, decoder, index.attributes_of, after)
        if self._messages:
            buffer = self._buffers.get(MESSAGES_TABLE) or self._buffers.open(MESSAGES_TABLE, _OF_MESSAGES)
            buffer.add(message_rows(self._messages))
            self._messages = []

    def _collector(
        self, index: SegmentIndex, relation: Relation, collectors: Collectors
    ) -> RowCollector | None:
        table = _table(relation)
        if self._wanted is not None and not self._wanted(table):
            return None
        version, conversion = self._conversion(relation, table, index)
        return self._buffer(table, version, collectors).use(conversion)

    def _buffer(self, table: TableName, version: TableVersion, collectors: Collectors) -> TableBuffer:
        buffer = self._buffers.get(table)
        if buffer is not None and buffer.version is version:
            return buffer
        if buffer is not None:
            # ``open`` closes this buffer. Another oid whose table has the same name may still use the buffer's collector.
            for oid in [oid for oid, rows in collectors.items() if rows is buffer.rows]:
                del collectors[oid]
        return self._buffers.open(table, version)

    def _truncate(
        self, index: SegmentIndex, relation: Relation, collectors: Collectors, scanner: BlockScanner
    ) -> None:
        table = _table(relation)
        if self._wanted is not None and not self._wanted(table):
            return
        buffer = self._buffers.get(table)
        version = None if buffer is None else buffer.version
        hidden = self._hide(relation)
        described = (relation if hidden is None else hidden.target).payload
        if version is None or version.description[:1] != (described,):
            # A truncate comes without the types of columns. So use a known version with the same Relation message, if there is one.
            version = next(
                (each for each in reversed(self._known(table)) if each.description[:1] == (described,)), None
            )
            if version is None:
                version, _ = self._conversion(relation, table, index)
            else:
                version = self._same(table, version)
            buffer = self._buffer(table, version, collectors)
        assert buffer is not None
        buffer.settle()
        header = Header(scanner.xid, scanner.commit_lsn, scanner.time)
        buffer.add(truncate_row(version.schema, header, scanner.ordinal))

    def _message(self, message: m.Message, scanner: BlockScanner) -> None:
        if message.transactional:
            header = Header(scanner.xid, scanner.commit_lsn, scanner.time)
            self._messages.append((message.prefix, message.content, header, scanner.ordinal))
        else:
            self._messages.append((message.prefix, message.content, Header(None, message.lsn, None), 0))

    def _conversion(
        self, relation: Relation, table: TableName, index: SegmentIndex
    ) -> tuple[TableVersion, CollectedRows]:
        found = self._of_segment.get(relation)
        if found is None:
            key = (relation.payload, index.types, frozenset(relation.attributes.items()))
            found = self._conversions.get(key)
            if found is None:
                hidden = self._hide(relation)
                rows = CollectedRows(Layout(relation, Types(index.types), binary=index.binary), hidden)
                target = relation if hidden is None else hidden.target
                description = (target.payload, *(each.payload for each in target.types))
                found = self._same(table, TableVersion(relation.oid, description, rows.schema)), rows
                self._conversions[key] = found
            self._of_segment[relation] = found
        return found

    def _same(self, table: TableName, version: TableVersion) -> TableVersion:
        """Return the same object for equal versions of a table."""
        return self._versions.setdefault((table, version.digest), version)


def _table(relation: Relation) -> TableName:
    return TableName(relation.schema, relation.name)
