"""Slices into blocks and their index. Pure: the bytes it has ready are the writer's to keep.

A block is closed at about ``block_bytes``, between any two messages; a segment only between transactions. So that a
block decodes alone, its entry in the index carries the transaction it begins in, the ordinal, and the descriptions
that its rows need. Only a description that changes *within* a block is written into it.

A row's bytes go straight behind those of the block, without the xid of a stream: 0.02 µs of CPU compiled. As a list of
lengths and messages that were joined in the end, in plain Python, it was 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiorepl import byteops
from aiorepl.errors import PermanentError
from aiorepl.journal import segment_format
from aiorepl.journal.index import Block, Continuation, Description, SegmentIndex
from aiorepl.journal.metadata import PreparedTransaction
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.messages import without_xid
from aiorepl.pgoutput.relations import Relation
from aiorepl.position import Position
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.spooled_changes import SpooledChanges
from aiorepl.transactions.transaction import Transaction
from aiorepl.values.registry import Types
from aiorepl.values.types import BUILTIN, TypeInfo


class SegmentBuilder:
    """Builds one segment.

    :param block_bytes: where to close a block, roughly.
    """

    def __init__(self, block_bytes: int) -> None:
        self.size = len(segment_format.MAGIC)
        self._block_bytes = block_bytes
        self._ready: list[bytes | bytearray] = [segment_format.MAGIC]
        self._blocks: list[Block] = []
        self._descriptions = _Descriptions()
        self._binary = False
        self._first_end = ZERO
        self._open: Transaction | None = None
        self._ordinal = 0
        self._block = _OpenBlock()

    @property
    def open(self) -> Transaction | None:
        """The transaction that has begun and not ended."""
        return self._open

    def add(self, part: Slice) -> None:
        """Append a slice.

        :raises PermanentError: when changes are missing before it. What was added before is not affected.
        """
        header = part.transaction
        if header is not None:
            self._enter(part, header)
        elif self._open is None and part.end_lsn is not None:
            # A message between transactions. Within one, its Commit, which is further on, covers the message.
            self._end(part.end_lsn)
        for change in part.changes:
            self._change(change)
        if header is not None and part.end_lsn is not None:
            self._block.append(
                segment_format.commit(header.commit_lsn, part.end_lsn, header.commit_timestamp)
            )
            self._open = None
            self._end(part.end_lsn)
        if len(self._block.data) >= self._block_bytes:
            self._close_block()

    def redefines(self, part: Slice) -> bool:
        """Whether a type of this slice's rows was another one in the segment so far, which has one description of each."""
        if isinstance(part.changes, SpooledChanges) and len(part.changes):
            changes: Sequence[Change] = (part.changes[0],)
        else:
            changes = part.changes
        types = next((change.layout.types for change in changes if isinstance(change, RowChange)), None)
        return types is not None and self._descriptions.redefined(types)

    def take(self) -> list[bytes | bytearray]:
        """The bytes that are complete, in order, and not taken yet."""
        ready, self._ready = self._ready, []
        return ready

    @property
    def first_end(self) -> LSN:
        """End LSN of the first transaction, or message between transactions; 0 if there is none yet."""
        return self._first_end

    def finish(
        self, end: Position, *, after: LSN, start_lsn: LSN, prepared: tuple[PreparedTransaction, ...] = ()
    ) -> SegmentIndex:
        """Close the last block and describe the segment, which covers everything up to ``end``.

        The other parameters are fields of the index.
        """
        self._close_block()
        return SegmentIndex(
            after=after,
            start_lsn=start_lsn,
            end=end,
            prepared=prepared,
            size=self.size,
            binary=self._binary,
            descriptions=tuple(self._descriptions.all),
            types=tuple(self._descriptions.types.values()),
            blocks=tuple(self._blocks),
        )

    def _enter(self, part: Slice, header: Transaction) -> None:
        before = self._open
        begins = before is None or before.commit_lsn != header.commit_lsn
        expected = 0 if begins else self._ordinal
        if (begins and not (part.first and before is None)) or (
            part.changes and part.changes[0].ordinal != expected
        ):
            raise PermanentError(
                f"changes of the transaction at {header.commit_lsn} are missing: a journal keeps whole "
                "transactions, so nothing may be filtered out before it"
            )
        if begins:
            self._block.append(segment_format.begin(header.commit_lsn, header.commit_timestamp, header.xid))
            self._ordinal = 0
        if header.origin is not None and (before is None or before.origin != header.origin):
            self._block.append(segment_format.origin(header.origin))
        self._open = header
        self._block.within(header.commit_lsn)

    def _change(self, change: Change) -> None:
        block = self._block
        xid: int | None
        if isinstance(change, RowChange):
            row = change  # known to be one in the compiled form, too
            if row.layout.relation is not block.relation:
                self._switch(row.layout.relation, row.layout.types)
                self._binary = self._binary or row.layout.binary
            block.run += 1
            payload, xid = row.message.payload, row.message.xid
        elif isinstance(change, Truncate):
            for relation in change.relations:
                self._switch(relation, None)
                block.run += 1
            # It came without types, so the next row has to bring its own.
            block.relation = None
            payload, xid = change.message.payload, change.message.xid
        elif isinstance(change, Message):
            payload, xid = change.message.payload, change.message.xid
        else:
            raise AssertionError(  # noqa: TRY004 - a kind of change was added and not here
                f"{type(change).__name__} is no change that a journal keeps"
            )
        if xid is None:
            block.append(payload)
        else:
            block.append_without_xid(payload)
        if change.transaction is not None:
            self._ordinal += 1
        if len(block.data) >= self._block_bytes:
            self._close_block()

    def _switch(self, relation: Relation, types: Types | None) -> None:
        """The next row is one of ``relation``."""
        block = self._block
        number = self._descriptions.number(relation, types)
        current = block.current.get(relation.oid)
        if current is None:
            block.needed.append(number)
        elif current != number:
            description = self._descriptions.all[number]
            for payload in (*description.types, description.relation):
                block.append(payload)
        block.current[relation.oid] = number
        block.count()
        block.relation, block.number = relation, number

    def _end(self, end: LSN) -> None:
        self._first_end = self._first_end or end
        self._block.last_end_lsn = max(self._block.last_end_lsn or ZERO, end)

    def _close_block(self) -> None:
        block = self._block
        data = block.data
        if not data:
            return
        self._blocks.append(block.entry(self.size))
        self._ready.append(data)
        self.size += len(data)
        header = self._open
        self._block = _OpenBlock()
        if header is not None:
            self._block.within(header.commit_lsn)
            self._block.continuation = Continuation(
                header.xid, header.commit_lsn, header.commit_timestamp, header.origin, self._ordinal
            )


