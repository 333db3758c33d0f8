"""Collects events into objects: which object an event belongs to, and when an object is closed. Pure.

An object contains consecutive events of one partition. A transaction that comes in slices is collected separately until its
last slice, because an entry of the manifest must list whole transactions only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Final

from aiorepl import LSN, Batch, Change, Message, RowChange, SchemaChange, Slice, TableRows, Truncate

Identity = tuple[LSN, int]
"""Commit LSN and ordinal."""

# The overhead of a chunk in memory.
_CHUNK_OVERHEAD: Final = 128


@dataclass(frozen=True, slots=True)
class Partition:
    """A table, and the day of the commit in UTC. Logical decoding messages have one partition, without table and day."""

    schema: str | None = None
    table: str | None = None
    date: str | None = None


@dataclass(slots=True)
class Piece:
    """Consecutive encoded events of one partition: an object, or a part of one.

    :param shape: pieces of different shapes need separate objects.
    :param chunks: bytes, or their extents in the spool.
    :param size: the bytes of all chunks.
    :ivar memory_bytes: the bytes of the chunks in memory.
    :ivar path: the object's name; set when the object is closed.
    :ivar written: the object's size in bytes; set when the object is written.
    """

    partition: Partition
    shape: Any
    chunks: list[Any] = field(repr=False)
    size: int
    events: int
    first: Identity
    last: Identity
    memory_bytes: int = field(init=False)
    path: str = ""
    written: int | None = None

    def __post_init__(self) -> None:
        self.memory_bytes = self.size + _CHUNK_OVERHEAD * len(self.chunks)

    def extend(self, other: Piece) -> None:
        """Append the events that follow."""
        self.chunks += other.chunks
        self.size += other.size
        self.memory_bytes += other.memory_bytes
        self.events += other.events
        self.last = other.last


@dataclass(frozen=True, slots=True)
class Step:
    """Consecutive slices of a batch.

    :param whole: whether the slices are whole transactions; otherwise they are slices of one transaction larger than a batch.
    :param end_lsn: the end LSN of the last complete transaction; ``None`` if the transaction continues.
    """

    whole: bool
    slices: Sequence[Slice]
    end_lsn: LSN | None


def steps(batch: Batch) -> Iterator[Step]:
    """Split a batch into runs of whole transactions, and slices of transactions that are larger than a batch."""
    if batch.rejection is not None:
        # Replayed dead letters count as whole: the rest of their transactions does not follow.
        yield Step(True, batch.slices, batch.end_lsn)
        return
    units = ((whole, list(unit)) for whole, unit in map(_with_whole, batch.transactions()))
    for whole, run in groupby(units, key=lambda unit: unit[0]):
        if whole:
            slices = list(chain.from_iterable(unit for _, unit in run))
            yield Step(True, slices, Batch(slices).end_lsn)
        else:
            for _, unit in run:
                yield Step(False, unit, unit[-1].end_lsn)


def _with_whole(unit: list[Slice]) -> tuple[bool, list[Slice]]:
    """Return whether a transaction's slices are the whole transaction, and the slices."""
    return unit[0].transaction is None or (unit[0].first and unit[-1].last), unit


def partitioned(slices: Iterable[Slice]) -> list[tuple[Partition, Sequence[Change]]]:
    """Group changes by partition, in order. A truncate becomes one for each of its tables.

    A slice of a snapshot has rows of one table only, so its rows are grouped without looking at each.
    """
    groups: list[tuple[Partition, Sequence[Change]]] = []
    for copied, run in groupby(slices, key=lambda part: isinstance(part.changes, TableRows)):
        if not copied:
            groups += _partitioned(run).items()
            continue
        for part in run:
            rows = part.changes
            if isinstance(rows, TableRows) and rows:
                relation = rows.layout.relation
                groups.append((Partition(relation.schema, relation.name, _date(part)), rows))
    return groups


