"""The changes of a transaction in the spool: chunks that decode alone, and sequences that read them when iterated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

from aiorepl import byteops
from aiorepl.errors import SpoolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.framing import unframed
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.pgoutput.rows import RowMessage
from aiorepl.transactions import changes as c
from aiorepl.transactions.changes import row_change
from aiorepl.transactions.lazy_changes import LayoutOf, LazyChanges
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.spool import Extent
from aiorepl.transactions.transaction import Transaction

_XID_BYTES: Final = slice(1, 5)
_CONTENT: Final = frozenset(b"IUDTM")
_MESSAGE: Final = ord("M")
# A chunk of more bytes has a large row. Its changes are kept for all sinks, because each sink would otherwise read a copy of the
# row.
_LARGE_CHUNK: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Chunk:
    """Part of a transaction's content in the spool.

    It holds the descriptions that its rows need, so that it decodes alone.

    :param xid: the toplevel xid if the changes were streamed, else ``None``.
    :param first: the ordinal of the first change.
    :param count: the number of changes.
    :param size: bytes of the changes as the budgets count them.
    :param low, high: the smallest and the largest subxid that may begin in this chunk, as distances from the toplevel
        xid; subxids in between may or may not begin here.
    :param reach: the largest ``high`` of this chunk and all earlier ones.
    :param relations: the tables whose rows the chunk may contain.
    """

    xid: int | None
    first: int
    count: int
    extent: Extent
    size: int
    low: int
    high: int
    reach: int
    relations: tuple[Relation, ...]

    def truncate(self, subxid: int, overhead: int) -> int | None:
        """Drop everything from the first change of a subtransaction on.

        :param overhead: bytes that a change costs beside its message.
        :returns: the number of changes left; ``None`` if the subtransaction has no change here. With 0 left, the caller
            drops the chunk.
        :raises SpoolError: the chunk cannot be read back.
        """
        sought = subxid.to_bytes(4, "big")
        data = self.extent.read()
        count, at, size = 0, 0, 0
        for payload in unframed(data):
            if payload[0] in _CONTENT:
                if count == self.count:
                    break
                if payload[_XID_BYTES] == sought:
                    if count:
                        self.count, self.size = count, size
                        self.extent.shorten(data[:at])
                    return count
                count += 1
                size += len(payload) + overhead
            at += 4 + len(payload)
        return None

    def ends_with_message(self) -> bool:
        """Whether the last change is a logical message.

        :raises SpoolError: the chunk cannot be read back.
        """
        kinds = [payload[0] for payload in unframed(self.extent.read()) if payload[0] in _CONTENT]
        return kinds[self.count - 1] == _MESSAGE


class SpooledChanges(LazyChanges):
    """Changes that each iteration reads from the spool. They are kept in memory only if the chunk has a large row."""

    __slots__ = ("_chunk", "_kept", "_layout_of", "_skip", "_stop", "_transaction")

    def __init__(
        self, chunk: Chunk, transaction: Transaction, layout_of: LayoutOf, skip: int, stop: int | None = None
    ) -> None:
        self._chunk = chunk
        self._transaction = transaction
        self._layout_of = layout_of
        self._skip = skip
        self._stop = chunk.count if stop is None else stop
        self._kept: list[c.Change] | None = None

    @property
    def first_ordinal(self) -> int:
        """The ordinal of the first change; the others follow without a gap."""
        return self._chunk.first + self._skip

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The tables that may have rows among the changes."""
        return self._chunk.relations

    def by(self, layout_of: LayoutOf) -> SpooledChanges:
        """Return the same changes with other layouts."""
        return SpooledChanges(self._chunk, self._transaction, layout_of, self._skip, self._stop)

    def __len__(self) -> int:
        return self._stop - self._skip

    def __iter__(self) -> Iterator[c.Change]:
        return iter(self._read(self._skip, self._stop))

    @overload
    def __getitem__(self, index: int) -> c.Change: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[c.Change]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and 0 <= index < len(self):
            # Do not build the other changes.
            return self._read(self._skip + index, self._skip + index + 1)[0]
        if isinstance(index, slice) and index.step is None:
            # The changes are read when they are iterated.
            start, stop, _ = index.indices(len(self))
            skip = self._skip + start
            end = max(skip, self._skip + stop)
            return SpooledChanges(self._chunk, self._transaction, self._layout_of, skip, end)
        return list(self)[index]

    def _read(self, start: int, stop: int) -> list[c.Change]:
        """The changes of the chunk from number ``start`` to before ``stop``."""
        if self._chunk.size <= _LARGE_CHUNK:
            return self._decode(start, stop)
        if self._kept is None:
            self._kept = self._decode(self._skip, self._stop)
        return self._kept[start - self._skip : stop - self._skip]

    def _decode(self, start: int, stop: int) -> list[c.Change]:
        chunk = self._chunk
        data = chunk.extent.read()
        decoder = Decoder()
        # Only the relations that the stream has described have the catalog's attributes.
        described: dict[bytes, Relation | None] = {}
        for relation in chunk.relations:
            payload = m.without_xid(relation.payload, relation.xid)
            # Two relations with one payload differ in their attributes: a column was dropped and created again.
            described[payload] = None if payload in described else relation

        def layout_of(relation: Relation) -> Layout:
            return self._layout_of(described.get(m.without_xid(relation.payload, relation.xid)) or relation)

        if chunk.xid is not None:
            decoder.streaming = Streaming.ON
            decoder.decode(b"S" + chunk.xid.to_bytes(4, "big") + b"\x01")
        return decode_changes(
            data,
            decoder,
            self._transaction,
            layout_of,
            chunk.first,
            chunk.first + start,
            chunk.first + stop,
        )

    def __repr__(self) -> str:
        return f"<{len(self)} spooled changes>"


