"""Slices into batches: whole transactions, unless one is larger than a batch may be. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aiorepl.errors import ConfigurationError
from aiorepl.sink import Batch
from aiorepl.transactions.transaction import Slice


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How much a sink gets at once, and how long accepted data may stay unflushed.

    :param max_bytes: size of a full batch, in bytes; a larger transaction is delivered in slices.
    :param max_rows: largest number of changes in a batch; a larger transaction is delivered in slices. ``None``: no limit.
    :param linger: how long a batch that is not full waits for more changes, in seconds; 0 writes what is there.
    :param flush_bytes: flush when this many bytes were accepted since the last flush.
    :param flush_seconds: flush at the latest this many seconds after the first unflushed batch was accepted.
    :raises ConfigurationError: a value is out of range.
    """

    max_bytes: int = 1024 * 1024
    max_rows: int | None = None
    linger: float = 0.0
    flush_bytes: int = 64 * 1024 * 1024
    flush_seconds: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_rows", "flush_bytes"):
            amount = getattr(self, name)
            if amount is not None and amount < 1:
                raise ConfigurationError(f"batches: {name} is at least 1")
        for name in ("linger", "flush_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(f"batches: {name} is in seconds, 0 or more")


class Batcher:
    """Gathers slices until a batch is ready.

    :param limit: the bytes at which a batch is full.
    :param rows: the changes that it has at most.
    """

    def __init__(self, limit: int, rows: int | None = None) -> None:
        self._limit = limit
        self._rows = rows
        self._whole: list[Slice] = []
        self._part: list[Slice] = []
        self._size = 0
        self._part_size = 0
        self._count = 0
        self._part_count = 0
        # Of every piece that was not counted by ``spent``, whether the slice it was cut from ends with it.
        self._ends: deque[bool] = deque()

    def add(self, part: Slice) -> None:
        """The next slice of the stream."""
        if self._rows is None:
            self._part.append(part)
        else:
            pieces = list(_pieces(part, self._rows))
            self._part += pieces
            self._ends.extend(piece is pieces[-1] for piece in pieces)
            self._part_count += len(part.changes)
        self._part_size += part.size
        if part.last:
            self._whole += self._part
            self._size += self._part_size
            self._count += self._part_count
            self._part, self._part_size, self._part_count = [], 0, 0

    @property
    def full(self) -> bool:
        """Whether to take a batch before adding more."""
        if self._size + self._part_size >= self._limit:
            return True
        return self._rows is not None and (
            self._count >= self._rows or self._count + self._part_count > self._rows
        )

    @property
    def ready(self) -> bool:
        """Whether there is a whole transaction to be taken."""
        return bool(self._whole)

    @property
    def under_way(self) -> bool:
        """Whether there is a part of a transaction whose end has not come."""
        return bool(self._part)

    def take(self) -> Batch | None:
        """What makes a batch now, or ``None``: a transaction that may yet fit is waited for."""
        if self._whole:
            ready, self._whole = self._split(self._whole)
            self._size -= ready.size
            self._count -= 0 if self._rows is None else len(ready)
            return ready
        if not self._part:
            return None
        over = self._rows is not None and self._part_count > self._rows
        return self.take_part() if over or self._part_size >= self._limit else None

    def take_part(self) -> Batch:
        """The transaction under way, as far as it has come."""
        ready, self._part = self._split(self._part)
        self._part_size -= ready.size
        self._part_count -= 0 if self._rows is None else len(ready)
        return ready

    def spent(self, batch: Batch) -> int:
        """How many of the slices that were added are done with once ``batch``, the next that was taken, is written."""
        pieces = len(batch.slices)
        return pieces if self._rows is None else sum(self._ends.popleft() for _ in range(pieces))

    def _split(self, parts: list[Slice]) -> tuple[Batch, list[Slice]]:
        fitting = len(parts) if self._rows is None else _fitting(parts, self._rows)
        return Batch(tuple(parts[:fitting])), parts[fitting:]


def _fitting(parts: Sequence[Slice], rows: int) -> int:
    """How many of these make a batch: those of whole transactions, or of the first what fits if that is larger."""
    count = whole = 0
    for place, part in enumerate(parts):
        count += len(part.changes)
        if count > rows:
            return whole or place
        if part.last:
            whole = place + 1
    return len(parts)


def _pieces(part: Slice, rows: int) -> Iterator[Slice]:
    """A slice cut into pieces of as many changes, and what ends with it at the end of the last."""
    count = len(part.changes)
    if count <= rows:
        yield part
        return
    changes = list(part.changes)  # read once, if they are on disk
    share = part.size // count
    for begin in range(0, count - rows, rows):
        yield Slice(
            part.transaction, changes[begin : begin + rows], part.first and not begin, None, share * rows
        )
    begin = (count - 1) // rows * rows
    yield Slice(
        part.transaction, changes[begin:], False, part.end_lsn, part.size - share * begin, part.two_phase
    )
