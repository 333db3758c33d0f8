"""Reads a journal, while it is written or after; takes no lock and changes nothing.

Blocking, but for ``follow``. Everything it returns comes from immutable files, so asking again gives the same.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from anyio import to_thread

from aiorepl.errors import DamagedJournal, JournalError, ProtocolError
from aiorepl.journal import notify
from aiorepl.journal.format import checksum, frames
from aiorepl.journal.index import Block, SegmentIndex
from aiorepl.journal.manifest import (
    SEGMENT,
    last_position,
    load_index,
    read_gaps,
    read_manifest,
    segment_name,
    segment_names,
    segment_range,
)
from aiorepl.journal.store import Store, open_store, reading
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.messages import AnyMessage
from aiorepl.position import Position
from aiorepl.transactions.assembler import Assembler, Resume
from aiorepl.transactions.transaction import Slice
from aiorepl.values.registry import Types

_INDEXES_KEPT: Final = 64
_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A segment's name, and the ends of the first and last transaction that its name tells."""

    name: str
    first_end_lsn: LSN
    last_end_lsn: LSN


class JournalReader:
    """Use from one thread at a time.

    :param url: the folder, as a path or ``file://`` URL.
    """

    def __init__(self, url: str | os.PathLike[str], *, store: Store | None = None) -> None:
        self._store = open_store(url) if store is None else store
        self._index = lru_cache(_INDEXES_KEPT)(self._load)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self._store,)

    @property
    def url(self) -> str:
        """Where the journal is: the same for all who use it, however they spelled it."""
        return self._store.url

    def source(self) -> Position:
        """Whose transactions these are, at LSN 0.

        :raises JournalError: when there is no journal here.
        """
        with reading(self._store):
            source = read_manifest(self._store)
        if source is None:
            raise JournalError(
                f"there is no journal in {self.url}: a pipeline makes it at its first start, with this as its journal"
            )
        return source

    def end(self) -> Position:
        """Where the last segment ends; LSN 0 while there is none."""
        source = self.source()
        segments = self.segments()
        if not segments:
            return source
        last = self.index(segments[-1])
        return Position(source.system_identifier, last.timeline, source.slot, last.last_end_lsn)

    def position(self) -> Position | None:
        """How far the journal goes, WAL without transactions included; ``None`` while there is nothing in it."""
        with reading(self._store):
            return last_position(self._store)

    def gaps(self) -> list[tuple[LSN, LSN]]:
        """What is missing from it, because the slot had lost it: behind the first position and up to the second."""
        with reading(self._store):
            return read_gaps(self._store)

    def segments(self, after: LSN = ZERO, until: LSN | None = None) -> list[Segment]:
        """The segments with anything behind ``after``, in commit order; with ``until`` those that end by then."""
        with reading(self._store):
            names = segment_names(self._store)
        # Queries ask every few milliseconds, of journals with thousands of segments: names of a fixed width
        # compare as the numbers do, so most need not be read.
        behind = segment_name(ZERO, after)[-_DIGITS:]
        segments = [Segment(name, *segment_range(name)) for name in names if name[-_DIGITS:] > behind]
        return [segment for segment in segments if until is None or segment.last_end_lsn <= until]

    def index(self, segment: Segment) -> SegmentIndex:
        """What the segment's index says.

        :raises JournalError: when it is damaged or gone.
        """
        return self._index(segment.name)

    def read(self, segment: Segment, block: Block) -> bytes:
        """The bytes of a block, verified.

        :raises JournalError: naming segment and block, when they are damaged or gone.
        """
        with reading(self._store):
            data = self._store.read(segment.name + SEGMENT, block.offset, block.length)
        if len(data) != block.length or checksum(data) != block.checksum:
            raise DamagedJournal(self._place(segment, block), "its checksum does not match")
        return data

    def messages(self, segment: Segment, block: Block) -> Iterator[AnyMessage]:
        """The messages of one block, decoded by itself.

        :raises JournalError: naming segment and block.
        """
        decode = decoder(self.index(segment), block).decode
        try:
            for payload in frames(self.read(segment, block)):
                yield decode(payload)
        except ProtocolError as error:
            raise DamagedJournal(self._place(segment, block), str(error)) from None

    async def follow(self, after: LSN = ZERO, *, poll: float = 0.2) -> AsyncGenerator[Slice]:
        """All that is and will be behind ``after``, as the slices that were written, though cut elsewhere.

        Never ends by itself. Holds one block at a time.

        :param after: an end LSN; 0 is the beginning of what is kept.
        :param poll: how often to look for what other processes wrote, in seconds. This process's writer tells us.
        :raises JournalError: when segments are damaged or missing, or what follows ``after`` was pruned.
        """
        await to_thread.run_sync(self.source)
        with notify.listening(self.url) as bell:
            while True:
                for segment in await to_thread.run_sync(self.segments, after):
                    index = await to_thread.run_sync(self.index, segment)
                    self.require_chain(index, after)
                    assembler = Assembler(Types(index.types), binary=index.binary, resume=Resume(after))
                    for block in index.blocks[_first_behind(index, after) :]:
                        for part in await to_thread.run_sync(self._assemble, segment, block, assembler):
                            after = part.end_lsn or after
                            yield part
                    if after < segment.last_end_lsn:
                        # Behind the last transaction lies WAL with nothing in it for us.
                        after = segment.last_end_lsn
                        yield Slice(None, (), True, after, 0)
                await bell.wait(poll)

    def require_chain(self, index: SegmentIndex, after: LSN) -> None:
        """Check that nothing lies between ``after`` and this segment.

        :raises JournalError: when something does.
        """
        if after and index.after > after:
            raise JournalError(
                f"the journal in {self.url} has nothing between {after} and {index.after}: those segments were pruned "
                "or removed; what reads from there must begin anew"
            )

    def _assemble(self, segment: Segment, block: Block, assembler: Assembler) -> list[Slice]:
        try:
            return assembler.feed(self.messages(segment, block))
        except ProtocolError as error:
            raise DamagedJournal(self._place(segment, block), str(error)) from None

    def _load(self, name: str) -> SegmentIndex:
        with reading(self._store):
            return load_index(self._store, name)

    def _place(self, segment: Segment, block: Block) -> str:
        return f"the block at {block.offset} of {segment.name}{SEGMENT} in {self.url}"


def _reopen(store: Store) -> JournalReader:
    return JournalReader("", store=store)


def decoder(index: SegmentIndex, block: Block) -> Decoder:
    """A decoder that knows what the block's rows need."""
    made = Decoder()
    for number in block.descriptions:
        made.views.describe(index.relations[number])
    return made


def _first_behind(index: SegmentIndex, after: LSN) -> int:
    """The number of the last block before which everything ends by ``after``."""
    first = 0
    for number, block in enumerate(index.blocks):
        if block.midway is None:
            first = number
        if block.last_end_lsn is not None and block.last_end_lsn > after:
            break
    return first