def decode_changes(
    data: bytes,
    decoder: Decoder,
    transaction: Transaction,
    layout_of: LayoutOf,
    ordinal: int,
    start: int,
    stop: int,
) -> list[c.Change]:
    """Decode the changes of a chunk with ordinals from ``start`` to before ``stop``.

    Returns a list, because a chunk is small and a generator would double the cost.

    :param ordinal: the ordinal of the first change in ``data``.
    :raises SpoolError: the chunk does not hold these changes.
    """
    changes: list[c.Change] = []
    layouts: dict[int, Layout] = {}
    relation: Any = None
    layout: Any = None
    octets: Any = data  # a pointer in the compiled form
    at, size = 0, len(data)
    while at < size and ordinal < stop:
        begin = at + 4
        at = begin + byteops.uint32(octets, at) if begin <= size else size + 1
        if at > size:
            break
        message = decoder.decode(byteops.cut(octets, begin, at))
        if isinstance(message, RowMessage):
            row = message  # typed for the compiled form
            if row.relation is not relation:
                relation = row.relation
                layout = layouts[id(relation)]
            if ordinal >= start:
                changes.append(row_change(transaction, ordinal, layout, row))
            ordinal += 1
        elif isinstance(message, Relation):
            layouts[id(message)] = layout_of(message)
        elif isinstance(message, (m.Truncate, m.Message)):
            if ordinal >= start:
                changes.append(c.change_of(transaction, ordinal, message, layout_of))
            ordinal += 1
    if ordinal != stop:
        raise SpoolError("the spool does not contain what was written to it")
    return changes


def descriptions(message: c.Content, known: set[int], xid: int | None) -> list[bytes]:
    """Return the Relation and Type messages that a message needs, as sent within a stream block of ``xid``.

    :param known: ids of the relations that the chunk describes already; the new ones are added.
    """
    if isinstance(message, m.Truncate):
        relations: tuple[Relation, ...] = message.relations
    else:
        relations = () if isinstance(message, m.Message) else (message.relation,)
    parts: list[bytes] = []
    for relation in relations:
        if id(relation) not in known:
            known.add(id(relation))
            needed: tuple[Relation | Type, ...] = (*relation.types, relation)
            for described in needed:
                plain = m.without_xid(described.payload, described.xid)
                parts.append(plain if xid is None else plain[:1] + xid.to_bytes(4, "big") + plain[1:])
    return parts
