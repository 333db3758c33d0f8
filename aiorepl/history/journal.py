"""The journal, as compaction reads it: whole transactions up to an LSN, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aiorepl.journal.chain import Segment
from aiorepl.journal.index import Block, SegmentIndex
from aiorepl.journal.reader import JournalReader, block_decoder
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.position import Position


@dataclass(frozen=True, slots=True)
class Stretch:
    """Segments that end with whole transactions.

    :param end: the position behind them.
    :param size: their bytes, if the journal had to be asked, as far as it is known.
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
    return chain.manifest.source.at(chain.start_lsn or chain.manifest.start_lsn)


def stretch(reader: JournalReader, after: Position, most_bytes: int) -> Stretch:
    """Return the segments after a position, up to ``most_bytes`` or one segment.

    :raises JournalError: the journal is damaged, or does not continue from ``after``.
    """
    chain = reader.readable(after.lsn, "the history", _REMEDY) if after.lsn else reader.chain()
    chosen: list[Segment] = []
    size = 0
    for segment in chain.segments(after.lsn):
        index = reader.index(segment)
        if chosen and size + index.size > most_bytes:
            break
        chosen.append(segment)
        size += index.size
    end = reader.index(chosen[-1]).end if chosen else after
    return Stretch(
        tuple(chosen), end, size, tuple((gap.after, gap.until) for gap in chain.gaps(after.lsn, end.lsn))
    )


def blocks(reader: JournalReader, segment: Segment) -> Iterator[tuple[SegmentIndex, Block, bytes, Decoder]]:
    """Read the blocks of a segment, each with a decoder that knows its descriptions.

    :raises JournalError: the segment is damaged.
    """
    index = reader.index(segment)
    for block in index.blocks:
        yield index, block, reader.read(segment, block), block_decoder(index, block)


_REMEDY = (
    "delete the folder history, and compact the journal again as far as it is kept; to prevent this, let compaction run while "
    "segments are pruned"
)
__all__ = ["ZERO", "Stretch", "beginning", "blocks", "stretch"]
