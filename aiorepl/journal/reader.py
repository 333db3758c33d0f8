"""Reads a journal, also while it is written; needs no lock and changes nothing. Blocking, except ``follow``.

Segments never change, so repeated reads return the same slices. Every read is verified first: the chain of segments, the indexes
and blocks that it uses, and the position where it starts.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import groupby, islice
from typing import Final

from anyio import to_thread

from aiorepl.errors import DamagedJournal, JournalError, ProtocolError
from aiorepl.journal.chain import Chain
from aiorepl.journal.completeness import Appearance, Incomplete
from aiorepl.journal.index import Block, SegmentIndex
from aiorepl.journal.large_blocks import LargeBlock, large_block, read_payloads
from aiorepl.journal.metadata_files import POSITION, MetadataFiles, load_index, pruned
from aiorepl.journal.segment_format import frames
from aiorepl.journal.segments import Segment, groups
from aiorepl.journal.slice_iterator import SliceIterator
from aiorepl.journal.stored_blocks import LARGE_BLOCK, adjacent, location, read_blocks
from aiorepl.journal.times import Times
from aiorepl.journal.together import Together
from aiorepl.loggers import logger
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.messages import AnyMessage
from aiorepl.pgoutput.relations import Relation
from aiorepl.position import Position
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store, reading
from aiorepl.table_name import TableName
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.values.registry import Types

_log = logger("aiorepl.journal")

_CACHED_INDEXES: Final = 64
# The number of segments that are listed at once, so that a reader that is far behind has few of them in memory.
_PLANNED: Final = 256
_REMEDY: Final = (
    "Load the tables again into the journal (resnapshot=True, --resnapshot); or empty the reader's target and start with the "
    "segments that are kept"
)
_NAMED_TABLES: Final = 5


class NoJournal(JournalError):
    """There is no journal at the path or URL, or not yet."""


class JournalReader:
    """Reads the journal in one folder. One thread may use it at a time.

    :param url: a path or URL, or an ``ObjectStore``.
    """

    def __init__(self, url: Location | Store, *, store: Store | None = None) -> None:
        self._store = open_store(url) if store is None else store
        self._files = MetadataFiles(self._store)
        self._source: Position | None = None
        self._index = lru_cache(_CACHED_INDEXES)(self._load)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self._store,)

    @property
    def url(self) -> str:
        """The journal's absolute path."""
        return self._store.url

    def chain(self) -> Chain:
        """Read the journal as it is now.

        :raises JournalError: there is no journal, or the journal is damaged.
        """
        chain = self._files.chain()
        if chain is None:
            raise NoJournal(
                f"there is no journal in {self.url}: check the path, or start the pipeline, which creates it"
            )
        return chain

    def source(self) -> Position:
        """Return the slot and cluster of the transactions, as a position at LSN 0.

        :raises JournalError: as ``chain``.
        """
        return self.chain().identity.source

    def end(self) -> Position:
        """Return the end of the last segment; LSN 0 if there is none.

        :raises JournalError: as ``chain``.
        """
        return self.chain().end

    def recorded_position(self) -> Position | None:
        """Return the journal's end, including WAL without transactions; LSN 0 if it is empty, ``None`` if there is no journal.

        :raises JournalError: the journal is damaged.
        """
        chain = self._files.chain()
        return None if chain is None else chain.position

    def position(self) -> Position | None:
        """As ``recorded_position``, but ``None`` also if the journal is empty."""
        position = self.recorded_position()
        return position if position is not None and position.lsn else None

    def position_at(self, chain: Chain, lsn: LSN) -> Position:
        """Return the position at the end of a segment.

        :param lsn: where a segment ends.
        :raises JournalError: no segment ends there, or the journal is damaged.
        """
        return chain.end if lsn == chain.last_segment_end else self._ending_at(chain, lsn).end

    def times_at(self, chain: Chain, lsn: LSN) -> Times:
        """Return the commit times at the end of a segment; parameters and errors as ``position_at``."""
        return self._ending_at(chain, lsn).times

    def _ending_at(self, chain: Chain, lsn: LSN) -> SegmentIndex:
        for segment in chain.walk(LSN(lsn - 1), lsn):
            if segment.last_part:
                return self.index(segment)
        raise JournalError(f"no segment of the journal {self.url} ends at {lsn}")

    def gaps(self) -> list[tuple[LSN, LSN]]:
        """List the accepted gaps: transactions that ended after the first LSN and up to the second one are missing."""
        return [(gap.after, gap.until) for gap in self.chain().gaps]

    def segments(self, after: LSN = ZERO, until: LSN | None = None) -> list[Segment]:
        """List the segments that end after ``after``, in commit order; with ``until``, only segments that end at or before it.

        :raises JournalError: as ``chain``.
        """
        return self.chain().segments(after, until)

    def readable(self, lsn: LSN, holder: str, remedy: str = "") -> Chain:
        """Verify that the journal can be read from ``lsn`` on. LSN 0 is the journal's start.

        :param holder: the reader at ``lsn``, for errors.
        :param remedy: what to do, for errors.
        :returns: the journal's chain.
        :raises JournalError: segments after ``lsn`` were pruned, or ``lsn`` is beyond the journal's end or in a gap.
        """
        chain = self.chain()
        start = ZERO
        if not lsn or not chain.last_segment_end:
            # An empty journal may start with an initial snapshot, which needs nothing before it.
            start = chain.start_lsn
        elif lsn < chain.last_segment_end:
            # This is not checked at the journal's end, where readers poll: segments after the end are never deleted.
            start = chain.first_readable
        if lsn < start:
            first = f"{lsn}" if lsn else "its beginning"
            problem = (
                f"the journal in {self.url} has nothing between {first} and {start}: those segments were pruned, or never "
                f"existed; {holder} is before that"
            )
            if text := self.incomplete(chain, start):
                problem += f". {text}"
        elif lsn > chain.end_lsn:
            problem = (
                f"{holder} is at {lsn}, after the end of the journal in {self.url}, which is at {chain.end_lsn}: it is from "
                f"another journal, or segments and {POSITION} were put back from an older copy"
            )
        elif (gap := chain.hole(lsn)) is not None:
            problem = (
                f"{holder} is at {lsn}, inside the gap from {gap.after} to {gap.until} of the journal in {self.url}, which "
                "has no transaction that ends there"
            )
        else:
            return chain
        raise JournalError(f"{problem}. {remedy or _REMEDY}")

    def incomplete(self, chain: Chain, after: LSN, table: TableName | None = None) -> str:
        """Name the tables that are not whole for a reader that begins after ``after`` with an empty target; empty if none.

        :param table: look only at this table, a schema and a name.
        :raises JournalError: as ``chain``.
        """
        tables = chain.incomplete(after, table)
        if not tables:
            return ""
        begins = max(after, chain.start_lsn) or chain.first_readable
        first = tables[0]
        return (
            f"A reader that begins at {begins} in the journal {self.url} does not get all rows of {listed(tables)}: unless its "
            "target has them, take a new snapshot of these tables (aiorepl snapshot, or "
            f'pipeline.resnapshot("{first.schema}.{first.table}"))'
        )

    def index(self, segment: Segment) -> SegmentIndex:
        """Read the segment's index.

        :raises JournalError: the segment is damaged or was pruned.
        """
        return self._index(segment)

    def read(self, segment: Segment, block: Block) -> bytes:
        """Read and verify the bytes of a block.

        :raises JournalError: the block is damaged or was pruned; the message names segment and block.
        """
        return next(self.read_all(segment, (block,)))[1]

    def read_all(self, segment: Segment, blocks: Iterable[Block]) -> Iterator[tuple[Block, bytes]]:
        """Read and verify blocks. From an object store, adjacent ones are read together, some megabytes at a time.

        :raises JournalError: as ``read``.
        """
        for together in adjacent(blocks, self._store.range_bytes):
            with self._unless_pruned(segment), reading(self._store):
                read = read_blocks(self._store, segment.file, together)
                for block in together:
                    # Call ``next``, because ``zip`` would keep the bytes until the next block.
                    yield block, next(read)

    def messages(self, segment: Segment, block: Block) -> Iterator[AnyMessage]:
        """Decode the messages of one block.

        :raises JournalError: the block is damaged or was pruned; the message names segment and block.
        """
        for _, contents in self._contents(segment, (block,)):
            yield from self._messages(segment, block, contents)

    def _contents(
        self, segment: Segment, blocks: Iterable[Block]
    ) -> Iterator[tuple[Block, bytes | LargeBlock]]:
        """Read and verify blocks as ``read_all`` does. A large block is read and verified only when its messages are decoded."""
        for large, together in groupby(blocks, key=lambda block: block.length >= LARGE_BLOCK):
            if large:
                yield from ((block, large_block(self._store, segment.file, block)) for block in together)
            else:
                yield from self.read_all(segment, together)

    def _read_large(self, segment: Segment, block: Block) -> list[bytes]:
        with self._unless_pruned(segment), reading(self._store):
            return read_payloads(self._store, segment.file, block)

    def _messages(self, segment: Segment, block: Block, contents: bytes | LargeBlock) -> Iterator[AnyMessage]:
        index = self.index(segment)
        decode = block_decoder(index, block).decode
        if isinstance(contents, LargeBlock):
            payloads: Iterable[bytes] = contents.payloads(partial(self._read_large, segment, block))
        else:
            payloads = frames(contents)
        try:
            for payload in payloads:
                message = decode(payload)
                if type(message) is Relation:
                    # The relation is described within the block, and only the index has its attributes.
                    message.attributes.update(index.attributes_of(message))
                yield message
        except (ProtocolError, JournalError) as error:
            raise self.damaged(segment, block, error) from None

    def follow(self, after: LSN = ZERO, *, poll: float = 0.2) -> SliceIterator:
        """Iterate over the slices after ``after``, and wait for more at the journal's end.

        Has one block in memory at a time, or 4 MiB of them from an object store. A call for the next slice may be cancelled and
        repeated.

        :param after: an end LSN; 0 is the journal's start.
        :param poll: seconds between polls for segments of a writer in another process. A writer in this process notifies.
        :raises JournalError: the journal is damaged, or cannot be read from ``after`` on.
        """
        return SliceIterator(self.url, self._blocks(after), poll)

    async def _blocks(self, after: LSN) -> AsyncGenerator[list[Slice]]:
        while True:
            chain = await to_thread.run_sync(self.readable, after, "a reader")
            for gap in (
                chain.gaps_between(after, chain.last_segment_end) if after < chain.last_segment_end else ()
            ):
                _log.warning(
                    "the journal %s has an accepted gap between %s and %s", self.url, gap.after, gap.until
                )
            self._tell(chain, after)
            async for slices in self.slices(chain, after):
                after = end_of(slices, after)
                yield slices
            yield []

    async def slices(self, chain: Chain, after: LSN) -> AsyncGenerator[list[Slice]]:
        """Yield the slices after ``after``, a block at a time, up to the end of ``chain``.

        :raises JournalError: a segment is damaged, or was pruned meanwhile.
        """
        segments = groups(chain.walk(after))
        while planned := await to_thread.run_sync(list, islice(segments, _PLANNED)):
            read = Together(self._planned(planned, after))
            while slices := await to_thread.run_sync(read.next):
                after = end_of(slices, after)
                yield slices

    def _tell(self, chain: Chain, after: LSN) -> None:
        """Log the tables that are not whole for a new reader, or that come without a snapshot after ``after``."""
        if chain.last_segment_end <= after:
            return
        if not after:
            text, came = self.incomplete(chain, after), chain.completeness.appeared
        else:
            came = tuple(chain.completeness.appeared_between(after, chain.last_segment_end))
            text = f"the journal {self.url} does not have all rows of {listed(came)}" if came else ""
        if text:
            # A journal without any snapshot is not expected to have whole tables.
            expected = not chain.tables and not any(each.again for each in came)
            _log.log(logging.INFO if expected else logging.WARNING, "%s", text)

    def _planned(self, planned: list[list[Segment]], after: LSN) -> Iterator[list[Slice]]:
        """Yield the slices of segments, a block at a time."""
        for parts in planned:
            for slices in self._parts(parts, after):
                after = end_of(slices, after)
                yield slices

    def _parts(self, parts: list[Segment], after: LSN) -> Iterator[list[Slice]]:
        """Yield the slices of all parts of a segment, and then its end."""
        assembler: Assembler | None = None
        part, first = self.first_block_after(parts, after)
        for segment in parts[part:]:
            index = self.index(segment)
            if assembler is None:
                assembler = Assembler(Types(index.types), binary=index.binary, resume=ReplayFilter(after))
            else:
                assembler.retype(Types(index.types), binary=index.binary)
            assembler.chunks = index.chunks
            read = self._contents(segment, index.blocks[first:])
            while (slices := self._assemble(segment, read, assembler)) is not None:
                if slices:
                    after = end_of(slices, after)
                    yield slices
            first = 0
        last = parts[-1]
        if assembler is not None and assembler.open:
            problem = JournalError("its last transaction has no end")
            raise self.damaged(last, self.index(last).blocks[-1], problem)
        if after < last.last_end_lsn:
            # The rest of the segment's range is WAL without published changes.
            yield [Slice(None, (), True, last.last_end_lsn, 0)]

    def first_block_after(self, parts: list[Segment], after: LSN) -> tuple[int, int]:
        """Return where a reader at ``after`` begins: the number of the part, and the number of the block in this part."""
        found = 0, 0
        if after <= parts[0].after:
            return found
        for number, segment in enumerate(parts):
            for place, block in enumerate(self.index(segment).blocks):
                if block.continuation is None:
                    found = number, place
                if block.last_end_lsn is not None and block.last_end_lsn > after:
                    return found
        return found

    def _assemble(
        self, segment: Segment, read: Iterator[tuple[Block, bytes | LargeBlock]], assembler: Assembler
    ) -> list[Slice] | None:
        """Assemble the next block; ``None`` if there is none."""
        for block, contents in read:
            try:
                slices = assembler.feed(self._messages(segment, block, contents))
            except ProtocolError as error:
                raise self.damaged(segment, block, error) from None
            if isinstance(contents, LargeBlock):
                # A reader that reaches this block while these slices exist uses the same messages.
                slices = [part.keeping(contents) for part in slices]
            return slices
        return None

    def _load(self, segment: Segment) -> SegmentIndex:
        if self._source is None:
            self._source = self.source()
        source = self._source
        with self._unless_pruned(segment), reading(self._store):
            return load_index(self._store, segment, source)

    @contextmanager
    def _unless_pruned(self, segment: Segment) -> Iterator[None]:
        """Report a segment that retention has deleted as pruned, and not as damaged."""
        try:
            yield
        except DamagedJournal as error:
            if (
                isinstance(error.__cause__, FileNotFoundError)
                and segment.last_end_lsn <= self.chain().start_lsn
            ):
                raise pruned(f"{segment.file} in the journal {self.url}") from None
            raise

    def damaged(self, segment: Segment, block: Block, error: Exception) -> DamagedJournal:
        """Make the error for a block with invalid contents."""
        return DamagedJournal(f"{location(self._store, segment.file, block)} is damaged: {error}")


def end_of(slices: list[Slice], after: LSN) -> LSN:
    """Return the end of the last transaction that ends in the slices, or ``after``."""
    return max([after, *(part.end_lsn for part in slices if part.end_lsn is not None)])


def listed(tables: Sequence[Incomplete | Appearance]) -> str:
    """Name the first tables, each with the reason why it is not whole."""
    names = ", ".join(f"{each.schema}.{each.table} ({each.reason})" for each in tables[:_NAMED_TABLES])
    more = len(tables) - _NAMED_TABLES
    return f"{names} and {more} more" if more > 0 else names


def _reopen(store: Store) -> JournalReader:
    return JournalReader("", store=store)


def block_decoder(index: SegmentIndex, block: Block) -> Decoder:
    """Make a decoder with the descriptions that the block's rows need."""
    decoder = Decoder()
    for number in block.descriptions:
        decoder.views.describe(index.relation(number))
    return decoder
