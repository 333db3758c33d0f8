"""Selects the blocks that a query reads, and divides them into partitions. Runs on the driver; does not use pyspark.

Reads indexes only. They name the tables in each block, so a partition has only the blocks that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.journal.chain import Segment
from aiorepl.journal.index import SegmentIndex
from aiorepl.journal.reader import JournalReader, first_block_after
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.relations import Relation
from aiorepl.values.registry import Types

_NAME: Final = re.compile(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)')


@dataclass(frozen=True, slots=True)
class TableName:
    """A table by schema and name."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse ``orders``, ``public.orders`` or ``"Odd.Schema"."Orders"``. Case-sensitive, also without quotes.

        :raises ConfigurationError: the text has another form.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f'table {text!r} is not a name: write schema.table, with "quotes" around a part that contains a dot'
            )
        return cls(_unquoted(match[1] or "public"), _unquoted(match[2]))

    def is_of(self, relation: Relation) -> bool:
        """Whether ``relation`` describes this table."""
        return relation.name == self.name and relation.schema == self.schema

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Span:
    """Blocks of one segment, by number.

    :param after: skip the transactions that ended at or before this LSN; 0 skips none.
    """

    segment: Segment
    blocks: tuple[int, ...]
    after: LSN = ZERO


def plan(
    reader: JournalReader,
    segments: Iterable[Segment],
    table: TableName | None,
    partition_bytes: int,
    after: LSN = ZERO,
) -> list[tuple[Span, ...]]:
    """Divide the blocks of ``segments`` into partitions of about ``partition_bytes``, in order.

    :param table: leave out the blocks without rows of this table; ``None`` leaves out none.
    :param after: leave out the transactions that ended at or before this LSN.
    """
    partitions: list[tuple[Span, ...]] = []
    spans: list[Span] = []
    size = 0
    for segment in segments:
        index = reader.index(segment)
        skip_to = after if segment.after < after else ZERO
        numbers: list[int] = []
        for number in _wanted(index, table, first_block_after(index, skip_to) if skip_to else 0):
            numbers.append(number)
            size += index.blocks[number].length
            if size >= partition_bytes:
                partitions.append((*spans, Span(segment, tuple(numbers), skip_to)))
                spans, numbers, size = [], [], 0
        if numbers:
            spans.append(Span(segment, tuple(numbers), skip_to))
    return [*partitions, tuple(spans)] if spans else partitions


def newest_description(reader: JournalReader, table: TableName) -> tuple[Relation, Types] | None:
    """Return the table's last description and the types of its columns; ``None`` if the journal has no change of it."""
    relation: Relation | None = None
    types = Types()
    for segment in reversed(reader.segments()):
        index = reader.index(segment)
        if relation is None:
            relation = _last_used(index, table)
            if relation is None:
                continue
        for info in index.types:
            if types.info(info.oid) is None:
                types.add(info)
        # A segment that only truncates the table has its description without the types, which are in earlier segments.
        if not any(types.missing(column.type_oid) for column in relation.columns):
            break
    return None if relation is None else (relation, types)


def _last_used(index: SegmentIndex, table: TableName) -> Relation | None:
    for block in reversed(index.blocks):
        for number in reversed(block.rows):
            if table.is_of(index.relations[number]):
                return index.relations[number]
    return None


def _wanted(index: SegmentIndex, table: TableName | None, first: int) -> Iterator[int]:
    if table is None:
        yield from range(first, len(index.blocks))
        return
    numbers = {number for number, relation in enumerate(index.relations) if table.is_of(relation)}
    for number in range(first, len(index.blocks)):
        if not numbers.isdisjoint(index.blocks[number].rows):
            yield number


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
