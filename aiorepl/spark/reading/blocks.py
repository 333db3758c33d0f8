"""Selects the blocks that a query reads, and divides them into partitions. Runs on the driver; does not use pyspark.

The journal's manifests name the tables in each segment, and a segment's index names the tables in each block. So a partition
has only the blocks that it needs. The index of a segment of one block is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aiorepl.journal.chain import Chain
from aiorepl.journal.index import SegmentIndex
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import BlockPosition, Segment, groups
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.relations import Relation
from aiorepl.table_name import TableName
from aiorepl.values.registry import Types


@dataclass(frozen=True, slots=True)
class Span:
    """Blocks of one segment. ``blocks`` has their numbers.

    :param after: skip the transactions that ended at or before this LSN; 0 skips none.
    :param until: skip the transactions that ended after this LSN; 0 skips none. Only the last span of a partition has it.
    """

    segment: Segment
    blocks: tuple[int, ...]
    after: LSN = ZERO
    until: LSN = ZERO


def plan(
    reader: JournalReader,
    chain: Chain,
    table: TableName | None,
    partition_bytes: int,
    start: BlockPosition,
    end: BlockPosition,
) -> list[tuple[Span, ...]]:
    """Divide the blocks between two positions into ordered partitions of equal size, at most about ``partition_bytes``.

    :param table: leave out the blocks without rows of this table; ``None`` leaves out none.
    :param start: leave out the transactions that ended at or before its LSN, and earlier blocks of the next segment.
    :param end: leave out the transactions that ended after the position's LSN, and the blocks from its block on.
    """
    wanted: list[tuple[Segment, list[tuple[int, int]]]] = []
    total = 0
    for segment, first, last in between(reader, chain, table, start, end):
        blocks = list(_wanted(reader, segment, table, first, last))
        if blocks:
            wanted.append((segment, blocks))
            total += sum(length for _, length in blocks)
    # Equal sizes: a small last partition would leave other cores without work.
    target = total / max(-(-total // partition_bytes), 1)
    partitions: list[list[Span]] = []
    reached, current = 0, -1
    for segment, blocks in wanted:
        skip_to = start.lsn if segment.after < start.lsn else ZERO
        whole = end.part or end.block or not segment.after < end.lsn < segment.last_end_lsn
        until = ZERO if whole else end.lsn
        numbers: list[int] = []
        for number, length in blocks:
            # A block belongs to the partition that contains its middle.
            place = int((reached + length / 2) / target)
            if place != current:
                if numbers:
                    partitions[-1].append(Span(segment, tuple(numbers), skip_to, until))
                partitions.append([])
                numbers, current = [], place
            numbers.append(number)
            reached += length
        partitions[-1].append(Span(segment, tuple(numbers), skip_to, until))
    return [tuple(spans) for spans in partitions]


def latest(
    reader: JournalReader, chain: Chain, start: BlockPosition, max_bytes: int, until: LSN | None = None
) -> BlockPosition:
    """Return the position after about ``max_bytes``, at least one block after ``start``.

    The position is at the end of a segment. If the first segment is larger, the position is within that segment, and perhaps
    within a transaction.

    :param until: not after this LSN; ``None``: the journal's end.
    """
    reached, size = start, 0
    for parts in groups(chain.walk(start.lsn, until)):
        first = start if parts[0].after <= start.lsn else BlockPosition(parts[0].after)
        whole = sum(segment.size for segment in parts[first.part + bool(first.block) :])
        if reached == start and (first.block or whole > max_bytes):
            for segment in parts[first.part :]:
                lengths = [block.length for block in reader.index(segment).blocks]
                for number in range(first.block if segment.part == first.part else 0, len(lengths)):
                    if size and size + lengths[number] > max_bytes:
                        return BlockPosition(start.lsn, segment.part, number)
                    size += lengths[number]
        elif size + whole > max_bytes:
            return reached
        else:
            size += whole
        reached = BlockPosition(parts[-1].last_end_lsn)
    return reached


def between(
    reader: JournalReader, chain: Chain, table: TableName | None, start: BlockPosition, end: BlockPosition
) -> Iterator[tuple[Segment, int, int]]:
    """Iterate over the parts between two positions, each with the numbers of its first block and of the block after its last.

    :param table: leave out the segments without rows of this table; ``None`` leaves out none.
    """
    begin: tuple[int, int] | None = None
    for segment in chain.walk(start.lsn, table=table):
        first, last = 0, segment.blocks
        if segment.last_end_lsn > end.lsn:
            if segment.after > end.lsn:
                return
            if end.part or end.block:
                if (segment.part, 0) >= (end.part, end.block):
                    return
                if segment.part == end.part:
                    last = end.block
            elif segment.after == end.lsn:
                return
            else:
                last = _blocks_until(reader, segment, end.lsn)
        if segment.after <= start.lsn:
            if begin is None:
                begin = start.part, start.block
                if segment.after < start.lsn:
                    parts = chain.segments(start.lsn, segment.last_end_lsn)
                    begin = max(begin, reader.first_block_after(parts, start.lsn))
            if segment.part < begin[0]:
                continue
            if segment.part == begin[0]:
                first = begin[1]
        if first < last:
            yield segment, first, last


def _blocks_until(reader: JournalReader, segment: Segment, lsn: LSN) -> int:
    """Count the segment's blocks that may have transactions that ended at or before ``lsn``."""
    blocks = reader.index(segment).blocks
    return next(
        (
            number
            for number, block in enumerate(blocks)
            if block.first_commit_lsn is not None and block.first_commit_lsn >= lsn
        ),
        len(blocks),
    )


def _wanted(
    reader: JournalReader, segment: Segment, table: TableName | None, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """Iterate over the numbers and the lengths of the blocks with rows of ``table``."""
    if segment.blocks == 1:
        # The manifest says that the segment has rows of the table.
        yield 0, segment.index_offset
        return
    index = reader.index(segment)
    numbers = None if table is None else index.numbers_of(table)
    for number in range(first, last):
        block = index.blocks[number]
        if numbers is None or not numbers.isdisjoint(block.rows):
            yield number, block.length


def newest_description(reader: JournalReader, table: TableName) -> tuple[Relation, Types] | None:
    """Return a table's last description and its columns' types; ``None`` if the journal has no change of the table."""
    relation: Relation | None = None
    types = Types()
    for segment in reader.chain().backwards(table):
        index = reader.index(segment)
        if relation is None:
            relation = _last_used(index, table)
            if relation is None:
                continue
        for info in index.types:
            if types.info(info.oid) is None:
                types.add(info)
        # A segment that only truncates the table has a description without types. Go on to earlier segments for the types.
        if not any(types.missing(column.type_oid) for column in relation.columns):
            break
    return None if relation is None else (relation, types)


def _last_used(index: SegmentIndex, table: TableName) -> Relation | None:
    numbers = index.numbers_of(table)
    for block in reversed(index.blocks):
        for number in reversed(block.rows):
            if number in numbers:
                return index.relation(number)
    return None
