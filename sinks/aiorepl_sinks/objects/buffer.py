"""Events on their way into objects: which object each belongs to, and when an object is closed. Pure.

An object holds consecutive events of one partition. A transaction that comes in slices is gathered apart, and joins the
others when its last slice has come: what is whole can be listed at any time, what is not must not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Final

from aiorepl import LSN, Batch, Change, Message, RowChange, SchemaChange, Slice, Truncate

Identity = tuple[LSN, int]
"""Commit LSN and ordinal."""

# What a chunk takes beside its bytes.
_CHUNK_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class Partition:
    """Where an event belongs: a table and the day of the commit in UTC; messages have neither."""

    schema: str | None = None
    table: str | None = None
    date: str | None = None


@dataclass(slots=True)
class Piece:
    """Consecutive events of one partition, encoded.

    :param shape: pieces of different shapes do not go into one object.
    :param chunks: bytes, or where they lie in the spool.
    :param size: how many they are.
    """

    partition: Partition
    shape: Any
    chunks: list[Any] = field(repr=False)
    size: int
    events: int
    first: Identity
    last: Identity
    held: int = field(init=False)
    """How much of it is in memory."""
    path: str = ""
    """Of an object that is closed, its name once it has one."""
    written: int | None = None
    """Of an object that was written, its size."""

    def __post_init__(self) -> None:
        self.held = self.size + _CHUNK_BYTES * len(self.chunks)

    def extend(self, other: Piece) -> None:
        """Append what follows."""
        self.chunks += other.chunks
        self.size += other.size
        self.held += other.held
        self.events += other.events
        self.last = other.last


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of a batch.

    :param whole: whether these are whole transactions, or a part of one that is larger than a batch.
    :param end_lsn: up to where everything is complete behind them; ``None`` while a transaction is under way.
    """

    whole: bool
    slices: Sequence[Slice]
    end_lsn: LSN | None


def steps(batch: Batch) -> Iterator[Step]:
    """The batch in stretches of whole transactions, and parts."""
    if batch.rejection is not None:
        # Dead letters: whatever there is of a transaction is all that will come.
        yield Step(True, batch.slices, batch.end_lsn)
        return
    units = ((whole, list(unit)) for whole, unit in map(_judged, batch.transactions()))
    for whole, run in groupby(units, key=lambda unit: unit[0]):
        if whole:
            slices = list(chain.from_iterable(unit for _, unit in run))
            yield Step(True, slices, Batch(slices).end_lsn)
        else:
            for _, unit in run:
                yield Step(False, unit, unit[-1].end_lsn)


def _judged(unit: list[Slice]) -> tuple[bool, list[Slice]]:
    return unit[0].transaction is None or (unit[0].first and unit[-1].last), unit


def partitioned(slices: Iterable[Slice]) -> dict[Partition, list[Change]]:
    """The changes by where they belong, in order. A truncate is one for each of its tables."""
    found: dict[Partition, list[Change]] = {}
    for part in slices:
        # Tables by their description and not by name: hashing two names a row costs more than all the rest here.
        here: dict[int, list[Change]] = {}
        for change in part.changes:
            if isinstance(change, (RowChange, SchemaChange)):
                changes = here.get(id(change.relation))
                if changes is None:
                    partition = Partition(change.schema, change.table, _date(part))
                    changes = here[id(change.relation)] = found.setdefault(partition, [])
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
    """What tells a change from all others, and sorts."""
    if change.transaction is not None:
        return change.transaction.commit_lsn, change.ordinal
    assert isinstance(change, Message)
    return change.lsn, 0


def _date(part: Slice) -> str:
    assert part.transaction is not None
    return part.transaction.commit_time.strftime("%Y-%m-%d")


class _Group:
    """Objects that are listed together."""

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


class Gathering:
    """Objects in the making.

    :param object_bytes: an object is closed before it becomes larger than this.
    :param open_bytes: the largest are closed early when all that are open together become larger than this.
    """

    def __init__(self, object_bytes: int, open_bytes: int) -> None:
        self._object_bytes = object_bytes
        self._open_bytes = open_bytes
        self._whole, self._part = _Group(), _Group()

    def add(self, pieces: Iterable[Piece], *, whole: bool, ended: bool) -> None:
        """Take in a step's pieces.

        :param ended: whether a transaction in parts is complete with them.
        """
        group = self._whole if whole else self._part
        for piece in pieces:
            group.add(piece, self._object_bytes)
            self._relieve()
        if not whole and ended:
            self._join()

    @property
    def closed(self) -> list[Piece]:
        """Closed objects that were not listed yet, in memory or written."""
        return self._whole.closed + self._part.closed

    @property
    def unwritten(self) -> list[Piece]:
        """Objects that were not written yet."""
        pieces = (
            piece for group in (self._whole, self._part) for piece in (*group.closed, *group.open.values())
        )
        return [piece for piece in pieces if piece.written is None]

    @property
    def whole(self) -> list[Piece]:
        """What can be listed: closed objects of whole transactions, in order."""
        return sorted(self._whole.closed, key=lambda piece: piece.first)

    def close(self) -> None:
        """Close all objects of whole transactions."""
        for partition in list(self._whole.open):
            self._whole.close(partition)

    def listed(self) -> None:
        """``whole`` was: forget it."""
        self._whole.closed = []

    def _join(self) -> None:
        """The transaction in parts is whole."""
        part, self._part = self._part, _Group()
        for piece in part.closed:
            self._whole.close(piece.partition)
        self._whole.closed += part.closed
        for piece in part.open.values():
            self._whole.add(piece, self._object_bytes)

    def _relieve(self) -> None:
        while self._whole.size + self._part.size > self._open_bytes:
            groups = [group for group in (self._whole, self._part) if group.open]
            group = max(groups, key=lambda group: group.size)
            group.close(max(group.open.values(), key=lambda piece: piece.size).partition)
