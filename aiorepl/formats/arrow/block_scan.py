"""Collects the rows of a journal's block by table, and handles the descriptions, truncates and messages between them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from aiorepl.epoch import since_1970
from aiorepl.formats.arrow.row_collector import BlockScanner, RowCollector
from aiorepl.journal.index import Continuation
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Attribute, Relation

Collectors = dict[int, RowCollector | None]
"""The collectors of a block, by the relations' oids; ``None`` for rows that are not wanted."""

_ROWS: Final = frozenset(b"IUD")


class BlockScan:
    """Collects the contents of blocks.

    :param collector: returns the collector for a relation's rows; ``None`` drops the rows. It may remove other collectors.
    :param truncate: takes a truncate of a relation, at the scanner's position.
    :param message: takes a logical decoding message; ``None`` skips messages.
    """

    def __init__(
        self,
        collector: Callable[[Relation, Collectors], RowCollector | None],
        truncate: Callable[[Relation, Collectors, BlockScanner], None],
        message: Callable[[m.Message, BlockScanner], None] | None = None,
    ) -> None:
        self._collector = collector
        self._truncate = truncate
        self._message = message

    def run(
        self,
        data: bytes,
        continuation: Continuation | None,
        decoder: Decoder,
        attributes_of: Callable[[Relation], Mapping[str, Attribute]],
        after: LSN = ZERO,
    ) -> None:
        """Collect the changes of a block.

        :param data: the block's bytes; their checksum was verified.
        :param decoder: knows the descriptions that the block needs.
        :param attributes_of: returns the attributes of a relation that the block describes.
        :param after: skip the transactions that ended at or before this LSN.
        :raises ProtocolError: a message is not valid.
        """
        at = continuation
        scanner = (
            BlockScanner(data, 0, 0, 0, 0, after)
            if at is None
            else BlockScanner(data, at.xid, at.commit_lsn, since_1970(at.commit_timestamp), at.ordinal, after)
        )
        collectors: Collectors = {}
        while kind := scanner.scan(collectors):
            payload = scanner.message
            if kind in _ROWS:
                relation = decoder.views.find(int.from_bytes(payload[1:5], "big"), "row")
                collectors[relation.oid] = self._collector(relation, collectors)
                scanner.retry()
                continue
            message = decoder.decode(payload)
            if isinstance(message, m.Truncate):
                if scanner.wanted:
                    for relation in message.relations:
                        self._truncate(relation, collectors, scanner)
                scanner.ordinal += 1
            elif isinstance(message, m.Message):
                if self._message is not None:
                    self._message(message, scanner)
                scanner.ordinal += message.transactional
            elif isinstance(message, Relation):
                message.attributes.update(attributes_of(message))
                collectors.pop(message.oid, None)