class _OpenBlock:
    """The block that messages go into. ``run`` counts rows since ``relation`` became the last one."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.current: dict[int, int] = {}
        self.needed: list[int] = []
        self.rows: dict[int, int] = {}
        self.relation: Relation | None = None
        self.number = 0
        self.run = 0
        self.continuation: Continuation | None = None
        self.first_commit_lsn: LSN | None = None
        self.last_commit_lsn: LSN | None = None
        self.last_end_lsn: LSN | None = None

    def append(self, payload: bytes) -> None:
        byteops.put_framed(self.data, payload, 0, 0)

    def append_without_xid(self, payload: bytes) -> None:
        """A content message of a stream block: ``messages.without_xid`` of it."""
        byteops.put_framed(self.data, payload, 1, 5)

    def within(self, commit_lsn: LSN) -> None:
        if self.first_commit_lsn is None:
            self.first_commit_lsn = commit_lsn
        self.last_commit_lsn = commit_lsn

    def count(self) -> None:
        if self.run:
            # Taken out and put back, so that the description used last comes last.
            self.rows[self.number] = self.rows.pop(self.number, 0) + self.run
            self.run = 0

    def entry(self, offset: int) -> Block:
        self.count()
        return Block(
            offset=offset,
            length=len(self.data),
            checksum=segment_format.checksum(self.data),
            descriptions=tuple(self.needed),
            rows=self.rows,
            continuation=self.continuation,
            first_commit_lsn=self.first_commit_lsn,
            last_commit_lsn=self.last_commit_lsn,
            last_end_lsn=self.last_end_lsn,
        )


class _Descriptions:
    """The descriptions of a segment, each once, however often the server sent it, and the types they lean on."""

    def __init__(self) -> None:
        self.all: list[Description] = []
        self.types: dict[int, TypeInfo] = {}
        self._numbers: dict[Description, int] = {}
        self._known: dict[Relation, int] = {}
        self._typed: set[Relation] = set()
        self._last: Types | None = None

    def number(self, relation: Relation, types: Types | None) -> int:
        """The number of ``relation``; with ``types``, what is known of its columns' types is kept too."""
        number = self._known.get(relation)
        if number is None:
            number = self._known[relation] = self._describe(relation)
        if types is not None and relation not in self._typed:
            self._typed.add(relation)
            self._gather((column.type_oid for column in relation.columns), types)
        return number

    def _describe(self, relation: Relation) -> int:
        description = Description(
            without_xid(relation.payload, relation.xid),
            tuple(without_xid(described.payload, described.xid) for described in relation.types),
        )
        number = self._numbers.get(description)
        if number is None:
            number = self._numbers[description] = len(self.all)
            self.all.append(description)
        return number

    def redefined(self, types: Types) -> bool:
        """Whether one of the types is another one there."""
        if types is self._last:
            return False
        self._last = types
        return any(types.info(oid) not in (None, info) for oid, info in self.types.items())

    def _gather(self, oids: Iterable[int], types: Types) -> None:
        """Keep what is known of types that are not built in, down to what they are made of."""
        pending = list(oids)
        seen: set[int] = set()
        while pending:
            oid = pending.pop()
            info = None if oid in BUILTIN or oid in seen else types.info(oid)
            seen.add(oid)
            if info is not None:
                self.types[oid] = info
                pending += [info.element, *(part for _, part in info.fields)]
