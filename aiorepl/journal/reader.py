"""Reads a journal, while it is written or after; takes no lock and changes nothing.

Blocking, except ``follow``. Everything comes from immutable files, so repeated reads return the same. Everything is
verified first: the chain of segments, every index and block that is read, and the position where a reader begins.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Iterator
from functools import lru_cache
from typing import Final

from anyio import to_thread

from aiorepl.errors import DamagedJournal, JournalError, ProtocolError
from aiorepl.journal.chain import Chain, Segment
from aiorepl.journal.index import Block, SegmentIndex
from aiorepl.journal.metadata_files import POSITION, SEGMENT, load_index, read_chain
from aiorepl.journal.segment_format import MAGIC, checksum, frames
from aiorepl.journal.slice_iterator import SliceIterator
from aiorepl.journal.store import Store, open_store, reading
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.messages import AnyMessage
from aiorepl.position import Position
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.values.registry import Types

_log = logging.getLogger("aiorepl.journal")

_INDEXES_KEPT: Final = 64
_ANEW: Final = (
    "Load the tables again into the journal (resnapshot=True, --resnapshot); or empty the reader's target and begin with what "
    "is kept"
)


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

    def chain(self) -> Chain:
        """The journal as it is now, verified.

        :raises JournalError: there is no journal here, or it is damaged.
        """
        with reading(self._store):
            chain = read_chain(self._store)
        if chain is None:
            raise JournalError(
                f"there is no journal in {self.url}: a pipeline makes it at its first start, with this as its journal"
            )
        return chain

    def source(self) -> Position:
        """The slot and cluster that the transactions come from, at LSN 0.

        :raises JournalError: as ``chain``.
        """
        return self.chain().manifest.source

    def end(self) -> Position:
        """Where the last segment ends; LSN 0 while there is none."""
        chain = self.chain()
        return chain.manifest.source if chain.last is None else self.index(chain.last).end

    def recorded_position(self) -> Position | None:
        """How far the journal goes, WAL without transactions included; LSN 0 while there is nothing in it, ``None`` while
        there is no journal here.
        """
        with reading(self._store):
            chain = read_chain(self._store)
        return None if chain is None else self.end_of(chain)

    def position(self) -> Position | None:
        """As ``held``; ``None`` also while there is nothing in it."""
        held = self.recorded_position()
        return held if held is not None and held.lsn else None

    def end_of(self, chain: Chain) -> Position:
        """The end of ``chain`` as a position; LSN 0 while it is empty."""
        if chain.last is not None and chain.last.last_end_lsn > chain.state.position.lsn:
            return self.index(chain.last).end
        return chain.state.position

    def gaps(self) -> list[tuple[LSN, LSN]]:
        """What is missing from it, because the slot had lost it: behind the first position and up to the second."""
        return [(gap.after, gap.until) for gap in self.chain().state.gaps]

    def segments(self, after: LSN = ZERO, until: LSN | None = None) -> list[Segment]:
        """The segments that end after ``after``, in commit order; with ``until``, only those that end by then.

        :raises JournalError: as ``chain``.
        """
        return self.chain().segments(after, until)

    def readable(self, lsn: LSN, holder: str, remedy: str = "") -> Chain:
        """Verify that the journal continues from ``lsn`` without a hole. 0 is the journal's own beginning.

        :param holder: the reader at ``lsn``, for errors.
        :param remedy: what the user can do, for errors.
        :raises JournalError: the segments behind ``lsn`` were pruned, or ``lsn`` is beyond the journal or in a gap.
        """
        chain = self.chain()
        # An empty journal may begin with an initial load, which needs nothing before it.
        begins = self.first_readable(chain) if lsn and chain.names else chain.start_lsn
        if lsn < begins:
            what = f"{lsn}" if lsn else "its beginning"
            problem = (
                f"the journal in {self.url} has nothing between {what} and {begins}: those segments were pruned, or were "
                f"never there; {holder} is before that"
            )
        elif lsn > chain.end_lsn:
            problem = (
                f"{holder} is at {lsn}, behind the end of the journal in {self.url}, which is at {chain.end_lsn}: it is of "
                f"another journal, or segments and {POSITION} were put back from an older copy"
            )
        elif (gap := chain.hole(lsn)) is not None:
            problem = (
                f"{holder} is at {lsn}, inside the gap from {gap.after} to {gap.until} of the journal in {self.url}, where "
                "no transaction that it holds ends"
            )
        else:
            return chain
        raise JournalError(f"{problem}. {remedy or _ANEW}")

    def first_readable(self, chain: Chain) -> LSN:
        """The lowest LSN from which ``chain`` can be read without a hole; 0 if it begins with an initial load."""
        if chain.start_lsn or not chain.names:
            return chain.start_lsn or chain.manifest.start_lsn
        return self.index(Segment.named(chain.names[0])).start_lsn

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
            return read_block(self._store, segment.name + SEGMENT, block)

    def messages(self, segment: Segment, block: Block) -> Iterator[AnyMessage]:
        """The messages of one block, decoded by itself.

        :raises JournalError: naming segment and block.
        """
        decode, data = decoder(self.index(segment), block).decode, self.read(segment, block)
        try:
            for payload in frames(data):
                yield decode(payload)
        except (ProtocolError, JournalError) as error:
            raise self.damaged(segment, block, error) from None

    def follow(self, after: LSN = ZERO, *, poll: float = 0.2) -> SliceIterator:
        """All that is and will be behind ``after``, as the slices that were written, though cut elsewhere.

        Never ends by itself. Holds one block at a time. A call for the next slice may be cancelled, by a time-out, and made
        again.

        :param after: an end LSN; 0 is the journal's own beginning.
        :param poll: how often to look for what other processes wrote, in seconds. This process's writer tells us.
        :raises JournalError: the journal is damaged, or does not continue from ``after``.
        """
        return SliceIterator(self.url, self._blocks(after), poll)

    async def _blocks(self, after: LSN) -> AsyncGenerator[list[Slice]]:
        while True:
            chain = await to_thread.run_sync(self.readable, after, "a reader")
            for gap in chain.gaps(after, chain.last_segment_end):
                _log.warning(
                    "the journal %s has nothing between %s and %s, as accepted",
                    self.url,
                    gap.after,
                    gap.until,
                )
            for segment in chain.segments(after):
                index = await to_thread.run_sync(self.index, segment)
                assembler = Assembler(Types(index.types), binary=index.binary, resume=ReplayFilter(after))
                for block in index.blocks[first_behind(index, after) :]:
                    if slices := await to_thread.run_sync(self._assemble, segment, block, assembler):
                        after = max([after, *(part.end_lsn for part in slices if part.end_lsn is not None)])
                        yield slices
                if assembler.open:
                    problem = "its last transaction has no end"
                    raise self.damaged(segment, index.blocks[-1], JournalError(problem))
                if after < segment.last_end_lsn:
                    # Behind the last transaction lies WAL with nothing in it for us.
                    after = segment.last_end_lsn
                    yield [Slice(None, (), True, after, 0)]
            yield []

    def _assemble(self, segment: Segment, block: Block, assembler: Assembler) -> list[Slice]:
        try:
            return assembler.feed(self.messages(segment, block))
        except ProtocolError as error:
            raise self.damaged(segment, block, error) from None

    def _load(self, name: str) -> SegmentIndex:
        with reading(self._store):
            return load_index(self._store, name)

    def damaged(self, segment: Segment, block: Block, error: Exception) -> DamagedJournal:
        """The error for a block whose contents are invalid."""
        return DamagedJournal(f"{_place(self._store, segment.name + SEGMENT, block)} is damaged: {error}")


def _reopen(store: Store) -> JournalReader:
    return JournalReader("", store=store)


def read_block(store: Store, file: str, block: Block) -> bytes:
    """Read and verify the bytes of a block.

    :raises JournalError: the block is damaged or gone; the message names file and block.
    :raises OSError: the file cannot be read.
    """
    # The first block is read together with the magic number before it.
    before = len(MAGIC) if block.offset == len(MAGIC) else 0
    try:
        data = store.read(file, block.offset - before, block.length + before)
    except FileNotFoundError:
        raise DamagedJournal(f"{file} in the journal {store.url} is missing") from None
    if before:
        if data[:before] != MAGIC:
            raise DamagedJournal(
                f"{file} in the journal {store.url} is damaged: it does not begin as a segment does"
            )
        data = data[before:]
    if len(data) != block.length or checksum(data) != block.checksum:
        raise DamagedJournal(f"{_place(store, file, block)} is damaged: its checksum does not match")
    return data


def _place(store: Store, file: str, block: Block) -> str:
    return f"the block at {block.offset} of {file} in the journal {store.url}"


def decoder(index: SegmentIndex, block: Block) -> Decoder:
    """A decoder that knows what the block's rows need."""
    made = Decoder()
    for number in block.descriptions:
        made.views.describe(index.relations[number])
    return made


def first_behind(index: SegmentIndex, after: LSN) -> int:
    """The number of the last block before which everything ends by ``after``."""
    first = 0
    for number, block in enumerate(index.blocks):
        if block.continuation is None:
            first = number
        if block.last_end_lsn is not None and block.last_end_lsn > after:
            break
    return first