def _partitioned(slices: Iterable[Slice]) -> dict[Partition, list[Change]]:
    found: dict[Partition, list[Change]] = {}
    for part in slices:
        # Keyed by relation, not by name: hashing two names for each row would cost more than everything else here.
        by_relation: dict[int, list[Change]] = {}
        for change in part.changes:
            if isinstance(change, (RowChange, SchemaChange)):
                changes = by_relation.get(id(change.relation))
                if changes is None:
                    partition = Partition(change.schema, change.table, _date(part))
                    changes = by_relation[id(change.relation)] = found.setdefault(partition, [])
                changes.append(change)
            elif isinstance(change, Truncate):
                for relation in change.relations:
                    alone = change.message._replace(relations=(relation,))
                    one = Truncate(change.transaction, change.ordinal, alone)
                    partition = Partition(relation.schema, relation.name, _date(part))
                    found.setdefault(partition, []).append(one)
            else:
                found.setdefault(Partition(), []).append(change)
    return found


def identity(change: Change) -> Identity:
    """Return a change's identity, which sorts in commit order."""
    if change.transaction is not None:
        return change.transaction.commit_lsn, change.ordinal
    assert isinstance(change, Message)
    return change.lsn, 0


def _date(part: Slice) -> str:
    assert part.transaction is not None
    return part.transaction.commit_time.strftime("%Y-%m-%d")


class _Group:
    """Unfinished objects, open or closed, that are listed together."""

    def __init__(self) -> None:
        self.open: dict[Partition, Piece] = {}
        self.closed: list[Piece] = []
        self.size = 0

    def add(self, piece: Piece, limit: int) -> None:
        known = self.open.get(piece.partition)
        if known is not None and known.shape == piece.shape and known.size + piece.size <= limit:
            known.extend(piece)
        else:
            self.close(piece.partition)
            self.open[piece.partition] = piece
        self.size += piece.size

    def close(self, partition: Partition) -> None:
        if partition in self.open:
            self.closed.append(self.open.pop(partition))
            self.size -= self.closed[-1].size


class ObjectBuffer:
    """Unfinished objects.

    :param object_bytes: the largest size of an object.
    :param open_bytes: the largest size of all open objects together; beyond it the largest of them are closed.
    """

    def __init__(self, object_bytes: int, open_bytes: int) -> None:
        self._object_bytes = object_bytes
        self._open_bytes = open_bytes
        self._whole, self._slices = _Group(), _Group()

    def add(self, pieces: Iterable[Piece], *, whole: bool, ended: bool) -> None:
        """Add a step's pieces.

        :param whole: as in ``Step``.
        :param ended: whether these are the last slices of their transaction.
        """
        group = self._whole if whole else self._slices
        for piece in pieces:
            group.add(piece, self._object_bytes)
            self._close_largest()
        if not whole and ended:
            self._join()

    @property
    def closed(self) -> list[Piece]:
        """Closed objects that are not listed yet, written or not."""
        return self._whole.closed + self._slices.closed

    @property
    def unwritten(self) -> list[Piece]:
        """Objects that are not written yet."""
        pieces = (
            piece for group in (self._whole, self._slices) for piece in (*group.closed, *group.open.values())
        )
        return [piece for piece in pieces if piece.written is None]

    @property
    def whole(self) -> list[Piece]:
        """The objects that can be listed: closed, of whole transactions, in order."""
        return sorted(self._whole.closed, key=lambda piece: piece.first)

    def close(self) -> None:
        """Close all objects of whole transactions."""
        for partition in list(self._whole.open):
            self._whole.close(partition)

    def listed(self) -> None:
        """Forget the objects of ``whole``: the manifest lists them now."""
        self._whole.closed = []

    def _join(self) -> None:
        """Move the objects of a transaction's slices to the objects of whole transactions."""
        slices, self._slices = self._slices, _Group()
        for piece in slices.closed:
            self._whole.close(piece.partition)
        self._whole.closed += slices.closed
        for piece in slices.open.values():
            self._whole.add(piece, self._object_bytes)

    def _close_largest(self) -> None:
        """Close the largest objects until the open ones are within their limit."""
        while self._whole.size + self._slices.size > self._open_bytes:
            groups = [group for group in (self._whole, self._slices) if group.open]
            group = max(groups, key=lambda group: group.size)
            group.close(max(group.open.values(), key=lambda piece: piece.size).partition)
