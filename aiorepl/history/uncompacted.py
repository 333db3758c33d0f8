"""The journal, as compaction reads it: whole transactions up to an LSN, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from aiorepl.journal.index import Block, SegmentIndex
from aiorepl.journal.reader import JournalReader, block_decoder
from aiorepl.journal.segments import Segment, groups
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.position import Position

_REMEDY: Final = (
    "delete the folder history, and compact the journal again as far as it is kept; to prevent this, let compaction run while "
    "segments are pruned"
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive segments; the last one ends at the end of a transaction.

    :param end: the position after the last segment.
    :param size: the bytes of the segments.
    :param gaps: the accepted gaps among the segments, each as the LSNs of its beginning and its end.
    """

    segments: tuple[Segment, ...]
    end: Position
    size: int
    gaps: tuple[tuple[LSN, LSN], ...]


def beginning(reader: JournalReader) -> Position:
    """Return the position where the journal begins.

    :raises JournalError: there is no journal, or it is damaged.
    """
    chain = reader.chain()
    return chain.identity.source.at(chain.start_lsn or chain.identity.start_lsn)


def stretch(reader: JournalReader, after: Position, most_bytes: int) -> Stretch:
    """Return the segments after a position: at most ``most_bytes`` together, or one larger segment.

    :raises JournalError: the journal is damaged, or does not continue from ``after``.
    """
    chain = reader.readable(after.lsn, "the history", _REMEDY) if after.lsn else reader.chain()
    chosen: list[Segment] = []
    size = 0
    for parts in groups(chain.walk(after.lsn)):
        more = sum(segment.size for segment in parts)
        if chosen and size + more > most_bytes:
            break
        chosen += parts
        size += more
    end = reader.index(chosen[-1]).end if chosen else after
    gaps = tuple((gap.after, gap.until) for gap in chain.gaps_between(after.lsn, end.lsn))
    return Stretch(tuple(chosen), end, size, gaps)


def blocks(
    reader: JournalReader, segment: Segment, numbers: Iterable[int] | None = None
) -> Iterator[tuple[SegmentIndex, Block, bytes, Decoder]]:
    """Yield the blocks of a segment, each with its bytes and a decoder that knows its descriptions.

    :param numbers: the numbers of the blocks; ``None``: all blocks.
    :raises JournalError: the segment is damaged.
    """
    index = reader.index(segment)
    chosen = index.blocks if numbers is None else [index.blocks[number] for number in numbers]
    for block, data in reader.read_all(segment, chosen):
        yield index, block, data, block_decoder(index, block)
